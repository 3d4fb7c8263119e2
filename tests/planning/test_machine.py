"""How the ranks of a deployment share the work of a step."""

from __future__ import annotations

from typing import Any

import pytest

import kvproof
from kvproof.engine.stored_types import types_of
from kvproof.errors import UsageError
from kvproof.model.weights import expert_bytes, streamed_weight_bytes
from kvproof.planning.machine import machine_of
from kvproof.timing.step import Machine, StepTime, step_time

DEEPSEEK = "deepseek-ai/DeepSeek-V3"


def machine(engine: str, **flags: Any) -> Machine:
    deployment = kvproof.Deployment(engine, "16xH200", **flags)
    found = machine_of(kvproof.load_model(DEEPSEEK), deployment)
    assert found is not None
    return found


def step(on: Machine, sequences: int) -> StepTime:
    model = kvproof.load_model(DEEPSEEK)
    return step_time(model, on, types_of(model, kvproof.Deployment("vllm")), {4096: sequences})


def test_prefill_context_ranks_deal_the_sequences_of_a_step_out() -> None:
    """vLLM 0.32, v1/worker/gpu/pcp_manager.py: each decode has one owner among them."""
    dealing = machine("vllm", tensor_parallel_size=8, prefill_context_parallel_size=2)
    starts = machine("vllm", tensor_parallel_size=8, data_parallel_size=2)
    assert (dealing.ranks, dealing.copies, dealing.sharing) == (8, 2, 2)
    whole, half = step(dealing, 64), step(starts, 32)
    assert whole.kv_bytes == 2 * half.kv_bytes
    assert whole.weight_bytes == pytest.approx(2 * half.weight_bytes)
    assert whole.seconds == pytest.approx(half.seconds)
    alone = step(dealing, 1)  # one sequence has one owner, and its own part of the experts
    assert alone.kv_bytes == step(starts, 1).kv_bytes


def test_with_decode_context_ranks_all_sets_run_every_sequence() -> None:
    """vLLM 0.32, config/parallel.py: decode context ranks shard the cache, PCP's sets don't."""
    both = machine(
        "vllm",
        tensor_parallel_size=8,
        prefill_context_parallel_size=2,
        decode_context_parallel_size=2,
    )
    assert (both.copies, both.sharing, both.repeating) == (1, 2, 2)
    plain = machine("vllm", tensor_parallel_size=8, decode_context_parallel_size=2)
    repeated, once = step(both, 64), step(plain, 64)
    assert repeated.kv_bytes == once.kv_bytes
    # The same sequences hit the same experts, of which each set reads its half.
    model = kvproof.load_model(DEEPSEEK)
    hit = 1 - (1 - model.experts_per_token / model.experts) ** 64
    saved = once.weight_bytes - repeated.weight_bytes
    assert saved == pytest.approx(hit * expert_bytes(model) / 2)


def test_sglangs_context_ranks_run_every_sequence_of_a_step() -> None:
    plain, context = (machine("sglang", tp_size=8, attn_cp_size=size) for size in (1, 4))
    assert (plain.ranks, context.ranks, context.sharing, context.repeating) == (8, 2, 4, 4)
    each, shared = step(context, 64), step(plain, 64)
    assert each.kv_bytes == shared.kv_bytes / 4  # a latent is whole on every rank
    # Each set reads all of the weights but the experts, of which it has a quarter.
    model = kvproof.load_model(DEEPSEEK)
    dense = streamed_weight_bytes(model) - expert_bytes(model)
    assert 4 * each.weight_bytes - shared.weight_bytes == pytest.approx(3 * dense)


@pytest.mark.parametrize(
    ("engine", "flags", "said"),
    [
        ("vllm", {"tensor_parallel_size": 2}, "ranks on MIG slices: NCCL joins these"),
        ("sglang", {"tp_size": 2}, "ranks on MIG slices: NCCL joins these"),
        ("llamacpp", {}, "which sees one MIG slice: this split over 2 does not run"),
        ("vllm", {}, "2 GPUs run 2 replicas of one GPU each"),
    ],
)
def test_slices_are_not_joined_as_gpus_are(engine: str, flags: dict[str, int], said: str) -> None:
    model = kvproof.load_model("Qwen/Qwen3-8B")
    slices = kvproof.Deployment(engine, "2xH100-80GB:3g.40gb", **flags)
    notes = kvproof.plan(model, slices, contexts=[4096]).warnings
    assert any(said in note for note in notes)
    assert not any("joins them" in note for note in notes)
    whole = kvproof.Deployment(engine, "2xH100-80GB", **flags)
    assert not any("MIG" in note for note in kvproof.plan(model, whole, contexts=[4096]).warnings)


@pytest.mark.parametrize(
    ("engine", "gpus", "together"),
    [
        ("vllm", "H100-80GB+MI300X", False),
        ("sglang", "MI300X,H100-80GB", False),
        ("llamacpp", "M3-Max-64GB+RTX-4090-24GB", False),
        ("llamacpp", "RTX-3090-24GB+RX-7900-XTX-24GB", True),
        ("vllm", "H100-80GB+L40S", True),
    ],
)
def test_one_start_runs_on_one_vendors_gpus(engine: str, gpus: str, together: bool) -> None:
    if together:
        assert len(kvproof.Deployment(engine, gpus).kinds) == 2
        return
    with pytest.raises(UsageError, match="GPUs at once"):
        kvproof.Deployment(engine, gpus)


def test_replicas_on_different_gpus_are_reckoned_at_the_smallest_and_said_to_be() -> None:
    model = kvproof.load_model("Qwen/Qwen3-8B")
    for flags, said in (({}, "each replica is reckoned"), ({"tensor_parallel_size": 2}, "for all")):
        mixed = kvproof.Deployment("vllm", "H100-80GB+L40S", **flags)
        assert any(said in note for note in kvproof.plan(model, mixed, contexts=[4096]).warnings)
