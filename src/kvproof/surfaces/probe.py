"""A probe's answer as text and as JSON: check's report, with what the server does now."""

from __future__ import annotations

from typing import Any

from kvproof.observe.probing.live import Live
from kvproof.observe.probing.probe import Probe
from kvproof.surfaces.report import comparisons, listed, report_result, verdict
from kvproof.surfaces.text import heading, table
from kvproof.units import show_bytes, show_seconds


def probe_text(found: Probe) -> str:
    """The answer for a terminal: who answered, the comparison, what follows, the state."""
    report, log = found.report, found.report.log
    head = f"{log.program} {log.version or '(version unknown)'} at {found.url}"
    about = [report.model or "model unknown", report.gpu or "GPU unknown"]
    parts = [f"{heading(head)}\n  {', '.join(about)}; read {' '.join(found.answered)}"]
    if report.rows:
        title = heading("Predicted against reported")
        parts.append(f"{title}\n{comparisons(report.rows, 'reported')}")
    known = {row.name for row in report.rows}
    rest = [[f.name.replace("_", " "), f.text] for f in log.figures if f.name not in known]
    if rest:
        parts.append(f"{heading('Reported')}\n{table(['figure', 'reported'], rest[:40])}")
    if found.derived:
        rows = [[t.name, show_bytes(t.value), t.formula] for t in found.derived]
        parts.append(f"{heading('What follows')}\n{table(['', 'size', 'by'], rows)}")
    parts += [_live(found.live), listed("Assumed", report.assumptions)]
    nothing = "Nothing was predicted: name the model (--model) and the GPU (--gpu)."
    parts.append(verdict(report, "reported") if report.rows else nothing)
    return "\n\n".join(part for part in parts if part)


def _live(live: Live) -> str:
    """Queues, usage and latencies in a few lines; nothing where the server tells nothing."""
    said = [
        _count("running", live.running),
        _count("waiting", live.waiting),
        _count("preempted since the start", live.preemptions),
        f"{100 * live.usage:.1f} % of the cache held" if live.usage is not None else "",
    ]
    rate = live.prefix_hit_rate
    asked = f" of {live.queried_tokens:,} tokens" if live.queried_tokens else ""
    said.append(f"{100 * rate:.1f} %{asked} found in the prefix cache" if rate is not None else "")
    lines = ["  " + "; ".join(part for part in said if part)] if any(said) else []
    rows = [
        [found.name, f"{found.count:,}", show_seconds(found.mean), _seconds(found.p50),
         _seconds(found.p99)]
        for found in live.latencies
    ]  # fmt: skip
    if rows:
        lines.append(table(["since the start", "requests or tokens", "mean", "p50", "p99"], rows))
    return "\n".join([heading("Now"), *lines]) if lines else ""


def _count(name: str, value: int | None) -> str:
    return "" if value is None else f"{value:,} {name}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else show_seconds(value)


def probe_result(found: Probe) -> dict[str, Any]:
    """The answer under its Python names; check's keys are check's own."""
    return {
        "url": found.url,
        "answered": found.answered,
        **report_result(found.report),
        "derived": found.derived,
        "live": {name: getattr(found.live, name) for name in found.live.__struct_fields__}
        | {"prefix_hit_rate": found.live.prefix_hit_rate},
    }
