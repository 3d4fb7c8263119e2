"""Experiment: what a run predicted, what it measured, and the chart of both."""

from __future__ import annotations

from typing import Any

import msgspec

Cell = str | int | float | None


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """A prediction beside its measurement, and why they differ where they do.

    `tolerance` 0 means they must be equal, a share how far they may be apart. None marks an
    estimate: times against a roofline, which are shown with their ratio and judged by nobody.
    `listed` False: the experiment's own table shows both figures already.
    """

    name: str
    predicted: float
    measured: float
    unit: str = "B"
    tolerance: float | None = 0.0
    because: str = ""
    listed: bool = True

    @property
    def ratio(self) -> float | None:
        """Measured over predicted; None where nothing was predicted to be there."""
        return self.measured / self.predicted if self.predicted else None

    @property
    def holds(self) -> bool:
        """Whether the measurement is the prediction, within the tolerance."""
        if self.tolerance is None:
            return True
        return abs(self.measured - self.predicted) <= self.tolerance * abs(self.predicted)

    @property
    def reason(self) -> str:
        """`because`, or what it means that a time lies below its bound."""
        if self.tolerance is None and self.unit == "ms" and self.measured < self.predicted:
            return "below the bound: the machine was busier while the ceiling was measured"
        return self.because

    @property
    def verdict(self) -> str:
        """One word or two: equal, within the tolerance, an estimate, or DIFFERS."""
        if self.predicted == self.measured:
            return "equal"
        if self.tolerance is None:
            return "estimate"
        return f"within {100 * self.tolerance:g} %" if self.holds else "DIFFERS"


class Experiment(msgspec.Struct, frozen=True, kw_only=True):
    """One experiment's answer: rows of a table, checks, and a Vega-Lite chart without its title."""

    name: str
    title: str
    question: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    checks: tuple[Check, ...] = ()
    chart: dict[str, Any] = {}
    notes: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether every check holds."""
        return all(check.holds for check in self.checks)

    @property
    def verdict(self) -> str:
        """How many predictions were judged, and how they came out."""
        judged = [check for check in self.checks if check.tolerance is not None]
        wrong = [check.name for check in judged if not check.holds]
        estimates = len(self.checks) - len(judged)
        word = "estimate" if estimates == 1 else "estimates"
        beside = f"; {estimates} {word} beside them" if estimates else ""
        if wrong:
            return f"{len(wrong)} of {len(judged)} predictions DIFFER: {', '.join(wrong)}{beside}"
        return f"All {len(judged)} predictions hold{beside}."

    def records(self) -> list[dict[str, Cell]]:
        """The rows as dictionaries by column."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


def rounded(value: float, digits: int = 3) -> float:
    """`value` to `digits` significant digits, as tables show measurements."""
    return float(f"{value:.{digits}g}")
