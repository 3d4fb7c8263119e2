"""DeepSeek-V4's caches: windows, compressed entries, their indexer, and compressor states.

Read in vLLM 0.32, models/deepseek_v4/{attention,compressor}.py and
v1/attention/backends/mla/sparse_swa.py; start-up logs confirm them in part (docs/accuracy.md).
"""

from __future__ import annotations

import math

import msgspec

from kvproof.engine.vllm.backend_types import READ
from kvproof.engine.vllm.flags import asked_backend
from kvproof.engine.vllm.settings import V4_PLAIN, Settings
from kvproof.engine.vllm.specs import Spec
from kvproof.errors import UsageError
from kvproof.kinds import CompressedSlot, SlidingSlot, Slot
from kvproof.model.types import Model

BLOCK = 256
"""Tokens of a block, and of a kernel's: larger blocks are several of the kernel's."""
_LARGEST_RATIO = 128
_WINDOW_BLOCK = 64
_ROW = 584
"""fp8_ds_mla of V4: 448 B of values, 64 bf16 rotary numbers, 8 B of scales."""
_PACKED_ALIGNMENT, _PLAIN_ALIGNMENT = 576, 512
_COMPRESSOR_BLOCK = {4: 4, 128: 8}
_F32 = 4
_NOT_OURS = ("FLASHINFER_MLA_SPARSE", "FLASHINFER_MLA_SPARSE_SM120")
_BLACKWELL, _CONSUMER = 10, 12
"""First numbers of compute capabilities."""
_INDEX_SCALE = 4


def is_v4(model: Model) -> bool:
    """Whether the model's window layers use V4's packed rows too."""
    return "DeepseekV4" in model.architecture or model.model_type.startswith("deepseek_v4")


def compressed_block(settings: Settings) -> int:
    """The block of compressed entries; raises UsageError for what vLLM refuses."""
    block = settings.block_size or BLOCK
    if block % _LARGEST_RATIO:
        raise UsageError(
            f"DeepSeek-V4 needs blocks of a multiple of {_LARGEST_RATIO} tokens, not {block}",
            hint="leave block_size out",
        )
    if settings.kv_dtype.startswith("nvfp4"):
        raise UsageError(
            f"vLLM keeps no latents of DeepSeek-V4 in {settings.kv_dtype}",
            hint="set kv_cache_dtype=fp8",
        )
    check_rows(settings)
    return block


def check_rows(settings: Settings) -> None:
    """Raise UsageError for a type of cache or a backend that DeepSeek-V4 does not take.

    Source: vLLM 0.32, models/deepseek_v4/nvidia/model.py (_select_dsv4_attn_cls) and attention.py
    (_resolve_dsv4_kv_cache_dtype); before, any Blackwell was taken to keep 16 bits.
    """
    if settings.platform != "cuda":
        return
    asked, read = asked_backend(settings.flags), settings.rules.version >= READ
    if read and asked in _NOT_OURS:
        raise UsageError(
            f"{asked} is no backend of DeepSeek-V4", hint=f"set attention_backend={V4_PLAIN}"
        )
    packed = settings.kv_dtype == "auto" or settings.kv_dtype.startswith("fp8")
    plain = _plain_rows(settings) if read else settings.capability[0] >= _BLACKWELL
    if not packed and not plain:
        raise UsageError(
            f"vLLM keeps DeepSeek-V4's cache in fp8 here, not in {settings.kv_dtype}",
            hint="set kv_cache_dtype=fp8",
        )


def _plain_rows(settings: Settings) -> bool:
    """Whether FlashInfer is asked for, which keeps plain rows, but on consumer Blackwell."""
    asked = asked_backend(settings.flags) == V4_PLAIN and settings.platform == "cuda"
    return asked and settings.capability[0] != _CONSUMER


def compressed_specs(slot: Slot, settings: Settings) -> list[tuple[str, Spec]]:
    """The caches of one layer: a window always; with compression four more kinds."""
    if isinstance(slot, SlidingSlot):
        return [("window", _window(slot.window, slot.k_dim, settings))]
    if not isinstance(slot, CompressedSlot):
        return []
    out = [("window", _window(slot.window, slot.dim, settings))]
    if slot.ratio <= 1:
        return out
    if slot.index_dim:
        row = slot.index_dim + _INDEX_SCALE
        out.append(("indexer", _entries(slot.ratio, row, settings)))
        out.append(("indexer_compressor", _compressor(slot.ratio, slot.index_dim, settings)))
    out.append(("compressed", _entries(slot.ratio, _row(slot.dim, settings), settings)))
    out.append(("compressor", _compressor(slot.ratio, slot.dim, settings)))
    return out


def _packed(settings: Settings) -> bool:
    fp8 = settings.kv_dtype.startswith("fp8") or settings.kv_dtype == "auto"
    return fp8 and not _plain_rows(settings)


def _alignment(settings: Settings) -> int:
    return _PACKED_ALIGNMENT if _packed(settings) else _PLAIN_ALIGNMENT


def _row(dim: int, settings: Settings) -> int:
    if _packed(settings):
        return _ROW
    return dim * (1 if settings.kv_dtype.startswith("fp8") else 2)


def _window(window: int, dim: int, settings: Settings) -> Spec:
    return Spec(
        kind="sliding_latent",
        block_size=_WINDOW_BLOCK,
        row_bytes=_row(dim, settings),
        window=window,
        alignment=_alignment(settings),
        note="window",
    )


def _entries(ratio: int, row: int, settings: Settings) -> Spec:
    block = settings.block_size or BLOCK
    spec = Spec(
        kind="latent",
        block_size=block,
        row_bytes=row,
        tokens_per_row=ratio,
        alignment=_alignment(settings),
    )
    kernel = math.gcd(BLOCK, block)
    if kernel == block:
        return spec
    part = msgspec.structs.replace(spec, block_size=kernel)
    return msgspec.structs.replace(spec, stride=part.page_bytes)


def _compressor(ratio: int, dim: int, settings: Settings) -> Spec:
    """Keys and scores of the group being compressed, twice as many where groups overlap."""
    overlap = 2 if ratio == 4 else 1
    return Spec(
        kind="sliding_latent",
        block_size=_COMPRESSOR_BLOCK.get(ratio, 8),
        row_bytes=overlap * 2 * dim * _F32,
        window=overlap * ratio,
        alignment=_alignment(settings),
        note="compressor",
    )
