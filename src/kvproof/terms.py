"""Term: one shown figure that can explain itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

Unit = Literal[
    "B", "B/token", "token", "s", "1", "FLOP", "B/s", "FLOP/s", "param", "sequence", "token/s"
]


class Term(msgspec.Struct, frozen=True, kw_only=True):
    """A named figure: its value, unit, the formula with the numbers put in, and its source.

    `low` and `high` bound an estimated value; both are None where the figure is exact.
    """

    name: str
    value: int | float
    unit: Unit
    formula: str
    source: str
    low: int | float | None = None
    high: int | float | None = None

    @property
    def exact(self) -> bool:
        """True when the value is a consequence of the inputs and not an estimate."""
        return self.low is None and self.high is None


def device_of(term: Term) -> str:
    """The device a term belongs to, by its name's end: "host", "GPU 1"; "" where all are alike."""
    end = term.name.rpartition(", ")[2]
    return end if end == "host" or (end.startswith("GPU ") and end[4:].isdigit()) else ""


def total(terms: Iterable[Term]) -> int | float:
    """The sum of the terms' values."""
    return sum(term.value for term in terms)
