"""What `kvproof check --learn` gains, shown on the gathered logs out of sample."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import fit_vllm_budget as fits
import log_points as logs
from accuracy_text import gpu_of, percent, table

from kvproof.engine.vllm.rank_weights import rank_weights
from kvproof.observe.shared import USED, Widths
from kvproof.observe.store import ESTIMATED, Start, adjusted_kv, distinct, fit

GIB = logs.GIB
_HEAD = ["GPU", "cases", "median error", "learned", "mean error", "learned", "better", "worse"]
_NOTHING = 1e-9


@dataclass(frozen=True)
class Case:
    """One thing predicted before and after learning: shares of what was printed."""

    gpu: str
    name: str
    before: float
    after: float


SETTINGS = {
    "in use": USED,
    "half": Widths(constant=0.05, release=0.05, factor=0.075, activation_factor=0.02),
    "twice": Widths(constant=0.2, release=0.2, factor=0.3, activation_factor=0.08, own=0.8),
    "no constant": Widths(constant=0.0, activation_factor=0.0),
    "weights alone": Widths(constant=0.0, release=0.0, factor=0.0, activation_factor=0.0),
    "wide weights": Widths(weights=0.01, own_weights=0.01),
    "wide releases": Widths(release=0.5, own=0.6),
    "communication": Widths(constant=0.0, release=0.0, factor=0.3, activation_factor=0.0),
    "constant alone": Widths(constant=0.2, release=0.0, factor=0.0, activation_factor=0.0),
}
"""Prior widths that are tried: a tested GPU gets those that do best on the other GPUs."""


def starts_of(rows: list[Any], constants: dict[str, Any], scale: float) -> list[tuple[Any, Start]]:
    """The rows as the store would keep them, predicted with `constants`."""
    estimates = fits.estimates(rows, constants)
    return [
        (row, _start(row, error, half * scale, estimates[id(row)]))
        for row, error, half in fits.predict(rows, constants)
    ]


def _start(row: Any, error: float, half: float, estimates: dict[str, float]) -> Start:
    seen = row.point.observed
    printed = seen["available_kv_memory_gib"]
    named = {"weights": "weights_gib"} | {
        name: f"{name}_gib" for name in ("peak_activation", "cuda_graph_estimated")
    }
    terms = {name: seen[key] * GIB for name, key in named.items() if seen.get(key) is not None}
    return Start(
        engine="vllm",
        version=row.point.release or row.point.version or "",
        gpu=gpu_of(row),
        ranks=row.settings.ranks,
        model=row.point.name,
        flags=row.point.flags,
        predicted=round((printed + error) * GIB),
        printed=round(printed * GIB),
        half=round(half * GIB),
        weights=rank_weights(row.point.model(), row.settings).total,
        terms=terms | {ESTIMATED + name: value for name, value in estimates.items()},
    )


def learned_section(rows: list[Any], scale: float) -> str:
    """Before and after learning on GPUs, and of operators, that the constants have not seen."""
    by_gpu = {gpu: _unseen(rows, scale, gpu) for gpu in _gpus(rows)}
    unserved = _unserved(rows, scale)
    tried = {
        name: {gpu: list(_pairs(gpu, own, widths)) for gpu, own in by_gpu.items()}
        for name, widths in SETTINGS.items()
    }
    chosen = {gpu: _chosen(tried, gpu) for gpu in by_gpu}
    nested = [case for gpu in by_gpu for case in tried[chosen[gpu]][gpu]]
    names = sorted({chosen[gpu] for gpu, own in by_gpu.items() if len(_models(own)) > 1})
    pairs = [case for gpu in by_gpu for case in tried["in use"][gpu]]
    return "\n\n".join(
        [
            "## What `kvproof check --learn` gains",
            "The case is a GPU that the shipped constants have not seen: vLLM's constants are "
            "fitted without any of its points, each start is predicted from GPU and flags, and "
            "again with what was learned on that GPU. Starts of one deployment count once.",
            "**One start of the same model under other flags** (a case is a model):",
            _by_gpu(_each(by_gpu, _again), only_all=True),
            "**One start of another model** (a case is a pair of models, the median over both "
            "models' deployments):",
            _by_gpu(pairs),
            "**All starts of all other models** on that GPU (a case is a model):",
            _by_gpu(_each(by_gpu, _others)),
            "**One start, and everything else on that GPU** (a case is a start that calibrates; "
            "its error the median over every other deployment there, of its own model or not):",
            _by_gpu(_each(by_gpu, _rest)),
            "The same, every start and other deployment a case of its own:",
            table(
                ["other deployments", *_HEAD[1:]],
                [
                    _row("all", _each(by_gpu, _pooled)),
                    _row("of its own model", _each(by_gpu, _own)),
                ],
            ),
            *_operator(unserved),
            *_widths(pairs, nested, names),
            _SO,
        ]
    )


def _operator(unserved: dict[str, list[Start]]) -> list[str]:
    """Where neither host nor GPU of an operator is in the fit."""
    return [
        "### An operator that the constants have not seen",
        "The served starts (`srv-`) are one operator's, on three GPUs. Here the constants are "
        "fitted without any of them, so neither host nor GPU of that operator is in the fit.",
        table(
            ["learned from", *_HEAD[1:]],
            [
                _row("same model, other flags", _each(unserved, _again)),
                _row("one start of another model", _each(unserved, _pairs)),
                _row("all other models", _each(unserved, _others)),
                _row("one start, everything else", _each(unserved, _rest)),
                _row("every start and other deployment", _each(unserved, _pooled)),
                _row("those of its own model", _each(unserved, _own)),
            ],
        ),
        "By GPU, with one start of another model:",
        _by_gpu(_each(unserved, _pairs)),
    ]


def _widths(pairs: list[Case], nested: list[Case], names: list[str]) -> list[str]:
    """The prior widths in use beside those that the other GPUs would choose."""
    return [
        "### Prior widths",
        f"The rule (`kvproof.observe.shared`) has prior widths. Of {len(SETTINGS)} settings, "
        "each GPU gets the one with the lowest mean logarithm of learned over bare error on "
        f"the *other* GPUs' pairs of models (chosen: {', '.join(names)}). Against the widths "
        "in use, with one start of another model:",
        table(
            ["widths", *_HEAD[1:]],
            [
                _row("in use", pairs),
                _row("chosen on the other GPUs", nested),
            ],
        ),
    ]


_SO = """What this says, plainly. One calibration settles the same model's other deployments. A
start of *another* model moves the prediction little, and no better in the median: with the GPU,
or the whole operator, left out of the fit, what the constants miss is mostly not the GPU's or the
host's. Beyond the weights, models of one operator on one GPU and release lie on both sides of the
estimate, with no common sign. The gaps of two models on one GPU correlate by 0.1, by 0.35 where
they also share the release (median gaps of pairs, cut at 2 GiB). Choosing the prior widths on
other GPUs does not change that: of 1,500 settings drawn at random (more kinds of terms, heavier
tails), those best on the other GPUs did worse on the tested one than the narrow widths in use.
What does carry over: a release's or a vendor build's constant (3 to 5 GiB at 0.11.0 and
0.13.1.dev8), the size of the communication term, what a platform adds to all weights (1 to 2 % on
MI300X). A printed peak or graph estimate takes that part out of a start's gap, as weights do; but
few of the points print a peak, and none of those on H200 and MI300X."""


def _gpus(rows: Iterable[Any]) -> list[str]:
    return sorted({gpu_of(row) for row in rows if fits.counts_for(row)})


def _unseen(rows: list[Any], scale: float, gpu: str) -> list[Start]:
    """The GPU's deployments under constants fitted without it."""
    own = [row for row in rows if gpu_of(row) == gpu and fits.counts_for(row)]
    fitted = fits.fit([row for row in rows if gpu_of(row) != gpu])
    return distinct([start for _, start in starts_of(own, fitted, scale)])


