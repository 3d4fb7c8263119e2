"""Prefill context parallelism: GPUs of one replica, what is copied, what vLLM refuses."""

from __future__ import annotations

from typing import Any

import pytest

import kvproof
from kvproof.errors import UsageError


def _plan(gpu: str, name: str = "deepseek-ai/DeepSeek-V3", **flags: Any) -> kvproof.Plan:
    model = kvproof.load_model(name, offline=True)
    deployment = kvproof.Deployment("vllm@0.32", gpu, tensor_parallel_size=8, **flags)
    return kvproof.plan(model, deployment, contexts=[4096])


def _weights(plan: kvproof.Plan) -> float:
    return next(t.value for t in plan.budget.terms if t.name == "weights")


def test_the_sets_are_gpus_of_one_replica() -> None:
    """vLLM 0.32, config/parallel.py: world_size is tensor x pipeline x prefill ranks."""
    plan = _plan("16xH200", prefill_context_parallel_size=2)
    assert (plan.ranks, plan.replicas) == (16, 1)
    with pytest.raises(UsageError, match="8 GPUs are no multiple of the 16 of prefill_context"):
        _plan("8xH200", prefill_context_parallel_size=2)


def test_experts_are_split_over_the_sets_and_attention_is_copied() -> None:
    alone, two = _plan("8xH200"), _plan("16xH200", prefill_context_parallel_size=2)
    experts = 58 * 256 * 3 * 7168 * 2048 / 8  # one byte a weight
    assert _weights(alone) - _weights(two) == pytest.approx(experts / 2, rel=0.01)
    assert two.rows[0].total_sequences == two.rows[0].sequences
    one, both = alone.rows[0].alone, two.rows[0].alone
    assert one is not None
    assert both is not None
    # One sequence has one owner; of its eight experts each set reads half.
    assert both.kv_bytes == one.kv_bytes
    half = 8 * experts * 8 / 256 / 2
    assert one.weight_bytes - both.weight_bytes == pytest.approx(half, rel=0.001)


@pytest.mark.parametrize(
    ("name", "flags", "why"),
    [
        ("Qwen/Qwen3-8B", {}, "latent attention"),
        ("deepseek-ai/DeepSeek-V3", {"decode_context_parallel_size": 4}, "none of 1, 2 and 16"),
        ("deepseek-ai/DeepSeek-V3", {"decode_context_parallel_size": 2}, "sparse attention only"),
        ("deepseek-ai/DeepSeek-V3.2", {}, "no CUDA graphs"),
        ("deepseek-ai/DeepSeek-V3", {"enable_lora": True}, "LoRA"),
    ],
)
def test_what_shares_no_prefill_is_refused(name: str, flags: dict[str, Any], why: str) -> None:
    """vLLM 0.32, v1/worker/gpu/pcp_manager.py (validate_config)."""
    with pytest.raises(UsageError, match=why):
        _plan("16xH200", name, prefill_context_parallel_size=2, **flags)
