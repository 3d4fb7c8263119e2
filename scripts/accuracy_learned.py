"""What `kvproof check --learn` gains, shown on the gathered logs out of sample."""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import fit_vllm_budget as fits
import log_points as logs
from accuracy_text import gpu_of, percent, table
from fit_learned_shares import shares_of

from kvproof.engine.overheads import OUTSIDE, doubt_of
from kvproof.engine.vllm.rank_weights import rank_weights
from kvproof.observe.shared import MECHANISMS, Seen, Shares, measured
from kvproof.observe.store import DOUBT, ESTIMATED, Start, adjusted_kv, distinct, fit, seen_of
from kvproof.terms import Term

GIB = logs.GIB
_HEAD = ["GPU", "cases", "median error", "learned", "mean error", "learned", "better", "worse",
         "unmoved"]  # fmt: skip
_NOTHING = 1e-9


@dataclass(frozen=True)
class Case:
    """One thing predicted before and after learning: shares of what was printed."""

    gpu: str
    name: str
    before: float
    after: float


def starts_of(rows: list[Any], constants: dict[str, Any], scale: float) -> list[Start]:
    """The rows as the store would keep them, predicted with `constants`."""
    estimates = fits.estimates(rows, constants)
    return [
        _start(row, error, half, estimates[id(row)])
        for row, error, half in fits.scaled(fits.predict(rows, constants), scale)
    ]


def _start(row: Any, error: float, half: float, estimates: list[Term]) -> Start:
    seen = row.point.observed
    printed = seen["available_kv_memory_gib"]
    named = {"weights": "weights_gib"} | {
        name: f"{name}_gib" for name in ("peak_activation", "cuda_graph_estimated")
    }
    terms = {name: seen[key] * GIB for name, key in named.items() if seen.get(key) is not None}
    kept = [term for term in estimates if term.name not in OUTSIDE]
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
        weights=rank_weights(row.point.model(), row.settings).total
        + sum(int(term.value) for term in kept if term.name == "draft model"),
        terms=terms
        | {ESTIMATED + term.name: float(term.value) for term in kept}
        | {DOUBT + term.name: doubt_of(term) for term in kept},
    )


@dataclass(frozen=True)
class Place:
    """One GPU's deployments under constants and shares that have not seen it."""

    gpu: str
    starts: list[Start]
    shares: Shares


def places(by_gpu: dict[str, list[Start]]) -> list[Place]:
    """Every GPU with several deployments."""
    return [
        Place(gpu, starts, _without(by_gpu, gpu))
        for gpu, starts in by_gpu.items()
        if len(starts) > 1
    ]


def seen_by_gpu() -> dict[str, list[Seen]]:
    """Every GPU's deployments as the rule sees them, under constants fitted without the GPU."""
    rows = fits.rows_of(logs.DATA / "logs")
    scale = fits.scale_for(fits.left_out(rows), fits.COVERED)
    return {gpu: [seen_of(s) for s in _unseen(rows, scale, gpu)] for gpu in _gpus(rows)}


def _without(by_gpu: dict[str, list[Start]], *gpus: str) -> Shares:
    """The shares that the other GPUs give."""
    return shares_of(
        [seen_of(s) for s in starts] for gpu, starts in by_gpu.items() if gpu not in gpus
    )


def learned_section(rows: list[Any], scale: float) -> str:
    """Before and after learning on GPUs, and of operators, that the constants have not seen."""
    by_gpu = {gpu: _unseen(rows, scale, gpu) for gpu in _gpus(rows)}
    found = places(by_gpu)
    return "\n\n".join(
        [
            "## What `kvproof check --learn` gains",
            "The case is a GPU that nothing shipped has seen: vLLM's constants and the shares of "
            "`kvproof.observe.shared` are measured without any of its points, each start is "
            "predicted from GPU and flags, and again with what was learned on that GPU. Starts of "
            "one deployment count once.",
            "**One start, and every other deployment on that GPU**, each pair a case:",
            table(
                ["other deployments", *_HEAD[1:]],
                [
                    _row("all", _each(found, _pooled)),
                    _row("of its own model, other flags", _each(found, _own)),
                    _row("of other models", _each(found, _strangers)),
                ],
            ),
            "The same by GPU:",
            _by_gpu(_each(found, _pooled)),
            "**One start of the same model under other flags** (a case is a model, the median "
            "over its pairs):",
            _by_gpu(_each(found, _again), only_all=True),
            "**One start of another model** (a case is a pair of models, the median over both "
            "models' deployments):",
            _by_gpu(_each(found, _pairs)),
            "**All starts of all other models** on that GPU (a case is a model):",
            _by_gpu(_each(found, _others)),
            "**One start, and everything else on that GPU** (a case is a start that calibrates; "
            "its error the median over every other deployment there):",
            _by_gpu(_each(found, _rest)),
            *_operator(_unserved(rows, scale, by_gpu)),
            *_shares(found),
            *_strange(found),
            _SO,
        ]
    )