def _unserved(rows: list[Any], scale: float) -> dict[str, list[Start]]:
    """The one operator's deployments by GPU, under constants fitted without that operator."""
    served = [row for row in rows if row.point.id.startswith("srv-") and fits.counts_for(row)]
    fitted = fits.fit([row for row in rows if not row.point.id.startswith("srv-")])
    out: dict[str, list[Start]] = defaultdict(list)
    for row, start in starts_of(served, fitted, scale):
        out[gpu_of(row)].append(start)
    return {gpu: distinct(own) for gpu, own in sorted(out.items())}


def _models(starts: list[Start]) -> list[str]:
    return sorted({start.model for start in starts})


_Study = Callable[[str, list[Start]], Iterable[Case]]


def _each(by_gpu: dict[str, list[Start]], study: _Study) -> list[Case]:
    return [case for gpu, own in by_gpu.items() for case in study(gpu, own)]


def _errors(
    source: list[Start], target: Start, widths: Widths = USED
) -> tuple[float, float] | None:
    """The error of `target` bare and with what `source` taught."""
    known = fit(source, target.model, target.version, widths)
    if known is None:
        return None
    after = abs(adjusted_kv(target, known) - target.printed) / target.printed
    return abs(target.gap) / target.printed, after


def _case(gpu: str, name: str, found: Iterable[tuple[float, float] | None]) -> Iterator[Case]:
    kept = [pair for pair in found if pair is not None]
    if kept:
        before, after = (statistics.median(pair[side] for pair in kept) for side in (0, 1))
        yield Case(gpu, name, before, after)


