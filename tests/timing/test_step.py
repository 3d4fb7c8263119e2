"""What a decode step reads and how long it takes."""

from __future__ import annotations

import pytest

import kvproof
from kvproof.engine.formula import types_of
from kvproof.timing.step import Efficiency, Machine, crossover_tokens, read_bytes, step_time

LLAMA = "meta-llama/Meta-Llama-3-70B"
H100 = Machine(bandwidth=3.35e12, flops=989e12)


def test_ranks_share_heads_but_copy_latents() -> None:
    llama, deepseek = kvproof.load_model(LLAMA), kvproof.load_model("deepseek-ai/DeepSeek-V3")
    types = types_of(llama, None)
    assert read_bytes(llama, 1000, types, 8) == read_bytes(llama, 1000, types)
    assert read_bytes(llama, 1000, types, 16) == 2 * read_bytes(llama, 1000, types)
    assert read_bytes(deepseek, 1000, types, 8) == 8 * read_bytes(deepseek, 1000, types)


def test_sparse_attention_reads_the_chosen_positions_only() -> None:
    model = kvproof.load_model("deepseek-ai/DeepSeek-V3.2")
    types = types_of(model, None)
    step = read_bytes(model, 100_001, types) - read_bytes(model, 100_000, types)
    assert step == 61 * 128 * 2


def test_experts_are_read_as_the_batch_hits_them() -> None:
    model = kvproof.load_model("openai/gpt-oss-120b")
    types = types_of(model, None)
    reads = [step_time(model, H100, types, {1: n}).weight_bytes for n in (1, 8, 1000)]
    assert reads[0] < reads[1] < reads[2]
    assert reads[0] < 0.08 * reads[2]


def test_copies_that_share_the_experts_read_their_part() -> None:
    model = kvproof.load_model("deepseek-ai/DeepSeek-V3")
    flags = {"data_parallel_size": 8, "enable_expert_parallel": True, "max_model_len": 32768}
    deployment = kvproof.Deployment("vllm@0.32", "8xH200", **flags)
    found = kvproof.plan(model, deployment, contexts=[4096])
    held = next(term.value for term in found.budget.terms if term.name == "weights")
    step = found.rows[0].step
    assert step is not None
    # With some 700 sequences every expert is hit: a GPU reads what it holds, less the embedding.
    assert held - step.weight_bytes == pytest.approx(129_280 * 7168 * 2, rel=0.2)
    # A dense model's copies share nothing.
    llama = kvproof.load_model("meta-llama/Llama-3.1-8B")
    one = kvproof.plan(llama, kvproof.Deployment("vllm", "H200"), contexts=[4096]).rows[0]
    two = kvproof.Deployment("vllm", "2xH200", data_parallel_size=2)
    other = kvproof.plan(llama, two, contexts=[4096]).rows[0]
    assert one.step is not None
    assert other.step is not None
    assert one.step.weight_bytes == other.step.weight_bytes


def test_a_large_batch_is_limited_by_compute() -> None:
    model = kvproof.load_model(LLAMA)
    small, large = (step_time(model, H100, types_of(model, None), {16: n}) for n in (1, 4096))
    assert (small.limit, large.limit) == ("bandwidth", "compute")
    assert large.tokens_per_second == pytest.approx(4096 / large.seconds)


def test_efficiency_stretches_the_step() -> None:
    model = kvproof.load_model(LLAMA)
    types, half = types_of(model, None), Efficiency(weights=0.5, attention=0.5, compute=1)
    ideal = step_time(model, H100, types, {4096: 8})
    real = step_time(model, H100, types, {4096: 8}, efficiency=half)
    assert real.seconds == pytest.approx(2 * ideal.seconds)


def test_a_state_space_model_never_crosses() -> None:
    model = kvproof.load_model("tiiuae/falcon-mamba-7b")
    assert crossover_tokens(model, types_of(model, None)) is None
