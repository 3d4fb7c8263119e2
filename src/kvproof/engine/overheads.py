"""Overheads: what starts of an engine on one GPU were observed to take beyond its estimate.

A value that is handed to whoever makes a budget; where it was learned is not this room's
business (kvproof.observe.store).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from kvproof.engine.base import Budget
from kvproof.terms import Term

_OF = {"encoder weights": "weights"}
"""Terms that go by another's ratio."""


class Overheads(msgspec.Struct, frozen=True, kw_only=True):
    """Correction of the cache's memory, learned from `starts` starts of other deployments.

    `kv_bytes` is added to the estimate (negative: something takes more than estimated), and each
    term of `ratios` takes that share more than its own estimate;
    `spread` is how far single starts lay from it, None when there were too few to say.
    """

    engine: str
    gpu: str
    starts: int
    models: int
    kv_bytes: int
    spread: int | None = None
    ratios: Mapping[str, float] = {}

    def moved(self, budget: Budget) -> int:
        """Bytes that the cache of `budget` changes by."""
        more = sum(
            self.ratios.get(_OF.get(term.name, term.name), 0.0) * term.value
            for term in budget.terms
        )
        return round(self.kv_bytes - more)

    @property
    def note(self) -> str:
        """One line that says that learned figures are used."""
        factors = "".join(
            f", {name} x {1 + ratio:.3f}"
            for name, ratio in sorted(self.ratios.items())
            if abs(ratio) >= 0.0005
        )
        return (
            f"overheads learned from {self.starts} start(s) of {self.models} model(s) of "
            f"{self.engine} on {self.gpu}: {self.kv_bytes / 2**30:+.2f} GiB for the cache{factors}"
        )


def adjusted(budget: Budget, overheads: Overheads) -> Budget:
    """`budget` with the learned difference as a term of its own; terms still add up.

    The interval moves along, and narrows to the spread of what was observed when that is known
    and smaller.
    """
    if not overheads.starts or budget.kv_bytes <= 0:
        return budget
    kv = max(0, budget.kv_bytes + overheads.moved(budget))
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
