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
