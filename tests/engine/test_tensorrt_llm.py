from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import kvproof
from kvproof.engine import tensorrt_llm
from kvproof.engine.base import CacheRequest, Deployment
from kvproof.engine.stored_types import types_of
from kvproof.errors import UsageError
from kvproof.model.multimodal import with_encoder_tokens
from kvproof.model.types import Model

GIB = 2**30


@pytest.fixture(scope="module")
def llama() -> Model:
    return kvproof.load_model("meta-llama/Meta-Llama-3.1-8B", offline=True)


def published(data_dir: Path, name: str) -> Model:
    path = data_dir / "configs" / (name.replace("/", "--") + ".json")
    return kvproof.load_model(json.loads(path.read_text()))


# (log point, config, release, flags, printed GiB, printed tokens)
POINTS: tuple[tuple[str, str, str, dict[str, Any], float, int], ...] = (
    ("log154", "Qwen/Qwen3-8B", "1.2", {"kv_cache_dtype": "fp8"}, 2.33, 33984),
    ("log341", "EleutherAI/gpt-j-6b", "0.12.0.dev2024073000",
     {"kv_cache_dtype": "fp8", "tokens_per_block": 64}, 62.99, 294848),
    ("log343", "meta-llama/Meta-Llama-3.1-8B", "0.19.0",
     {"kv_cache_dtype": "fp8", "tokens_per_block": 32}, 16.05, 263008),
    ("log345", "Qwen/Qwen2.5-0.5B", "1.2", {}, 2.18, 190656),
    ("log348", "Qwen/Qwen3-8B", "1.2", {"kv_cache_dtype": "fp8"}, 3.17, 46208),
    ("log358", "Qwen/Qwen2.5-0.5B", "0.14", {}, 4.53, 395776),
)  # fmt: skip


@pytest.mark.parametrize("point", POINTS, ids=[p[0] for p in POINTS])
def test_tokens_lie_within_the_rounding_of_the_printed_pool(
    point: tuple[Any, ...], data_dir: Path
) -> None:
    _, name, version, flags, printed, tokens = point
    model, deployment = published(data_dir, name), Deployment(f"tensorrt_llm@{version}", **flags)
    low, high = (
        kvproof.capacity(model, deployment, int((printed + side) * GIB)) for side in (-0.005, 0.005)
    )
    assert low.tokens - low.block_size <= tokens <= high.tokens + high.block_size


@pytest.mark.parametrize(
    ("free", "share", "block", "printed", "blocks", "name", "dtype"),
    [
        (63.62, 0.99, 64, 62.99, 4607, "EleutherAI/gpt-j-6b", "fp8"),
        (17.83, 0.9, 32, 16.05, 8219, "meta-llama/Meta-Llama-3.1-8B", "fp8"),
        (21.89, 0.9, 64, 19.72, 631, "meta-llama/Llama-2-7b-hf", "auto"),
    ],
)
def test_the_pool_is_a_share_of_the_free_memory_in_whole_blocks(
    free: float, share: float, block: int, printed: float, blocks: int, name: str, dtype: str,
    data_dir: Path,
) -> None:  # fmt: skip
    deployment = Deployment(
        "tensorrt_llm@0.12", "H100-80GB", free_gpu_memory_fraction=share, tokens_per_block=block,
        kv_cache_dtype=dtype, free_memory=int(free * GIB),
    )  # fmt: skip
    model = published(data_dir, name)
    budget = kvproof.budget(model, deployment)
    assert budget.kv_bytes / GIB == pytest.approx(printed, abs=0.011)
    assert kvproof.capacity(model, deployment, budget.kv_bytes).num_blocks == pytest.approx(
        blocks, abs=3
    )


def test_blocks_of_each_release(llama: Model) -> None:
    sizes = {
        version: kvproof.capacity(llama, Deployment(f"tensorrt_llm@{version}"), GIB).block_size
        for version in ("0.12", "0.18", "0.19", "1.2")
    }
    assert sizes == {"0.12": 64, "0.18": 64, "0.19": 32, "1.2": 32}


