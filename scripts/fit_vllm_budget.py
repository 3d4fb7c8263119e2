"""Fit the constants of vLLM's budget to start-up logs, and say how well they predict others.

    python scripts/fit_vllm_budget.py LOGS_FOLDER [--write]

LOGS_FOLDER holds engine_startups.jsonl and server_startups.jsonl. Constants are fitted by
least absolute deviations, every model weighing the same. The error printed for a model comes
from constants fitted without it; so does the interval's coverage. GPUs and minor releases left out
say how much wider an interval has to be where one was not seen. --write replaces
src/kvproof/engine/vllm/data/budget.json.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from accuracy_text import gpu_of
from vllm_logs import GIB, Point, read_points

from kvproof.engine import vllm
from kvproof.engine.vllm.graph_memory import (
    graph_count,
    many_pieces,
    scan_bytes,
    state_graphs,
    workspace_bytes,
)
from kvproof.engine.vllm.outside import communication_era, framework_era, fused_reduce, minor_of
from kvproof.engine.vllm.parts import using
from kvproof.engine.vllm.profile import host_bytes, other_ways, quantities
from kvproof.engine.vllm.rank_weights import rank_weights
from kvproof.engine.vllm.runners import charges_graphs
from kvproof.engine.vllm.sampler import known_sampler, sampler_era
from kvproof.engine.vllm.settings import Settings, settle
from kvproof.errors import KvproofError
from kvproof.model.types import Model
from kvproof.terms import Term

_DATA = Path(__file__).parents[1] / "src/kvproof/engine/vllm/data/budget.json"
_NAMES = (
    "cuda", "rocm", "v0", "before", "since_base", "since", "encoders",
    "graphs", "graphs_each", "graphs_ranks", "v0_ranks", "late", "graphs_sparse", "rccl",
    "cuda_late",
)  # fmt: skip
_PRIOR = np.array([0.1, 1.0, 0.3, 0.3, 1.5, 0.3, 0.1, 0.2, 0.3, 0.2, 0.58, 0.29, 2.6, 2.2, 0.24])
_SAMPLER_PRIOR = {"before_0.17": 38.6, "since_0.17": 16.0}
_TRUST = np.array([1e3, 5, 1e3, 5, 5, 5, 20, 60, 20, 20, 1e3, 1e3, 20, 5, 1e3])
"""How firmly each constant is held at its physical guess; the framework's is measured, and so are
V0's communicators (log203: 2.10 GiB outside torch with 8 ranks, 0.35 of them the framework's),
those since 0.26 (with 4 ranks, 0.24 the framework's: log240 0.95; log241 0.70 of what is consumed,
less weights and the experts' workspace) and the estimate of graphs
beside indexers (log225: 1.97 GiB for 54 of them, log240: 4.99 for 102)."""
_FLOOR = 0.05
COVERED = 0.92
"""Share of the starts that intervals are to cover: 0.9, and a little for what comes."""
_WEIGHTS_DOUBT = 0.003
"""Share of the weights in doubt: printed ones are met to 0.1 % in the median, one in ten not to 1 %
(docs/accuracy.md, Weights on a rank)."""
_UNSCALED: dict[str, Any] = {"scale": 1.0, "unseen_scale": 1.0, "gpus": [], "releases": []}
_MANY_GRAPHS = 100
"""The constants of graphs are fitted for so many, to be of the others' size."""
_GRAPHS_WEIGHT = 0.3
"""What a printed estimate of graphs weighs beside a model's starts."""
_PUBLIC_GRAPHS = (
    (86, 1, 0.52, "LMCache issue 3430: Qwen3-8B, 51 and 35 graphs"),
    (5, 2, 0.09, "club-3090 issue 434: Qwen3.6-27B, 3 and 2 graphs"),
    (16, 2, 0.36, "gpustack runner pull request 251, 16 graphs"),
    (102, 4, 2.04, "vllm pull request 48601: Qwen3.6-27B, 51 and 51 graphs, as captured"),
    (13, 1, 0.13, "gemma-4-31B, 0.23, 8 and 5 graphs"),
    *((86, 1, gib, "logs of 0.19 to 0.22 on one GPU, 51 and 35 graphs")
      for gib in (0.27, 0.53, 0.53, 0.55, 0.83, 1.65)),
    *((5, 1, gib, "logs of 0.19 and 0.20 on one GPU, 3 and 2 graphs") for gib in (0.26, 0.27)),
    (7, 1, 0.05, "a log of 0.19 on one GPU, 4 and 3 graphs"),
    (9, 1, 0.35, "a log of 0.2x on one GPU, 5 and 4 graphs"),
)  # fmt: skip
"""Estimates that public threads print: graphs, ranks, GiB, source."""
_RADEON = 0.5
"""AMD's cards of RDNA: 0.46 GiB outside torch in a public start of Qwen3-0.6B on 16 GB (0.8.5), 0.6
less than MI300X takes on an RX 7900 XTX (log180, of a model that no fit takes). With it a public
start of Qwen3-14B on a W7900 (0.16.1) is met to 0.6 %."""
_PCIE = 0.13
"""Over PCIe, whatever the ranks: public starts print 0.09 GiB outside torch on four A30 (0.11),
0.21 on eight L40S (0.10), 0.20 on four RTX 2080 Ti and on sixteen RTX 3090 (0.8, V0), 0.25 on two
RTX 4090 (0.7), some 0.05 of it the framework's."""
_FRAMEWORK = {"cuda": 0, "v0": 2, "cuda since 0.26": 14}
"""Places of the constants that starts on one GPU print."""
_MANY_RANKS = 8
"""The constant of RCCL likewise."""


@dataclass
class Row:
    """A point with its features, in GiB."""

    point: Point
    settings: Settings
    logits: float
    sampler: float | None
    """Bytes per logit where the source gives them."""
    layer: float
    held: float
    image: float
    features: np.ndarray[Any, Any]
    taken: float
    """Memory x utilization, less weights and the cache."""
    weights_known: bool


def rows_of(folder: Path, *, settled: bool = True) -> list[Row]:
    out = []
    for point in read_points(folder, settled=settled):
        kv = point.observed.get("available_kv_memory_gib")
        model = point.model() if kv and kv > 0 else None
        if model is None or point.gpu is None:
            continue
        try:
            deployment = point.deployment()
            settings = settle(model, deployment)
            weights = rank_weights(model, settings).total / GIB
        except KvproofError:
            continue
        seen = point.observed.get("weights_gib")
        table = deployment.accelerator.memory_bytes / GIB
        memory = float(point.observed.get("total_gpu_memory_gib") or table)
        share = float(point.flags.get("gpu_memory_utilization", settings.rules.utilization))
        sizes = quantities(model, settings)
        charged = charges_graphs(model, settings)
        captured = _captured(model, settings)
        known = sizes.workspace + sizes.experts + charged * captured
        known += _PCIE * GIB * (settings.ranks > 1 and communication_era(settings) == "pcie")
        known += host_bytes(settings, round(memory * GIB))
        out.append(
            Row(
                point=point,
                settings=settings,
                logits=sizes.logits / GIB,
                sampler=known_sampler(model, settings),
                layer=sizes.layer_bytes / GIB,
                held=sizes.held_bytes / GIB,
                image=sizes.image_bytes / GIB,
                features=_features(settings, sizes, memory, charged, many_pieces(model, settings)),
                taken=memory * share - kv - (seen or weights) - known / GIB,
                weights_known=bool(seen) and abs(weights / seen - 1) < 0.1,
            )
        )
    return out


def _captured(model: Model, settings: Settings) -> int:
    """Bytes of the estimate of graphs that no constant stands for."""
    states = state_graphs(model, settings)
    return scan_bytes(model, settings) + workspace_bytes(model, settings) + states


def _features(
    settings: Settings, sizes: Any, memory: float, charged: bool, sparse: bool
) -> np.ndarray[Any, Any]:
    steps = math.log2(settings.ranks)
    era = communication_era(settings)
    frame = framework_era(settings)
    others = (graph_count(settings) - 1) / _MANY_GRAPHS
    return np.array(
        [
            frame == "cuda",
            frame == "rocm",
            frame == "v0",
            steps * (era == "before_0.18"),
            (settings.ranks > 1) * (era == "since_0.18") * fused_reduce(settings, memory * GIB),
            steps * (era == "since_0.18"),
            sizes.encoders,
            charged,
            charged * others,
            charged * others * steps,
            steps * (era == "v0"),
            steps * (era == "since_0.26"),
            charged * others * sparse,
            (settings.ranks > 1) * (era == "rocm") * (settings.ranks / _MANY_RANKS) ** 2,
            frame == "cuda since 0.26",
        ],
        dtype=float,
    )


def fit(rows: list[Row]) -> dict[str, Any]:
    """The table of constants that fits `rows`."""
    framework = {key: _framework(rows, key) for key in _FRAMEWORK}
    used = [row for row in rows if row.point.version and row.weights_known and counts_for(row)]
    sampler = {era: _sampler(used, era) for era in _SAMPLER_PRIOR}
    counts = Counter(row.point.name for row in used)
    prior = _PRIOR.copy()
    for key, place in _FRAMEWORK.items():
        prior[place] = framework[key]
    graphs = list(_printed_graphs(used))
    x = np.array([*(row.features for row in used), *(features for features, _, _ in graphs)])
    y = np.array(
        [*(row.taken - activation(row, sampler) for row in used), *(y for _, y, _ in graphs)]
    )
    weight = np.array(
        [
            *(1 / counts[row.point.name] / kv_of(row) ** 0.5 for row in used),
            *(weight for _, _, weight in graphs),
        ]
    )
    found = _least_absolute(x, y, weight / weight.mean(), prior)
    value = dict(zip(_NAMES, (round(max(0.0, float(v)), 3) for v in found), strict=True))
    for name in ("graphs_each", "graphs_ranks", "graphs_sparse"):
        value[name] /= _MANY_GRAPHS
    return {
        "sampler_bytes_per_logit": sampler,
        "framework_gib": {
            "cuda": value["cuda"], "cuda since 0.26": value["cuda_late"],
            "rocm": value["rocm"], "radeon": _RADEON, "v0": value["v0"], "cpu": 0.0,
        },
        "communication_gib": {
            "v0": {"base": 0.0, "log2_ranks": value["v0_ranks"]},
            "before_0.18": {"base": 0.0, "log2_ranks": value["before"]},
            "since_0.18": {"base": value["since_base"], "log2_ranks": value["since"]},
            "since_0.26": {"base": 0.0, "log2_ranks": value["late"]},
            "rocm": {"squared_ranks": round(value["rccl"] / _MANY_RANKS**2, 4)},
            "pcie": {"any_ranks": _PCIE},
        },
        "encoders_gib": value["encoders"],
        "graphs_gib": {
            "first": value["graphs"],
            "each": round(1024 * value["graphs_each"], 2),
            "each_log2_ranks": round(1024 * value["graphs_ranks"], 2),
            "each_sparse": round(1024 * value["graphs_sparse"], 2),
        },
        "interval": {"weights_share": _WEIGHTS_DOUBT, "floor_gb": 0.25, **_UNSCALED},
    }  # fmt: skip


def _printed_graphs(rows: list[Row]) -> Iterator[tuple[np.ndarray[Any, Any], float, float]]:
    """What starts print as their graphs' estimate: features, GiB, weight of a row of the fit."""
    for row in rows:
        printed = row.point.observed.get("cuda_graph_estimated_gib")
        if printed is None or not row.settings.rules.v1:
            continue
        sparse = many_pieces(row.point.model(), row.settings)
        model, settings = row.point.model(), row.settings
        scan = _captured(model, settings) / GIB
        found = _graph_features(graph_count(row.settings), row.settings.ranks, sparse=sparse)
        yield found, printed - scan, _GRAPHS_WEIGHT
    for count, ranks, printed, _ in _PUBLIC_GRAPHS:
        yield _graph_features(count, ranks, sparse=False), printed, _GRAPHS_WEIGHT


def _graph_features(count: int, ranks: int, *, sparse: bool) -> np.ndarray[Any, Any]:
    out = np.zeros(len(_NAMES))
    others, steps = (count - 1) / _MANY_GRAPHS, math.log2(ranks)
    for name, value in (
        ("graphs", 1.0), ("graphs_each", others), ("graphs_ranks", others * steps),
        ("graphs_sparse", others * sparse),
    ):  # fmt: skip
        out[_NAMES.index(name)] = value
    return out


def counts_for(row: Row) -> bool:
    """Whether the row is measured by: its own model, known with high confidence.

    Not where the printed weights and cache alone are more than the stated share of the stated
    GPU: then one of the three is not that start's (log113, met to 0.1 % at a share of 0.9).
    """
    whole = row.taken >= 0 or not row.point.observed.get("weights_gib")
    return row.point.confidence == "high" and row.point.own_shape and whole


def era_of(row: Row) -> str:
    return sampler_era(row.settings)


def activation(row: Row, sampler: dict[str, float]) -> float:
    each = sampler[era_of(row)] if row.sampler is None else row.sampler
    return max(max(row.logits * each, row.layer) + row.held, row.image)


def _sampler(rows: list[Row], era: str) -> float:
    """Bytes per logit, from starts whose activations are printed and made by the sampler."""
    found = [
        row.point.observed["peak_activation_gib"] / row.logits
        for row in rows
        if era_of(row) == era
        and row.sampler is None
        and row.point.observed.get("peak_activation_gib")
        and row.logits * _SAMPLER_PRIOR[era] > 2 * row.layer
        and not row.held
        and row.settings.ranks == 1
    ]
    return round(statistics.median(found), 1) if len(found) > 1 else _SAMPLER_PRIOR[era]


def kv_of(row: Row) -> float:
    return float(row.point.observed["available_kv_memory_gib"])


def _framework(rows: list[Row], key: str) -> float:
    """Memory outside torch on one GPU, from the starts that print it."""
    found = [
        row.point.observed["non_torch_gib"]
        for row in rows
        if row.point.observed.get("non_torch_gib") is not None
        and row.settings.ranks == 1
        and framework_era(row.settings) == key
    ]
    return float(statistics.median(found)) if found else float(_PRIOR[_FRAMEWORK[key]])


def _least_absolute(x: Any, y: Any, weight: Any, prior: Any) -> Any:
    """Least absolute deviations by reweighting, drawn a little towards the physical guess."""
    found = prior.copy()
    for _ in range(200):
        gap = np.maximum(np.abs(y - x @ found), _FLOOR)
        scaled = weight / gap / (1 + gap**2)  # starts that hold something unnamed count little
        left = x.T @ (x * scaled[:, None]) + np.diag(_TRUST)
        right = x.T @ (y * scaled) + _TRUST * prior
        found = np.linalg.solve(left, right)
    return found


class Guess(NamedTuple):
    """A prediction: error in GiB, and by how much it may be off towards what was printed."""

    row: Row
    error: float
    doubt: float
    """One unit of the interval, GiB."""
    extra: float
    """What another installation than the assumed one takes, GiB."""


Found = tuple[Row, float, float]
"""A row, its error and the interval's width on that side, in GiB."""


def predict(rows: list[Row], table: dict[str, Any]) -> list[Guess]:
    """The budget of every row under `table`."""
    with using(table):
        return [_guess(row) for row in rows]


def _guess(row: Row) -> Guess:
    model, deployment = row.point.model(), row.point.deployment()
    budget = vllm.budget(model, deployment)
    error = budget.kv_bytes / GIB - row.point.observed["available_kv_memory_gib"]
    less, more = other_ways(model, row.settings, deployment.accelerator)
    doubt = budget.interval[1] - budget.kv_bytes - less
    return Guess(row, error, doubt / GIB, (less if error < 0 else more) / GIB)


def estimates(rows: list[Row], table: dict[str, Any]) -> dict[int, list[Term]]:
    """The estimated terms of each row, by the row's id."""
    with using(table):
        budgets = {id(row): vllm.budget(row.point.model(), row.point.deployment()) for row in rows}
    return {key: [term for term in found.terms if not term.exact] for key, found in budgets.items()}


Key = Callable[[Row], str]


def model_of(row: Row) -> str:
    return row.point.name


def release_of(row: Row) -> str:
    """The minor release, as the budget's constants name those that were seen."""
    return minor_of(row.settings)


def source_of(row: Row) -> str:
    """Who started it: one operator's servers, or people who posted a log."""
    return "one operator" if row.point.id.startswith("srv-") else "posted logs"


def left_out(rows: list[Row], key: Key = model_of) -> list[Guess]:
    """Every row that counts under constants fitted without the rows of its `key`."""
    out = []
    for name in sorted({key(row) for row in rows if counts_for(row)}):
        table = fit([row for row in rows if key(row) != name])
        out += predict([row for row in rows if key(row) == name and counts_for(row)], table)
    return out


def scaled(found: Iterable[Guess], scale: float) -> list[Found]:
    """Errors with the widths that `scale` gives."""
    return [(guess.row, guess.error, scale * guess.doubt + guess.extra) for guess in found]


def scale_for(found: list[Guess], share: float, key: Key | None = None) -> float:
    """The factor on doubts that lets intervals cover `share` of the starts.

    Each model on each GPU under each minor release counts once; with `key`, so does each of its
    values.
    """
    kinds = Counter(map(_kind, found))
    within: dict[str, set[tuple[str, ...]]] = defaultdict(set)
    for guess in found:
        within[key(guess.row) if key else ""].add(_kind(guess))
    weighed = sorted(
        (
            max(0.0, abs(guess.error) - guess.extra) / guess.doubt,
            1 / kinds[_kind(guess)] / len(within[key(guess.row) if key else ""]),
        )
        for guess in found
    )
    whole, so_far = sum(weight for _, weight in weighed), 0.0
    for ratio, weight in weighed:
        so_far += weight
        if so_far >= share * whole:
            return math.ceil(100 * ratio) / 100
    raise ValueError("no starts")


def _kind(guess: Guess) -> tuple[str, ...]:
    return model_of(guess.row), gpu_of(guess.row), release_of(guess.row)


def scales(rows: list[Row], by_model: list[Guess]) -> dict[str, Any]:
    """The factors for GPUs and releases that were seen, and for others, and which were seen."""
    seen = scale_for(by_model, COVERED)
    others = [scale_for(left_out(rows, key), COVERED, key) for key in (gpu_of, release_of)]
    counted = [row for row in rows if counts_for(row)]
    return {
        "scale": seen,
        "unseen_scale": max(seen, *others),
        "gpus": sorted({gpu_of(row) for row in counted}),
        "releases": sorted({release_of(row) for row in counted if row.point.release}),
    }


def report(found: list[Found]) -> None:
    by_model: dict[str, list[float]] = defaultdict(list)
    for row, error, _ in found:
        by_model[row.point.name].append(100 * error / row.point.observed["available_kv_memory_gib"])
    medians = {name: statistics.median(map(abs, errors)) for name, errors in by_model.items()}
    for name, value in sorted(medians.items(), key=lambda item: item[1]):
        errors = by_model[name]
        spread = f"{min(errors):7.2f} .. {max(errors):7.2f}"
        print(f"{name:46.46s} {value:7.2f} %  {spread}  n={len(errors)}")
    cover = [abs(error) <= half for _, error, half in found]
    widths = [100 * half / row.point.observed["available_kv_memory_gib"] for row, _, half in found]
    print(f"models {len(medians)}, median error {statistics.median(medians.values()):.2f} %")
    print(f"points {len(found)}, covered {100 * sum(cover) / len(cover):.1f} %, "
          f"median half width {statistics.median(widths):.2f} %")  # fmt: skip


def main(arguments: list[str]) -> None:
    rows = rows_of(Path(arguments[0]))
    table = fit(rows)
    by_model = left_out(rows)
    table["interval"] |= scales(rows, by_model)
    found = scaled(by_model, table["interval"]["scale"])
    report(found)
    table["provenance"] = (
        f"scripts/fit_vllm_budget.py on {len(found)} start-ups of "
        f"{len({row.point.name for row, _, _ in found})} models (vLLM 0.6 to 0.31); sampler bytes "
        "from printed activations, the rest by least absolute deviations, "
        "every model weighing the same"
    )
    print(json.dumps(table, indent=1))
    if "--write" in arguments:
        _DATA.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
