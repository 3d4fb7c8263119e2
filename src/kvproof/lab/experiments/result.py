"""Experiment: what a run predicted, what it measured, and the chart of both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

Cell = str | int | float | None


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """A prediction beside its measurement. `tolerance` 0 means they must be equal."""

    name: str
    predicted: float
    measured: float
    unit: str = "B"
    tolerance: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether the measurement is the prediction, within the relative tolerance."""
        return abs(self.measured - self.predicted) <= self.tolerance * abs(self.predicted)


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

    def records(self) -> list[dict[str, Cell]]:
        """The rows as dictionaries by column."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


def lines(
    records: Sequence[dict[str, Any]],
    x: str,
    y: str,
    colour: str | None = None,
    *,
    log: bool = False,
) -> dict[str, Any]:
    """A line chart of `y` against `x`, one line for each value of `colour`."""
    axis: dict[str, Any] = {"field": x, "type": "quantitative", "title": x}
    if log:
        axis["scale"] = {"type": "log", "base": 2}
    encoding: dict[str, Any] = {"x": axis, "y": {"field": y, "type": "quantitative", "title": y}}
    if colour:
        encoding["color"] = {"field": colour, "type": "nominal", "title": colour}
    mark = {"type": "line", "point": True, "tooltip": True, "strokeWidth": 2.5}
    return _framed(records, mark, encoding)


def bars(
    records: Sequence[dict[str, Any]], x: str, y: str, colour: str | None = None
) -> dict[str, Any]:
    """Horizontal bars of `y` for each `x`, side by side for each value of `colour`."""
    encoding: dict[str, Any] = {
        "y": {"field": x, "type": "nominal", "title": None, "sort": None},
        "x": {"field": y, "type": "quantitative", "title": y},
    }
    if colour:
        encoding["color"] = {"field": colour, "type": "nominal", "title": colour}
        encoding["yOffset"] = {"field": colour}
    return _framed(records, {"type": "bar", "tooltip": True}, encoding)


def _framed(
    records: Sequence[dict[str, Any]], mark: dict[str, Any], encoding: dict[str, Any]
) -> dict[str, Any]:
    size = {"width": 560, "height": 300}
    return {**size, "data": {"values": list(records)}, "mark": mark, "encoding": encoding}
