"""Every figure that the seed documents state, through the public interface.

Row order and names follow ../shared/acceptance/seed-numbers.md; figures are the documents' own.
"""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

import kvproof
from kvproof.engine.formula import types_of
from kvproof.kinds import Types, element_type, sequence_bytes
from kvproof.model.designs import with_attention
from kvproof.surfaces.cli import cli
from kvproof.timing import without_cache
from kvproof.timing.step import attention_flops, crossover_tokens

GB = 10**9
KIB, MIB, GIB = 2**10, 2**20, 2**30

LLAMA2_7B = "meta-llama/Llama-2-7b-hf"
LLAMA3_8B = "meta-llama/Meta-Llama-3-8B"
LLAMA31_8B = "meta-llama/Llama-3.1-8B"
LLAMA3_70B = "meta-llama/Meta-Llama-3-70B"
LLAMA2_70B = "meta-llama/Llama-2-70b-hf"
QWEN25_7B = "Qwen/Qwen2.5-7B"
DEEPSEEK_V3 = "deepseek-ai/DeepSeek-V3"
GPT3 = "openai/gpt-3-175b"


def held(name: str, tokens: int, **options: object) -> int:
    model = kvproof.load_model(name, offline=True)
    return kvproof.cache(model, tokens, engine="formula", **options).bytes


def per_token(name: str, **options: object) -> int:
    return held(name, 2, **options) - held(name, 1, **options)


# --- bytes per token and per sequence -------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kib", "sizes"),
    [
        (LLAMA2_7B, 512, (2.15, 17.18, 68.72)),
        (LLAMA3_8B, 128, (0.54, 4.29, 17.18)),
        (QWEN25_7B, 56, (0.23, 1.88, 7.52)),
        (LLAMA2_70B, 320, (1.34, 10.74, 42.95)),
        (LLAMA3_70B, 320, (1.34, 10.74, 42.95)),
    ],
)
def test_000_bytes_per_token_and_sequence(name: str, kib: int, sizes: tuple[float, ...]) -> None:
    assert per_token(name) == kib * KIB
    for tokens, size in zip((4096, 32768, 131072), sizes, strict=True):
        assert round(held(name, tokens) / GB, 2) == size


def test_000_llama2_70b_is_gqa_not_mha() -> None:
    model = kvproof.load_model(LLAMA2_70B)
    assert {slot.kv_heads for slot in model.slots} == {8}
    assert per_token(LLAMA2_70B) == 327_680


def test_000_003_deepseek_v3_latent() -> None:
    assert per_token(DEEPSEEK_V3) == 70_272
    for tokens, size in ((4096, 0.29), (32768, 2.30), (131072, 9.21)):
        assert round(held(DEEPSEEK_V3, tokens) / GB, 2) == size
    plain = with_attention(kvproof.load_model(DEEPSEEK_V3), "mha")
    mha = kvproof.cache(plain, 1, engine="formula").bytes
    assert round(mha / MIB, 1) == 3.8
    assert round(100 * 70_272 / mha, 2) == 1.76
    assert round(mha / 70_272) == 57


def test_000_one_16384_token_sequence_of_llama3_70b() -> None:
    assert round(held(LLAMA3_70B, 16384) / GB, 2) == 5.37


def test_000_mistral_stops_growing_at_its_window() -> None:
    name = "mistralai/Mistral-7B-v0.1"
    assert held(name, 32768) == held(name, 4096) == 4096 * 131_072
    config = dict(kvproof.load_model(name).config) | {"sliding_window": None}
    full = kvproof.cache(kvproof.load_model(config), 32768, engine="formula").bytes
    assert full == 8 * held(name, 32768)