def _pairs(gpu: str, starts: list[Start], widths: Widths = USED) -> Iterator[Case]:
    """One start of one model, for the deployments of another."""
    for source in _models(starts):
        for target in _models(starts):
            if source != target:
                yield from _case(
                    gpu,
                    f"{source} > {target}",
                    (
                        _errors([a], b, widths)
                        for a in starts
                        if a.model == source
                        for b in starts
                        if b.model == target
                    ),
                )


def _others(gpu: str, starts: list[Start]) -> Iterator[Case]:
    """Every start of the other models."""
    for name in _models(starts):
        rest = [start for start in starts if start.model != name]
        found = (_errors(rest, start) for start in starts if start.model == name)
        yield from _case(gpu, name, found)


def _again(gpu: str, starts: list[Start]) -> Iterator[Case]:
    """One start of the same model under other flags."""
    for name in _models(starts):
        own = [start for start in starts if start.model == name]
        found = (_errors([a], b) for a in own for b in own if a.flags != b.flags)
        yield from _case(gpu, name, found)


def _rest(gpu: str, starts: list[Start]) -> Iterator[Case]:
    """One start, for every other deployment on the GPU."""
    for place, source in enumerate(starts):
        found = (_errors([source], b) for n, b in enumerate(starts) if n != place)
        yield from _case(gpu, f"{source.model} {place}", found)


def _pooled(gpu: str, starts: list[Start]) -> Iterator[Case]:
    """Every start with every other deployment on the GPU."""
    for source in starts:
        for target in starts:
            if source is not target:
                yield from _case(gpu, target.model, [_errors([source], target)])


def _own(gpu: str, starts: list[Start]) -> Iterator[Case]:
    """Every start with the other deployments of its model, under other flags."""
    for source in starts:
        for target in starts:
            if source.model == target.model and source.flags != target.flags:
                yield from _case(gpu, target.model, [_errors([source], target)])


def _chosen(tried: dict[str, dict[str, list[Case]]], tested: str) -> str:
    """The setting that does best on the GPUs other than the tested one."""

    def score(name: str) -> float:
        cases = [c for gpu, own in tried[name].items() if gpu != tested for c in own]
        return statistics.mean(math.log((c.after + 1e-3) / (c.before + 1e-3)) for c in cases)

    return min(SETTINGS, key=score)


def _by_gpu(cases: list[Case], *, only_all: bool = False) -> str:
    gpus = [] if only_all else sorted({case.gpu for case in cases})
    body = [_row(gpu, [case for case in cases if case.gpu == gpu]) for gpu in gpus]
    return table(_HEAD, [*body, _row("all", cases)])


def _row(name: str, cases: list[Case]) -> list[str]:
    before, after = [case.before for case in cases], [case.after for case in cases]
    return [name, str(len(cases)), percent(statistics.median(before)),
            percent(statistics.median(after)), percent(statistics.mean(before)),
            percent(statistics.mean(after)),
            str(sum(b < a - _NOTHING for a, b in zip(before, after, strict=True))),
            str(sum(b > a + _NOTHING for a, b in zip(before, after, strict=True)))]  # fmt: skip
