"""What the profiling run holds, by runner, release and picture, against sums made by hand."""

from __future__ import annotations

from typing import Any

import pytest

import kvproof
from kvproof.engine.vllm.adapters import draft_bytes
from kvproof.engine.vllm.images import held_bytes, image_bytes
from kvproof.engine.vllm.peaks import layer_bytes
from kvproof.engine.vllm.runners import second_runner
from kvproof.engine.vllm.sampler import sampler_bytes
from kvproof.engine.vllm.settings import Settings, settle
from kvproof.model.types import Model


def settled(
    name: str, release: str, gpu: str = "H100-80GB", **flags: Any
) -> tuple[Model, Settings]:
    model = kvproof.load_model(name, offline=True)
    return model, settle(model, kvproof.Deployment(f"vllm@{release}", gpu, **flags))


@pytest.mark.parametrize(
    ("name", "release", "flags", "second"),
    [
        ("Qwen/Qwen3-0.6B", "0.28", {}, True),
        ("Qwen/Qwen3.5-27B", "0.28", {}, False),
        ("Qwen/Qwen3.5-27B", "0.29", {}, True),
        ("Qwen/Qwen3-0.6B", "0.21", {}, False),
        ("Qwen/Qwen3-8B-FP8", "0.23", {}, False),
        ("Qwen/Qwen3-0.6B", "0.23", {"quantization": "fp8"}, False),
        ("Qwen/Qwen3-8B-FP8", "0.24", {}, True),
        ("Qwen/Qwen3-0.6B", "0.28", {"use_v2_model_runner": False}, False),
        ("Qwen/Qwen3.5-27B", "0.24", {"use_v2_model_runner": True}, True),
        ("Qwen/Qwen3-0.6B", "0.7.3", {"use_v2_model_runner": True}, False),
        (
            "Qwen/Qwen3-0.6B",
            "0.31",
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}},
            False,
        ),
    ],
)
def test_which_runner_starts(name: str, release: str, flags: dict[str, Any], second: bool) -> None:
    assert second_runner(*settled(name, release, **flags)) is second


def test_a_kernel_cuts_to_top_p_without_a_sort() -> None:
    """v1/sample/ops/topk_topp_triton.py came with 0.17.0."""
    sorted_, cut = (sampler_bytes(*settled("Qwen/Qwen3-8B", r)) for r in ("0.16.0", "0.17.0"))
    assert sorted_ > 2 * cut


@pytest.mark.parametrize(
    ("release", "ranks", "each"),
    [
        ("0.25", 1, 6.0),  # 16 bits and a copy in f32
        ("0.25", 4, 6.0),
        ("0.28", 1, 2.0),  # 16 bits
        ("0.28", 4, 4.5),  # a rank's own quarter, what was gathered, and that in order
    ],
)
def test_the_second_runner_sorts_no_logits(release: str, ranks: int, each: float) -> None:
    found = settled("Qwen/Qwen3-32B", release, tensor_parallel_size=ranks)
    assert sampler_bytes(*found) == each


def test_a_dense_start_on_the_second_runner_keeps_the_memory_of_the_logits() -> None:
    """log166: of 0.95 x 79.18 GiB, weights of 1.12 and a cache of 73.53 leave 0.57 GiB."""
    model = kvproof.load_model("Qwen/Qwen3-0.6B", offline=True)
    flags = {"gpu_memory_utilization": 0.95, "max_model_len": 16384}
    budget = kvproof.budget(model, kvproof.Deployment("vllm@0.28", "H100-80GB", **flags))
    assert budget.kv_bytes / 2**30 == pytest.approx(73.53, abs=0.1)


def test_the_fallback_to_the_first_runner_lies_within() -> None:
    """log227 (0.26): dense, but graphs were charged and the logits sorted: the first runner."""
    model = kvproof.load_model("google/gemma-4-31B-it", offline=True)
    limits = {"image": 0, "audio": 0}
    flags = {"limit_mm_per_prompt": limits, "max_model_len": 16384, "max_num_batched_tokens": 8192}
    budget = kvproof.budget(model, kvproof.Deployment("vllm@0.26", "B300-288GB", **flags))
    assert budget.interval[0] <= 182.37 * 2**30 <= budget.interval[1]


_PIXELS, _PATCHES, _WIDTH, _INNER = 4096**2, 65_536, 1152, 4304
"""Qwen3.5's largest image: patches of 16 x 16 pixels, their width and that of the feed-forward."""


