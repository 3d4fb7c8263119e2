"""vLLM: the type a start runs in, by GPU and release, and the engine that 0.8 to 0.10 choose."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

import kvproof
from kvproof.engine.base import served_model
from kvproof.engine.vllm.engines import runs_v0
from kvproof.engine.vllm.flags import read_flags
from kvproof.errors import UsageError
from kvproof.surfaces.cli import cli

QWEN = kvproof.load_model("Qwen/Qwen3-4B")
GEMMA = kvproof.load_model("google/gemma-3-4b-it")


def _served(model: kvproof.Model, engine: str, gpu: str, **flags: Any) -> kvproof.Model:
    return served_model(model, kvproof.Deployment(engine, gpu, **flags))


@pytest.mark.parametrize(
    ("engine", "gpu", "flags", "kept"),
    [
        ("vllm@0.32", "H100-80GB", {}, "bf16"),
        ("vllm@0.32", "T4-16GB", {}, "f16"),
        ("vllm@0.9.0", "V100-32GB", {}, "f16"),
        ("vllm@0.8.5", "T4-16GB", {"dtype": "half"}, "f16"),
        ("vllm@0.32", "H100-80GB", {"dtype": "float16"}, "f16"),
        ("vllm@0.32", "H100-80GB", {"dtype": "float32"}, "f32"),
    ],
)
def test_a_start_runs_in_a_type_that_the_gpu_has(
    engine: str, gpu: str, flags: dict[str, str], kept: str
) -> None:
    assert _served(QWEN, engine, gpu, **flags).dtype == kept


@pytest.mark.parametrize(
    ("engine", "kept"), [("vllm@0.9.0", "f16"), ("vllm@0.9.2", "f32"), ("vllm@0.32", "f32")]
)
def test_a_model_that_runs_in_no_f16_takes_twice_the_memory(engine: str, kept: str) -> None:
    served = _served(GEMMA, engine, "V100-32GB")
    assert served.dtype == kept
    assert any("no bf16" in note for note in served.notes)
    plain = kvproof.budget(GEMMA, kvproof.Deployment(engine, "A100-40GB"))
    weights = {t.name: t.value for t in plain.terms}["weights"]
    fallen = kvproof.budget(GEMMA, kvproof.Deployment(engine, "V100-32GB"))
    assert {t.name: t.value for t in fallen.terms}["weights"] == pytest.approx(
        weights * (2 if kept == "f32" else 1), rel=0.01
    )


@pytest.mark.parametrize(
    ("model", "engine", "gpu", "flags", "said"),
    [
        (QWEN, "vllm@0.32", "T4-16GB", {"dtype": "bfloat16"}, "refuses bfloat16 on T4"),
        (GEMMA, "vllm@0.32", "H100-80GB", {"dtype": "half"}, "in no float16"),
    ],
)
def test_types_that_vllm_does_not_start_in(
    model: kvproof.Model, engine: str, gpu: str, flags: dict[str, str], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        _served(model, engine, gpu, **flags)


@pytest.mark.parametrize(
    ("engine", "dtype", "starts"),
    [
        ("vllm@0.32", "half", False),
        ("vllm@0.32", "bfloat16", True),
        ("vllm@0.32", "float32", True),
        ("vllm@0.9.0", "half", True),
    ],
)
def test_a_draft_runs_in_its_targets_type(engine: str, dtype: str, starts: bool) -> None:
    own = {"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"]}
    small = {**QWEN.config, **own, "layer_types": ["full_attention"] * QWEN.layers}
    spec = {"method": "draft_model", "model": small, "num_speculative_tokens": 2}
    asked = kvproof.Deployment(engine, "H100-80GB", dtype=dtype, speculative_config=spec)
    if starts:
        assert kvproof.plan(QWEN, asked, [4096]).fits
        return
    with pytest.raises(UsageError, match="gemma3_text in no float16"):
        kvproof.plan(QWEN, asked, [4096])


def test_a_release_that_does_not_fall_back_does_not_start() -> None:
    asked = kvproof.Deployment("vllm@0.8.5", "T4-16GB")
    plan = kvproof.plan(QWEN, asked, [4096])
    assert not plan.fits
    assert any("give --dtype half" in said for said in plan.warnings)
    half = kvproof.plan(QWEN, asked.replace(dtype="half"), [4096])
    assert half.fits
    assert half.budget.kv_bytes == plan.budget.kv_bytes


def test_a_checkpoint_of_32_bits_runs_in_16() -> None:
    wide = kvproof.load_model({**QWEN.config, "dtype": "float32", "torch_dtype": "float32"})
    assert wide.dtype == "f32"
    assert _served(wide, "vllm@0.32", "H100-80GB").dtype == "bf16"
    assert _served(wide, "vllm@0.8.5", "H100-80GB").dtype == "f16"


@pytest.mark.parametrize(
    ("release", "gpu", "flags", "v0"),
    [
        ("0.9.0", "H100-80GB", {}, False),
        ("0.9.0", "H100-80GB", {"use_v1": False}, True),
        ("0.7.3", "H100-80GB", {}, False),
        ("0.32", "H100-80GB", {"use_v1": False}, False),
        ("0.10.1", "T4-16GB", {}, True),
        ("0.10.1", "T4-16GB", {"use_v1": True}, False),
        ("0.10.2", "T4-16GB", {}, False),
        ("0.8.5", "MI300X", {}, True),
        ("0.9.2", "MI300X", {}, False),
        ("0.8.0", "H100-80GB", {"kv_cache_dtype": "fp8"}, True),
        ("0.8.5", "H100-80GB", {"kv_cache_dtype": "fp8"}, False),
        ("0.8.5", "A100-80GB", {"kv_cache_dtype": "fp8"}, True),
        ("0.10.0", "B200", {"kv_cache_dtype": "fp8"}, False),
        ("0.8.5", "H100-80GB", {"pipeline_parallel_size": 2}, True),
        ("0.9.0", "H100-80GB", {"dtype": "float32"}, True),
    ],
)
def test_which_engine_starts(release: str, gpu: str, flags: dict[str, Any], v0: bool) -> None:
    flags = {"dtype": "half", **flags} if gpu.startswith("T4") else flags
    deployment = kvproof.Deployment(f"vllm@{release}", gpu, **flags)
    assert (runs_v0(QWEN, deployment, read_flags(deployment)) is not None) is v0


def test_v0_is_planned_by_its_last_rules_and_said() -> None:
    asked = kvproof.Deployment("vllm@0.9.0", "H100-80GB", use_v1=False)
    plan = kvproof.plan(QWEN, asked, [4096])
    last = kvproof.plan(QWEN, kvproof.Deployment("vllm@0.7.3", "H100-80GB"), [4096])
    assert plan.capacity.max_num_seqs == last.capacity.max_num_seqs == 256
    assert plan.budget.kv_bytes == last.budget.kv_bytes
    assert any("V0 engine with VLLM_USE_V1=0" in said for said in plan.warnings)


def test_the_variable_of_the_engine_is_read_and_printed() -> None:
    from kvproof.engine.command import read_command, render_command

    read = read_command("VLLM_USE_V1=0 vllm serve Qwen/Qwen3-4B", engine="vllm@0.9.0")
    assert read.deployment.flags["use_v1"] is False
    assert render_command("Qwen/Qwen3-4B", read.deployment) == (
        "VLLM_USE_V1=0 vllm serve Qwen/Qwen3-4B"
    )


def test_releases_without_v0_stop_or_pay_no_heed() -> None:
    with pytest.raises(UsageError, match=r"0\.11\.0 has no V0 engine"):
        kvproof.plan(QWEN, kvproof.Deployment("vllm@0.11.0", "H100-80GB", use_v1=False), [4096])
    plan = kvproof.plan(QWEN, kvproof.Deployment("vllm@0.32", "H100-80GB", use_v1=False), [4096])
    assert any("changes nothing" in said for said in plan.warnings)


HALF = {"dtype": "float16", "kv_cache_dtype": "bfloat16"}


@pytest.mark.parametrize(
    ("flags", "said", "mended"),
    [
        ({"dtype": "float16"}, r"fp8_e4m3 \(its checkpoint's choice\) on .* give "
         "kv_cache_dtype=bfloat16, or name another", HALF),
        ({"kv_cache_dtype": "fp8_e4m3", "dtype": "float16"}, "fp8_e4m3 on .*; give kv_cache_dty",
         HALF),
        ({"block_size": 16, "dtype": "float16"}, "leave block_size out and give kv_cache_dtype=b",
         HALF),
        ({"block_size": 16, "kv_cache_dtype": "fp8"}, "fp8 in blocks of 16 .*; leave block_size",
         {"kv_cache_dtype": "fp8"}),
    ],
)  # fmt: skip
def test_a_cache_that_no_backend_takes_names_its_cause_and_cure(
    flags: dict[str, Any], said: str, mended: dict[str, Any]
) -> None:
    """vLLM 0.32: a ModelOpt checkpoint's FP8 means fp8_e4m3, which in float16 nothing takes."""
    model = kvproof.load_model("nvidia/DeepSeek-V3.2-NVFP4", offline=True)
    with pytest.raises(UsageError, match=said):
        kvproof.capacity(
            model, kvproof.Deployment("vllm@0.32", "H200", tensor_parallel_size=8, **flags), 2**34
        )
    cured = kvproof.Deployment("vllm@0.32", "H200", tensor_parallel_size=8, **mended)
    assert kvproof.capacity(model, cured, 2**34).tokens > 0


