"""Attention backends as vLLM 0.32 picked them, on a GPU of every compute capability.

`python scripts/oracle_vllm_backends.py --save tests/ground_truth/vllm_backends.json` asks for new
ones.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from scripts.oracle_vllm_backends import own_choice, same
from scripts.vllm_planner.pretend import GPUS
from tests.conftest import GROUND_TRUTH

import kvproof
from kvproof.engine import vllm
from kvproof.engine.command import render_command
from kvproof.engine.vllm.backend_table import ROWS
from kvproof.errors import UsageError

TRUTH = json.loads((GROUND_TRUTH / "vllm_backends.json").read_text())


def test_every_choice_is_the_engines() -> None:
    wrong = [(case, real, own) for case, real in TRUTH if not same(own := own_choice(case), real)]
    assert wrong == []


def test_the_cases_touch_every_gpu_and_backend() -> None:
    assert {case["gpu"] for case, _ in TRUTH} == set(GPUS)
    picked = {real["name"] for _, real in TRUTH if "refused" not in real}
    rare = {"TOKENSPEED_MLA", "FLASHINFER_MLA_SPARSE_SM90", "TRITON_FLASH_ATTN",
            "TRITON_FLASHINFER"}  # fmt: skip
    assert set(ROWS) - rare <= picked


def _llama(**flags: Any) -> vllm.VllmCapacity:
    model = kvproof.load_model("meta-llama/Llama-3.1-8B", offline=True)
    return vllm.capacity(model, kvproof.Deployment("vllm@0.32", "H100-80GB", **flags), 2**34)


def test_a_backend_is_named_by_itself_or_in_its_config() -> None:
    assert _llama(attention_backend="triton_attn").attention_backend == "TRITON_ATTN"
    assert _llama(attention_config={"backend": "FLASHINFER"}).attention_backend == "FLASHINFER"
    assert _llama(attention_backend="auto").attention_backend == "FLASH_ATTN"


def test_a_name_that_the_release_does_not_have_is_refused() -> None:
    with pytest.raises(UsageError, match="FLASH_ATTN"):
        _llama(attention_backend="FLASH_ATTEN")
    with pytest.raises(UsageError, match="TURBOQUANT runs no model by itself"):
        _llama(attention_backend="TURBOQUANT")


def test_layers_left_out_of_the_quantization_keep_their_type() -> None:
    """Two of 32 layers in bf16: blocks of 32, in which a page in fp8 holds 16 tokens of theirs."""
    plain, mixed = (
        _llama(kv_cache_dtype="fp8"),
        _llama(kv_cache_dtype="fp8", kv_cache_dtype_skip_layers=["0", "1"]),
    )
    page = 16 * 2 * 8 * 128  # bytes of 16 tokens of a layer in fp8
    assert plain.bytes_per_block == 32 * page
    assert mixed.block_size == 32
    assert mixed.bytes_per_block == 2 * (30 + 2 * 2) * page


def test_pasted_layers_come_back_in_the_command() -> None:
    pasted = "vllm serve m --kv-cache-dtype fp8 --kv-cache-dtype-skip-layers 0 sliding_window"
    read = kvproof.Deployment.from_command(pasted, gpu="H100-80GB")
    assert read.flags["kv_cache_dtype_skip_layers"] == ("0", "sliding_window")
    assert render_command("m", read) == pasted


@pytest.mark.parametrize(
    ("gpu", "flags", "backend"),
    [
        ("H100-80GB", {"kv_cache_dtype": "fp8"}, "FLASH_ATTN_DIFFKV"),
        ("B200", {}, "FLASH_ATTN_DIFFKV"),
        ("B200", {"kv_cache_dtype": "fp8"}, None),
        (
            "B200",
            {"kv_cache_dtype": "fp8", "attention_backend": "TRITON_ATTN_DIFFKV"},
            "TRITON_ATTN_DIFFKV",
        ),
    ],
)
def test_values_of_another_width_are_quantized_where_the_keys_may_be(
    gpu: str, flags: dict[str, Any], backend: str | None
) -> None:
    """MiMo-V2-Flash: FlashAttention 4 is picked by both widths and refuses by the keys' 192."""
    model = kvproof.load_model("XiaomiMiMo/MiMo-V2-Flash", offline=True)
    asked = kvproof.Deployment("vllm@0.32", gpu, tensor_parallel_size=4, **flags)
    if backend is not None:
        assert vllm.capacity(model, asked, 20_000_000_000).attention_backend == backend
        return
    with pytest.raises(UsageError, match="keeps no fp8 cache of heads of 192") as caught:
        vllm.capacity(model, asked, 20_000_000_000)
    assert "TRITON_ATTN_DIFFKV" in str(caught.value)


@pytest.mark.parametrize("name", ["Qwen/Qwen3-8B", "deepseek-ai/DeepSeek-V2-Lite"])
def test_a_turing_card_keeps_no_cache_of_a_type_that_it_does_not_have(name: str) -> None:
    model = kvproof.load_model(name, offline=True)
    asked = kvproof.Deployment("vllm@0.32", "T4", kv_cache_dtype="bfloat16", max_model_len=4096)
    with pytest.raises(UsageError, match=r"no bfloat16 cache below capability 8\.0") as caught:
        vllm.capacity(model, asked, 2 * 10**9)
    assert "kv_cache_dtype=float16" in str(caught.value)
    half = kvproof.Deployment("vllm@0.32", "T4", kv_cache_dtype="float16", max_model_len=4096)
    assert vllm.capacity(model, half, 2 * 10**9).fits


def test_a_draft_keeps_no_cache_of_a_type_that_the_card_does_not_have() -> None:
    model = kvproof.load_model("internlm/internlm3-8b-instruct", offline=True)
    draft = {"method": "eagle", "num_speculative_tokens": 1, "kv_cache_dtype": "bfloat16"}
    asked = kvproof.Deployment("vllm@0.32", "T4", max_model_len=1024, speculative_config=draft)
    with pytest.raises(UsageError, match=r"no bfloat16 cache below capability 8\.0"):
        vllm.capacity(model, asked, 2 * 10**9)


def test_an_asked_block_is_held_against_the_models_width() -> None:
    """Gemma 4 E4B on a Thor: its sliding layers' 256 have kernels with pages of 128, its own 512
    none; the real planner takes blocks of 64 (scripts/oracle_vllm.py, seed 91022, corner wide)."""
    model = kvproof.load_model("google/gemma-4-E4B", offline=True)
    flags = {"attention_backend": "FLASH_ATTN", "block_size": 64, "max_model_len": 8192}
    asked = kvproof.Deployment("vllm@0.32", "Jetson-Thor-128GB", **flags)
    found = vllm.capacity(model, asked, 60 * 10**9)
    assert (found.num_blocks, found.block_size, found.bytes_per_block) == (57220, 64, 2**20)
