"""Fit: how the figures of a capacity follow from each other, and how many sequences fit, as terms.

Engines say what is theirs in `Capacity.terms`; what they leave out is added here, by the relation
that gives the figure. A relation that does not give it is never shown.
"""

from __future__ import annotations

import math

from kvproof.engine.base import Capacity, Group
from kvproof.terms import Term, Unit

_PLAIN = "bytes of the cache over the bytes of a sequence"
_OWN = "the engine's own figure"

_STATES = ("conv", "recurrent")

_Ways = tuple[tuple[str, float], ...]
"""Relations that may hold: each as it is written, with what it gives."""


def capacity_terms(capacity: Capacity) -> tuple[Term, ...]:
    """Every figure of a capacity: the engine's own terms, then those that follow from them."""
    said = {term.name for term in capacity.terms}
    rows: tuple[tuple[str, float, Unit, _Ways], ...] = (
        ("bytes per block", capacity.bytes_per_block, "B", _block_ways(capacity)),
        ("blocks", capacity.num_blocks, "1", _count_ways(capacity)),
        ("blocks of a request", capacity.blocks_per_sequence, "1", _request_ways(capacity)),
        ("tokens", capacity.tokens, "token", _token_ways(capacity)),
        ("concurrency", capacity.max_concurrency, "sequence", _concurrency_ways(capacity)),
    )
    more = [
        Term(
            name=name,
            value=value,
            unit=unit,
            formula=_written(value, ways),
            source=_source(capacity),
        )
        for name, value, unit, ways in rows
        if name not in said
    ]
    return (*capacity.terms, *more)


def fit_term(capacity: Capacity, context: int, longest: int | None = None) -> Term:
    """How many sequences of `context` tokens run at once; none beyond the `longest` that may."""
    refused = longest is not None and context > longest
    count = 0 if refused else capacity.sequences(context)
    if refused:
        formula = f"{context:,} tokens are beyond the {longest:,} that may run: 0"
    else:
        formula = f"{_shared_out(capacity, context)} = {count:,}"
    return Term(name="fit", value=count, unit="sequence", formula=formula, source=_source(capacity))


def _shared_out(capacity: Capacity, context: int) -> str:
    """What there is, over what a sequence holds of it, and no more than may run."""
    most, held = capacity.max_num_seqs, capacity.blocks_held(context)
    if not held:
        return f"nothing is held, so all that may run: {most or 0:,}"
    if held > capacity.usable_blocks:
        return f"a sequence needs more than the {_usable(capacity)}"
    whole = f"{_usable(capacity)} // {_held(capacity, context, held)}"
    return whole if most is None else f"min({whole}, {most:,} that may run)"


def _usable(capacity: Capacity) -> str:
    usable, kept = capacity.usable_blocks, capacity.num_blocks - capacity.usable_blocks
    if capacity.held_in == "blocks" and kept > 0:
        return f"({capacity.num_blocks:,} - {kept:,} reserved) blocks"
    return f"{usable:,} {capacity.held_in}"


def _held(capacity: Capacity, context: int, held: int) -> str:
    size = capacity.block_size
    if capacity.held_in != "B" and size > 1 and held == -(-context // size):
        return f"{held:,} (ceil({context:,} / {size:,})) of a sequence"
    return f"{held:,} of a sequence"


def _block_ways(capacity: Capacity) -> _Ways:
    """All groups together, or those alone whose blocks become more as a sequence grows."""
    growing = tuple(group for group in capacity.groups if group.kind not in _STATES)
    return _pages(capacity.groups), _pages(growing)


def _pages(groups: tuple[Group, ...]) -> tuple[str, float]:
    parts = [f"{g.layers:,} layers x {g.page_bytes:,} B" for g in groups]
    return " + ".join(parts), sum(group.layers * group.page_bytes for group in groups)


def _count_ways(capacity: Capacity) -> _Ways:
    tokens, size = capacity.tokens, max(1, capacity.block_size)
    size_each = max(1, capacity.bytes_per_block)
    return (
        (f"{tokens:,} tokens // {size:,}", tokens // size),
        (f"{capacity.usable_blocks:,} B // {size_each:,} B", capacity.usable_blocks // size_each),
    )


def _request_ways(capacity: Capacity) -> _Ways:
    length, size = capacity.max_model_len, max(1, capacity.block_size)
    counts = [group.blocks_per_sequence for group in capacity.groups]
    return (
        (f"ceil({length:,} / {size:,})", -(-length // size)),
        (" + ".join(f"{count:,}" for count in counts), sum(counts)),
        (f"{capacity.held_in} that {length:,} tokens hold", capacity.blocks_held(length)),
    )


def _token_ways(capacity: Capacity) -> _Ways:
    blocks, size, length = capacity.num_blocks, capacity.block_size, capacity.max_model_len
    times = capacity.max_concurrency
    return (
        (f"{blocks:,} x {size:,}", blocks * size),
        (f"int({times:.4f} x {length:,})", int(times * length)),
    )


def _concurrency_ways(capacity: Capacity) -> _Ways:
    each, length = max(1, capacity.blocks_per_sequence), max(1, capacity.max_model_len)
    held = max(1, capacity.blocks_held(capacity.max_model_len))
    return (
        (f"{capacity.num_blocks:,} / {each:,}", capacity.num_blocks / each),
        (f"{capacity.tokens:,} / {length:,}", capacity.tokens / length),
        (
            f"{capacity.usable_blocks:,} {capacity.held_in} / {held:,}",
            capacity.usable_blocks / held,
        ),
    )


def _written(value: float, ways: _Ways) -> str:
    """The first relation that gives `value`, with it."""
    shown = f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"
    way = next((words for words, found in ways if math.isclose(found, value)), _OWN)
    return f"{way} = {shown}"


def _source(capacity: Capacity) -> str:
    return capacity.terms[0].source if capacity.terms else _PLAIN