@pytest.mark.parametrize(
    ("dtype", "head"),
    [("int8_per_token_head", 128 + 4), ("fp8_per_token_head", 128 + 4),
     ("int4_per_token_head", 64 + 4), ("nvfp4", 72), ("nvfp4_4over6", 72), ("fp8", 128),
     ("bfloat16", 256)],
)  # fmt: skip
def test_a_plan_counts_what_a_sequence_keeps_in_every_type(dtype: str, head: int) -> None:
    """As the pool does: the sequences that fit fill it but for a block each."""
    model = kvproof.load_model("Qwen/Qwen3-8B")
    d = kvproof.Deployment("vllm@0.32", "B200", kv_cache_dtype=dtype)
    row = kvproof.plan(model, d, contexts=[4096]).rows[0]
    assert row.bytes_per_sequence == 36 * 8 * 2 * head * 4096
    pool = kvproof.budget(model, d).kv_bytes
    assert 0 <= pool - row.sequences * row.bytes_per_sequence < 1.01 * row.bytes_per_sequence


@pytest.mark.parametrize(
    ("engine", "flags", "row"),
    [
        ("vllm@0.32", {"kv_cache_dtype": "nvfp4_ds_mla"}, 352),
        ("vllm@0.32", {"kv_cache_dtype": "fp8_ds_mla"}, 656),
        ("vllm@0.32", {}, 1152),
        ("sglang@0.5.23", {}, 576),  # FP8 unasked on Blackwell, without scales
        ("sglang@0.5.23", {"kv_cache_dtype": "bf16"}, 1152),
        ("tensorrt_llm@1.3", {}, 1152),
    ],
)
def test_a_plan_counts_latents_and_the_keys_of_their_indexer(
    engine: str, flags: dict[str, Any], row: int
) -> None:
    """An indexer's key takes 132 B: 128 numbers in FP8 and a scale."""
    model = kvproof.load_model("deepseek-ai/DeepSeek-V3.2")
    ranks = "tensor_parallel_size" if engine.startswith("vllm") else "tp_size"
    d = kvproof.Deployment(engine, "8xB200", **{ranks: 8}, **flags)
    found = kvproof.plan(model, d, contexts=[4096]).rows[0]
    assert found.bytes_per_sequence == 61 * (row + 132) * 4096
    pool = kvproof.budget(model, d).kv_bytes
    assert 0 <= pool - found.sequences * found.bytes_per_sequence < 0.01 * pool