def _operator(found: list[Place]) -> list[str]:
    """Where neither host nor GPU of an operator is in the fit."""
    return [
        "### An operator that the constants have not seen",
        "The served starts (`srv-`) are one operator's, on three GPUs. Here the constants and the "
        "shares are measured without any of them, so neither host nor GPU of that operator is in "
        "them.",
        table(
            ["learned from", *_HEAD[1:]],
            [
                _row("every start and other deployment", _each(found, _pooled)),
                _row("those of its own model", _each(found, _own)),
                _row("those of other models", _each(found, _strangers)),
                _row("same model, other flags (by model)", _each(found, _again)),
                _row("one start of another model (by pair of models)", _each(found, _pairs)),
                _row("all other models (by model)", _each(found, _others)),
            ],
        ),
    ]


def _shares(found: list[Place]) -> list[str]:
    """The measured shares, for each GPU those of the others."""
    return [
        "### Shares",
        "Which part of a term's doubt (its variance) is GPU's and host's, measured on the *other* "
        "GPUs' pairs (`scripts/fit_learned_shares.py`), and those in use, of all:",
        table(
            ["tested on", *MECHANISMS],
            [
                [name, *(f"{getattr(shares, key):.2f}" for key in MECHANISMS)]
                for name, shares in [*((p.gpu, p.shares) for p in found), ("in use", measured())]
            ],
        ),
    ]


def _strange(found: list[Place]) -> list[str]:
    """Starts that are reported and move no other deployment."""
    rows = [
        [place.gpu, start.model, start.version or "-", f"{-start.unnamed / GIB:+.2f}",
         f"{start.half / GIB:.2f}"]
        for place in found
        for start in place.starts
        if start.outside
    ]  # fmt: skip
    return [
        "### Starts beyond their interval",
        f"{len(rows)} of {sum(len(p.starts) for p in found)} deployments leave more or less (GiB, "
        "apart from printed terms) than their interval allows. Something that they do not name "
        "takes part; `check --learn` says so, keeps them, and moves only the same deployment of "
        "the same build by them.",
        table(["GPU", "model", "release", "unnamed", "interval"], rows),
    ]


_SO = """What this says, plainly. What carries over to another model is small: the part of NCCL and
of the activations that GPU and host have, which the constants already hold well. It is measured on
other GPUs, drawn to none by a ridge that is chosen without the scored GPU, and shrunk by its own
uncertainty. What is small beside the doubt that a start is left in moves it not at all (decision
0047): it led away as often as nearer. So most other models stay where they were, above all after a
single start and on GPUs whose starts come from as many hosts; those with several ranks on one
operator's machines are the ones that gain, by the part of NCCL that they have in common. A start of
the same model tells most while ranks, batch and release stay; where they change, one start can
mislead (Llama-3.1-8B on RTX 3090, V0 with 20,000 and with 29,000 tokens at once; gpt-oss-120b on
H100 with 6 and with 1,024 sequences). What looked like a build's own before, DeepSeek-R1's 1.5 GiB
more or less from release to release, was the workspace of the kernel that each release picks for
experts (decision 0040); since that is counted, learning gains on every GPU with several deployments
of known flags. 0.11.0's gaps of 3 to 5 GiB stay: its V1 sampler used FlashInfer's kernels where
they were installed (`v1/sample/ops/topk_topp_sampler.py`)."""


def _gpus(rows: Iterable[Any]) -> list[str]:
    return sorted({gpu_of(row) for row in rows if fits.counts_for(row)})


def _unseen(rows: list[Any], scale: float, gpu: str) -> list[Start]:
    """The GPU's deployments under constants fitted without it."""
    own = [row for row in rows if gpu_of(row) == gpu and fits.counts_for(row)]
    fitted = fits.fit([row for row in rows if gpu_of(row) != gpu])
    return distinct(starts_of(own, fitted, scale))


