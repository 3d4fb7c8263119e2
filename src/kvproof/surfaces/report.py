"""A check's report as text and as JSON."""

from __future__ import annotations

from typing import Any

from kvproof.observe.check import Report
from kvproof.observe.compare import Comparison
from kvproof.observe.figures import Figure
from kvproof.surfaces.text import counted, heading, paint, table
from kvproof.units import show_seconds

_LABELS = {
    "available_kv_memory": "memory for the cache",
    "kv_cache_tokens": "tokens in the cache",
    "num_blocks": "blocks",
    "max_concurrency": "concurrency",
    "weights": "weights",
    "peak_activation": "activations",
    "cuda_graph_estimated": "CUDA graphs",
    "non_torch": "context, communicators",
    "total_gpu_memory": "the GPU's memory",
    "attention_block_size": "tokens a block",
    "tokens_per_block": "tokens a block",
    "scheduler_block_size": "tokens a block",
    "state_pool": "state pool",
    "compute_buffer": "compute buffer",
}


_STYLES = {"ok": "green", "wide": "yellow", "off": "red"}


def report_text(report: Report) -> str:
    """The report for a terminal: what was read, the table, what is off, what to change."""
    log = report.log
    head = f"{log.program} {log.version or '(version unknown)'}"
    where = "on a CPU" if log.on_cpu else report.gpu or "GPU unknown"
    about = [report.model or "model unknown", where]
    parts = [f"{heading(head)}\n  " + ", ".join(about) + f"; {counted(log.lines, 'line')} read"]
    if report.rows:
        parts.append(f"{heading('Printed against predicted')}\n{comparisons(report.rows)}")
    if report.ledger:
        parts.append(f"{heading('The log against itself')}\n{comparisons(report.ledger)}")
    if not report.rows:
        parts.append(f"{heading('Printed')}\n{_figures(report)}")
    parts += [
        listed("Assumed", report.assumptions),
        listed("Does not fit", log.problems[:3], "red"),
    ]
    parts.append(listed("What to change", report.advice))
    parts.append(verdict(report))
    return "\n\n".join(part for part in parts if part)


def comparisons(rows: tuple[Comparison, ...], word: str = "printed") -> str:
    """Each figure predicted and as the engine gave it (`word`), the difference and its cause."""
    head = ["figure", "predicted", word, "difference", "", "because"]
    body = [
        [
            _LABELS.get(row.name, row.name.replace("_", " ")),
            _show(row.predicted, row.unit),
            _show(row.printed, row.unit),
            _difference(row),
            paint(row.verdict, _STYLES[row.verdict]),
            _because(row),
        ]
        for row in rows
    ]
    return table(head, body, prose=True)


def _difference(row: Comparison) -> str:
    """The difference as a share of what is printed; as a ratio where that is less than half."""
    if row.relative is None or row.printed < 0:
        return "-"
    if row.relative < -1:
        return f"{row.printed / row.predicted:.2g} x"
    return f"{row.relative * 100:+.2f} %"


def _because(row: Comparison) -> str:
    """What explains a difference worth a word."""
    if row.verdict == "wide":
        wide = f"inside, but the interval is wide (±{100 * (row.half_width or 0):.0f} %)"
        return f"{wide}: {row.cause}" if row.cause else wide
    return row.cause if not row.ok or abs(row.relative or 0) > 0.01 else ""


def _figures(report: Report) -> str:
    rows = [[f.name.replace("_", " "), _text(f), str(f.line)] for f in report.log.figures[:40]]
    return table(["figure", "printed", "line"], rows)


def _text(figure: Figure) -> str:
    """As it stood in the log; a size whose unit stood elsewhere in the line with that unit."""
    bare = figure.unit == "B" and not any(sign.isalpha() for sign in figure.text)
    return _show(figure.value, "B") if bare else figure.text


def _show(value: float, unit: str) -> str:
    if unit == "B":
        return f"{value / 2**30:.2f} GiB" if abs(value) >= 2**30 else f"{value / 2**20:.2f} MiB"
    if unit == "s":
        return show_seconds(value)
    if unit == "x":
        return f"{value:.2f}x"
    return f"{value:,.0f}" if unit in ("token", "block", "sequence") else f"{value:,.4g}"


def listed(title: str, lines: tuple[str, ...], style: str | None = None) -> str:
    """A titled list; nothing when it is empty."""
    if not lines:
        return ""
    shown = "\n".join(f"  {line[:400]}" for line in lines)
    return f"{heading(title)}\n{paint(shown, style) if style else shown}"


def verdict(report: Report, word: str = "printed") -> str:
    """The last line: what is off, or that nothing is."""
    if report.off:
        names = ", ".join(_LABELS.get(row.name, row.name) for row in report.off)
        return paint(f"Off: {names}", "red")
    if not report.fits:
        return paint("The log says that it does not fit.", "red")
    if not report.rows and report.context_unknown:
        return "Nothing was predicted: the log does not state num_ctx."
    if not report.rows:
        return "Nothing was predicted: name the model and the GPU."
    return paint(f"Every {word} figure that was compared lies where it was predicted.", "green")


def report_result(report: Report) -> dict[str, Any]:
    """The report under its Python names, each row with what follows from it."""
    log = report.log
    return {
        "ok": report.ok,
        "fits": report.fits,
        "engine": report.engine,
        "program": log.program,
        "version": log.version,
        "model": report.model,
        "gpu": report.gpu,
        "rows": [_row(row) for row in report.rows],
        "ledger": [_row(row) for row in report.ledger],
        "advice": report.advice,
        "problems": log.problems,
        "flags": log.flags,
        "observed": log.observed,
        "figures": log.figures,
        "terms": report.terms,
    }


def _row(row: Comparison) -> dict[str, Any]:
    shown = {name: getattr(row, name) for name in row.__struct_fields__}
    return {
        **shown,
        "difference": row.difference,
        "relative": row.relative,
        "ok": row.ok,
        "verdict": row.verdict,
    }
