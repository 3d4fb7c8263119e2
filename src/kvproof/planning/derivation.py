"""Derivation: the figures of a plan's rows as terms, with their numbers put in."""

from __future__ import annotations

from collections.abc import Sequence

from kvproof.engine.base import Capacity
from kvproof.engine.drafts import DraftCache
from kvproof.engine.fit import fit_term
from kvproof.kinds import Types
from kvproof.model.types import Model
from kvproof.terms import Term
from kvproof.timing.step import StepTime

_SLOTS = "slots of the model"


def token_term(model: Model, types: Types, draft: DraftCache | None) -> Term:
    """What a token takes in all slots that grow with it."""
    sizes: dict[tuple[str, int], int] = {}
    for slot in model.slots:
        if slot.kind != "cross" and slot.entry_bytes(types):
            key = (slot.kind, slot.entry_bytes(types))
            sizes[key] = sizes.get(key, 0) + 1
    parts = [f"{count} {kind} x {each:,} B" for (kind, each), count in sizes.items()]
    value = sum(each * count for (_, each), count in sizes.items())
    if draft is not None:
        parts.append(f"{draft.bytes_per_token:,} B of the draft")
        value += draft.bytes_per_token
    formula = f"{' + '.join(parts) or '0'} = {value:,} B"
    return Term(name="bytes per token", value=value, unit="B/token", formula=formula, source=_SLOTS)


def sequence_term(parts: Sequence[tuple[str, int]], drafted: int) -> Term:
    """What a sequence takes: `parts` are (kind, bytes) of each slot."""
    sums: dict[str, list[int]] = {}
    for kind, size in parts:
        sums.setdefault(kind, []).append(size)
    words = [_alike(kind, sizes) for kind, sizes in sums.items() if any(sizes)]
    words += [f"{drafted:,} B of the draft"] if drafted else []
    value = sum(size for _, size in parts) + drafted
    formula = f"{' + '.join(words) or '0'} = {value:,} B"
    return Term(name="per sequence", value=value, unit="B", formula=formula, source=_SLOTS)


def _alike(kind: str, sizes: list[int]) -> str:
    if len(set(sizes)) == 1:
        return f"{len(sizes)} {kind} x {sizes[0]:,} B"
    return f"{len(sizes)} {kind} together {sum(sizes):,} B"


def fit_terms(
    capacity: Capacity, context: int, longest: int | None, copies: tuple[int, int]
) -> tuple[Term, ...]:
    """Sequences that fit, and those of all `copies` (replicas, copies of the attention)."""
    own = fit_term(capacity, context, longest)
    replicas, attention = copies
    if replicas * attention == 1:
        return (own,)
    value = int(own.value) * replicas * attention
    formula = f"{own.value:,} x {replicas} replicas x {attention} copies of the attention"
    return (own, Term(name="fit on all", value=value, unit="sequence",
                      formula=f"{formula} = {value:,}", source=own.source))  # fmt: skip


def pace_terms(step: StepTime, copies: int) -> tuple[Term, ...]:
    """A step's figures that follow from its terms: its share of cache, its time, its tokens."""
    each, whole = step.tokens_per_second_per_user, step.tokens_per_second * copies
    slower = f"max({step.bandwidth_seconds:.4g} s of reading, {step.compute_seconds:.4g} s)"
    share = f"{step.kv_bytes:,} B of {step.bytes:,} B"
    many = f" x {copies} copies" if copies > 1 else ""
    source = "the terms above"
    return (
        Term(name="KV share", value=step.kv_share, unit="1",
             formula=f"{share} = {100 * step.kv_share:.0f} %", source=source),
        Term(name="step", value=step.seconds, unit="s",
             formula=f"{slower} = {step.seconds:.4g} s: {step.limit}", source=source),
        Term(name="tokens/s of a user", value=each, unit="token/s",
             formula=f"1 / {step.seconds:.4g} s = {each:,.1f}", source=source),
        Term(name="tokens/s of all", value=whole, unit="token/s",
             formula=f"{step.batch:,} sequences x {each:,.1f}{many} = {whole:,.0f}",
             source=source),
    )  # fmt: skip