@pytest.mark.parametrize(
    ("model", "gpus", "dtype", "row"),
    [
        ("zai-org/GLM-5-FP8", "8xB300", "auto", 576),  # FP8 unasked
        ("zai-org/GLM-5-FP8", "8xH200", "auto", 1152),
        ("zai-org/GLM-5-FP8", "8xH200", "fp8", 656),  # FlashMLA's layout
        ("nvidia/DeepSeek-V3.2-NVFP4", "8xB300", "auto", 576),  # as its checkpoint asks
    ],
)
def test_a_plan_counts_the_type_that_vllm_settles_on(
    model: str, gpus: str, dtype: str, row: int
) -> None:
    loaded = kvproof.load_model(model)
    flags = {"tensor_parallel_size": 8, "kv_cache_dtype": dtype}
    d = kvproof.Deployment("vllm@0.32", gpus, **flags)
    found = kvproof.plan(loaded, d, contexts=[16_384]).rows[0]
    assert found.bytes_per_sequence == loaded.layers * (row + 132) * 16_384
    pool = kvproof.budget(loaded, d).kv_bytes
    assert 0 <= pool - found.sequences * found.bytes_per_sequence < 0.06 * pool


def test_a_cache_of_the_engines_own_type_is_shown() -> None:
    asked = ["cache", "Qwen/Qwen3-8B", "--contexts", "4k", "--dtype", "int8_per_token_head"]
    shown = CliRunner().invoke(cli, [*asked, "--engine", "vllm@0.32"]).stdout
    assert f"{36 * 8 * 2 * 132:,} B" in shown  # per token
    refused = CliRunner().invoke(cli, asked, standalone_mode=False)
    assert isinstance(refused.exception, UsageError)


