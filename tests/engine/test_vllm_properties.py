"""What must hold for every deployment of vLLM, whatever the model."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvproof
from kvproof.engine import vllm
from kvproof.engine.vllm.packed import approximate_gcd

MODELS = (
    "meta-llama/Llama-3.1-8B", "google/gemma-3-27b-it", "openai/gpt-oss-120b",
    "deepseek-ai/DeepSeek-V3", "Qwen/Qwen3-Next-80B-A3B-Thinking", "ai21labs/AI21-Jamba-1.5-Mini",
    "meta-llama/Llama-4-Scout-17B-16E-Instruct", "nvidia/Nemotron-H-8B-Base-8K",
    "deepseek-ai/DeepSeek-V3.2", "deepseek-ai/DeepSeek-V4-Flash",
)  # fmt: skip
RELEASES = ("0.6.4", "0.8.5", "0.10.2", "0.11.2", "0.16.0", "0.20.2", "0.26.0", "0.32")


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    return {name: kvproof.load_model(name, offline=True) for name in MODELS}


def flags() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "tensor_parallel_size": st.sampled_from([1, 2, 4, 8]),
            "max_model_len": st.sampled_from([512, 4096, 8192]),
            "max_num_batched_tokens": st.sampled_from([512, 8192]),
            "enable_prefix_caching": st.booleans(),
            "kv_cache_dtype": st.sampled_from(["auto", "fp8"]),
        }
    )


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(MODELS),
    release=st.sampled_from(RELEASES),
    options=flags(),
    size=st.integers(1, 60 * 10**9),
    more=st.integers(0, 10**10),
)
def test_more_bytes_never_hold_less(
    models: dict[str, Any],
    name: str,
    release: str,
    options: dict[str, Any],
    size: int,
    more: int,
) -> None:
    deployment = kvproof.Deployment(f"vllm@{release}", "H100-80GB", **options)
    less = vllm.capacity(models[name], deployment, size)
    most = vllm.capacity(models[name], deployment, size + more)
    assert most.num_blocks >= less.num_blocks
    assert most.tokens >= less.tokens
    assert most.max_concurrency >= less.max_concurrency
    assert most.sequences(512) >= less.sequences(512)
    assert most.fits or not less.fits


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(MODELS), release=st.sampled_from(RELEASES), options=flags())
def test_groups_overlay_one_block(
    models: dict[str, Any], name: str, release: str, options: dict[str, Any]
) -> None:
    deployment = kvproof.Deployment(f"vllm@{release}", "H100-80GB", **options)
    found = vllm.capacity(models[name], deployment, 20 * 10**9)
    widest = max(group.group_page_bytes for group in found.groups)
    assert found.bytes_per_block >= widest
    if "V4" not in name:
        assert found.bytes_per_block == widest
    assert found.blocks_per_sequence == sum(g.blocks_per_sequence for g in found.groups)
    assert found.num_blocks == 20 * 10**9 // found.bytes_per_block
    for group in found.groups:
        assert group.page_bytes * group.layers >= group.group_page_bytes or name.endswith(
            ("V3.2", "Flash")
        )


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(MODELS), options=flags(), tokens=st.integers(1, 8192))
def test_a_longer_sequence_never_holds_less_than_a_window_apart(
    models: dict[str, Any], name: str, options: dict[str, Any], tokens: int
) -> None:
    deployment = kvproof.Deployment("vllm@0.32", "H100-80GB", **options)
    found = vllm.capacity(models[name], deployment, 20 * 10**9)
    held = found.blocks_held(tokens)
    assert held > 0
    assert held <= found.blocks_per_sequence or tokens > options["max_model_len"]
    assert found.blocks_held(0) == 0
    assert found.sequences([tokens]) in (0, 1)


@given(st.lists(st.integers(1, 200), min_size=1, max_size=6), st.integers(1, 50))
def test_the_common_size_pads_least(values: list[int], lower: int) -> None:
    chosen = approximate_gcd(values, lower)

    def padding(size: int) -> int:
        return sum(-value % size for value in values)

    candidates = range(lower, max(values) + 1)
    assert all(padding(chosen) <= padding(other) for other in candidates)