@pytest.mark.parametrize(
    ("release", "flags", "row"),
    [
        ("0.24", {}, 12 * _WIDTH),
        ("0.24", {"tensor_parallel_size": 2}, 4 * _WIDTH + 8 * _WIDTH // 2),
        ("0.24", {"tensor_parallel_size": 2, "mm_encoder_tp_mode": "data"}, 12 * _WIDTH),
        ("0.11", {}, 17 * _WIDTH),
    ],
)
def test_a_picture_takes_its_layers_rows(release: str, flags: dict[str, Any], row: int) -> None:
    found = settled("Qwen/Qwen3.5-27B", release, **flags)
    assert image_bytes(*found) == _PATCHES * row * 2 + _PIXELS * 3 * 2 * 2


def test_a_large_batch_holds_several_pictures() -> None:
    one = image_bytes(*settled("Qwen/Qwen3.5-27B", "0.24"))
    many = settled("Qwen/Qwen3.5-27B", "0.24", max_num_batched_tokens=3 * _PATCHES // 4)
    few = settled(
        "Qwen/Qwen3.5-27B",
        "0.24",
        max_num_batched_tokens=3 * _PATCHES // 4,
        max_num_seqs=2,
        limit_mm_per_prompt={"image": 1},
    )
    assert (image_bytes(*many), image_bytes(*few)) == (3 * one, 2 * one)


def test_the_first_runner_holds_the_pictures_inputs_too() -> None:
    embeddings = _PATCHES // 4 * 5120 * 2
    assert held_bytes(*settled("Qwen/Qwen3.5-27B", "0.28")) == embeddings + _PIXELS * 3 * 2 * 2
    assert held_bytes(*settled("Qwen/Qwen3.5-27B", "0.29")) == embeddings
    flags = {"use_v2_model_runner": True}  # which profiled no encoder then
    assert held_bytes(*settled("Qwen/Qwen3.5-27B", "0.26", **flags)) == 0


@pytest.mark.parametrize(
    ("name", "bits"),
    [("nvidia/DeepSeek-V3.2-NVFP4", 16), ("deepseek-ai/DeepSeek-V3.2", 8)],
)
def test_modules_that_a_checkpoint_keeps_are_not_quantized(name: str, bits: int) -> None:
    """Layer 61 of V3.2, its MTP module, is on the list of what NVIDIA's NVFP4 keeps."""
    draft = {"method": "mtp", "num_speculative_tokens": 1}
    found = settled(name, "0.28", "B200-180GB", speculative_config=draft)
    experts = 256 * 3 * 7168 * 2048
    assert draft_bytes(*found) == pytest.approx(experts * bits / 8, rel=0.06)


def test_what_other_drivers_report_widens_one_side() -> None:
    """A T4 has 14.56 GiB under newer drivers, 14.74 under those of before mid-2025."""
    model = kvproof.load_model("Qwen/Qwen2.5-1.5B-Instruct", offline=True)
    budget = kvproof.budget(model, kvproof.Deployment("vllm@0.8.5", "T4"))
    up, down = budget.interval[1] - budget.kv_bytes, budget.kv_bytes - budget.interval[0]
    assert (up - down) / 2**30 == pytest.approx(0.9 * (14.74 - 14.5625), abs=0.01)


def test_all_that_the_gpu_holds_is_charged_until_0_6_4() -> None:
    """log004 (0.6.4's one line) prints 0.35 GiB outside torch, log014 (0.6.5 on) 0.10."""
    model = kvproof.load_model("Qwen/Qwen2.5-1.5B-Instruct", offline=True)
    before, after = (
        {
            term.name: term.value / 2**30
            for term in kvproof.budget(
                model, kvproof.Deployment(f"vllm@{release}", "RTX-3090", used=2**30)
            ).terms
        }
        for release in ("0.6.4", "0.6.5")
    )
    assert before["framework"] - after["framework"] > 0.2
    assert "CUDA context" not in before
    assert before["KV cache"] < after["KV cache"] - 1


def test_a_scan_is_no_part_of_the_run_but_what_is_read_for_it_is() -> None:
    """Qwen3.6-35B-A3B: queries, keys, values, gates, decays, and the output of 32 heads."""
    found = settled("nvidia/Qwen3.6-35B-A3B-NVFP4", "0.24", max_num_seqs=1)
    read = 8192 + 4096 + 32 + 32 + 4096
    assert layer_bytes(*found) == found[1].max_num_batched_tokens * (3 * 2048 + read) * 2