@pytest.mark.parametrize(
    ("name", "starts"),
    [
        ("mistralai/Devstral-2-123B-Instruct-2512", False),
        ("nvidia/Llama-3.1-70B-Instruct-FP8", False),
        ("meta-llama/Llama-3.1-70B", True),
        ("Qwen/Qwen2.5-72B-Instruct-AWQ", True),
        ("meta-llama/Llama-4-Maverick-17B-128E-Instruct-FP8", True),  # weights only
    ],
)
def test_a_checkpoint_with_scales_of_its_cache_takes_no_e5m2(name: str, starts: bool) -> None:
    """vLLM 0.32, layers/attention/attention.py: "not supported with fp8 checkpoints"."""
    model = kvproof.load_model(name, offline=True)
    flags = {"kv_cache_dtype": "fp8_e5m2", "max_model_len": 4096, "tensor_parallel_size": 8}
    asked = kvproof.Deployment("vllm@0.32", "H100-80GB", **flags)
    if starts:
        assert kvproof.capacity(model, asked, kv_bytes=20 * 10**9).fits
        return
    with pytest.raises(UsageError, match="no fp8_e5m2 cache") as caught:
        kvproof.capacity(model, asked, kv_bytes=20 * 10**9)
    assert "kv_cache_dtype=fp8" in str(caught.value)
    typed = asked.replace(kv_cache_dtype="fp8_e4m3")
    assert kvproof.capacity(model, typed, kv_bytes=20 * 10**9).fits


@pytest.mark.parametrize(
    ("gpu", "own", "blocks", "width"),
    [
        ("H100-80GB", {}, 6781, 5_898_240),
        ("H100-80GB", {"kv_cache_dtype": "fp8"}, 6819, 5_865_472),
        ("A100-80GB", {"kv_cache_dtype": "fp8_e5m2"}, 6819, 5_865_472),
    ],
)
def test_sparse_modules_bring_their_own_backend(
    gpu: str, own: dict[str, Any], blocks: int, width: int
) -> None:
    """MiniMax-M3's MTP heeds no asked backend: answers of vLLM 0.32's own planner."""
    model = kvproof.load_model("MiniMaxAI/MiniMax-M3", offline=True)
    spec = {"method": "mtp", "num_speculative_tokens": 1, "attention_backend": "FLASHMLA", **own}
    flags = {"tensor_parallel_size": 8, "max_model_len": 8192, "speculative_config": spec}
    asked = kvproof.Deployment("vllm@0.32", gpu, **flags)
    found = kvproof.capacity(model, asked, kv_bytes=40 * 10**9)
    assert (found.num_blocks, found.block_size, found.bytes_per_block) == (blocks, 128, width)


def test_sparse_modules_keep_four_bits_only_where_their_kernel_does() -> None:
    model = kvproof.load_model("MiniMaxAI/MiniMax-M3", offline=True)
    spec = {"method": "mtp", "num_speculative_tokens": 1, "kv_cache_dtype": "nvfp4"}
    flags = {"tensor_parallel_size": 8, "max_model_len": 8192, "speculative_config": spec}
    with pytest.raises(UsageError, match="no nvfp4 cache in the sparse layers"):
        kvproof.capacity(model, kvproof.Deployment("vllm@0.32", "H100-80GB", **flags), 40 * 10**9)


@pytest.mark.parametrize(("batched", "starts"), [(1535, False), (1536, True)])
def test_adapters_leave_drafted_tokens_their_part_of_a_batch(batched: int, starts: bool) -> None:
    """vLLM 0.32, engine/arg_utils.py: max_num_seqs times the drafted tokens and one."""
    spec = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}
    flags = {"max_num_seqs": 256, "max_num_batched_tokens": batched, "speculative_config": spec}
    asked = kvproof.Deployment("vllm@0.32", "H100-80GB", max_model_len=1024, **flags)
    assert kvproof.capacity(QWEN, asked, kv_bytes=10**10).fits
    adapted = asked.replace(enable_lora=True)
    if starts:
        assert kvproof.capacity(QWEN, adapted, kv_bytes=10**10).fits
        return
    with pytest.raises(UsageError, match="smaller than the 1536"):
        kvproof.capacity(QWEN, adapted, kv_bytes=10**10)