def test_heads_are_rounded_up(llama: Model) -> None:
    def cell(ranks: int) -> int:
        return kvproof.capacity(llama, Deployment("tensorrt_llm", tp_size=ranks), GIB
                                ).bytes_per_block // 32  # fmt: skip

    assert [cell(n) for n in (1, 2, 8, 16)] == [131_072, 65_536, 16_384, 16_384]


def test_latents_are_one_vector(data_dir: Path) -> None:
    model = published(data_dir, "deepseek-ai/DeepSeek-V3")
    answer = kvproof.capacity(model, Deployment("tensorrt_llm", tp_size=8), GIB)
    assert answer.bytes_per_block == 61 * 576 * 2 * 32
    assert answer.groups[0].kind == "latent"


def test_limits_only_lower_the_pool(llama: Model) -> None:
    def pool(**flags: Any) -> int:
        deployment = Deployment("tensorrt_llm", "H100-80GB", **flags)
        return kvproof.budget(llama, deployment).kv_bytes

    assert pool(max_tokens=10_000) == 313 * 32 * 131_072
    assert pool(max_gpu_total_bytes="1GiB") <= GIB + 32 * 131_072
    assert pool(max_tokens=10**9) == pool()


def test_a_length_beyond_max_seq_len_is_not_cut_to_it(llama: Model) -> None:
    """The pool's window of max_seq_len is no window of the model's."""
    deployment = Deployment("tensorrt_llm", "H200-141GB", max_seq_len=8192)
    found = kvproof.capacity(llama, deployment, 40 * GIB)
    assert found.blocks_held(16384) == 2 * found.blocks_held(8192)
    assert found.sequences(10**9) == 0
    windowed = deployment.replace(max_attention_window=[1024])
    held = kvproof.capacity(llama, windowed, 40 * GIB).blocks_held
    assert held(16384) == held(8192) == held(1024)


def test_windows_bound_what_a_sequence_holds(llama: Model) -> None:
    windowed = Deployment("tensorrt_llm", max_attention_window=[4096], max_seq_len=131072)
    answer = kvproof.capacity(llama, windowed, 8 * GIB)
    assert answer.blocks_held(100_000) == answer.blocks_held(4096) == 128


@pytest.mark.parametrize("gpu", ["RTX-4090", "A100-40GB", "H100-80GB", "H200-141GB"])
@pytest.mark.parametrize("version", ["0.12", "1.2"])
def test_terms_add_up_to_the_gpu(llama: Model, gpu: str, version: str) -> None:
    deployment = Deployment(f"tensorrt_llm@{version}", gpu)
    budget = kvproof.budget(llama, deployment)
    assert deployment.accelerator is not None
    assert sum(term.value for term in budget.terms) == deployment.accelerator.memory_bytes
    assert budget.interval[0] <= budget.kv_bytes <= budget.interval[1]


