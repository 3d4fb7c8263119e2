"""Attention backends: which one vLLM picks on a GPU, and the block sizes it takes.

What each CUDA backend takes is `backend_table`. Source: vLLM 0.32, platforms/{cuda,cpu}.py and
platforms/interface.py (_preferred_block_size_for_backends).
"""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import msgspec

from kvproof.engine.vllm.backend_table import ROWS, flash_keeps_fp8, in_order
from kvproof.engine.vllm.backend_types import (
    DEFAULT_BLOCK,
    READ,
    Attention,
    Backend,
    every,
    fixed,
)
from kvproof.errors import UsageError, unknown_name

FLASH_ATTN_DIFFKV = every("FLASH_ATTN_DIFFKV", 16)
TRITON_ATTN_DIFFKV = every("TRITON_ATTN_DIFFKV", 16)
ROCM_ATTN = every("ROCM_ATTN", 16)
CPU_ATTN = every("CPU_ATTN", 32)
CPU_MLA = fixed("CPU_MLA", 16, exact=True)
ROCM_MLA = every("ROCM_AITER_MLA", 1)
ROCM_MLA_SPARSE = every("ROCM_AITER_MLA_SPARSE", 1, rows=1)
FLASHMLA_SPARSE_DSV4 = every("FLASHMLA_SPARSE_DSV4", 64)
INDEXER = fixed("DEEPSEEK_V32_INDEXER", 64)
M3_SPARSE = fixed("MINIMAX_M3_SPARSE", 128)
"""MiniMax-M3's sparse layers and indexers: a page is one block that the indexer picks.

Source: vLLM 0.32, models/minimax_m3/common (sparse_attention.py, indexer.py).
"""

_DIFFKV = {
    "FLASH_ATTN_DIFFKV": ("auto", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_ds_mla",
                          "fp8_per_token_head", "int8_per_token_head", "int4_per_token_head",
                          "nvfp4", "nvfp4_4over6", "nvfp4_ds_mla"),
    "TRITON_ATTN_DIFFKV": ("auto", "float16", "bfloat16", "fp8", "fp8_e4m3"),
}  # fmt: skip
"""Cache types of the backends whose values have a width of their own (models/mimo_v2.py): the
model's class picks them, so that only what their own classes refuse is not taken."""
_PAIRS = ("TRITON_FLASH_ATTN", "TRITON_FLASHINFER")
_OTHER_NAMES = (
    "B12X", "HPC_ATTN", "CUTLASS_MSA", "TRITON_MSA", "MINIMAX_M3_SPARSE", "TURBOQUANT",
    "ULTRAQUANT", "FLASHMLA_SPARSE_DSV4", "FLASHINFER_MLA_SPARSE_DSV4", "FLASHMLA_SPARSE_DSV41",
    "FLASHINFER_MLA_SPARSE_DSV41", "FLASHMLA_MEGA_ATTN_DSV41", "TORCH_SDPA", "NO_ATTENTION",
    "CUSTOM",
)  # fmt: skip


def choose(attention: Attention) -> Backend:
    """The backend that vLLM picks: the forced one, else the first of its list that can do it."""
    if attention.own is not None:
        return ROWS[attention.own].backend
    if attention.platform != "cuda":
        return _elsewhere(attention)
    _check_name(attention)
    found = _taking(attention)
    if found is not None:
        return found
    major, minor = attention.capability
    if _forced(attention):
        raise UsageError(
            f"vLLM's {_forced(attention)} does not take this model's attention with its cache in "
            f"{attention.kv_dtype} on compute capability {major}.{minor}",
            hint="leave attention_backend out",
        )
    block = attention.block_size
    blocks = f" in blocks of {block} tokens" if block is not None else ""
    kept = attention.kv_dtype if attention.kv_dtype != "auto" else "the model's type"
    whose = "" if attention.kv_asked or kept != attention.kv_dtype else " (its checkpoint's choice)"
    raise UsageError(
        f"no attention backend of vLLM takes this model's attention with its cache in "
        f"{kept}{whose}{blocks} on compute capability {major}.{minor}",
        hint=_mend(attention),
    )


