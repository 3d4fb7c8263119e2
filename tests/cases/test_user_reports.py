"""What users reported, asked of the public calls; docs/cases.md has the stories, by number."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

import kvproof

GIB = 2**30
GEMMA, SMALL = "google/gemma-4-31B", "meta-llama/Meta-Llama-3.1-8B"
FLASH, HYBRID = "deepseek-ai/DeepSeek-V4-Flash", "Qwen/Qwen3.5-35B-A3B"
NEXT, DENSE = "Qwen/Qwen3-Next-80B-A3B-Thinking", "Qwen/Qwen3-32B"


@cache
def model(name: str) -> Any:
    return kvproof.load_model(name, offline=True)


def cap(name: str, kv: float, engine: str = "vllm@0.32", gpu: str = "H100-80GB", **f: Any) -> Any:
    return kvproof.capacity(model(name), kvproof.Deployment(engine, gpu, **f), int(kv))


def left(name: str, engine: str = "vllm@0.32", gpu: str = "H100-80GB", **f: Any) -> int:
    return kvproof.budget(model(name), kvproof.Deployment(engine, gpu, **f)).kv_bytes


def terms(name: str, engine: str = "vllm@0.32", gpu: str = "H100-80GB", **f: Any) -> dict[str, int]:
    found = kvproof.budget(model(name), kvproof.Deployment(engine, gpu, **f))
    return {term.name: int(term.value) for term in found.terms}


def test_01_the_token_line_and_concurrency_differ_by_the_groups() -> None:
    old, new = (
        cap(HYBRID, 30 * GIB, f"vllm@{v}", max_model_len=262144) for v in ("0.20.0", "0.21")
    )
    assert old.max_concurrency == new.max_concurrency
    assert 3 < new.tokens / old.tokens < 4


def test_02_gemma_prints_37392_tokens_beside_1_53x() -> None:
    found = cap(
        GEMMA, 14_022 * 2_621_440, "vllm@0.19.0",
        max_model_len=262144, max_num_batched_tokens=2048,
    )  # fmt: skip
    assert found.tokens == 37_392
    assert round(found.max_concurrency, 2) == 1.53


def test_03_ten_times_more_tokens_are_the_same_blocks() -> None:
    old, new = (cap(GEMMA, 50 * GIB, f"vllm@{v}", max_model_len=262144) for v in ("0.20.0", "0.21"))
    assert old.num_blocks == new.num_blocks == 20_480
    assert old.tokens == 20_480 // 6 * 16 == 54_608
    assert new.tokens == int(new.max_concurrency * 262144)
    assert 8 < new.tokens / old.tokens < 10


def test_04_two_batches_in_flight_from_0_26() -> None:
    old, new = (
        cap(GEMMA, 50 * GIB, f"vllm@{v}", max_model_len=65536, max_num_batched_tokens=8192)
        for v in ("0.25.1", "0.26")
    )
    assert old.groups[0].blocks_per_sequence == -(-(1023 + 8192) // 16) + 1
    assert new.groups[0].blocks_per_sequence == -(-(1023 + 2 * 8192) // 16) + 1
    assert 1.40 < new.blocks_per_sequence / old.blocks_per_sequence < 1.55


def test_05_inklings_convolutions_reserve_for_every_batch() -> None:
    flags = {"tensor_parallel_size": 4, "max_num_batched_tokens": 16_384, "max_model_len": 131_072}
    plain, small = (
        cap("thinkingmachines/Inkling-Small", 120e9, "vllm@0.30", "B200", kv_cache_dtype=k, **flags)
        for k in ("auto", "fp8")
    )
    assert small.tokens / plain.tokens == pytest.approx(1.086, abs=0.001)
    reserve = sum(g.blocks_per_sequence for g in plain.groups if g.block_size == 4)
    assert reserve == 6 * 8194
    assert reserve / plain.blocks_per_sequence == pytest.approx(0.84, abs=0.01)


def test_06_deepseek_v4_holds_a_part_that_no_length_explains() -> None:
    one, two = (
        cap(FLASH, 7.7 * GIB, "vllm@0.26", max_model_len=n).blocks_per_sequence
        for n in (131072, 262144)
    )
    assert two / one < 1.2
    assert cap(FLASH, 7.7 * GIB, "vllm@0.26", max_model_len=131072).tokens == pytest.approx(
        150_000, rel=0.1
    )


def test_07_printed_tokens_follow_max_model_len() -> None:
    found = [cap(FLASH, 7.7 * GIB, "vllm@0.26", max_model_len=n) for n in (8192, 131072)]
    assert found[0].num_blocks == found[1].num_blocks
    assert found[1].tokens > 5 * found[0].tokens


def test_08_fixed_pages_alone_can_be_too_much() -> None:
    found = cap(FLASH, 2 * GIB, "vllm@0.26", max_model_len=30_000)
    assert not found.fits
    assert found.error


def test_09_a_short_request_pins_a_block_of_every_group() -> None:
    found = cap(NEXT, 30 * GIB, max_model_len=262144)
    assert found.blocks_held(12) >= len(found.groups)
    assert found.blocks_held(12) == found.blocks_held(found.block_size // 2)


def test_09_glm_flash_pins_giant_blocks() -> None:
    found = cap("zai-org/GLM-5.3-Flash", 20e9, tensor_parallel_size=2, max_model_len=262_144)
    assert found.block_size == 2176
    assert found.blocks_held(12) == len(found.groups) == 6
    assert found.blocks_held(12) == found.blocks_held(2000)


def test_11_block_ids_bind_and_not_tokens() -> None:
    found = cap(NEXT, 30 * GIB, max_model_len=262144, max_num_seqs=4096)
    assert found.sequences(12) == found.usable_blocks // found.blocks_held(12)
    assert found.sequences(12) * 12 < found.tokens / 10


def test_12_fp8_keeps_the_blocks_and_doubles_their_tokens() -> None:
    plain, half = (
        cap(NEXT, 30 * GIB, kv_cache_dtype=t, max_model_len=4096) for t in ("auto", "fp8")
    )
    assert half.num_blocks / plain.num_blocks < 1.05
    assert half.block_size > 1.9 * plain.block_size
    assert half.sequences(512) / plain.sequences(512) < 1.05


def test_13_a_large_batch_takes_the_cache() -> None:
    name = "moonshotai/Kimi-Linear-48B-A3B-Instruct"
    few, many = (
        left(name, "vllm@0.11.2", "A100-80GB", tensor_parallel_size=2, max_num_batched_tokens=n)
        for n in (8192, 65536)
    )
    assert many < few


def test_14_states_bound_the_sequences() -> None:
    found = cap(HYBRID, 10 * GIB, max_num_seqs=1024)
    assert found.sequences(1) < 1024


def test_16_latents_are_copied_by_tp_and_not_by_dp() -> None:
    name = "deepseek-ai/DeepSeek-V4-Pro"
    tp = cap(name, 60 * GIB, gpu="B200", tensor_parallel_size=8)
    dp = cap(name, 60 * GIB, gpu="B200", data_parallel_size=8)
    assert dp.max_concurrency == tp.max_concurrency  # per replica: one of eight GPUs, and one
    name = "deepseek-ai/DeepSeek-R1-0528"
    one = cap(name, 40 * GIB, gpu="H200")
    assert cap(name, 40 * GIB, gpu="H200", tensor_parallel_size=8).tokens == one.tokens


def test_17_decode_context_parallelism_divides_the_tokens() -> None:
    flags = {"gpu": "H200", "tensor_parallel_size": 8}
    name = "deepseek-ai/DeepSeek-R1-0528"
    plain = cap(name, 40 * GIB, **flags)
    shared = cap(name, 40 * GIB, decode_context_parallel_size=8, **flags)
    assert shared.tokens == pytest.approx(8 * plain.tokens, rel=0.001)


@pytest.mark.parametrize(("stages", "layers"), [(1, 64), (2, 32), (3, 22)])
def test_18_the_fullest_stage_decides(stages: int, layers: int) -> None:
    found = cap(DENSE, 8 * GIB, pipeline_parallel_size=stages, max_model_len=32768)
    assert found.num_blocks == 8 * GIB // (layers * 65_536)


def test_19_figures_are_per_gpu_and_the_smallest_decides() -> None:
    small = left(SMALL, gpu="L40S", tensor_parallel_size=2)
    mixed = left(SMALL, gpu="H100-80GB+L40S", tensor_parallel_size=2)
    assert mixed == pytest.approx(small, rel=0.1)
    assert mixed < left(SMALL, tensor_parallel_size=2)


def test_20_more_gpus_enlarge_the_pool_and_spare_nothing() -> None:
    one, two = (cap(DENSE, 20 * GIB, tensor_parallel_size=n, max_model_len=4096) for n in (1, 2))
    assert two.tokens == pytest.approx(2 * one.tokens, rel=0.001)
    assert two.blocks_per_sequence == one.blocks_per_sequence


def test_21_a_given_size_is_the_same_on_every_card() -> None:
    found = {left(SMALL, gpu=g, kv_cache_memory_bytes=8 * GIB) for g in ("H100-80GB", "L40S")}
    assert found == {8 * GIB}


def test_22_glm_flash_keeps_latents() -> None:
    found = cap("zai-org/GLM-4.7-Flash", 10 * GIB, max_model_len=131072)
    assert [group.kind for group in found.groups] == ["latent"]
    assert found.bytes_per_block == 47 * 576 * 2 * 16


def test_23_deepseek_v2_before_latents() -> None:
    old, new = (
        cap("deepseek-ai/DeepSeek-V2", 10 * GIB, f"vllm@{v}", tensor_parallel_size=8)
        for v in ("0.6.3", "0.8")
    )
    assert not old.fits
    assert new.tokens > 10 * old.tokens


def test_24_graphs_were_outside_the_budget() -> None:
    assert "CUDA graphs" not in terms(SMALL, "vllm@0.19")


def test_25_graphs_are_charged_later() -> None:
    assert terms(SMALL, "vllm@0.21")["CUDA graphs"] > 0
    assert "CUDA graphs" not in terms(SMALL, "vllm@0.21", enforce_eager=True)


def test_26_the_second_runner_charged_no_graphs() -> None:
    for release, charged in (("0.24", True), ("0.25", False), ("0.28", False), ("0.29", True)):
        assert ("CUDA graphs" in terms(GEMMA, f"vllm@{release}", "H200")) == charged


def test_27_batched_tokens_drive_activations_of_a_hybrid() -> None:
    few, many = (
        terms("Qwen/Qwen3.5-9B", gpu="RTX-5090", max_num_batched_tokens=n)["activations"]
        for n in (2048, 32768)
    )
    assert many > few


def test_28_a_longer_maximum_takes_memory_without_chunked_prefill() -> None:
    name = "Qwen/Qwen2.5-14B-Instruct"
    sizes = [left(name, "vllm@0.6.3", "A100-40GB", max_model_len=n) for n in (4096, 20000, 32768)]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == 3
    later = {left(name, "vllm@0.9", "A100-40GB", max_model_len=n) for n in (20000, 32000)}
    assert max(later) - min(later) < 0.05 * GIB


def test_29_gpt_oss_120b_on_one_h100() -> None:
    name = "openai/gpt-oss-120b"
    tight = left(name, "vllm@0.11")
    tuned = left(
        name, "vllm@0.11",
        gpu_memory_utilization=0.95, max_num_batched_tokens=2048, max_num_seqs=128,
    )  # fmt: skip
    assert tight < 2 * GIB
    assert tuned > tight + 4 * GIB


def test_30_a_batch_as_long_as_the_context() -> None:
    flags = {"gpu": "MI300X", "tensor_parallel_size": 8, "max_model_len": 1_000_000}
    name = "meta-llama/Llama-4-Scout-17B-16E-Instruct"
    usual, whole = (
        left(name, "vllm@0.8.5", max_num_batched_tokens=n, **flags) for n in (8192, 1_000_000)
    )
    assert usual - whole > 20 * GIB


def test_31_ranks_beyond_the_kv_heads_copy_them() -> None:
    four, eight = (
        cap("Qwen/Qwen3-235B-A22B", 10 * GIB, tensor_parallel_size=n).tokens for n in (4, 8)
    )
    assert four == eight


@pytest.mark.parametrize(("version", "charged"), [("0.8.5", True), ("0.9.2", False)])
def test_32_what_others_use(version: str, charged: bool) -> None:
    engine, used = f"vllm@{version}", 3 * GIB
    gap = left(SMALL, engine) - left(SMALL, engine, used=used)
    assert gap == (used if charged else 0)
    assert terms(SMALL, engine, used=used)["other processes"] == used


def test_32_a_start_that_is_refused() -> None:
    plan = kvproof.plan(model(SMALL), kvproof.Deployment("vllm", "H100-80GB", used="20GiB"), [4096])
    assert not plan.fits
    assert any("refuses to start" in line for line in plan.warnings)


def test_33_blocks_are_handed_out_as_tokens_arrive() -> None:
    found = cap(SMALL, 20 * GIB, max_model_len=131072, max_num_seqs=1024)
    assert found.sequences(2048) > 10 * found.max_concurrency


def test_34_sglang_leaves_activations_out_of_its_share() -> None:
    name = "Qwen/Qwen3-235B-A22B-FP8"
    here = left(name, "vllm@0.9.2", tensor_parallel_size=4)
    there = left(name, "sglang@0.4.9", tp_size=4, mem_fraction_static=0.93)
    assert there > 1.5 * here


def test_35_total_tokens_can_be_capped() -> None:
    assert left(SMALL, "sglang", max_total_tokens=100_000) < left(SMALL, "sglang") / 3


def test_37_a_higher_static_fraction_is_a_smaller_reserve() -> None:
    low, high = (terms(SMALL, "sglang", mem_fraction_static=s) for s in (0.8, 0.9))
    name = "kept free for activations and graphs"
    assert low["KV cache"] < high["KV cache"]
    assert low[name] > high[name]


def test_38_max_total_num_tokens_is_of_all_requests() -> None:
    found = cap(SMALL, 20 * GIB, "sglang", context_length=8192)
    assert found.max_concurrency == pytest.approx(found.tokens / 8192)


def test_39_state_slots_over_the_slots_of_a_request() -> None:
    lone = cap(HYBRID, 20 * GIB, "sglang", disable_radix_cache=True).max_num_seqs
    three = cap(HYBRID, 20 * GIB, "sglang", mamba_radix_cache_strategy="no_buffer").max_num_seqs
    assert three == lone // 3


def test_40_trtllm_takes_nine_tenths_of_what_is_free() -> None:
    found = terms(SMALL, "tensorrt_llm")
    assert found["KV cache"] / (found["KV cache"] + found["left free"]) == pytest.approx(0.9, 0.001)


def test_41_trtllm_rounds_tokens_up_to_blocks() -> None:
    found = cap(SMALL, 5 * GIB, "tensorrt_llm", max_tokens=10_718)
    assert (found.num_blocks, found.tokens) == (335, 10_720)


def test_42_trtllm_buffers_scale_with_the_batch() -> None:
    assert left(SMALL, "tensorrt_llm", max_batch_size=8) > left(
        SMALL, "tensorrt_llm", max_batch_size=2048
    )


def test_43_trtllm_takes_the_smaller_limit() -> None:
    assert left(SMALL, "tensorrt_llm", max_gpu_total_bytes="10GiB") == 10 * GIB
    assert left(SMALL, "tensorrt_llm", max_gpu_total_bytes="1000GiB") == left(SMALL, "tensorrt_llm")


def test_44_only_attention_layers_of_nemotron_h_are_charged() -> None:
    found = cap("nvidia/Nemotron-H-8B-Base-8K", 10 * GIB, "tensorrt_llm")
    assert found.bytes_per_block == 4 * 2 * 8 * 128 * 2 * 32


def test_45_max_tokens_bounds_what_is_stored() -> None:
    sizes = [
        cap(SMALL, 20 * GIB, "tensorrt_llm", max_tokens=4096, max_batch_size=b) for b in (1, 64)
    ]
    assert {found.tokens for found in sizes} == {4096}


def test_46_a_checkpoint_names_its_cache_type() -> None:
    own, wide = (
        cap("nvidia/Gemma-4-31B-IT-NVFP4", 80 * GIB, gpu="H200", kv_cache_dtype=t)
        for t in ("auto", "bfloat16")
    )
    assert own.max_concurrency > 1.5 * wide.max_concurrency


def test_47_sliding_layers_count() -> None:
    found = kvproof.cache(model(GEMMA), 8192)
    full = sum(
        size for slot, size in zip(model(GEMMA).slots, found.slots, strict=True)
        if slot.kind == "full"
    )  # fmt: skip
    assert found.bytes > 1.5 * full


def test_48_kv_heads_and_not_attention_heads() -> None:
    one = kvproof.cache(model(SMALL), 1).bytes
    assert one == 2 * 32 * 8 * 128 * 2
    assert 4 * one == 2 * 32 * 4096 * 2  # what the hidden size gives


def test_49_eight_bits_are_one_byte() -> None:
    half = kvproof.cache(model(SMALL), 4096, dtype="fp8").bytes
    assert half * 2 == kvproof.cache(model(SMALL), 4096).bytes


def test_50_shorter_requests_run_in_greater_number() -> None:
    found = cap(SMALL, 20 * GIB, max_model_len=8192, max_num_seqs=1024)
    assert found.sequences(4096) >= 2 * int(found.max_concurrency) - 1


def test_51_compressed_layers_are_no_full_attention() -> None:
    tokens = 131072
    full = model(FLASH).layers * tokens * 512 * 2
    assert full > 5 * kvproof.cache(model(FLASH), tokens, engine="formula").bytes


def test_52_reserves_come_off_before_blocks() -> None:
    found = terms(SMALL)
    assert found["activations"] + found["CUDA graphs"] > GIB
    assert sum(found.values()) == kvproof.Deployment(gpu="H100-80GB").accelerator.memory_bytes  # type: ignore[union-attr]


@pytest.mark.parametrize("number", [53, 54])
def test_53_54_admitted_short_do_not_fit_when_grown(number: int) -> None:
    found = cap(SMALL, 10 * GIB, max_num_seqs=256)
    admitted = found.sequences(512)
    assert found.sequences([8192] * admitted) < admitted / 10


@pytest.mark.parametrize("tokens", [7_344, 53_376, 3_664])
def test_55_the_default_length_exceeds_the_pool(tokens: int) -> None:
    found = cap("Qwen/QwQ-32B", tokens * 262_144, "vllm@0.5", max_model_len=131_072)
    assert found.tokens == tokens
    assert not found.fits
    assert found.estimated_max_model_len == tokens
    assert f"stored in KV cache ({tokens})" in str(found.error)
