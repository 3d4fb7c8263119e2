"""Architectures whose caches vLLM lays out in ways of their own, against printed figures."""

from __future__ import annotations

import math

import pytest

import kvproof
from kvproof.engine import vllm
from kvproof.errors import UsageError
from kvproof.units import GIB

SMALL = "thinkingmachines/Inkling-Small"
INKLING_BLOCKS = 535_384
"""The pool of vllm#54705's table, from its second row; the others follow from it."""


def capacity_of(name: str, release: str, gpu: str, kv_bytes: int, **flags: object):  # type: ignore[no-untyped-def]
    model = kvproof.load_model(name, offline=True)
    return vllm.capacity(model, kvproof.Deployment(f"vllm@{release}", gpu, **flags), kv_bytes)


@pytest.mark.parametrize(
    ("length", "batched", "kind", "tokens"),
    [
        (8_192, 16_384, "auto", 317_012),
        (131_072, 16_384, "auto", 1_200_271),
        (131_072, 8_192, "auto", 2_239_900),
        (131_072, 2_048, "auto", 6_392_807),
        (524_288, 16_384, "auto", 3_967_258),
        (1_048_576, 16_384, "auto", 6_442_622),
        (1_048_576, 8_192, "auto", 9_356_357),
        (1_048_576, 2_048, "auto", 14_159_015),
        (8_192, 16_384, "fp8", 335_644),
        (131_072, 16_384, "fp8", 1_303_934),
        (131_072, 8_192, "fp8", 2_509_704),
        (131_072, 2_048, "fp8", 8_189_269),
        (524_288, 16_384, "fp8", 4_681_299),
        (1_048_576, 16_384, "fp8", 8_237_213),
        (1_048_576, 2_048, "fp8", 24_509_531),
    ],
)
def test_inklings_convolutions(length: int, batched: int, kind: str, tokens: int) -> None:
    page = 4 * 2 * 2048 * 2  # kernel x heads on a rank x packed width, in bf16
    found = capacity_of(
        SMALL, "0.30", "B200", INKLING_BLOCKS * 7 * page, tensor_parallel_size=4,
        max_model_len=length, max_num_batched_tokens=batched, kv_cache_dtype=kind,
    )  # fmt: skip
    assert found.tokens == tokens
    windows = [g for g in found.groups if g.block_size == 4]
    assert len(windows) == 6
    assert {g.page_bytes for g in found.groups} == {page}


def test_more_ranks_than_heads_split_no_convolution() -> None:
    with pytest.raises(UsageError, match="at most 8 ranks"):
        capacity_of(SMALL, "0.32", "B200", 10**10, tensor_parallel_size=16)


NEXT = "Qwen/Qwen3.8-Flash-Next"
EIGHT = {
    "tensor_parallel_size": 8, "max_model_len": 262_144, "max_num_batched_tokens": 8_192,
    "max_num_seqs": 64, "enable_prefix_caching": False, "language_model_only": True,
    "enable_expert_parallel": True,
}  # fmt: skip


def test_flash_next_as_its_starts_print_it() -> None:
    """log258 and log260: blocks of 400, group sizes [262144 x 4, 4, 400], the second's tokens."""
    found = capacity_of(NEXT, "0.31.1", "H100-80GB", round(51.44 * GIB), **EIGHT)
    assert [g.block_size for g in found.groups] == [262_144] * 4 + [4, 400]
    assert [g.layers for g in found.groups] == [12, 12, 12, 1, 12, 24]
    assert found.tokens == 4_194_304
    printed = 3_046_184
    low, high = (
        capacity_of(NEXT, "0.31.1", "H100-80GB", round(gib * GIB), **EIGHT).tokens
        for gib in (37.355, 37.375)
    )
    assert low <= printed <= high


@pytest.mark.parametrize(("kind", "block"), [("auto", 1600), ("fp8", 3184)])
def test_flash_next_blocks_with_two_drafted_tokens(kind: str, block: int) -> None:
    """vllm#54426, log194: 1,600 in bf16, 3,184 in fp8."""
    found = capacity_of(
        NEXT, "0.30", "GB10", 20 * GIB, kv_cache_dtype=kind,
        speculative_config={"method": "mtp", "num_speculative_tokens": 2},
    )  # fmt: skip
    assert found.block_size == block
    state = 48 * 128 * 128 * 4 + (3 + 2) * (2 * 16 + 48) * 128 * 2
    assert block == 16 * math.ceil(state / (2 * 2 * 256 * (1 if kind == "fp8" else 2)) / 16)


