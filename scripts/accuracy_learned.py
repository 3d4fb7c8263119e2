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
from kvproof.observe.store import ESTIMATED, Start, adjusted_kv, fit

GIB = logs.GIB


def starts_of(rows: list[Any], constants: dict[str, Any], scale: float) -> list[tuple[Any, Start]]:
    """The rows as the store would keep them, predicted with `constants`."""
    out = []
    estimates = fits.estimates(rows, constants)
    for row, error, half in fits.predict(rows, constants):
        printed = row.point.observed["available_kv_memory_gib"]
        seen = row.point.observed.get("weights_gib")
        weights = rank_weights(row.point.model(), row.settings).total
        terms = {"weights": seen * GIB} if seen else {}
        printed_of = row.point.observed
        terms |= {
            name: printed_of[f"{name}_gib"] * GIB
            for name in ("peak_activation", "cuda_graph_estimated")
            if printed_of.get(f"{name}_gib") is not None
        }
        terms |= {ESTIMATED + name: value for name, value in estimates[id(row)].items()}
        start = Start(
            engine="vllm",
            version=row.point.release or row.point.version or "",
            gpu=gpu_of(row),
            ranks=row.settings.ranks,
            model=row.point.name,
            flags=row.point.flags,
            predicted=round((printed + error) * GIB),
            printed=round(printed * GIB),
            half=round(half * scale * GIB),
            weights=weights,
            terms=terms,
        )
        out.append((row, start))
    return out


_Errors = list[tuple[str, str, float, float]]


def learned_section(rows: list[Any], scale: float) -> str:
    """Before and after learning on GPUs that the constants have not seen."""
    others, single, again, alone = _studies(rows, scale)
    houses = _houses(rows, scale)
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
            "With a single start of one other model (a case is a pair of models; each start of the "
            "one by itself, the median over them and over the other's starts):",
            table(
                head,
                [
                    *(_learned_row(g, [o for o in alone if o[0] == g]) for g in _gpus(alone)),
                    _learned_row("all", alone),
                ],
            ),
            "With all starts of one other model:",
            table(
                head,
                [
                    *(_learned_row(g, [o for o in single if o[0] == g]) for g in _gpus(single)),
                    _learned_row("all", single),
                ],
            ),
            "Where both models were started by the same operator, and where not:",
            table(head, [_learned_row(name, found) for name, found in houses]),
            _SO,
        ]
    )


_SO = """So one start of a model settles its other deployments. A start of another model helps more
often than it harms, but by little: mean and median over pairs do not fall. What is left once the
constants are fitted is mostly not the GPU's. Beyond the weights, the models that one operator
started on H200 lie from 5.5 GiB below the estimate (DeepSeek-R1, 0.11.0) to 5.1 GiB above it
(DeepSeek-V4-Pro), the others within 1.3 GiB without a common sign; DeepSeek-R1 alone moves by
1.5 GiB and back from release to release (0.11.2 to 0.16). Posts of one GPU by different people
share no host, and seldom say batch, release or what else ran: H100 and RTX 3090, where learning
harms, are such. What does carry over: the size of the communication term, a vendor's build of a
release (3.3 to 4.5 GiB between 0.11.0 and 0.11.0+rhai5), and what a platform adds to all weights
(1 to 2 % on MI300X).

The rule (`kvproof.observe.shared`) takes the expectation of the shared part under prior widths. Of
ten settings of the widths, the one in use has, for seven of the eight GPUs, the best count of
better less worse on the seven others (for H200, one without the constant and the activations has).
How fast a start that lies far out loses its say was chosen of three settings with these pairs in
sight; the others gave much the same. A printed peak or graph
estimate takes that part out of a start's gap, as weights do; but twelve of the 185 points print
a peak, and none of those on H200 and MI300X. A gain in the median
from one start of another model is not to be had from these logs: it would take several models on
one host, with the terms printed."""


def _houses(rows: list[Any], scale: float) -> list[tuple[str, _Errors]]:
    """Pairs of models by whether one operator started both."""
    out: list[tuple[str, _Errors]] = [("one operator", []), ("several", [])]
    counted = [row for row in rows if fits.counts_for(row)]
    for gpu in sorted({gpu_of(row) for row in counted}):
        own = [row for row in counted if gpu_of(row) == gpu]
        fitted = fits.fit([row for row in rows if gpu_of(row) != gpu])
        pairs = starts_of(own, fitted, scale)
        served = [start for row, start in pairs if row.point.id.startswith("srv-")]
        posted = [start for row, start in pairs if not row.point.id.startswith("srv-")]
        sides = ((0, served, served), (1, posted, posted), (1, served, posted), (1, posted, served))
        for house, sources, targets in sides:
            for name in sorted({start.model for start in sources}):
                kept = [start for start in sources if start.model == name]
                others = [start for start in targets if start.model != name]
                out[house][1].extend(_learned(others, gpu, lambda _, __, kept=kept: kept))
    return out


def _studies(rows: list[Any], scale: float) -> tuple[_Errors, _Errors, _Errors, _Errors]:
    counted = [row for row in rows if fits.counts_for(row)]
    others: _Errors = []
    single: _Errors = []
    again: _Errors = []
    alone: _Errors = []
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
            alone += _alone(starts, gpu, kept)
            single += _learned(starts, gpu, lambda _, t, kept=kept: [k for k in kept if k.model != t.model])  # fmt: skip # noqa: E501
    return others, single, again, alone


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
        known = fit(choose(starts, target), target.model, target.version)
        if known is None:
            continue
        after = adjusted_kv(target, known) - target.printed
        errors[target.model].append((abs(target.gap) / target.printed, abs(after) / target.printed))
    return [
        (gpu, model, statistics.median(a for a, _ in own), statistics.median(b for _, b in own))
        for model, own in errors.items()
    ]


def _alone(starts: list[Start], gpu: str, sources: list[Start]) -> _Errors:
    """As `_learned`, with each of one model's starts by itself."""
    errors: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for source in sources:
        for target in starts:
            known = fit([source], target.model, target.version)
            if target.model == source.model or known is None:
                continue
            after = adjusted_kv(target, known) - target.printed
            before = abs(target.gap) / target.printed
            errors[target.model].append((before, abs(after) / target.printed))
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
