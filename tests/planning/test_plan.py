"""Plans: budgets that add up, counts that shrink, replicas and warnings."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvproof
from kvproof.engine.stored_types import types_of
from kvproof.errors import UsageError
from kvproof.planning.contexts import startable_length

LLAMA = "meta-llama/Llama-3.1-8B"


def test_terms_add_up_to_the_gpus_memory() -> None:
    for engine in ("formula", "vllm"):
        deployment = kvproof.Deployment(engine=engine, gpu="H100-80GB")
        plan = kvproof.plan(kvproof.load_model(LLAMA), deployment)
        assert deployment.accelerator is not None
        assert sum(t.value for t in plan.budget.terms) == deployment.accelerator.memory_bytes
        assert plan.budget.kv_bytes in [t.value for t in plan.budget.terms]
        assert plan.budget.interval[0] <= plan.budget.kv_bytes <= plan.budget.interval[1]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 200_000), min_size=2, max_size=6))
def test_longer_contexts_never_fit_more(contexts: list[int]) -> None:
    deployment = kvproof.Deployment(engine="vllm@0.32", gpu="H100-80GB")
    plan = kvproof.plan(kvproof.load_model("google/gemma-3-27b-it"), deployment, sorted(contexts))
    counts = [row.sequences for row in plan.rows]
    assert counts == sorted(counts, reverse=True)


def test_fewer_ranks_than_gpus_are_replicas() -> None:
    deployment = kvproof.Deployment(engine="vllm", gpu="8xH100-80GB", tensor_parallel_size=4)
    plan = kvproof.plan(kvproof.load_model(LLAMA), deployment, [4096])
    assert (plan.ranks, plan.replicas) == (4, 2)
    assert plan.rows[0].total_sequences == 2 * plan.rows[0].sequences


@pytest.mark.parametrize(
    ("engine", "flags"),
    [
        ("sglang", {"tp_size": 8, "dp_size": 8, "enable_dp_attention": True}),
        ("tensorrt_llm", {"tp_size": 8, "enable_attention_dp": True}),
    ],
)
def test_each_copy_of_the_attention_has_sequences_of_its_own(
    engine: str, flags: dict[str, Any]
) -> None:
    model = kvproof.load_model("Qwen/Qwen3-235B-A22B-FP8")
    deployment = kvproof.Deployment(engine, "8xH200", **flags)
    plan = kvproof.plan(model, deployment, [4096])
    row = plan.rows[0]
    assert (plan.ranks, plan.replicas, plan.attention_copies) == (8, 1, 8)
    assert row.total_sequences == 8 * row.sequences
    assert row.step is not None
    # One copy is one GPU: it reads its own pool with all KV heads, and its part of the experts.
    assert row.step.kv_bytes == row.sequences * 4096 * 94 * 2 * 4 * 128 * 2
    assert row.step.kv_bytes <= plan.budget.kv_bytes
    assert row.step.weight_bytes < 60e9


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_an_fp8_cache_goes_by_the_name_that_was_given(engine: str) -> None:
    model = kvproof.load_model("Qwen/Qwen3-8B")
    deployment = kvproof.Deployment(engine, "H100", kv_cache_dtype="fp8_e5m2")
    types = types_of(model, deployment)
    assert (types.k.name, types.v.name) == ("fp8_e5m2", "fp8_e5m2")


def test_ranks_must_divide_the_gpus() -> None:
    deployment = kvproof.Deployment(engine="vllm", gpu="6xH100-80GB", tensor_parallel_size=4)
    with pytest.raises(UsageError, match="multiple"):
        kvproof.plan(kvproof.load_model(LLAMA), deployment)


def test_contexts_beyond_training_are_warned_of() -> None:
    deployment = kvproof.Deployment(engine="formula", gpu="H100-80GB")
    plan = kvproof.plan(kvproof.load_model("meta-llama/Llama-2-7b-hf"), deployment, [32768])
    assert any("trained for 4,096" in warning for warning in plan.warnings)


def test_a_model_that_does_not_fit() -> None:
    deployment = kvproof.Deployment(engine="formula", gpu="L4-24GB")
    plan = kvproof.plan(kvproof.load_model("meta-llama/Meta-Llama-3-70B"), deployment)
    assert not plan.fits
    assert all(row.sequences == 0 for row in plan.rows)


@pytest.mark.parametrize(
    ("name", "engine", "contexts"),
    [
        ("openai/whisper-large-v3", "vllm", [448]),
        ("facebook/opt-6.7b", "vllm", [2048]),
        ("Qwen/Qwen3-8B", "vllm", [4096, 8192, 32768]),
        ("Qwen/Qwen3-8B", "sglang", [4096, 8192, 32768]),
        ("tiiuae/falcon-mamba-7b", "vllm", [2048]),
    ],
)
def test_default_contexts_end_where_the_engine_does(
    name: str, engine: str, contexts: list[int]
) -> None:
    found = kvproof.plan(kvproof.load_model(name), kvproof.Deployment(engine, "H100"))
    assert [row.context for row in found.rows] == contexts
    assert all(row.sequences for row in found.rows)
    assert found.fits
    assert not [said for said in found.warnings if "past that" in said or "refuses" in said]


def test_contexts_that_are_left_out_for_a_flag_are_named() -> None:
    model = kvproof.load_model("Qwen/Qwen3-8B")
    deployment = kvproof.Deployment("vllm", "H100", max_model_len=8192)
    said = kvproof.plan(model, deployment).warnings
    assert any("max_model_len is 8,192, the model reaches 40,960" in line for line in said)
    asked = kvproof.plan(model, deployment, contexts=[32768])
    assert asked.rows[0].limit == "max_model_len"


def test_a_length_that_is_an_importers_own_is_not_the_models() -> None:
    assert kvproof.load_model("tiiuae/falcon-mamba-7b").context is None


def test_rows_of_a_plan_that_does_not_start_name_the_length_at_which_they_hold() -> None:
    model = kvproof.load_model("google/gemma-3-27b-it")
    deployment = kvproof.Deployment("vllm@0.32", "Jetson-AGX-Orin-64GB")
    found = kvproof.plan(model, deployment, contexts=[4096, 32768])
    length = startable_length(found.capacity)
    assert length is not None
    assert 4096 < length < 32768
    assert [row.sequences > 0 for row in found.rows] == [True, False]
    assert any(f"max_model_len {length:,} or less" in said for said in found.warnings)
    shorter = kvproof.plan(model, deployment.replace(max_model_len=length), contexts=[4096])
    assert shorter.capacity.fits
    assert shorter.rows[0].sequences == found.rows[0].sequences
    assert startable_length(shorter.capacity) is None
    assert not any("does not start" in said for said in shorter.warnings)


@pytest.mark.parametrize(
    ("engine", "gpu", "flags", "replicas", "said"),
    [
        ("vllm", "H100-80GB", {"data_parallel_size": 2}, 2, "2 H100-80GB are assumed"),
        ("vllm", "4xH100-80GB", {"data_parallel_size": 2, "tensor_parallel_size": 2}, 2, None),
        ("vllm", "8xH100-80GB", {"data_parallel_size": 2, "tensor_parallel_size": 2}, 4,
         "8 GPUs run 2 such starts"),
        ("sglang", "H100-80GB", {"dp_size": 4}, 4, "4 H100-80GB are assumed"),
        ("sglang", "8xH100-80GB", {"tp_size": 8, "dp_size": 2}, 1, "16 in all: of these the 8"),
        ("sglang", "8xH100-80GB", {"tp_size": 8, "dp_size": 2, "enable_dp_attention": True}, 1,
         None),
    ],
)  # fmt: skip
def test_copies_that_the_flags_start_are_replicas(
    engine: str, gpu: str, flags: dict[str, Any], replicas: int, said: str | None
) -> None:
    model = kvproof.load_model("Qwen/Qwen3-8B", offline=True)
    found = kvproof.plan(model, kvproof.Deployment(engine, gpu, **flags), contexts=[4096])
    assert found.replicas == replicas
    row = found.rows[0]
    assert row.total_sequences == row.sequences * replicas * found.attention_copies
    notes = [note for note in found.warnings if note.startswith("the flags start")]
    assert len(notes) == (said is not None)
    assert all(said is not None and said in note for note in notes)
