"""An experiment as text, Markdown and chart: command, pages and notebooks share these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvproof.lab.experiments.result import Check, Experiment
from kvproof.surfaces.charts import base
from kvproof.surfaces.text import heading, paint, table

_HEAD = ("predicted against measured", "predicted", "measured", "unit", "ratio", "", "because")


def experiment_text(result: Experiment) -> str:
    """The experiment for a terminal: question, table, predictions, what to know, the verdict."""
    rows = [[cell(value) for value in row] for row in result.rows]
    parts = [heading(result.title), f"  {result.question}", table(result.columns, rows)]
    checks = _checks(result)
    if checks:
        parts.append(table(_HEAD, checks, prose=True))
    parts += [f"  {note}" for note in result.notes]
    parts.append(paint(result.verdict, "green" if result.holds else "red"))
    return "\n\n".join(parts)


def experiment_markdown(result: Experiment) -> str:
    """The same as Markdown, without the title."""
    rows = [[cell(value) for value in row] for row in result.rows]
    parts = [result.question, _markdown(result.columns, rows)]
    checks = _checks(result)
    if checks:
        parts.append(_markdown(_HEAD, checks))
    return "\n\n".join([*parts, *result.notes, f"**{result.verdict}**"])


def experiment_chart(result: Experiment) -> dict[str, Any]:
    """The chart as a Vega-Lite specification."""
    return base(result.title, result.question, **result.chart)


def cell(value: object) -> str:
    """A value as tables show it."""
    if value is None:
        return "-"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    whole = isinstance(value, int) or (value == int(value) and abs(value) >= 1000)
    return f"{value:,.0f}" if whole else f"{value:g}"


def _checks(result: Experiment) -> list[list[str]]:
    return [_check(check) for check in result.checks if check.listed or not check.holds]


def _check(check: Check) -> list[str]:
    ratio = "-" if check.ratio is None else f"{check.ratio:.3f}"
    return [check.name, cell(check.predicted), cell(check.measured), check.unit, ratio,
            check.verdict, check.reason]  # fmt: skip


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    sides = ["---" if name in ("because", "") else "---:" for name in head[1:]]
    lines = ["| " + " | ".join(head) + " |", "|" + "|".join(["---", *sides]) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


class Table:
    """An experiment's tables, for the end of a notebook's cell."""

    def __init__(self, result: Experiment) -> None:
        self.result = result

    def __repr__(self) -> str:
        return experiment_text(self.result)

    def _repr_markdown_(self) -> str:
        return experiment_markdown(self.result)


class Chart:
    """An experiment's chart, for the end of a cell: SVG where vl-convert is installed."""

    def __init__(self, result: Experiment) -> None:
        self.result = result

    def __repr__(self) -> str:
        return f"chart: {self.result.title}"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        spec = experiment_chart(self.result)
        try:
            import vl_convert
        except ImportError:  # JupyterLab and VS Code draw the specification themselves
            return {"application/vnd.vegalite.v5+json": spec, "text/plain": repr(self)}
        return {"image/svg+xml": str(vl_convert.vegalite_to_svg(spec)), "text/plain": repr(self)}
