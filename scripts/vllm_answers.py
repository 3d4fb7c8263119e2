"""A case of the vLLM oracle as kvproof answers it, in the planner's own words.

The oracle and the tests over its saved answers compare by these alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import kvproof
from kvproof.engine import vllm
from kvproof.engine.vllm.specs import SPEC_CLASSES

SETTINGS = ("max_model_len", "max_num_batched_tokens", "max_num_seqs", "max_in_flight_tokens")
FIGURES = ("num_blocks", "bytes_per_block", "block_size", "tokens", "max_concurrency")
COMPARED = (*SETTINGS, *FIGURES, "error", "groups")


def capacity_of(
    config: Mapping[str, Any], case: Mapping[str, Any], engine: str = "vllm@0.32"
) -> vllm.VllmCapacity:
    """What kvproof plans for the case; raises KvproofError where it refuses it."""
    flags = dict(case["flags"], usage_context=case["usage_context"])
    if "draft" in case:
        flags["speculative_config"] = {**flags["speculative_config"], "model": case["draft"]}
    gpu = case["gpu"] if case["gpu"] != "CPU" else None
    if gpu is None:
        flags["device"] = "cpu"
    deployment = kvproof.Deployment(engine, gpu, **flags)
    return vllm.capacity(kvproof.load_model(dict(config)), deployment, case["kv_bytes"])


def figures(found: vllm.VllmCapacity) -> dict[str, Any]:
    """Every figure that is compared; of a request that does not fit, the settings and the error."""
    answer = {key: getattr(found, key) for key in SETTINGS}
    if not found.fits:
        return answer | {"error": found.error}
    groups = [
        [g.kind, g.layers, g.block_size, g.page_bytes, g.blocks_per_sequence, g.group_page_bytes]
        for g in found.groups
    ]
    return answer | {key: getattr(found, key) for key in FIGURES} | {"groups": groups}


def worded(real: Mapping[str, Any]) -> dict[str, Any]:
    """The planner's answer with kvproof's words for its classes, and nothing but what is compared.

    A class that kvproof has no word for keeps its name.
    """
    answer = {key: real[key] for key in COMPARED if key in real}
    if "groups" in answer:
        answer["groups"] = [
            [SPEC_CLASSES.get(kind, kind), *rest] for kind, *rest in answer["groups"]
        ]
    return answer