def _elsewhere(attention: Attention) -> Backend:
    """The backend on a CPU, whatever is asked for (platforms/cpu.py), and on AMD's GPUs."""
    if attention.platform == "cpu":
        return CPU_MLA if attention.latent else CPU_ATTN
    asked = (attention.forced or "").upper()
    if asked in ROWS:
        return ROWS[asked].backend
    if attention.sparse:
        return ROCM_MLA_SPARSE
    return ROCM_MLA if attention.latent else ROCM_ATTN


def _check_name(attention: Attention) -> None:
    """Raise UsageError for a backend that the release which was read does not have."""
    asked = (attention.forced or "").upper()
    if not asked or attention.release < READ or asked in (*ROWS, *_DIFFKV):
        return
    if asked in _OTHER_NAMES:
        raise UsageError(
            f"vLLM's {asked} runs no model by itself as the CUDA wheel comes",
            hint="leave attention_backend out",
        )
    raise unknown_name("attention backend", asked, [*ROWS, *_DIFFKV], see="see vllm serve --help")


def _taking(attention: Attention) -> Backend | None:
    """The first of vLLM's list, or the forced one, that takes the attention."""
    if not attention.alike:
        return _of_two_widths(attention)
    forced = _forced(attention)
    rows = (ROWS[forced],) if forced in ROWS else in_order(attention)
    return next((row.of(attention) for row in rows if row.takes(attention)), None)


def _of_two_widths(attention: Attention) -> Backend | None:
    """The backend of values that are not as wide as keys, by the model's own choice.

    Source: vLLM 0.32, models/mimo_v2.py.
    """
    flash = [FLASH_ATTN_DIFFKV] if attention.capability[0] in (9, 10) else []
    shared, wide = attention.context_ranks > 1, attention.dtype == "f32"
    for backend in [*flash, TRITON_ATTN_DIFFKV]:
        lacking = wide if backend is FLASH_ATTN_DIFFKV else shared
        asked = _forced(attention) in ("", backend.name)
        sized = attention.block_size is None or backend.takes(attention.block_size)
        if asked and sized and not lacking and attention.kv_dtype in _DIFFKV[backend.name]:
            return backend
    return None


def _forced(attention: Attention) -> str:
    """The backend asked for, where that is heeded: two widths take two of their own only."""
    asked = (attention.forced or "").upper()
    if not attention.alike:
        return asked if asked.endswith("_DIFFKV") else ""
    return asked if asked in (*ROWS, *_DIFFKV) else ""


def _mend(attention: Attention) -> str:
    """What to change so that some backend takes the attention."""
    types = ("fp8", "fp8_e4m3", "bfloat16") if attention.quantized else ("bfloat16", "fp8")
    typed = [(f"give kv_cache_dtype={name}", {"kv_dtype": name}) for name in types]
    changes: list[tuple[str, dict[str, Any]]] = [*typed]
    if attention.block_size is not None:
        free = ("leave block_size out", {"block_size": None})
        both = [(f"{free[0]} and {said}", {**free[1], **change}) for said, change in typed]
        changes = [free, *typed, *both]
    for said, change in changes:
        if _taking(msgspec.structs.replace(attention, **change)) is not None:
            return f"{said}, or name another GPU"
    return "name another GPU"


def stored_latent_dtype(backend: Backend, kv_dtype: str) -> str:
    """The type a sparse backend really stores: FlashMLA keeps fp8 in DeepSeek's own layout."""
    quantized = kv_dtype.startswith("fp8")
    if backend.name == "FLASHMLA_SPARSE" and quantized:
        return "fp8_ds_mla"
    if backend.name == "FLASHINFER_MLA_SPARSE_SM120" and (quantized or kv_dtype == "auto"):
        return "fp8_ds_mla"
    return kv_dtype