def test_n_gram_tables_stay_with_the_host() -> None:
    """log258 prints 31.42 GiB of weights on each of eight ranks, log260's cache their FP8 form."""
    model = kvproof.load_model(NEXT, offline=True)
    deployment = kvproof.Deployment("vllm@0.31.1", "H100-80GB", **EIGHT)
    terms = {t.name: t.value for t in vllm.budget(model, deployment).terms}
    weights = terms["weights"] + terms["rotary tables"] + terms["buffers of a batch"]
    assert weights / GIB == pytest.approx(31.42, rel=0.005)


FLASH = "zai-org/GLM-5.3-Flash"


def test_glm_flash_pools_its_indexer_and_keeps_a_ring() -> None:
    """LMCache's description of a start on four ranks: 67 caches, blocks of 1,152."""
    found = capacity_of(
        FLASH, "0.32", "H100-80GB", 20 * GIB, tensor_parallel_size=4, enable_prefix_caching=False
    )
    assert found.block_size == 1152
    assert sum(g.layers for g in found.groups) == 67
    latent = next(g for g in found.groups if g.kind == "latent")
    assert latent.group_page_bytes == 11 * (1152 * 512 * 2 + 1152 // 4 * 132)
    ring = next(g for g in found.groups if g.kind == "ring")
    assert (ring.block_size, ring.blocks_per_sequence) == (4, 1)


def test_drafts_lengthen_the_ring() -> None:
    spec = {"method": "mtp", "num_speculative_tokens": 5}
    found = capacity_of(FLASH, "0.32", "H100-80GB", 40 * GIB, speculative_config=spec)
    assert next(g for g in found.groups if g.kind == "ring").block_size == 16


@pytest.mark.parametrize(
    ("ranks", "caching", "blocks", "width", "size", "tokens", "concurrency"),
    [
        (1, True, 790, 50_620_416, 4352, 2_353_338, 17.954545454545453),
        (2, True, 1580, 25_310_208, 2176, 2_798_564, 21.35135135135135),
        (4, True, 2981, 13_415_424, 1152, 3_076_579, 23.47244094488189),
        (8, True, 5356, 7_468_032, 640, 3_220_282, 24.568807339449542),
        (4, False, 2981, 13_415_424, 1152, 3_283_408, 25.050420168067227),
    ],
)
def test_glm_flash_equals_the_planner(
    ranks: int, caching: bool, blocks: int, width: int, size: int, tokens: int, concurrency: float
) -> None:
    """Answers of vLLM 0.32's own planner on a pretended H100, 40 GB a rank."""
    found = capacity_of(
        FLASH, "0.32", "H100-80GB", 40 * 10**9, tensor_parallel_size=ranks, max_model_len=131_072,
        enable_prefix_caching=caching,
    )  # fmt: skip
    assert (found.num_blocks, found.bytes_per_block, found.block_size) == (blocks, width, size)
    assert (found.tokens, found.max_concurrency) == (tokens, concurrency)


def test_flash_next_with_its_draft_as_a_start_prints_it() -> None:
    """log164: 272,062 tokens of 7.88 GiB, with three tokens drafted by the model's own module."""
    found = capacity_of(
        NEXT, "0.28", "RTX-PRO-6000", round(7.88 * GIB), max_model_len=262_144,
        speculative_config={"method": "mtp", "num_speculative_tokens": 3},
    )  # fmt: skip
    assert found.tokens == 272_062


@pytest.mark.parametrize(
    ("ranks", "blocks", "width", "tokens"),
    [(4, 110_973, 360_448, 428_197), (8, 221_946, 180_224, 856_395)],
)
def test_inkling_equals_the_planner(ranks: int, blocks: int, width: int, tokens: int) -> None:
    """Answers of vLLM 0.32's own planner on a pretended H100, 40 GB a rank."""
    found = capacity_of(
        "thinkingmachines/Inkling", "0.32", "H100-80GB", 40 * 10**9,
        tensor_parallel_size=ranks, max_model_len=131_072,
    )  # fmt: skip
    assert (found.num_blocks, found.bytes_per_block, found.tokens) == (blocks, width, tokens)
    assert found.blocks_per_sequence == 33_969
    assert len(found.groups) == 12


def test_an_inkling_that_does_not_fit_gets_the_planners_error() -> None:
    found = capacity_of(
        "thinkingmachines/Inkling", "0.32", "H100-80GB", 40 * 10**9, max_model_len=131_072
    )
    assert not found.fits
    assert found.estimated_max_model_len == 15_040
    assert found.error is not None
    assert "(45.61 GiB KV cache is needed" in found.error


@pytest.mark.parametrize(
    ("ranks", "caching", "blocks", "width", "size", "tokens", "concurrency"),
    [
        (1, True, 1006, 39_739_392, 1568, 1_292_729, 19.725490196078432),
        (2, True, 1953, 20_471_808, 1568, 2_509_643, 38.294117647058826),
        (8, True, 7659, 5_222_400, 400, 2_901_388, 44.27167630057804),
        (2, False, 1953, 20_471_808, 1568, 2_723_229, 41.5531914893617),
    ],
)
def test_flash_next_equals_the_planner(
    ranks: int, caching: bool, blocks: int, width: int, size: int, tokens: int, concurrency: float
) -> None:
    """Answers of vLLM 0.32's own planner for the text model on a pretended H100, 40 GB a rank."""
    found = capacity_of(
        NEXT, "0.32", "H100-80GB", 40 * 10**9, tensor_parallel_size=ranks, max_model_len=65_536,
        enable_prefix_caching=caching, language_model_only=True,
    )  # fmt: skip
    assert (found.num_blocks, found.bytes_per_block, found.block_size) == (blocks, width, size)
    assert (found.tokens, found.max_concurrency) == (tokens, concurrency)


@pytest.mark.parametrize(
    ("flags", "conv", "recurrent"),
    [
        ({}, 2, 2),
        ({"mamba_ssm_cache_dtype": "float32"}, 2, 4),
        ({"mamba_cache_dtype": "float32"}, 4, 4),
    ],
)
def test_states_are_counted_in_the_types_that_vllm_keeps(
    flags: dict[str, str], conv: int, recurrent: int
) -> None:
    model = kvproof.load_model("tiiuae/Falcon-H1-7B-Base")
    found = kvproof.plan(model, kvproof.Deployment("vllm@0.32", "L40S-48GB", **flags), [4096])
    states = 44 * (3584 * 3 * conv + 24 * 128 * 256 * recurrent)
    row = found.rows[0]
    assert row.bytes_per_sequence == 4096 * found.bytes_per_token + states
    assert row.alone is not None
    assert row.alone.kv_bytes == row.bytes_per_sequence


def test_experts_of_whole_blocks_only_before_their_scales_were_refined() -> None:
    model = kvproof.load_model("Qwen/Qwen3-235B-A22B-FP8")
    split: dict[str, int | bool] = {"tensor_parallel_size": 8}
    cases = (
        ("vllm@0.11.0", split), ("vllm@0.28.0", split),
        ("vllm@0.11.0", {**split, "enable_expert_parallel": True}),
        ("vllm@0.11.0", {"tensor_parallel_size": 4}), ("vllm@0.29.0", split),
    )  # fmt: skip
    for row, (engine, flags) in enumerate(cases):
        deployment = kvproof.Deployment(engine, "8xH100-80GB", **flags)
        if row < 2:
            with pytest.raises(UsageError, match="192 of an expert's 1536"):
                vllm.capacity(model, deployment, 10 * GIB)
        else:
            assert vllm.capacity(model, deployment, 10 * GIB).fits


def test_a_block_of_several_kernel_blocks_keeps_them_whole() -> None:
    """vLLM 0.32's planner on nvidia/DeepSeek-V4-Pro-NVFP4, B200, 4 ranks, blocks of 512."""
    found = capacity_of(
        "nvidia/DeepSeek-V4-Pro-NVFP4", "0.32", "B200", 40_012_000_000, tensor_parallel_size=4,
        max_model_len=16384, block_size=512, max_num_batched_tokens=32768, async_scheduling=False,
    )  # fmt: skip
    assert found.bytes_per_block == 2_920_320
    assert (found.num_blocks, found.tokens) == (13_701, 33_544)


def test_v4_refuses_nvfp4() -> None:
    with pytest.raises(kvproof.KvproofError, match="nvfp4"):
        capacity_of("deepseek-ai/DeepSeek-V4-Flash", "0.32", "B200", GIB, kv_cache_dtype="nvfp4")


def test_axes_make_up_half_of_what_turns() -> None:
    config = dict(kvproof.load_model("Qwen/Qwen3-VL-32B-Instruct", offline=True).config)
    config["text_config"] = {**config["text_config"], "head_dim": 96}
    model = kvproof.load_model(config)
    with pytest.raises(kvproof.KvproofError, match="mrope_section"):
        kvproof.capacity(model, kvproof.Deployment("vllm@0.32", "H100-80GB"), kv_bytes=GIB)


def test_a_modelopt_section_that_names_no_method_asks_for_no_cache_type() -> None:
    """vLLM 0.32's planner: 524,288 B a block on 8 ranks, bf16, though kv_cache_scheme says FP8."""
    name = "Qwen/Qwen3-32B-FP8-Static-PerTensor"
    config = dict(kvproof.load_model(name, offline=True).config)
    found = capacity_of(name, "0.32", "H100-80GB", 10 * GIB, tensor_parallel_size=4)
    assert found.bytes_per_block == 1_048_576
    named = {**config["quantization_config"], "quant_method": "modelopt"}
    model = kvproof.load_model({**config, "quantization_config": named})
    deployment = kvproof.Deployment("vllm@0.32", "H100-80GB", tensor_parallel_size=4)
    assert kvproof.capacity(model, deployment, kv_bytes=GIB).bytes_per_block == 524_288


def test_nvfp4_latents_are_blackwells() -> None:
    with pytest.raises(kvproof.KvproofError, match="nvfp4_ds_mla"):
        capacity_of(FLASH, "0.32", "H100-80GB", 20 * GIB, kv_cache_dtype="nvfp4_ds_mla")


def test_v0_gives_cross_attention_layers_blocks_like_others() -> None:
    """vllm#12126 prints 6,001 blocks for 14.65 GiB: a token of 40 layers, 8 of them cross."""
    found = capacity_of(
        "meta-llama/Llama-3.2-11B-Vision", "0.6.6", "H100-80GB", round(14.65 * GIB),
        max_model_len=65_536,
    )  # fmt: skip
    assert found.num_blocks == pytest.approx(6001, abs=3)
    assert len(found.groups) == 1


def test_prefixes_of_states_other_than_mambas_were_not_cached() -> None:
    """A public start of 0.13.0 (Qwen3-Next in 4 bits, 2 x L40S) that asked for prefix caching."""
    found = capacity_of(
        "Qwen/Qwen3-Next-80B-A3B-Thinking", "0.13.0", "L40S", round(17.58 * GIB),
        tensor_parallel_size=2, max_model_len=32768, kv_cache_dtype="fp8",
        enable_prefix_caching=True, max_num_batched_tokens=8192, max_num_seqs=8,
    )  # fmt: skip
    assert found.block_size == 1072
    assert found.max_concurrency == pytest.approx(84.29, rel=0.001)


@pytest.mark.parametrize(("release", "blocks"), [("0.12.0", 94), ("0.15.1", 128)])
def test_an_encoder_is_reckoned_with_a_batch(release: str, blocks: int) -> None:
    """A public start of Whisper (0.15.1) prints 26.62 sequences; what they hold is 1,500 frames."""
    found = capacity_of("openai/whisper-large-v3", release, "L40S", round(10.14 * GIB))
    assert found.num_blocks / found.max_concurrency == 448 // 16 + blocks
    assert found.sequences(448) == (found.num_blocks - 1) // (448 // 16 + 94)
