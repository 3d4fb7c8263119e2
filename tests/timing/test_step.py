"""What a decode step reads and how long it takes."""

from __future__ import annotations

import msgspec
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


@pytest.mark.parametrize(
    ("gpu", "name", "flags"),
    [
        ("8xH200", "deepseek-ai/DeepSeek-V3", {"decode_context_parallel_size": 8}),
        ("8xH200", "deepseek-ai/DeepSeek-V3", {}),
        ("8xH100", "Qwen/Qwen3-30B-A3B", {"decode_context_parallel_size": 2}),
        ("8xH100", "Qwen/Qwen3-30B-A3B", {}),
        ("8xH100", "openai/gpt-oss-120b", {}),
    ],
)
def test_a_step_reads_no_more_cache_than_the_ranks_hold(
    gpu: str, name: str, flags: dict[str, int]
) -> None:
    deployment = kvproof.Deployment("vllm@0.32", gpu, tensor_parallel_size=8, **flags)
    found = kvproof.plan(kvproof.load_model(name), deployment, contexts=[30_000])
    row = found.rows[0]
    assert row.step is not None
    assert row.limit == "capacity"
    held = 8 * found.budget.kv_bytes
    # One more sequence wouldn't fit.
    assert 0.97 * held < row.step.kv_bytes * (1 + 1 / row.step.batch)
    assert row.step.kv_bytes <= held


def test_context_ranks_deal_out_what_grows_and_nothing_else() -> None:
    model = kvproof.load_model("google/gemma-3-27b-it")
    types = types_of(model, None)
    one, two = (read_bytes(model, 100_000, types, 32, n) for n in (1, 2))
    grown = read_bytes(model, 100_000, types, 32) - read_bytes(model, 50_000, types, 32)
    assert one - two == grown


def test_copies_of_the_cache_are_named_in_the_formula() -> None:
    model = kvproof.load_model("deepseek-ai/DeepSeek-V3")
    machine = msgspec.structs.replace(H100, ranks=8, context_ranks=4)
    step = step_time(model, machine, types_of(model, None), {4096: 3})
    said = next(term for term in step.terms if term.name == "KV read").formula
    once = 3 * read_bytes(model, 4096, types_of(model, None))
    assert step.kv_bytes == 2 * once
    assert f"{once:,} B + {once:,} B that GPUs hold more than once = {2 * once:,} B" in said


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


@pytest.mark.parametrize(
    ("engine", "scheme", "bits"),
    [
        ("vllm", "fp8", 8),
        ("sglang", "fp8", 8),
        ("vllm", "bitsandbytes", 4.5),
        ("tensorrt_llm", "fp8", 8),
    ],
)
def test_weights_quantized_while_loading_are_read_as_they_lie_in_memory(
    engine: str, scheme: str, bits: float
) -> None:
    model = kvproof.load_model("Qwen/Qwen3-8B")
    plain, asked = (
        kvproof.plan(model, kvproof.Deployment(engine, "H100", **flags), contexts=[256])
        for flags in ({}, {"quantization": scheme})
    )
    table = 151_936 * 4096 * 2  # the head stays in 16 bits; the embedding is looked up
    steps = [found.rows[0].alone for found in (plain, asked)]
    assert steps[0] is not None
    assert steps[1] is not None
    matrices = steps[0].weight_bytes - table
    assert steps[1].weight_bytes - table == pytest.approx(matrices * bits / 16, rel=0.001)
    assert asked.crossover_tokens is not None
    assert plain.crossover_tokens is not None
    ratio = asked.crossover_tokens / plain.crossover_tokens
    assert ratio == pytest.approx(steps[1].weight_bytes / steps[0].weight_bytes)
    assert steps[1].efficiency.weights < steps[0].efficiency.weights