def check_triton(backend: Backend, attention: Attention) -> None:
    """Raise UsageError where Triton's kernels would store a type that the GPU does not have.

    Source: vLLM 0.32, v1/attention/backends/triton_attn.py and mla/triton_mla.py (__init__).
    """
    kept, has = attention.kv_dtype, attention.capability
    needed = (8, 9) if kept.startswith("fp8") else (8, 0) if kept == "bfloat16" else has
    if backend.name.startswith("TRITON_") and attention.platform == "cuda" and has < needed:
        raise UsageError(
            f"vLLM's {backend.name} keeps no {kept} cache below capability {needed[0]}.{needed[1]}",
            hint=f"set kv_cache_dtype={'bfloat16' if has >= (8, 0) else 'float16'}",
        )


def check_pair(backend: Backend, kv_dtype: str) -> None:
    """Raise UsageError for a pair of backends of which one packs the cache's type alone.

    Source: vLLM 0.32, v1/attention/backends/composite.py (customize_spec).
    """
    packing = kv_dtype.endswith("_per_token_head") or kv_dtype.startswith("nvfp4")
    if packing and backend.name in _PAIRS:
        raise UsageError(
            f"vLLM's {backend.name}, which the first layer takes, can't measure a cache in "
            f"{kv_dtype}",
            hint="leave kv_cache_dtype_skip_layers out",
        )


def check_two_widths(backend: Backend, attention: Attention) -> None:
    """Raise UsageError where FlashAttention would quantize keys wider than its kernels take.

    It is picked by both widths, and then refuses by the keys' alone.
    Source: vLLM 0.32, models/mimo_v2.py and v1/attention/backends/flash_attn.py
    (FlashAttentionImpl: head_size_v=head_size).
    """
    flash = backend is FLASH_ATTN_DIFFKV and attention.quantized
    if flash and not flash_keeps_fp8(attention):
        major, minor = attention.capability
        raise UsageError(
            f"vLLM's {backend.name} keeps no {attention.kv_dtype} cache of heads of "
            f"{attention.head_dim} on compute capability {major}.{minor}",
            hint=f"set attention_backend={TRITON_ATTN_DIFFKV.name} or kv_cache_dtype=bfloat16",
        )


def check_shared_out(backend: Backend, attention: Attention) -> None:
    """Raise UsageError where FlashMLA's sparse kernels would share a cache of 16 bits out.

    Source: vLLM 0.32, v1/attention/backends/mla/flashmla_sparse.py.
    """
    shared = backend.name == "FLASHMLA_SPARSE" and attention.context_ranks > 1
    if shared and not attention.quantized:
        raise UsageError(
            "vLLM shares a sparse model's cache out over ranks with FlashMLA in fp8 only",
            hint="set kv_cache_dtype=fp8 or decode_context_parallel_size=1",
        )


def common_block(backends: list[Backend], default: int = DEFAULT_BLOCK) -> int:
    """The block size when none is given: the default if all take it, else the smallest shared."""
    if all(b.takes(default) for b in backends):
        return default
    if len(backends) == 1:
        return backends[0].smallest
    candidates = sorted({math.lcm(*sizes) for sizes in product(*(b.sizes for b in backends))})
    return next((c for c in candidates if all(b.takes(c) for b in backends)), candidates[-1])


def block_by_name(attention: Attention) -> int:
    """The block size before 0.18, where the platform set it by the backend's name.

    Source: vLLM 0.8 to 0.17, platforms/cuda.py (check_and_update_config).
    """
    if attention.platform != "cuda" or not attention.latent:
        return attention.block_size or DEFAULT_BLOCK
    major = attention.capability[0]
    if attention.sparse or major == 9:
        return 64
    if major == 10:
        return 64 if attention.nope_dim == 128 else 128
    return attention.block_size or DEFAULT_BLOCK