def test_001_lengths_batches_and_heads() -> None:
    assert [held(LLAMA3_8B, n) // MIB for n in (1024, 4096, 8192)] == [128, 512, 1024]
    model = kvproof.load_model(LLAMA3_8B)
    batch = kvproof.cache(model, lengths=[4096, 4096, 1024], engine="formula")
    assert batch.bytes == 1152 * MIB
    assert held(LLAMA3_8B, 8192) == 2 * held(LLAMA3_8B, 4096)
    assert per_token(LLAMA2_7B) == 4 * per_token(LLAMA3_8B)


def test_001_a_sampled_final_token_is_not_yet_cached() -> None:
    """`tokens` are cached positions; after decoding one, prompt + 1 are, whatever is visible."""
    model = kvproof.load_model(LLAMA3_8B)
    visible = 33 + 2  # prompt, one token that was decoded from, one just sampled
    cached = kvproof.cache(model, 33, engine="transformers", decode_steps=1).bytes
    assert cached == kvproof.cache(model, visible - 1, engine="transformers").bytes


def test_002_head_dim_absent() -> None:
    config = {
        "model_type": "llama", "num_hidden_layers": 80, "num_key_value_heads": 8,
        "num_attention_heads": 64, "hidden_size": 8192, "intermediate_size": 28672,
        "vocab_size": 128256, "torch_dtype": "bfloat16",
    }  # fmt: skip
    model = kvproof.load_model(config)
    assert kvproof.cache(model, 1, engine="formula").bytes == 327_680
    session = kvproof.cache(model, 32_000, engine="formula").bytes
    assert round(session / GB) == 10
    assert round(kvproof.cache(model, 32_000, batch=10, engine="formula").bytes / GB, -1) == 100


@pytest.mark.parametrize(("dtype", "width"), [("bf16", 2), ("f16", 2), ("fp8", 1), ("int4", 0.5)])
def test_002_element_widths(dtype: str, width: float) -> None:
    assert per_token(LLAMA3_8B, dtype=dtype) == 65_536 * width


def test_003_numbers_and_pairs_per_token() -> None:
    slots = kvproof.load_model(LLAMA31_8B).slots
    assert sum(s.kv_heads * (s.k_dim + s.v_dim) for s in slots) == 65_536
    assert sum(s.kv_heads for s in slots) == 256


def test_003_gpt3() -> None:
    assert per_token(GPT3) == 4.5 * MIB
    assert held(GPT3, 131072) == 576 * GIB


def test_003_falcon_7b_has_one_kv_head() -> None:
    model = kvproof.load_model("tiiuae/falcon-7b")
    assert {slot.kv_heads for slot in model.slots} == {1}
    assert per_token("tiiuae/falcon-7b") == 8_192


def test_003_pope_500b_mha() -> None:
    config = {
        "model_type": "gpt2", "n_layer": 118, "n_head": 48, "n_embd": 48 * 128,
        "n_positions": 2048, "vocab_size": 256_000, "torch_dtype": "bfloat16",
    }  # fmt: skip
    total = kvproof.cache(kvproof.load_model(config), 2048, batch=512, engine="formula").bytes
    assert round(total / 1e12, 2) == 3.04


def test_003_fp8_cache() -> None:
    assert per_token(LLAMA31_8B, dtype="fp8") == 64 * KIB
    assert held(LLAMA31_8B, 131072, dtype="fp8") == 8 * GIB


def test_003_deepseek_v2_against_67b() -> None:
    old = per_token("deepseek-ai/deepseek-llm-67b-base")
    new = per_token("deepseek-ai/DeepSeek-V2")
    six_bits = per_token("deepseek-ai/DeepSeek-V2", dtype="int6")
    assert round(100 * (1 - six_bits / old), 1) == 93.3
    assert round(100 * (1 - new / old), 1) == 82.2


def test_003_deepseek_v4_pro_against_v32_at_a_million_tokens() -> None:
    """The model card's 10 % holds in the types that serve both: 8-bit rows with 16-bit rotary
    parts, and index keys in 8 bits (V3.2) and 4 bits (V4). In bf16 throughout it is 11.5 %."""
    old_model = kvproof.load_model("deepseek-ai/DeepSeek-V3.2")
    new_model = kvproof.load_model("deepseek-ai/DeepSeek-V4-Pro")

    def at_a_million(model: object, row: str, index: str) -> int:
        types = Types(element_type(row), element_type(row), element_type(index))
        return sequence_bytes(model.slots, 2**20, types)  # type: ignore[attr-defined]

    old = at_a_million(old_model, "fp8_ds_mla", "fp8_scaled_128")
    new = at_a_million(new_model, "fp8_ds_v4", "mxfp4")
    assert round(100 * new / old) == 10
    plain = [at_a_million(model, "bf16", "bf16") for model in (old_model, new_model)]
    assert round(100 * plain[1] / plain[0], 1) == 11.5


def test_004_width_4096_and_the_crossing() -> None:
    assert per_token(LLAMA2_7B) == 524_288
    assert held(LLAMA2_7B, 4096) == 2 * GIB
    model = kvproof.load_model(LLAMA2_7B)
    assert kvproof.cache(model, 4096, batch=32, engine="formula").bytes == 64 * GIB
    types = types_of(model, None)
    crossing = crossover_tokens(model, types, streamed=13 * GIB)
    assert crossing is not None
    assert round(crossing, -3) == 27_000


# --- how many fit ---------------------------------------------------------------------------

BUDGETS = [
    (LLAMA3_8B, 1, 8.03e9, None, 52, (96, 48, 12, 3)),
    (LLAMA2_7B, 1, 6.74e9, None, 55, (25, 12, 3, 0)),
    (LLAMA3_70B, 4, 70.6e9, None, 131, (97, 48, 12, 3)),
    (LLAMA3_70B, 8, 70.6e9, None, 403, (300, 150, 37, 9)),
    (LLAMA3_8B, 1, 8.03e9, "fp8", 52, (193, 96, 24, 6)),
]


def formula(gpus: int, parameters: float, **flags: object) -> kvproof.Deployment:
    return kvproof.Deployment(
        engine="formula", gpu_memory=80e9, memory_share=0.9, other_memory=4e9,
        weight_bytes=2 * parameters, tensor_parallel_size=gpus,
        **{k: v for k, v in flags.items() if v is not None},
    )  # fmt: skip


@pytest.mark.parametrize(("name", "gpus", "parameters", "dtype", "gb", "counts"), BUDGETS)
def test_000_budget_and_sequences(
    name: str, gpus: int, parameters: float, dtype: str | None, gb: int, counts: tuple[int, ...]
) -> None:
    model = kvproof.load_model(name)
    deployment = formula(gpus, parameters, kv_cache_dtype=dtype)
    budget = kvproof.budget(model, deployment)
    assert round(gpus * budget.kv_bytes / GB) == gb
    assert sum(term.value for term in budget.terms) == 80 * GB
    capacity = kvproof.capacity(model, deployment, budget.kv_bytes)
    assert tuple(capacity.sequences(n) for n in (4096, 8192, 32768, 131072)) == counts


def test_000_exercise_fp8_on_eight_gpus() -> None:
    model = kvproof.load_model(LLAMA3_70B)
    deployment = formula(8, 70.6e9, kv_cache_dtype="fp8")
    budget = kvproof.budget(model, deployment)
    assert kvproof.capacity(model, deployment, budget.kv_bytes).sequences(131072) == 18


def test_000_sixteen_ranks_replicate_eight_heads() -> None:
    model = kvproof.load_model(LLAMA3_70B)
    pages = [
        kvproof.capacity(model, formula(n, 70.6e9), 10**10).bytes_per_block for n in (4, 8, 16)
    ]
    assert pages[0] == 2 * pages[1]
    assert pages[1] == pages[2]


def test_003_four_designs_on_one_body() -> None:
    body = kvproof.load_model(LLAMA31_8B)
    deployment = kvproof.Deployment(
        engine="formula", gpu_memory=80e9, memory_share=1, other_memory=0, weight_bytes=16.06e9
    )
    counts = {}
    for design in ("mha", "gqa", "mqa", "mla"):
        model = with_attention(body, design)
        budget = kvproof.budget(model, deployment)
        counts[design] = kvproof.capacity(model, deployment, budget.kv_bytes).sequences(4096)
    assert counts == {"mha": 29, "gqa": 119, "mqa": 952, "mla": 423}
    assert kvproof.capacity(body, deployment, budget.kv_bytes).sequences(131072) == 3


# --- what a decode step reads and how long it takes -----------------------------------------


@pytest.mark.parametrize(
    ("batch", "context", "gb", "share"),
    [(1, 4096, 15.5, 3), (32, 4096, 32.2, 53), (128, 4096, 83.7, 82), (32, 32768, 152.4, 90)],
)
def test_000_bytes_of_a_step(batch: int, context: int, gb: float, share: int) -> None:
    from kvproof.timing.step import Machine, step_time

    model = kvproof.load_model(LLAMA3_8B)
    step = step_time(
        model, Machine(bandwidth=3.35e12, flops=None), types_of(model, None), {context: batch},
        streamed=15 * GB,
    )  # fmt: skip
    assert round(step.bytes / GB, 1) == gb
    assert round(100 * step.kv_share) == share


def test_000_streamed_weights_leave_the_table_out() -> None:
    model = kvproof.load_model(LLAMA3_8B)
    assert round(2 * model.parameters / GB, 2) == 16.06
    assert round(2 * model.streamed_parameters / GB, 1) == 15.0


def test_000_crossing_of_reads() -> None:
    model = kvproof.load_model(LLAMA3_8B)
    tokens = crossover_tokens(model, types_of(model, None), streamed=15 * GB)
    assert tokens is not None
    assert round(tokens) == 114_441
    assert round(tokens / 4096) == 28
    assert round(tokens / 32768, 1) == 3.5


def test_000_twelve_sequences_at_32k() -> None:
    deployment = kvproof.Deployment(
        engine="formula", gpu_memory=80e9, weight_bytes=16.06e9, streamed_weight_bytes=15.0e9,
        bandwidth=3.35e12,
    )  # fmt: skip
    plan = kvproof.plan(kvproof.load_model(LLAMA3_8B), deployment, contexts=[32768])
    (row,) = plan.rows
    assert row.sequences == 12
    assert row.step is not None
    assert round(row.step.seconds * 1000) == 20
    assert round(row.step.tokens_per_second_per_user, -1) == 50


def test_003_one_user_at_128k() -> None:
    deployment = kvproof.Deployment(
        engine="formula", gpu_memory=80e9, memory_share=1, other_memory=0, weight_bytes=16.06e9,
        streamed_weight_bytes=16.06e9, bandwidth=3.35e12,
    )  # fmt: skip
    plan = kvproof.plan(kvproof.load_model(LLAMA31_8B), deployment, contexts=[131072, 1])
    full, empty = plan.rows
    assert full.sequences == 3
    assert full.alone is not None
    assert empty.alone is not None
    assert round(full.alone.seconds * 1000, 1) == 9.9
    assert round(full.alone.tokens_per_second_per_user, -1) == 100
    assert round(empty.alone.tokens_per_second_per_user, 0) in (208, 209)


def test_003_llama31_70b() -> None:
    model = kvproof.load_model("meta-llama/Llama-3.1-70B")
    assert round(2 * model.parameters / GB, -1) == 140
    size = kvproof.cache(model, 131072, engine="formula").bytes
    assert size == 40 * GIB
    assert round(size / GB) == 43


# --- what the cache saves -------------------------------------------------------------------


def test_003_with_and_without_the_cache() -> None:
    model = kvproof.load_model(LLAMA31_8B)
    answer = without_cache(model, prompt=1000, output=500, parameters=8.03e9)
    assert answer.decode_steps == 499
    assert round(answer.flops_per_step / 1e9) == 16
    assert round(answer.flops_with / 1e12) == 8
    assert round(answer.flops_last_step_without / 1e12) == 24
    assert round(answer.flops_without / 1e12, -3) == 10_000
    assert round(answer.ratio) == 1250
    assert round(1000 * answer.seconds_last_step_without(989e12)) == 24
    assert answer.closed_form_without == 2 * 8.03e9 * 500 * (1000 + 250)
    assert answer.closed_form_with == 2 * 8.03e9 * 500
    assert abs(answer.closed_form_without / answer.flops_without - 1) < 0.01


def test_003_attention_flops() -> None:
    model = kvproof.load_model(LLAMA31_8B)
    flops = attention_flops(model, 1500)
    assert round(flops / 1e9, 2) == 0.79
    assert round(100 * flops / 16.06e9) == 5


def test_003_table_of_tokens_through_the_model() -> None:
    model = kvproof.load_model(LLAMA31_8B)
    rows = without_cache(model, prompt=4, output=4).table()
    assert [(r.with_cache, r.without_cache) for r in rows] == [(4, 4), (1, 5), (1, 6), (1, 7)]


def test_004_projections_recomputed_against_values_read() -> None:
    model = kvproof.load_model(LLAMA2_7B)
    answer = without_cache(model, prompt=100, output=2)
    assert answer.projection_macs_last_step == 2 * 101 * 4096**2
    assert answer.cached_values_read_last_step == 2 * 101 * 4096


# --- how it is allocated --------------------------------------------------------------------


def test_000_004_blocks_of_sixteen() -> None:
    model = kvproof.load_model(LLAMA3_8B)
    deployment = kvproof.Deployment(
        engine="formula", gpu_memory=80e9, block_size=16, max_model_len=4096
    )
    capacity = kvproof.capacity(model, deployment, 10**10)
    assert capacity.blocks_per_sequence == 256
    for tokens in (1, 15, 16, 17, 4095):
        waste = capacity.blocks_held(tokens) - held(LLAMA3_8B, tokens)
        assert 0 <= waste < capacity.bytes_per_block


def test_004_reserving_the_maximum_serves_fewer() -> None:
    model = kvproof.load_model(LLAMA2_7B)
    deployment = formula(1, 6.74e9)
    budget = kvproof.budget(model, deployment)
    capacity = kvproof.capacity(model, deployment, budget.kv_bytes)
    lengths = [300, 900, 1500, 700] * 100
    on_demand = capacity.sequences(lengths)
    reserved = capacity.sequences([4096] * len(lengths))
    assert reserved == 25
    assert on_demand > 4 * reserved


def test_001_padded_paged_and_static() -> None:
    model = kvproof.load_model(LLAMA3_8B)
    lengths = [4096, 4096, 1024]
    padded = kvproof.cache(model, lengths=lengths, engine="transformers").allocated_bytes
    logical = kvproof.cache(model, lengths=lengths, engine="formula").bytes
    static = kvproof.cache(
        model, lengths=lengths, engine="formula", static_length=8192
    ).allocated_bytes
    assert logical == 1152 * MIB
    assert padded == 1536 * MIB
    assert static == 3072 * MIB


def test_003_mqa_is_copied_to_every_rank() -> None:
    body = with_attention(kvproof.load_model(LLAMA31_8B), "mqa")
    one, eight = (kvproof.capacity(body, formula(n, 8.03e9), 10**10) for n in (1, 8))
    assert one.bytes_per_block == eight.bytes_per_block


def test_002_planning_at_p99_not_the_average() -> None:
    model = kvproof.load_model(LLAMA3_8B)
    deployment = formula(1, 8.03e9)
    capacity = kvproof.capacity(model, deployment, kvproof.budget(model, deployment).kv_bytes)
    average, p99 = capacity.sequences(2_000), capacity.sequences(16_000)
    assert average // 8 == p99


# --- comparisons ----------------------------------------------------------------------------


def test_003_mla_equals_two_and_a_quarter_groups() -> None:
    body = kvproof.load_model(LLAMA31_8B)
    bf16 = Types(element_type("bf16"), element_type("bf16"), element_type("bf16"))
    entry = {d: with_attention(body, d).slots[0].entry_bytes(bf16) for d in ("mqa", "mla")}
    assert entry["mla"] == 576 * 2
    assert entry["mla"] / entry["mqa"] == 2.25


def test_003_deepseek_v3_against_llama31_8b() -> None:
    big, small = kvproof.load_model(DEEPSEEK_V3), kvproof.load_model(LLAMA31_8B)
    assert round(big.parameters / small.parameters) == 84
    assert 0.5 < per_token(DEEPSEEK_V3) / per_token(LLAMA31_8B) < 0.56


def test_003_one_long_user_is_32_chats() -> None:
    assert held(LLAMA31_8B, 131072) == 32 * held(LLAMA31_8B, 4096)


def test_000_eight_times_the_hardware() -> None:
    model = kvproof.load_model(LLAMA3_8B)
    deployment = formula(1, 8.03e9)
    capacity = kvproof.capacity(model, deployment, kvproof.budget(model, deployment).kv_bytes)
    assert (capacity.sequences(4096), capacity.sequences(32768)) == (96, 12)


# --- the same through the command line ------------------------------------------------------


def test_command_line_gives_the_seeds_sequences() -> None:
    args = ["plan", LLAMA3_8B, "--gpu-memory", "80GB", "--weight-bytes", "16.06GB",
            "--bandwidth", "3.35TB/s", "--json"]  # fmt: skip
    outcome = CliRunner().invoke(cli, args, standalone_mode=False)
    rows = json.loads(outcome.stdout)["result"]["rows"]
    assert [row["sequences"] for row in rows] == [96, 48, 12, 3]


def test_command_line_compares_attention() -> None:
    args = ["compare", "--attention", LLAMA31_8B, "--gpu-memory", "80GB", "--memory-share", "1",
            "--other-memory", "0", "--weight-bytes", "16.06GB", "--json"]  # fmt: skip
    outcome = CliRunner().invoke(cli, args, standalone_mode=False)
    rows = json.loads(outcome.stdout)["result"]["rows"]
    assert [row["sequences"] for row in rows] == [29, 119, 952, 423]
