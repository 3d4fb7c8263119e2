"""Overheads: what starts of an engine on one GPU were observed to take beyond its estimate.

A value that is handed to whoever makes a budget; where it was learned is not this room's
business (kvproof.observe.store).
"""

from __future__ import annotations

import msgspec

from kvproof.engine.base import Budget
from kvproof.terms import Term


class Overheads(msgspec.Struct, frozen=True, kw_only=True):
    """Correction of the cache's memory, learned from `starts` starts of other deployments.

    `kv_bytes` is added to the estimate (negative: something takes more than estimated);
    `spread` is how far single starts lay from it, None when there were too few to say.
    """

    engine: str
    gpu: str
    starts: int
    models: int
    kv_bytes: int
    spread: int | None = None

    @property
    def note(self) -> str:
        """One line that says that learned figures are used."""
        return (
            f"overheads learned from {self.starts} start(s) of {self.models} model(s) of "
            f"{self.engine} on {self.gpu}: {self.kv_bytes / 2**30:+.2f} GiB for the cache"
        )


def adjusted(budget: Budget, overheads: Overheads) -> Budget:
    """`budget` with the learned difference as a term of its own; terms still add up.

    The interval moves along, and narrows to the spread of what was observed when that is known
    and smaller.
    """
    if not overheads.starts or budget.kv_bytes <= 0:
        return budget
    kv = max(0, budget.kv_bytes + overheads.kv_bytes)
    moved = kv - budget.kv_bytes
    low, high = (max(0, end + moved) for end in budget.interval)
    if overheads.spread is not None:
        low, high = max(low, kv - overheads.spread), min(high, kv + overheads.spread)
    terms = [
        term if term.name != _last(budget).name else _replaced(term, kv) for term in budget.terms
    ]
    terms.append(
        Term(
            name="learned overhead",
            value=-moved,
            unit="B",
            formula=overheads.note,
            source="kvproof check --learn",
        )
    )
    return Budget(kv_bytes=kv, interval=(min(low, kv), max(high, kv)), terms=tuple(terms))


def _last(budget: Budget) -> Term:
    """The term of the cache itself: the one whose value is kv_bytes, looked for from the end."""
    found = [term for term in budget.terms if term.value == budget.kv_bytes]
    return found[-1] if found else budget.terms[-1]


def _replaced(term: Term, kv: int) -> Term:
    return msgspec.structs.replace(
        term, value=kv, low=None, high=None, formula=f"{term.formula}, then as learned = {kv:,} B"
    )
