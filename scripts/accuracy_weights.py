"""The section on weights of docs/accuracy.md, and the list of starts whose memory is far off."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from accuracy_text import gpu_of, percent, table

import kvproof
from kvproof.engine.vllm.rank_weights import rank_weights
from kvproof.engine.vllm.settings import settle

_PUBLIC = Path(__file__).with_name("public_weights.json")
_FAR_WEIGHTS, _FAR_MEMORY = 0.01, 0.04
_UNKNOWN = "not explained by what the record states"
GIB = 2**30


def weights_section(
    rows: Iterable[Any], counts: Callable[[Any], bool], why: Mapping[str, str]
) -> str:
    """Printed weights of a rank beside the predicted ones; each kind of start once."""
    own: dict[tuple[Any, ...], tuple[Any, float]] = {}
    for row in rows:
        printed = row.point.observed.get("weights_gib")
        if printed and counts(row):
            gap = rank_weights(row.point.model(), row.settings).total / GIB / printed - 1
            key = (row.point.name, gpu_of(row), row.settings.ranks, printed)
            own.setdefault(key, (row, gap))
    found = list(own.values())
    kinds: dict[str, list[float]] = defaultdict(list)
    for row, gap in found:
        stored = "stored as trained" if row.point.model().quantization is None else "quantized"
        kinds[f"{stored}, {row.settings.platform}"].append(abs(gap))
    far = sorted(((row, gap) for row, gap in found if abs(gap) > _FAR_WEIGHTS), key=lambda x: x[1])
    return "\n\n".join(
        [
            "## Weights on a rank",
            "What vLLM prints after loading beside what torch's allocator would hold of the "
            "tensors of its classes (docs/decisions/0030). Nothing here is fitted, but on ROCm.",
            table(
                ["weights", "different starts", "median error", "largest"],
                [
                    [kind, str(len(gaps)), percent(statistics.median(gaps)), percent(max(gaps))]
                    for kind, gaps in sorted(kinds.items())
                ],
            ),
            f"More than {percent(_FAR_WEIGHTS)} off:",
            table(
                ["point", "model", "printed", "error", "cause"],
                [
                    [row.point.id, row.point.name, f"{row.point.observed['weights_gib']:.2f} GiB",
                     percent(gap), why.get(f"weights {row.point.id}", _UNKNOWN)]
                    for row, gap in far
                ],
            ),
            "In threads that are not among the logs:",
            table(["model", "release", "ranks", "printed", "error", "source"], _public()),
        ]
    )  # fmt: skip


def _public() -> list[list[str]]:
    body = []
    for row in json.loads(_PUBLIC.read_text())["starts"]:
        model = kvproof.load_model(row["model"], offline=True)
        flags = {"tensor_parallel_size": row["ranks"]} if row["ranks"] > 1 else {}
        deployment = kvproof.Deployment(f"vllm@{row['release']}", row["gpu"], **flags)
        gap = rank_weights(model, settle(model, deployment)).total / GIB / row["printed"] - 1
        body.append([row["model"], row["release"], str(row["ranks"]), f"{row['printed']:g} GiB",
                     percent(gap), row["source"]])  # fmt: skip
    return body


def far_memory(found: Iterable[tuple[Any, float, float]], why: Mapping[str, str]) -> str:
    """Starts whose predicted cache is far from the printed one, with the cause where it is known.

    Starts of one deployment are one line.
    """
    groups: dict[tuple[Any, ...], list[tuple[Any, float]]] = defaultdict(list)
    for row, error, _ in found:
        share = error / row.point.observed["available_kv_memory_gib"]
        if abs(share) > _FAR_MEMORY:
            key = (row.point.name, gpu_of(row), row.point.release)
            groups[key].append((row, share))
    body = []
    for (name, gpu, release), own in sorted(groups.items(), key=lambda x: -abs(x[1][0][1])):
        ids = [row.point.id for row, _ in own]
        cause = next((why[f"budget {id}"] for id in ids if f"budget {id}" in why), _UNKNOWN)
        shown = ids[0] if len(ids) == 1 else f"{ids[0]} and {len(ids) - 1} more"
        errors = [share for _, share in own]
        spread = (
            percent(errors[0])
            if len(own) == 1
            else f"{percent(min(errors))} to {percent(max(errors))}"
        )
        body.append([shown, name, gpu, release or "-", spread, cause])
    return table(["point", "model", "GPU", "release", "error", "cause"], body)
