"""What `kvproof check --learn` gains, shown on the gathered logs out of sample."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import fit_vllm_budget as fits
import log_points as logs
from accuracy_text import gpu_of, percent, table

from kvproof.engine.vllm.rank_weights import rank_weights
from kvproof.observe.store import Start, fit

GIB = logs.GIB


def starts_of(rows: list[Any], constants: dict[str, Any], scale: float) -> list[tuple[Any, Start]]:
    """The rows as the store would keep them, predicted with `constants`."""
    out = []
    for row, error, half in fits.predict(rows, constants):
        printed = row.point.observed["available_kv_memory_gib"]
        seen = row.point.observed.get("weights_gib")
        weights = rank_weights(row.point.model(), row.settings).total
        start = Start(
            engine="vllm",
            version=row.point.version or "",
            gpu=gpu_of(row),
            ranks=row.settings.ranks,
            model=row.point.name,
            flags=row.point.flags,
            predicted=round((printed + error) * GIB),
            printed=round(printed * GIB),
            half=round(half * scale * GIB),
            weights=weights,
            terms={"weights": seen * GIB} if seen else {},
        )
        out.append((row, start))
    return out


_Errors = list[tuple[str, str, float, float]]


def learned_section(rows: list[Any], scale: float) -> str:
    """Before and after learning on GPUs that the constants have not seen."""
    others, single, again = _studies(rows, scale)
    head = ["GPU", "cases", "median error", "learned", "mean error", "learned", "better", "worse"]
    body = [_learned_row(gpu, [o for o in others if o[0] == gpu]) for gpu in _gpus(others)]
    return "\n\n".join(
        [
            "## What `kvproof check --learn` gains",
            "For each GPU, vLLM's constants are fitted without any of its points; each model's "
            "memory is then predicted bare, and with the overheads learned from all starts of the "
            "*other* models on that GPU (a case is a model).",
            table(head, [*body, _learned_row("all", others)]),
            "With one start of the same model under other flags on that GPU (a case is a model):",
            table(head, [_learned_row("all", again)]),
            "With the starts of one other model alone (a case is a pair of models):",
            table(head, [_learned_row("all", single)]),
            "So one start of a model settles its other deployments; across models, two or more are "
            "needed before what they share stands out from what each takes for itself.",
        ]
    )


def _studies(rows: list[Any], scale: float) -> tuple[_Errors, _Errors, _Errors]:
    counted = [row for row in rows if fits.counts_for(row)]
    others: _Errors = []
    single: _Errors = []
    again: _Errors = []
    for gpu in sorted({gpu_of(row) for row in counted}):
        own = [row for row in counted if gpu_of(row) == gpu]
        models = sorted({row.point.name for row in own})
        if len(models) < 2:
            continue
        fitted = fits.fit([row for row in rows if gpu_of(row) != gpu])
        starts = [start for _, start in starts_of(own, fitted, scale)]
        others += _learned(starts, gpu, _other_models)
        again += _learned(starts, gpu, _other_flags)
        for name in models:
            kept = [start for start in starts if start.model == name]
            single += _learned(starts, gpu, lambda _, t, kept=kept: [k for k in kept if k.model != t.model])  # fmt: skip # noqa: E501
    return others, single, again


def _other_models(starts: list[Start], target: Start) -> list[Start]:
    return [start for start in starts if start.model != target.model]


def _other_flags(starts: list[Start], target: Start) -> list[Start]:
    same = [start for start in starts if start.model == target.model]
    return [start for start in same if start.flags != target.flags][:1]


def _gpus(found: list[tuple[str, str, float, float]]) -> list[str]:
    return sorted({gpu for gpu, *_ in found})


def _learned(
    starts: list[Start], gpu: str, choose: Callable[[list[Start], Start], list[Start]]
) -> list[tuple[str, str, float, float]]:
    """(GPU, model, median error bare, median error corrected) of each model."""
    errors: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for target in starts:
        known = fit(choose(starts, target), target.model)
        if known is None:
            continue
        after = target.predicted + known.kv_bytes - target.printed
        errors[target.model].append((abs(target.gap) / target.printed, abs(after) / target.printed))
    return [
        (gpu, model, statistics.median(a for a, _ in own), statistics.median(b for _, b in own))
        for model, own in errors.items()
    ]


def _learned_row(name: str, found: list[tuple[str, str, float, float]]) -> list[str]:
    before, after = [f[2] for f in found], [f[3] for f in found]
    return [name, str(len(found)), percent(statistics.median(before)),
            percent(statistics.median(after)), percent(statistics.mean(before)),
            percent(statistics.mean(after)),
            str(sum(b < a - 1e-9 for a, b in zip(before, after, strict=True))),
            str(sum(b > a + 1e-9 for a, b in zip(before, after, strict=True)))]  # fmt: skip
