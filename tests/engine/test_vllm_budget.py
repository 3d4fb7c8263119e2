"""vLLM's budget: terms that add up, weights equal to what engines printed, an interval."""

from __future__ import annotations

from typing import Any

import pytest

import kvproof
from kvproof.engine import vllm
from kvproof.engine.vllm.rank_weights import rank_weights
from kvproof.engine.vllm.settings import settle
from kvproof.errors import UsageError

GIB = 2**30


def weights(name: str, release: str, gpu: str, **flags: Any) -> float:
    model = kvproof.load_model(name, offline=True)
    deployment = kvproof.Deployment(f"vllm@{release}", gpu, **flags)
    return rank_weights(model, settle(model, deployment)).total / GIB


@pytest.mark.parametrize(
    ("name", "release", "gpu", "flags", "printed"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "0.6", "RTX-3090", {}, 14.9888),
        ("Qwen/Qwen3-32B", "0.13", "H100-80GB", {}, 61.03),
        ("Qwen/Qwen3-8B", "0.9", "A100-40GB", {}, 15.2683),
        ("openai/gpt-oss-120b", "0.11.2", "H100-80GB", {}, 65.9651),
        ("Qwen/Qwen3-235B-A22B", "0.8.5", "H100-80GB", {"tensor_parallel_size": 8}, 54.92),
        ("deepseek-ai/DeepSeek-R1-0528", "0.13", "H200", {"tensor_parallel_size": 8}, 79.739),
        ("nvidia/DeepSeek-V3.2-NVFP4", "0.18", "B200", {"tensor_parallel_size": 8}, 48.62),
        (
            "RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic",
            "0.18", "H200", {"tensor_parallel_size": 4}, 16.96,
        ),
    ],
    ids=lambda value: str(value).split("/")[-1],
)  # fmt: skip
def test_weights_are_those_that_engines_print(
    name: str, release: str, gpu: str, flags: dict[str, Any], printed: float
) -> None:
    assert weights(name, release, gpu, **flags) == pytest.approx(printed, rel=0.002)


@pytest.mark.parametrize("release", ["0.6.4", "0.11.2", "0.18.0", "0.20.2", "0.32"])
@pytest.mark.parametrize("ranks", [1, 4])
def test_terms_add_up_to_the_gpu(release: str, ranks: int) -> None:
    model = kvproof.load_model("meta-llama/Llama-3.1-8B")
    deployment = kvproof.Deployment(f"vllm@{release}", "H100-80GB", tensor_parallel_size=ranks)
    found = vllm.budget(model, deployment)
    assert deployment.accelerator is not None
    assert sum(term.value for term in found.terms) == deployment.accelerator.memory_bytes
    assert found.terms[-1].name == "KV cache"
    assert found.terms[-1].value == found.kv_bytes
    low, high = found.interval
    assert low < found.kv_bytes < high


def test_a_model_that_is_too_large_leaves_nothing() -> None:
    model = kvproof.load_model("meta-llama/Llama-3.1-70B")
    deployment = kvproof.Deployment("vllm", "H100-80GB")
    found = vllm.budget(model, deployment)
    assert found.kv_bytes == 0
    assert found.terms[-1].name == "missing"
    assert deployment.accelerator is not None
    assert sum(term.value for term in found.terms) == deployment.accelerator.memory_bytes


def test_given_cache_bytes_are_taken() -> None:
    model = kvproof.load_model("meta-llama/Llama-3.1-8B")
    deployment = kvproof.Deployment("vllm", "H100-80GB", kv_cache_memory_bytes="10G")
    found = vllm.budget(model, deployment)
    assert found.kv_bytes == 10 * GIB
    assert found.interval == (10 * GIB, 10 * GIB)


def test_no_gpu_is_named() -> None:
    model = kvproof.load_model("meta-llama/Llama-3.1-8B")
    with pytest.raises(UsageError, match="no GPU"):
        vllm.budget(model, kvproof.Deployment("vllm"))


def test_what_takes_memory_leaves_less_for_the_cache() -> None:
    model = kvproof.load_model("meta-llama/Llama-3.1-8B")

    def cache(**flags: Any) -> int:
        return vllm.budget(model, kvproof.Deployment("vllm", "H100-80GB", **flags)).kv_bytes

    plain = cache()
    assert cache(gpu_memory_utilization=0.95) > plain
    assert cache(max_num_seqs=256) > plain
    assert cache(enforce_eager=True) > plain
    assert cache(enable_lora=True, max_loras=4, max_lora_rank=64) < plain
    assert cache(max_num_batched_tokens=65536) < plain
    assert cache(speculative_config={"method": "eagle", "num_speculative_tokens": 3}) < plain
    assert cache(quantization="fp8") > plain


def test_experts_are_dealt_out() -> None:
    model = kvproof.load_model("Qwen/Qwen3-235B-A22B")
    flags = {"tensor_parallel_size": 4, "data_parallel_size": 2}
    shared = rank_weights(model, settle(model, kvproof.Deployment("vllm", "H200", **flags)))
    alone = rank_weights(
        model, settle(model, kvproof.Deployment("vllm", "H200", tensor_parallel_size=4))
    )
    assert shared.decoder < 0.6 * alone.decoder


def test_the_fullest_stage_counts() -> None:
    one = weights("meta-llama/Llama-3.1-70B", "0.32", "H100-80GB", tensor_parallel_size=4)
    two = weights(
        "meta-llama/Llama-3.1-70B", "0.32", "H100-80GB",
        tensor_parallel_size=4, pipeline_parallel_size=2,
    )  # fmt: skip
    assert 0.5 * one < two < 0.52 * one
