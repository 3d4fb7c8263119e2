"""Answers of vLLM's planner as test cases, and kvproof's figures beside them."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from tests.conftest import GROUND_TRUTH

import kvproof
from kvproof.engine import vllm
from kvproof.engine.vllm.specs import SPEC_CLASSES

SETTINGS = ("max_model_len", "max_num_batched_tokens", "max_num_seqs", "max_in_flight_tokens")
FIGURES = ("num_blocks", "bytes_per_block", "block_size", "tokens", "max_concurrency")


@cache
def truth(name: str) -> dict[str, Any]:
    """A file of answers: configs by name, and cases with what the planner said."""
    found: dict[str, Any] = json.loads((GROUND_TRUTH / f"{name}.json").read_text())
    return found


def answered(name: str) -> list[dict[str, Any]]:
    """The cases of a file that the planner planned."""
    return [case for case in truth(name)["cases"] if "refused" not in case["answer"]]


def refused(name: str) -> list[dict[str, Any]]:
    """The cases of a file that vLLM does not start."""
    return [case for case in truth(name)["cases"] if "refused" in case["answer"]]


def capacity_of(
    configs: dict[str, Any], case: dict[str, Any], engine: str = "vllm@0.32"
) -> vllm.VllmCapacity:
    """What kvproof says to a case; `configs` by the case's name of its model."""
    flags = dict(case["flags"], usage_context=case["usage_context"])
    if "draft" in case:
        flags["speculative_config"] = {**flags["speculative_config"], "model": case["draft"]}
    gpu = case["gpu"] if case["gpu"] != "CPU" else None
    if gpu is None:
        flags["device"] = "cpu"
    deployment = kvproof.Deployment(engine, gpu, **flags)
    model = kvproof.load_model(configs[case["model"]])
    return vllm.capacity(model, deployment, case["kv_bytes"])


def name_of(case: dict[str, Any]) -> str:
    """The case as the name of a test."""
    flags = ",".join(f"{key}={value}" for key, value in case["flags"].items())
    return f"{case['model']}-{case['gpu']}-{flags}"


def check(own: vllm.VllmCapacity, real: dict[str, Any]) -> None:
    """Every figure equals the planner's, or its error does."""
    assert {key: getattr(own, key) for key in SETTINGS} == {key: real[key] for key in SETTINGS}
    assert own.error == real.get("error")
    assert own.fits == ("error" not in real)
    if "error" in real:
        return
    assert {key: getattr(own, key) for key in FIGURES} == {key: real[key] for key in FIGURES}
    groups = [
        [g.kind, g.layers, g.block_size, g.page_bytes, g.blocks_per_sequence, g.group_page_bytes]
        for g in own.groups
    ]
    assert groups == [[SPEC_CLASSES[kind], *rest] for kind, *rest in real["groups"]]
