"""Charts of plans: a bar for each device, a colour for each term, and what does not fit."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import kvproof as kv
from kvproof.surfaces.charts import plan_chart
from kvproof.surfaces.cli import main
from kvproof.surfaces.memory_chart import colours, stem
from kvproof.terms import device_of

PLANS: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("meta-llama/Meta-Llama-3.1-8B", "2xRTX-3090-24GB", "llamacpp", {}),
    ("deepseek-ai/DeepSeek-V3", "8xH200", "vllm", {"tensor_parallel_size": 8}),
    ("deepseek-ai/DeepSeek-V3", "8xH200", "sglang", {"tp_size": 8}),
    ("Qwen/Qwen3-30B-A3B", "RTX-4090-24GB", "llamacpp", {}),
    ("meta-llama/Llama-3.3-70B-Instruct", "H100-80GB", "vllm", {}),
    ("Qwen/Qwen3-8B", "4xH100-80GB", "tensorrt_llm", {}),
)


def _plan(model: str, gpu: str, engine: str, flags: dict[str, Any]) -> Any:
    return kv.plan(
        kv.load_model(model, offline=True), kv.Deployment(engine, gpu=gpu, **flags), (4096,)
    )


def _memory(plan: Any) -> dict[str, Any]:
    panel: dict[str, Any] = plan_chart(plan)["vconcat"][0]
    return panel


@pytest.mark.parametrize("asked", PLANS, ids=lambda asked: f"{asked[0]} {asked[2]}")
def test_a_bar_for_each_device_and_a_colour_for_each_term(
    asked: tuple[str, str, str, dict[str, Any]],
) -> None:
    plan = _plan(*asked)
    panel = _memory(plan)
    values = panel["data"]["values"]
    devices = {device_of(term) for term in plan.budget.terms}
    assert len({value["device"] for value in values}) == len(devices)
    scale = panel["layer"][0]["encoding"]["color"]["scale"]
    assert scale["domain"] == list(dict.fromkeys(value["term"] for value in values))
    assert len(set(scale["range"])) == len(scale["domain"])
    drawn = sum(value["gib"] for value in values)
    assert drawn * 2**30 == pytest.approx(sum(max(0, t.value) for t in plan.budget.terms))
    for limit in panel["layer"][1]["data"]["values"]:
        bar = sum(value["gib"] for value in values if value["device"] == limit["device"])
        assert bar >= limit["gib"] * (1 - 1e-9)
        assert (bar > 1.001 * limit["gib"]) == ("missing" in limit["device"])


def test_a_term_is_named_alike_on_every_device() -> None:
    plan = _plan(*PLANS[0])
    names = {stem(term) for term in plan.budget.terms}
    assert {"weights", "K cache", "V cache", "left free"} <= names
    assert not any(", " in name for name in names)


def test_any_number_of_terms_has_colours_of_its_own() -> None:
    many = colours(["KV cache", "left unused", "left free", *(f"term {i}" for i in range(60))])
    assert len(set(many)) == 63
    hues = [tuple(int(c[i : i + 2], 16) for i in (1, 3, 5)) for c in many]
    assert all(sum(abs(x - y) for x, y in zip(a, b, strict=True)) > 40 for a, b in pairwise(hues))


def test_a_plan_that_does_not_fit_says_so_and_draws_no_empty_panels() -> None:
    chart = plan_chart(_plan("meta-llama/Llama-3.3-70B-Instruct", "H100-80GB", "vllm", {}))
    assert len(chart["vconcat"]) == 1
    assert "Does not start" in chart["title"]["subtitle"][1]
    assert "GiB missing" in chart["title"]["subtitle"][1]
    (limit,) = chart["vconcat"][0]["layer"][1]["data"]["values"]
    assert limit["gib"] == pytest.approx(79.18, abs=0.01)


def test_sequences_of_several_replicas_are_said_to_be_of_all() -> None:
    panel = plan_chart(_plan("Qwen/Qwen3-8B", "4xH100-80GB", "vllm", {}))["vconcat"][1]
    assert "4 copies together" in panel["hconcat"][0]["title"]["text"]


@pytest.mark.parametrize(
    "command",
    [
        ("capacity", "Qwen/Qwen3-8B", "--kv-bytes", "40GiB", "--contexts", "4k,8k"),
        ("cache", "Qwen/Qwen3-8B", "--contexts", "4k,8k"),
        ("cache", "Qwen/Qwen3-8B", "--contexts", "4k,8k", "--quantized", "hqq:4"),
        ("cache", "Qwen/Qwen3-8B", "--contexts", "4k,8k", "--offloaded"),
        ("cache", "Qwen/Qwen3-8B", "--without-cache", "--prompt", "9", "--output", "9"),
        ("compare", "Qwen/Qwen3-8B", "Qwen/Qwen3-4B"),
        ("plan", "Qwen/Qwen3-8B", "--gpu", "H100", "--contexts", "4k"),
    ],
    ids=" ".join,
)
def test_every_command_that_takes_a_chart_draws_one(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    target = tmp_path / "chart.json"
    with pytest.raises(SystemExit) as ended:
        main([*command, "-o", str(target)])
    assert not ended.value.code
    assert json.loads(target.read_bytes())["title"]["text"]
