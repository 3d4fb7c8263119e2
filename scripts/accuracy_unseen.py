"""How the budget does on what took no part in its fit: GPUs, releases, operators left out whole."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from typing import Any

import fit_vllm_budget as fits
import log_points as logs
from accuracy_text import gpu_of, percent, table

import kvproof
from kvproof.errors import KvproofError

GIB = logs.GIB
_KEYS: tuple[tuple[str, fits.Key], ...] = (
    ("GPU", gpu_of),
    ("minor release", fits.release_of),
    ("operator", fits.source_of),
)


def unseen_section(
    rows: list[Any],
    left: list[fits.Found],
    interval: dict[str, Any],
    points: list[logs.Point],
) -> str:
    """Errors and coverage where whole GPUs, releases or operators are left out of the fit.

    `left`: those of the models left out, under the interval of what was seen; `points`: every
    start with its model, of which some have no row in the fit.
    """
    seen, unseen = interval["scale"], interval["unseen_scale"]
    whole = {name: fits.left_out(rows, key) for name, key in _KEYS}
    body = [["model", *_row(left)]]
    body += [[name, *_row(fits.scaled(found, seen))] for name, found in whole.items()]
    wide = [[name, *_row(fits.scaled(whole[name], unseen))] for name, _ in _KEYS[:2]]
    posted = [item for item in left if fits.source_of(item[0]) != "one operator"]
    head = ["left out whole", "starts", "median of models", "mean of models", "starts covered",
            "models covered", "half width of starts", "of models"]  # fmt: skip
    return "\n\n".join(
        [
            "## What took no part in the fit",
            "The same starts with more left out of the fit than their model. *Models covered*: "
            "the share of a model's starts inside, each model the same; half widths are medians, "
            "of the cache's memory.",
            table(head, body),
            f"The factor on doubts, {seen:g}, covers {percent(fits.COVERED)} with each model on "
            "each GPU under each minor release counted once. Where the GPU or the minor release "
            f"is none of those in the fit it is {unseen:g}: the same for starts whose GPU, and "
            "whose release, is left out, each GPU and each release counted once. With it:",
            table(head, wide),
            f"Most starts are one operator's, whose flags are known whole. Of the "
            f"{len(posted)} that people posted, "
            f"{sum(abs(error) <= half for _, error, half in posted)} are inside: "
            "what they leave out (the share, the release, what else runs in the process: the list "
            "above) is not in the interval.",
            "By GPU left out, under the wider factor:",
            table(["GPU", *head[1:]], _parts(fits.scaled(whole["GPU"], unseen), gpu_of)),
            "By minor release left out, under the wider factor:",
            table(
                ["release", *head[1:]],
                _parts(fits.scaled(whole["minor release"], unseen), fits.release_of),
            ),
            *_fresh(rows, points),
        ]
    )


def _fresh(rows: list[Any], points: list[logs.Point]) -> list[str]:
    """Starts that no fit ever saw: their models are described by another's fields."""
    known = {row.point.id for row in rows}
    found = [row for p in points if p.id not in known and (row := _fresh_row(p)) is not None]
    inside = sum(row[-1] == "yes" for row in found)
    return [
        "Starts in no fit at all, of models that are described here by the fields of another "
        f"({inside} of {len(found)} inside); (inferred): the record is not sure of the model:",
        table(["point", "model", "GPU", "release", "predicted", "printed", "error", "inside"],
              found),
    ]  # fmt: skip


def _fresh_row(point: logs.Point) -> list[str] | None:
    kv = point.kv_bytes
    if point.engine != "vllm" or kv is None or kv <= 0 or point.deployment.accelerator is None:
        return None
    try:
        budget = kvproof.budget(point.model, point.deployment)
    except KvproofError:
        return None
    name = point.model_name.split(" (")[0] + ("" if point.confident else " (inferred)")
    low, high = budget.interval
    return [point.id, name, point.gpu, point.version or "-", f"{budget.kv_bytes / GIB:.2f} GiB",
            f"{kv / GIB:.2f} GiB", percent(budget.kv_bytes / kv - 1),
            "yes" if low <= kv <= high else "no"]  # fmt: skip


def _parts(found: list[fits.Found], key: fits.Key) -> list[list[str]]:
    groups: dict[str, list[fits.Found]] = defaultdict(list)
    for item in found:
        groups[key(item[0])].append(item)
    return [[name, *_row(groups[name])] for name in sorted(groups, key=_number)]


def _number(name: str) -> tuple[int, str]:
    major, _, minor = name.partition(".")
    return (int(minor), name) if major.isdigit() and minor.isdigit() else (0, name)


def _row(found: list[fits.Found]) -> list[str]:
    count = Counter(fits.model_of(row) for row, _, _ in found)
    errors: dict[str, list[float]] = defaultdict(list)
    widths: dict[str, list[float]] = defaultdict(list)
    inside = 0.0
    for row, error, half in found:
        name, printed = fits.model_of(row), row.point.observed["available_kv_memory_gib"]
        errors[name].append(abs(error) / printed)
        widths[name].append(half / printed)
        inside += (abs(error) <= half) / count[name] / len(count)
    medians = [statistics.median(own) for own in errors.values()]
    covered = statistics.mean(abs(error) <= half for _, error, half in found)
    return [str(len(found)), percent(statistics.median(medians)), percent(statistics.mean(medians)),
            percent(covered), percent(inside),
            percent(statistics.median(width for own in widths.values() for width in own)),
            percent(statistics.median(map(statistics.median, widths.values())))]  # fmt: skip
