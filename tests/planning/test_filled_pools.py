"""What fits fills the pool: a sequence's bytes, in tables and steps, are those of the allocator."""

from __future__ import annotations

import pytest

import kvproof
from kvproof.planning import PlanRow

PLAIN, LATENT, SPARSE = "Qwen/Qwen3-8B", "deepseek-ai/DeepSeek-V3", "deepseek-ai/DeepSeek-V3.2"
TYPES = {
    "vllm@0.32": ("auto", "fp8", "fp8_e5m2", "nvfp4", "int8_per_token_head", "int4_per_token_head"),
    "vllm@0.8.5": ("auto", "fp8"),
    "sglang@0.5.23": ("auto", "fp8_e4m3", "fp8_e5m2", "bf16", "mxfp8", "nvfp4"),
    "sglang@0.4.6": ("auto", "fp8_e5m2"),
    "tensorrt_llm@1.3": ("auto", "fp8", "nvfp4"),
}


@pytest.mark.parametrize(("engine", "dtype"), [(e, t) for e, types in TYPES.items() for t in types])
def test_heads_of_any_type_fill_the_pool(engine: str, dtype: str) -> None:
    d = kvproof.Deployment(engine, "B200", kv_cache_dtype=dtype)
    row, pool = filled(PLAIN, d)
    assert row.limit == "capacity"
    assert 0.97 * pool < row.sequences * row.bytes_per_sequence <= pool


@pytest.mark.parametrize("model", [LATENT, SPARSE])
@pytest.mark.parametrize("gpus", ["8xH200", "8xB300"])
@pytest.mark.parametrize("dtype", ["auto", "fp8"])
@pytest.mark.parametrize("engine", ["vllm@0.32", "sglang@0.5.23", "tensorrt_llm@1.3"])
def test_latents_are_whole_on_every_rank_and_fill_its_pool(
    model: str, gpus: str, dtype: str, engine: str
) -> None:
    ranks = "tensor_parallel_size" if engine.startswith("vllm") else "tp_size"
    named = "fp8_e4m3" if (engine[:6], dtype) == ("sglang", "fp8") else dtype
    d = kvproof.Deployment(engine, gpus, kv_cache_dtype=named, **{ranks: 8})
    row, pool = filled(model, d)
    assert row.limit == "capacity"
    assert 0.94 * pool < row.sequences * row.bytes_per_sequence <= pool


def filled(model: str, deployment: kvproof.Deployment) -> tuple[PlanRow, int]:
    """The row of 16,384 tokens, and the pool of one GPU."""
    found = kvproof.plan(kvproof.load_model(model), deployment, contexts=[16_384])
    return found.rows[0], found.budget.kv_bytes
