"""learn: a report's observed start, for the store."""

from __future__ import annotations

from kvproof.engine.overheads import OUTSIDE, doubt_of
from kvproof.errors import UsageError
from kvproof.observe.check import Report
from kvproof.observe.deploy import ranks_of
from kvproof.observe.explain import printed_term
from kvproof.observe.store import DOUBT, ESTIMATED, Start

_TERMS = ("weights", "peak_activation", "non_torch", "cuda_graph", "cuda_graph_estimated",
          "consumed", "total_gpu_memory", "free_memory")  # fmt: skip


def start_of(report: Report) -> Start:
    """The start that the report's log describes, with what was predicted for it.

    Raises UsageError where the log prints no memory for the cache or nothing predicts it.
    """
    row = next((r for r in report.rows if r.name == "available_kv_memory"), None)
    if row is None or report.gpu is None or report.model is None:
        raise UsageError(
            "nothing to learn: the log needs a known model and GPU and the memory for the cache",
            hint="give --model and --gpu",
        )
    log = report.log
    weights = next((int(r.predicted) for r in report.rows if r.name == "weights"), 0)
    estimated = [t for t in report.terms if not t.exact and t.name not in OUTSIDE]
    found = {name: printed_term(log, name) for name in _TERMS}
    return Start(
        engine=log.engine,
        version=log.version or "",
        since="" if log.version else log.wording.since or "",
        until="" if log.version else log.wording.until or "",
        gpu=report.gpu.split("x", 1)[-1] if report.gpu[0].isdigit() else report.gpu,
        ranks=ranks_of(log),
        model=report.model,
        flags=dict(log.flags),
        predicted=int(row.predicted),
        printed=int(row.printed),
        half=max(0, int((row.high - row.low) / 2)),
        weights=weights,
        terms={
            **{name: float(figure.value) for name, figure in found.items() if figure is not None},
            **{ESTIMATED + t.name: float(t.value) for t in estimated},
            **{DOUBT + t.name: doubt_of(t) for t in estimated},
        },
    )