def _unserved(rows: list[Any], scale: float, by_gpu: dict[str, list[Start]]) -> list[Place]:
    """The one operator's deployments by GPU, under what was measured without that operator."""
    served = [row for row in rows if row.point.id.startswith("srv-") and fits.counts_for(row)]
    fitted = fits.fit([row for row in rows if not row.point.id.startswith("srv-")])
    out: dict[str, list[Start]] = defaultdict(list)
    for start in starts_of(served, fitted, scale):
        out[start.gpu].append(start)
    shares = _without(by_gpu, *out)
    return [Place(gpu, distinct(own), shares) for gpu, own in sorted(out.items())]


def _models(starts: list[Start]) -> list[str]:
    return sorted({start.model for start in starts})


_Study = Callable[[Place], Iterable[Case]]
_Pair = Callable[[Start, Start], bool]


def _each(found: list[Place], study: _Study) -> list[Case]:
    return [case for place in found for case in study(place)]


def _errors(place: Place, source: list[Start], target: Start) -> tuple[float, float]:
    """The error of `target` bare and with what `source` taught."""
    known = fit(source, target.model, target.version, place.shares)
    if known is None:
        raise ValueError("nothing to learn from")
    after = abs(adjusted_kv(target, known) - target.printed) / target.printed
    return abs(target.gap) / target.printed, after


def _case(place: Place, name: str, found: Iterable[tuple[float, float]]) -> Iterator[Case]:
    kept = list(found)
    if kept:
        before, after = (statistics.median(pair[side] for pair in kept) for side in (0, 1))
        yield Case(place.gpu, name, before, after)


def _pairs(place: Place) -> Iterator[Case]:
    """One start of one model, for the deployments of another."""
    for source, target in itertools.permutations(_models(place.starts), 2):
        found = (
            _errors(place, [a], b)
            for a in place.starts
            if a.model == source
            for b in place.starts
            if b.model == target
        )
        yield from _case(place, f"{source} > {target}", found)


def _others(place: Place) -> Iterator[Case]:
    """Every start of the other models."""
    for name in _models(place.starts):
        rest = [start for start in place.starts if start.model != name]
        own = [start for start in place.starts if start.model == name]
        if rest:
            yield from _case(place, name, (_errors(place, rest, start) for start in own))


def _again(place: Place) -> Iterator[Case]:
    """One start of the same model under other flags."""
    for name in _models(place.starts):
        own = [start for start in place.starts if start.model == name]
        found = (_errors(place, [a], b) for a in own for b in own if a.flags != b.flags)
        yield from _case(place, name, found)


def _rest(place: Place) -> Iterator[Case]:
    """One start, for every other deployment on the GPU."""
    for source in place.starts:
        found = (_errors(place, [source], b) for b in place.starts if b is not source)
        yield from _case(place, source.model, found)


def _every(place: Place, wanted: _Pair) -> Iterator[Case]:
    """Every start with every other deployment on the GPU that is wanted beside it."""
    for a, b in itertools.permutations(place.starts, 2):
        if wanted(a, b):
            yield from _case(place, b.model, [_errors(place, [a], b)])


def _pooled(place: Place) -> Iterator[Case]:
    return _every(place, lambda a, b: True)


def _own(place: Place) -> Iterator[Case]:
    return _every(place, lambda a, b: a.model == b.model and a.flags != b.flags)


def _strangers(place: Place) -> Iterator[Case]:
    return _every(place, lambda a, b: a.model != b.model)


def _by_gpu(cases: list[Case], *, only_all: bool = False) -> str:
    gpus = [] if only_all else sorted({case.gpu for case in cases})
    body = [_row(gpu, [case for case in cases if case.gpu == gpu]) for gpu in gpus]
    return table(_HEAD, [*body, _row("all", cases)])


def _row(name: str, cases: list[Case]) -> list[str]:
    before, after = [case.before for case in cases], [case.after for case in cases]
    better = sum(a < b - _NOTHING for b, a in zip(before, after, strict=True))
    worse = sum(a > b + _NOTHING for b, a in zip(before, after, strict=True))
    return [name, str(len(cases)), percent(statistics.median(before)),
            percent(statistics.median(after)), percent(statistics.mean(before)),
            percent(statistics.mean(after)),
            str(better), str(worse), str(len(cases) - better - worse)]  # fmt: skip