def test_the_nested_configuration_is_understood(llama: Model) -> None:
    nested = {"free_gpu_memory_fraction": 0.5, "tokens_per_block": 64}
    a = Deployment("tensorrt_llm", "H100-80GB", kv_cache_config=nested)
    b = Deployment("trtllm", "H100-80GB", **nested)
    assert kvproof.budget(llama, a).kv_bytes == kvproof.budget(llama, b).kv_bytes


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"tokens_per_block": 48}, "power of two"),
        ({"free_gpu_memory_fraction": 2}, "share from 0 to 1"),
        ({"tp_sice": 2}, "tp_size"),
        ({"max_tokens": "many"}, "no number"),
        ({"max_batch_size": 0}, "1 or more"),
    ],
)
def test_bad_flags_are_one_clear_line(flags: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Deployment("tensorrt_llm", **flags)


def test_sequences_without_a_deployment(llama: Model) -> None:
    answer = tensorrt_llm.cache(llama, CacheRequest(lengths=(70,), dtype="bf16"))
    assert answer.bytes == 70 * 131_072 == sum(answer.slots)
    assert answer.allocated_bytes == 96 * 131_072


# Two releases on either side of a change: trtllm-build's default batch (0.14), rounding (1.3).
def test_the_default_batch_of_compiled_engines(llama: Model) -> None:
    def sampling(version: str) -> int:
        budget = kvproof.budget(llama, Deployment(f"tensorrt_llm@{version}", "H100-80GB"))
        return next(t.value for t in budget.terms if t.name == "buffers of the batch")

    assert sampling("0.14") == int(2048 * 128_256 * 4 * 7.7)
    assert sampling("0.13.0") == int(256 * 128_256 * 4 * 7.7)


@pytest.mark.parametrize(("version", "blocks"), [("1.2", 2710), ("1.3", 2709)])
def test_blocks_are_rounded_up_until_1_2(llama: Model, version: str, blocks: int) -> None:
    free = (86_711 * 131_072 + 100) / 0.9
    deployment = Deployment(f"tensorrt_llm@{version}", "H100-80GB", free_memory=int(free))
    budget = kvproof.budget(llama, deployment)
    assert budget.kv_bytes == blocks * 32 * 131_072
    assert kvproof.capacity(llama, deployment, budget.kv_bytes).tokens == blocks * 32


def test_every_window_has_a_pool(llama: Model) -> None:
    flags: dict[str, Any] = {"max_attention_window": [1024, 1024, 1024, 8192], "max_seq_len": 8192}
    pytorch = kvproof.capacity(llama, Deployment("tensorrt_llm@1.2", **flags), 8 * GIB)
    assert [(g.kind, g.layers) for g in pytorch.groups] == [("full", 8), ("sliding", 24)]
    # Half the memory each: 4 GiB over 8 and over 24 layers of 4,096 B a token.
    assert pytorch.num_blocks == 4 * GIB // (8 * 4096 * 32) == 4096
    assert pytorch.blocks_held(8192) == 256
    # 32 blocks of 1,365 count as much as 97 of 4,096: below 1,024 tokens both pools are as full.
    assert pytorch.blocks_held(1024) == 97
    compiled = kvproof.capacity(llama, Deployment("tensorrt_llm@0.20", **flags), 8 * GIB)
    assert compiled.num_blocks == 8 * GIB // (32 * 4096 * 32) == compiled.blocks_held(8192) * 8


def test_windows_share_the_budget(llama: Model) -> None:
    windows = {"max_attention_window": [1024, 4096], "max_seq_len": 4096}
    deployment = Deployment("tensorrt_llm", "H100-80GB", free_memory="10GiB", **windows)
    kv = kvproof.budget(llama, deployment).kv_bytes
    assert 9 * GIB - 4 * 16 * 4096 * 32 <= kv <= 9 * GIB
    assert kv % (16 * 4096 * 32) == 0


def test_attention_data_parallelism_keeps_all_heads(llama: Model) -> None:
    def of(**flags: Any) -> tuple[int, float]:
        deployment = Deployment("tensorrt_llm", "8xH100-80GB", tp_size=8, **flags)
        terms = {t.name: t.value for t in kvproof.budget(llama, deployment).terms}
        return kvproof.capacity(llama, deployment, GIB).bytes_per_block, terms["weights"]

    split, copied = of(), of(enable_attention_dp=True)
    assert copied[0] == 8 * split[0]
    # Seven eighths of attention (32 layers x 2 x (4096 + 1024) x 4096) and the embedding more.
    more = 7 / 8 * 2 * (32 * 2 * 5120 * 4096 + 128_256 * 4096)
    assert copied[1] - split[1] == pytest.approx(more, rel=1e-3)


@pytest.mark.parametrize(("asked", "width"), [("fp8", 1.0), ("int4_awq", 4.25 / 8), ("none", 2.0)])
def test_quantizing_at_the_start_shrinks_the_linear_layers(
    llama: Model, asked: str, width: float
) -> None:
    deployment = Deployment("tensorrt_llm", "H100-80GB", quantization=asked)
    weights = next(t.value for t in kvproof.budget(llama, deployment).terms if t.name == "weights")
    linear = 32 * (2 * 5120 * 4096 + 3 * 14_336 * 4096)
    tables, norms = 2 * 128_256 * 4096, 65 * 4096
    assert weights == pytest.approx(linear * width + 2 * (tables + norms), rel=1e-6)


@pytest.mark.parametrize(("asked", "width"), [("auto", 2), ("float32", 4), ("bfloat16", 2)])
def test_the_type_of_recurrent_states(data_dir: Path, asked: str, width: int) -> None:
    model = published(data_dir, "Qwen/Qwen3-Next-80B-A3B-Thinking")
    deployment = Deployment(
        "tensorrt_llm", "H200-141GB", max_batch_size=8, mamba_ssm_cache_dtype=asked, tp_size=4
    )
    states = next(t.value for t in kvproof.budget(model, deployment).terms if t.name == "states")
    layer = 32 // 4 * 128 * 128 * width + (2 * 16 * 128 + 32 * 128) // 4 * 3 * 2
    assert states == 8 * 36 * layer


def test_blocks_in_host_memory(llama: Model) -> None:
    deployment = Deployment("tensorrt_llm", "H100-80GB", host_cache_size="10GiB")
    capacity = kvproof.capacity(llama, deployment, GIB)
    found = {term.name: term.value for term in capacity.terms}
    assert found["host blocks"] == 10 * found["blocks"]
    plain = kvproof.capacity(llama, Deployment("tensorrt_llm", "H100-80GB"), GIB)
    assert "host blocks" not in {term.name for term in plain.terms}


def test_ranks_on_mixed_gpus_hold_their_own_stage(llama: Model) -> None:
    """The first stages hold what is left over: 17 of 33 layers on the GPU written first."""
    odd = kvproof.load_model({**llama.config, "num_hidden_layers": 33})
    cells = []
    for gpu in ("RTX-4090-24GB+H100-80GB", "H100-80GB+RTX-4090-24GB"):
        plan = kvproof.plan(odd, Deployment("tensorrt_llm", gpu, pp_size=2), [4096])
        assert "the ranks on RTX-4090-24GB decide" in plan.budget.terms[-1].formula
        cells.append(plan.capacity.bytes_per_block // (32 * 4096))
    assert cells == [17, 16]


def test_what_an_encoder_left_has_a_pool_of_its_own(data_dir: Path) -> None:
    """Half of the memory by default; a sequence is bound by whichever pool is scarcer for it."""
    plain = published(data_dir, "meta-llama/Llama-3.2-11B-Vision")
    image = with_encoder_tokens(plain, 6404)
    deployment = Deployment("tensorrt_llm", "H100-80GB")
    capacity = kvproof.capacity(image, deployment, 20 * GIB)
    assert [(g.kind, g.layers) for g in capacity.groups] == [("full", 32), ("cross", 8)]
    assert capacity.num_blocks == 10 * GIB // (32 * 32 * 4096)
    assert capacity.groups[1].blocks_per_sequence == -(-6404 // 32)
    assert capacity.sequences(4096) == 10 * GIB // (32 * 32 * 4096) // 128
    wide = deployment.replace(cross_kv_cache_fraction=0.1)
    bound = kvproof.capacity(image, wide, 20 * GIB)
    assert bound.sequences(64) == 2 * GIB // (8 * 32 * 4096) // 201
    cache = kvproof.cache(plain, tokens=100, engine="tensorrt_llm", encoder_tokens=6404)
    assert cache.bytes == (32 * 100 + 8 * 6404) * 4096


def test_copies_that_rest_on_one_log_are_wider(llama: Model) -> None:
    def half(version: str) -> float:
        budget = kvproof.budget(llama, Deployment(f"tensorrt_llm@{version}", "H100-80GB"))
        return (budget.interval[1] - budget.interval[0]) / 2

    assert half("0.19.0") > half("0.14.0") * 4.5 / 7.7 * 1.5


def test_the_second_manager_keeps_room_for_sequences_that_grow(llama: Model) -> None:
    def tokens(**flags: Any) -> int:
        deployment = Deployment("tensorrt_llm", "H100-80GB", max_tokens=19_000, **flags)
        return kvproof.plan(llama, deployment, [4096]).capacity.tokens

    assert tokens() == 19_008
    assert tokens(use_kv_cache_manager_v2=True) == 20_000
    assert tokens(use_kv_cache_manager_v2=True, max_util_for_resume=0.5) == 38_016
    with pytest.raises(UsageError, match="max_util_for_resume"):
        tokens(use_kv_cache_manager_v2=True, max_util_for_resume=2)


def test_pools_that_the_second_manager_moves_are_refused(llama: Model) -> None:
    flags = {"use_kv_cache_manager_v2": True, "max_attention_window": [4096, 8192]}
    with pytest.raises(UsageError, match="KVCacheManagerV2"):
        kvproof.capacity(llama, Deployment("tensorrt_llm", "H100-80GB", **flags), GIB)


@pytest.mark.parametrize(
    "flags",
    [{"kv_cache_config": {"dtype": "fp8"}}, {"kv_cache_config": {"dtype": "fp8"}, "dtype": "bf16"},
     {"kv_cache_dtype": "fp8"}, {"dtype_kv": "fp8"}],
)  # fmt: skip
def test_the_caches_type_holds_for_tables_and_steps_too(
    llama: Model, flags: dict[str, Any]
) -> None:
    quant = Deployment("tensorrt_llm", "H100-80GB", **flags)
    wide = Deployment("tensorrt_llm", "H100-80GB")
    assert types_of(llama, quant).k.name == types_of(llama, quant).v.name == "fp8_e4m3"
    assert 2 * kvproof.capacity(llama, quant, GIB).bytes_per_block == (
        kvproof.capacity(llama, wide, GIB).bytes_per_block
    )
    half, whole = (kvproof.plan(llama, each, [4096]) for each in (quant, wide))
    assert half.rows[0].bytes_per_sequence * 2 == whole.rows[0].bytes_per_sequence


def test_a_logged_cache_configuration_names_the_caches_type() -> None:
    log = kvproof.read_log(
        "[TensorRT-LLM] TensorRT-LLM version: 1.2.0\n"
        "kv_cache_config: KvCacheConfig(tokens_per_block=32, dtype='fp8')\n"
    )
    assert log.flags["kv_cache_dtype"] == "fp8"
    assert "dtype" not in log.flags


@pytest.mark.parametrize("gpu", ["RTX-3070-Ti-8GB", "L40S", "H200-141GB"])
def test_a_model_of_states_alone_holds_a_full_batch_or_does_not_start(gpu: str) -> None:
    model = kvproof.load_model("tiiuae/falcon-mamba-7b", offline=True)
    deployment = Deployment("tensorrt_llm", gpu)
    plan = kvproof.plan(model, deployment, [1024])
    assert deployment.accelerator is not None
    one = 64 * 8192 * (3 + 16) * 2
    row, terms = plan.rows[0], {term.name: term.value for term in plan.budget.terms}
    assert row.bytes_per_sequence == one
    assert sum(terms.values()) == deployment.accelerator.memory_bytes
    assert terms["KV cache"] == plan.budget.kv_bytes
    if gpu == "H200-141GB":
        assert plan.fits
        assert row.sequences == 2048
        assert plan.budget.kv_bytes == 2048 * one
    else:
        assert not plan.fits
        assert row.sequences == 0
        assert row.step is None
        assert terms["missing"] < 0
        assert terms["states"] == 2048 * one
        assert "max_batch_size 2,048" in str(plan.capacity.error)


@pytest.mark.parametrize(
    "name", ["Qwen/Qwen3.6-35B-A3B", "ai21labs/Jamba-v0.1", "Qwen/Qwen3-Next-80B-A3B-Instruct"]
)
@pytest.mark.parametrize("kept", ["auto", "float32"])
def test_states_are_of_one_type_in_the_budget_and_in_a_sequence(name: str, kept: str) -> None:
    model = kvproof.load_model(name, offline=True)
    deployment = Deployment("tensorrt_llm", "H200", max_batch_size=16, mamba_ssm_cache_dtype=kept)
    plan = kvproof.plan(model, deployment, [256])
    states = next(term.value for term in plan.budget.terms if term.name == "states")
    assert plan.rows[0].bytes_per_sequence == states // 16 + 256 * plan.bytes_per_token


def test_pads_of_mxfp4_experts_as_a_public_start_prints_them() -> None:
    """GB10, 1.2, gpt-oss-120b: `Use 63.32 GB for model weights.`; each rank rounds up its part."""
    model = kvproof.load_model("openai/gpt-oss-120b", offline=True)

    def weights(**flags: Any) -> float:
        budget = kvproof.budget(model, Deployment("tensorrt_llm@1.2", "8xH200", **flags))
        return next(term.value for term in budget.terms if term.name == "weights") / 2**30

    assert weights() == pytest.approx(63.32, abs=0.01)
    # 2880 / 8 = 360 becomes 384, 3.7 GiB more in all than 2880 becoming 2944
    experts = 36 * 128 * 3 * 2880 * 2880 * (4.25 / 8) / 2**30
    by_ranks, by_experts = 8 * weights(tp_size=8), 8 * weights(tp_size=8, ep_size=8)
    grown = experts * (2944 / 2880) * (384 / 360 - 2944 / 2880)
    assert by_ranks - by_experts == pytest.approx(grown, rel=0.01)


def test_what_the_log_of_a_public_start_says() -> None:
    text = (
        "[12/20/2025-04:20:20] [TRT-LLM] [I] Use 63.32 GB for model weights.\n"
        "[12/20/2025-04:21:10] [TRT-LLM] [W] Both free_gpu_memory_fraction and max_tokens are set "
        "(to 0.8999999761581421 and 8224, respectively). The smaller value will be used.\n"
        "[TensorRT-LLM][INFO] Number of tokens per block: 32.\n"
        "[TensorRT-LLM][INFO] [MemUsageChange] Allocated 0.56 GiB for max tokens in paged KV "
        "cache (8224).\n"
    )
    report = kvproof.check(text, model="openai/gpt-oss-120b", gpu="GB10")
    assert report.log.flags["max_tokens"] == 8224
    assert {row.name for row in report.rows} >= {"weights", "available_kv_memory"}
    assert all(row.ok for row in report.rows)


def test_estimates_show_their_numbers_and_bounds() -> None:
    """Activations from their parts; what they may be off by is what the pool may be off by."""
    model = kvproof.load_model("meta-llama/Llama-3.1-8B")
    found = kvproof.budget(model, kvproof.Deployment("tensorrt_llm@1.2", "H100-80GB"))
    named = {term.name: term for term in found.terms}
    assert named["activations"].formula.startswith("8,192 tokens x 4,096 x 2 B x 8 rows / 1 ranks")
    bounded = [named[name] for name in
               ("context", "weights", "activations", "buffers of the batch")]  # fmt: skip
    assert all(term.low is not None and term.low < term.value for term in bounded)
    more = sum(float(term.high or 0) - term.value for term in bounded)
    block = 32 * 131_072
    assert found.kv_bytes - found.interval[0] == pytest.approx(0.9 * more, abs=block)
    assert "kvCacheManager" not in named["context"].source + named["activations"].source


def test_given_what_is_free_nothing_is_in_doubt() -> None:
    model = kvproof.load_model("meta-llama/Llama-3.1-8B")
    known = kvproof.Deployment("tensorrt_llm@1.2", "H100-80GB", free_memory=60 * 2**30)
    assert all(term.exact for term in kvproof.budget(model, known).terms)
