"""Overheads: what starts of an engine on one GPU were observed to take beyond its estimate.

A value that is handed to whoever makes a budget; where it was learned is not this room's
business (kvproof.observe.store).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import msgspec

from kvproof.engine.base import Budget
from kvproof.terms import Term

_OF = {"encoder weights": "weights"}
"""Terms that go by another's ratio."""
OUTSIDE = ("CUDA context", "KV cache")
"""Estimated terms that are no part of what an engine charges its cache with."""
_SHOWN, _SHOWN_SHIFT = 0.0005, 0.01
"""From where on a factor and a shift are worth a word."""
DEVIATION = 1 / 1.645
"""A standard deviation, as part of a doubt: intervals are to hold 90 %, 1.645 to each side."""
TELLING = 0.2
"""What is shared moves another deployment from this part of its standard deviation on."""
LEARNED = "learned overhead"
"""The term of what learned starts took beyond the estimate; below 0 where they took less."""
_LEAST = 2**20
"""Bytes from which on a budget is moved."""
_ALIKE = 0.01
"""Share by which estimates of one deployment's terms may differ, and GiB."""


class Own(msgspec.Struct, frozen=True, kw_only=True):
    """What one start taught of its own deployment: the model under its release, ranks and batch.

    `terms` are its estimated terms in bytes, by which the deployment is known again; `more` bytes
    it takes, and `shifts` GiB for each GiB of a term's doubt.
    """

    terms: Mapping[str, float]
    more: float
    shifts: Mapping[str, float]

    def matches(self, terms: Mapping[str, Term]) -> bool:
        """Whether `terms` of a budget are those of this deployment."""
        return alike(
            self.terms,
            {name: float(term.value) for name, term in terms.items()
             if name in self.terms or not term.exact},
        )  # fmt: skip


def alike(a: Mapping[str, float], b: Mapping[str, float], *, gib: float = 2.0**30) -> bool:
    """Whether two starts have the same estimated terms: same ranks, batch and parts.

    `gib`: a GiB in the unit of the terms.
    """
    return all(
        math.isclose(a.get(n, 0.0), b.get(n, 0.0), rel_tol=_ALIKE, abs_tol=_ALIKE * gib)
        for n in {*a, *b}
    )


class Overheads(msgspec.Struct, frozen=True, kw_only=True):
    """Correction of the cache's memory, learned from `starts` starts on one GPU.

    `kv_bytes` is added to the estimate (negative: something takes more than estimated); a term of
    `ratios` takes that share of itself more, one of `shifts` that share of its own doubt. `own` is
    what starts of the same deployment taught beyond that; `spread` is how far they lay from each
    other, None when there were too few to say. `unnamed` bytes are in doubt that no term names.
    """

    engine: str
    gpu: str
    starts: int
    models: int
    kv_bytes: int
    spread: int | None = None
    ratios: Mapping[str, float] = {}
    shifts: Mapping[str, float] = {}
    own: tuple[Own, ...] = ()
    unnamed: int = 0

    def moved(self, terms: Iterable[Term]) -> int:
        """Bytes that the cache beside `terms` changes by.

        What is only shared moves nothing where it is small beside what stays in doubt: then it
        would lead away about as often as nearer.
        """
        named = {term.name: term for term in terms if term.name not in OUTSIDE}
        more = sum(
            self.ratios.get(_OF.get(name, name), 0.0) * term.value for name, term in named.items()
        )
        matching = self.matching(named.values())
        shared = -self.kv_bytes + sum(
            self.shifts.get(name, 0.0) * doubt_of(term) for name, term in named.items()
        )
        doubt = math.hypot(self.unnamed, *(doubt_of(term) for term in named.values()))
        if matching or abs(shared) >= TELLING * DEVIATION * doubt:
            more += shared
        for own in matching:
            more += own.more
            more += sum(
                shift * doubt_of(named[name]) for name, shift in own.shifts.items() if name in named
            )
        return round(-more)

    def matching(self, terms: Iterable[Term]) -> tuple[Own, ...]:
        """What starts of the deployment with `terms` taught."""
        named = {term.name: term for term in terms if term.name not in OUTSIDE}
        return tuple(own for own in self.own if own.matches(named))

    @property
    def note(self) -> str:
        """One line that says that learned figures are used."""
        return f"{self._source}: {self._parts(self.own)}"

    def note_of(self, terms: Iterable[Term]) -> str:
        """The same of the cache beside `terms`: by how much it moves in all, and through what."""
        terms = tuple(terms)
        moved, parts = self.moved(terms), self._parts(self.matching(terms))
        return f"{self._source}: {moved / 2**30:+.2f} GiB for this cache ({parts})"

    @property
    def _source(self) -> str:
        return (
            f"overheads learned from {self.starts} start(s) of {self.models} model(s) of "
            f"{self.engine} on {self.gpu}"
        )

    def _parts(self, own: tuple[Own, ...]) -> str:
        factors = "".join(
            f", {name} x {1 + ratio:.3f}"
            for name, ratio in sorted(self.ratios.items())
            if abs(ratio) >= _SHOWN
        )
        shifts = "".join(
            f", {name} {shift:+.0%} of its doubt"
            for name, shift in sorted(self.shifts.items())
            if abs(shift) >= _SHOWN_SHIFT
        )
        alone = f"; the rest by {len(own)} start(s) of this model and release" if own else ""
        return f"{self.kv_bytes / 2**30:+.2f} GiB for any model's{factors}{shifts}{alone}"


def doubt_of(term: Term) -> float:
    """By how much a term may take more than estimated; 0 where it is exact."""
    return 0.0 if term.high is None else float(term.high - term.value)


def learned_note(terms: Iterable[Term]) -> str | None:
    """What the learned term among a budget's says; None where nothing was moved."""
    return next((str(term.formula) for term in terms if term.name == LEARNED), None)


def adjusted(budget: Budget, overheads: Overheads) -> Budget:
    """`budget` with the learned difference as a term of its own; terms still add up.

    Less than 1 MiB moves nothing. The interval moves along, and narrows to the spread of what was
    observed when that is known and smaller.
    """
    if not overheads.starts or budget.kv_bytes <= 0:
        return budget
    if abs(overheads.moved(budget.terms)) < _LEAST:
        return budget
    kv = max(0, budget.kv_bytes + overheads.moved(budget.terms))
    moved = kv - budget.kv_bytes
    low, high = (max(0, end + moved) for end in budget.interval)
    if overheads.spread is not None and overheads.matching(budget.terms):
        low, high = max(low, kv - overheads.spread), min(high, kv + overheads.spread)
    interval = (min(low, kv), max(high, kv))
    last = _last(budget).name
    terms = [_replaced(term, kv, interval) if term.name == last else term for term in budget.terms]
    terms.append(
        Term(
            name=LEARNED,
            value=-moved,
            unit="B",
            formula=overheads.note_of(budget.terms),
            source="kvproof check --learn",
        )
    )
    return Budget(kv_bytes=kv, interval=interval, terms=tuple(terms))


def _last(budget: Budget) -> Term:
    """The term of the cache itself: the one whose value is kv_bytes, looked for from the end."""
    found = [term for term in budget.terms if term.value == budget.kv_bytes]
    return found[-1] if found else budget.terms[-1]


def _replaced(term: Term, kv: int, interval: tuple[int, int]) -> Term:
    """The cache's term as learned; bounded as the budget is, where it was bounded."""
    low, high = (None, None) if term.exact else interval
    learned = f"{term.formula}, then as learned = {kv:,} B"
    return msgspec.structs.replace(term, value=kv, low=low, high=high, formula=learned)
