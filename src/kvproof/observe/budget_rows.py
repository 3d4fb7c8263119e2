"""What is predicted before anything runs: the budget's terms beside what was printed for them."""

from __future__ import annotations

import msgspec

from kvproof.engine.base import Budget
from kvproof.hardware import Accelerator
from kvproof.observe.capacity_rows import printed_pool
from kvproof.observe.compare import Comparison, compared
from kvproof.observe.explain import WORDS, in_words, printed_term, shares, term_of
from kvproof.observe.figures import Figure, Log
from kvproof.terms import Term
from kvproof.units import GIB

# What a term without an interval may differ by: loaders' buffers, padding, repacked layouts.
_LOOSE, _WORKSPACE = 0.03, 64 * 2**20
_RANKS = (2, 4, 8, 16)
_HINTS = {
    "weights": "loaders' buffers, padding, or stored in other types than described",
    "peak_activation": "another batch (max_num_batched_tokens, max_num_seqs) than assumed",
    "cuda_graph_estimated": "other capture sizes than assumed",
    "non_torch": "other processes at the start, or libraries' workspaces",
    "state_pool": "another number of states than assumed",
}


def reported(card: Accelerator, total: Figure | None) -> Accelerator:
    """The GPU as the driver of the log reports it, where that is one of its known totals."""
    if total is None or not card.other_memory_bytes:
        return card
    known = (card.memory_bytes, *card.other_memory_bytes)
    nearest = min(known, key=lambda size: abs(size - total.value))
    return msgspec.structs.replace(card, memory_bytes=nearest, other_memory_bytes=())


def budget_rows(
    log: Log, budget: Budget, memory: int | None, others: tuple[int, ...] = ()
) -> list[Comparison]:
    """The GPU's memory, each term, and what was left for the cache.

    `others` is what other drivers report of the GPU's memory.
    """
    rows = []
    total = log.get("total_gpu_memory")
    if total is not None and memory is not None:
        totals = (memory, *others)
        low, high = 0.99 * min(totals), 1.01 * max(totals)
        cause = "another GPU than assumed, or a slice of it"
        rows.append(compared(total, memory, low=low, high=high, exact=False, cause=cause))
    for name in ("weights", "peak_activation", "cuda_graph_estimated", "non_torch"):
        figure, term = printed_term(log, name), term_of(budget, name, log)
        if figure is not None and term is not None:
            rows.append(_term_row(figure, term))
    state, term = state_pool(log), term_of(budget, "state_pool")
    if state is not None and term is not None:
        rows.append(_term_row(state, term))
    pool = printed_pool(log)
    if pool is not None:
        figure = Figure(
            name="available_kv_memory",
            value=pool.value,
            unit="B",
            step=pool.high - pool.low,
            text="",
            line=pool.line,
        )
        rows.append(_pool_row(log, figure, budget, memory))
    return rows


def _pool_row(log: Log, figure: Figure, budget: Budget, memory: int | None) -> Comparison:
    low, high = budget.interval
    gap = figure.value - budget.kv_bytes
    small = abs(gap) <= max(0.005 * abs(figure.value), figure.step)
    found = () if small else shares(log, budget, gap, memory)
    return compared(
        figure,
        budget.kv_bytes,
        low=low,
        high=high,
        exact=False,
        cause=in_words(found),
        shares=found,
    )


def state_pool(log: Log) -> Figure | None:
    """SGLang's state pool: its convolution and recurrent parts added up."""
    parts = [log.get(n) for n in ("mamba_conv", "mamba_ssm")]
    given = [part for part in parts if part is not None]
    if len(given) != len(parts):
        return None
    return Figure(
        name="state_pool",
        value=sum(p.value for p in given),
        unit="B",
        step=sum(p.step for p in given),
        text="",
        line=given[0].line,
    )


def _term_row(figure: Figure, term: Term) -> Comparison:
    value, low, high = float(term.value), term.low, term.high
    loose = _LOOSE * value + _WORKSPACE
    return compared(
        figure,
        value,
        low=value - loose if low is None else low,
        high=value + loose if high is None else high,
        exact=False,
        cause=_term_cause(figure, value),
    )


def _term_cause(figure: Figure, predicted: float) -> str:
    gap = figure.value - predicted
    if abs(gap) <= 0.02 * max(abs(figure.value), abs(predicted)):
        return ""
    if figure.name == "weights" and figure.value > 0:
        ranks = next((n for n in _RANKS if abs(predicted / figure.value / n - 1) < 0.1), None)
        if ranks:
            return f"weights of one of {ranks} times the ranks: no flag says so (tensor parallel)"
    word = WORDS.get(figure.name, figure.name)
    return f"{word} {gap / GIB:+.2f} GiB: {_HINTS.get(figure.name, '')}"