def test_experts_quantized_while_loading_are_read_as_they_lie_in_memory() -> None:
    model = kvproof.load_model("Qwen/Qwen3-30B-A3B")
    flags = {"max_num_seqs": 1, "max_model_len": 4096}
    plain, asked = (
        kvproof.plan(model, kvproof.Deployment("vllm", "H100", **flags, **more), contexts=[256])
        for more in ({}, {"quantization": "fp8"})
    )
    alone = [found.rows[0].alone for found in (plain, asked)]
    assert alone[0] is not None
    assert alone[1] is not None
    assert 0.5 < alone[1].weight_bytes / alone[0].weight_bytes < 0.65


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


@pytest.mark.parametrize(
    ("name", "machine", "context"),
    [
        ("meta-llama/Llama-3.1-8B", H100, 4096),
        ("meta-llama/Llama-3.1-8B", H100, 131_072),
        ("mistralai/Mixtral-8x7B-v0.1", H100, 4096),  # its batch hits every expert
        ("openai/gpt-oss-120b", H100, 8192),
        ("google/gemma-3-27b-it", H100, 4096),  # each sequence fills its windows
        ("tiiuae/falcon-mamba-7b", H100, 4096),  # each sequence has its states
        ("deepseek-ai/DeepSeek-V3", Machine(bandwidth=1e12, flops=None, ranks=16, stages=2), 8192),
    ],
)
def test_at_the_crossing_a_step_reads_as_much_cache_as_weights(
    name: str, machine: Machine, context: int
) -> None:
    model = kvproof.load_model(name)
    types = types_of(model, None)
    tokens = crossover_tokens(model, types, machine=machine, context=context)
    assert tokens is not None
    before = int(tokens / context)
    shares = [
        step_time(model, machine, types, {context: n}).kv_share for n in (before, before + 1) if n
    ]
    assert shares[-1] >= 0.5
    assert all(share <= 0.5 for share in shares[:-1])


def test_a_model_without_a_cache_has_no_crossing() -> None:
    model = kvproof.load_model("meta-llama/Llama-3.1-8B")
    bare = msgspec.structs.replace(model, slots=())
    assert crossover_tokens(bare, types_of(model, None)) is None


def test_a_layer_lies_on_one_pipeline_stage() -> None:
    model = kvproof.load_model("Qwen/Qwen3-235B-A22B")  # 4 KV heads
    types = types_of(model, None)
    staged = Machine(bandwidth=3.35e12, flops=989e12, ranks=8, stages=2)
    held = 94 * 2 * 4 * 128 * 2 * 4096
    assert step_time(model, staged, types, {4096: 10}).kv_bytes == 10 * held


def test_stages_read_the_weights_once_for_each_batch_in_flight() -> None:
    model = kvproof.load_model(LLAMA)
    types = types_of(model, None)
    staged = Machine(bandwidth=3.35e12, flops=989e12, ranks=4, stages=4)
    whole = step_time(model, H100, types, {4096: 16})
    step = step_time(model, staged, types, {4096: 16})
    assert step.weight_bytes == 4 * whole.weight_bytes
    assert step.kv_bytes == whole.kv_bytes
    # A token passes all stages: no more of them make one sequence faster.
    one, alone = (step_time(model, m, types, {4096: 1}) for m in (H100, staged))
    assert alone.seconds == pytest.approx(one.seconds)
    # Two sequences keep two of the four stages busy.
    assert step_time(model, staged, types, {4096: 2}).seconds == pytest.approx(one.seconds)


def test_the_crossing_sizes_the_weights_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its search asks some 60 times; sizes of a mixed checkpoint name each of its matrices."""
    from kvproof.timing import step

    model, asked = kvproof.load_model("nvidia/MiniMax-M3-NVFP4", offline=True), []
    sized = step.streamed_weight_bytes

    def counted(found: kvproof.Model) -> int:
        asked.append(found.name)
        return sized(found)

    monkeypatch.setattr(step, "streamed_weight_bytes", counted)
    assert crossover_tokens(model, types_of(model, None)) is not None
    assert len(asked) == 1
