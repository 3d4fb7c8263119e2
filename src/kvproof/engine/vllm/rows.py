"""Bytes of one stored row of a page: heads, widths and the cache's element type.

Source: vLLM 0.32, v1/kv_cache_interface.py (state_content_size_bytes), customize_spec of the
backends, and model_executor/layers/attention/mla_attention.py.
"""

from __future__ import annotations

from kvproof.engine.vllm.architectures import is_m3
from kvproof.engine.vllm.backend_types import READ, Backend
from kvproof.engine.vllm.backends import stored_latent_dtype
from kvproof.engine.vllm.settings import Settings, skips
from kvproof.errors import UsageError
from kvproof.kinds import IndexerSlot, LatentSlot, Slot
from kvproof.model.types import Model

DS_MLA_FP8 = 656
"""fp8_ds_mla: 512 B of values, four f32 scales, 64 bf16 rotary numbers."""
DS_MLA_NVFP4 = 352
HEAD_SCALE = 4
_INDEX_GROUP = 128
_NVFP4 = ("nvfp4", "nvfp4_4over6")
_MSA_BLOCKS = (4, 8, 16, 32)
"""Counts of picked blocks that Blackwell's kernel of MiniMax-M3 takes."""
_SHORT = {"float16": "f16", "bfloat16": "bf16"}
_WIDTHS = {"f32": 4, "bf16": 2, "f16": 2}


def element_bytes(settings: Settings) -> int:
    """Bytes of an element in a cache of whole-byte elements."""
    dtype = settings.kv_dtype
    if dtype == "auto":
        return _WIDTHS.get(settings.dtype, 2)
    return 2 if dtype in ("float16", "bfloat16") else 1


def stored_as(settings: Settings) -> str:
    """What a stored element is to vLLM's specs, which keep apart layers of two of them.

    Source: vLLM 0.32, v1/kv_cache_interface.py (dtype, get_kv_quant_mode).
    """
    asked = settings.kv_dtype
    if asked == "auto":
        return settings.dtype
    if asked in _NVFP4:
        return _NVFP4[0]
    whole = asked.startswith("fp8") and not asked.endswith("_per_token_head")
    return "fp8" if whole else _SHORT.get(asked, asked)


def side_bytes(width: int, settings: Settings, *, packed: bool = True) -> int:
    """Bytes of one head's key (or value) of one token.

    `packed`: the backend packs a quantized head and keeps its scales beside it
    (backend_types.Backend.packs); others keep one byte an element.
    """
    dtype = settings.kv_dtype
    if not packed:
        return width * element_bytes(settings)
    if dtype in _NVFP4:
        return width // 2 + width // 16
    if dtype == "int4_per_token_head":
        return width // 2 + HEAD_SCALE
    if dtype.endswith("_per_token_head"):
        return width + HEAD_SCALE
    return width * element_bytes(settings)


def pair_row(heads: int, k_dim: int, v_dim: int, settings: Settings, *, packed: bool = True) -> int:
    """Bytes of one token's keys and values over `heads` heads."""
    return heads * sum(side_bytes(width, settings, packed=packed) for width in (k_dim, v_dim))


def latent_row(slot: LatentSlot, settings: Settings, backend: Backend) -> int:
    """Bytes of one token's latent and rotary key."""
    stored = stored_latent_dtype(backend, settings.kv_dtype)
    if stored == "fp8_ds_mla":
        return DS_MLA_FP8
    if stored == "nvfp4_ds_mla":
        return DS_MLA_NVFP4
    return (slot.latent_dim + slot.rope_dim) * element_bytes(settings)


def picks_blocks(model: Model, slot: Slot) -> bool:
    """Whether an indexer picks the blocks of keys and values that the layer reads."""
    return is_m3(model) and any(
        isinstance(other, IndexerSlot) and other.layer == slot.layer for other in model.slots
    )


def is_whole(model: Model, settings: Settings, number: int, slot: Slot) -> bool:
    """Whether the layer keeps the model's own type; one whose blocks are picked heeds no such list.

    Source: vLLM 0.32, models/minimax_m3 (its sparse layers are no Attention).
    """
    return skips(settings, number, slot) and not picks_blocks(model, slot)


def check_picked(model: Model, settings: Settings) -> None:
    """Raise UsageError for NVFP4 that MiniMax-M3's sparse layers do not keep.

    Source: vLLM 0.32, models/minimax_m3/common/sparse_attention.py.
    """
    dtype = settings.kv_dtype
    if settings.rules.version < READ or dtype not in _NVFP4 or not is_m3(model):
        return
    kernels = settings.platform == "cuda" and settings.capability[0] == 10
    if dtype != _NVFP4[0] or not kernels or model.number("index_topk_blocks") not in _MSA_BLOCKS:
        raise UsageError(
            f"vLLM keeps no {dtype} cache in the sparse layers of {model.name} here",
            hint="set kv_cache_dtype=fp8",
        )


def check_scales(model: Model, kept: str, settings: Settings) -> None:
    """Raise UsageError for a cache in fp8_e5m2 whose scales the checkpoint's quantization loads.

    Source: vLLM 0.32, layers/attention/attention.py (_init_kv_cache_quant).
    """
    if settings.rules.version < READ or kept != "fp8_e5m2" or not _loads_scales(model):
        return
    raise UsageError(
        f"vLLM keeps no fp8_e5m2 cache with the checkpoint of {model.name}, whose quantization may "
        "bring the cache's scales",
        hint="set kv_cache_dtype=fp8",
    )


def _loads_scales(model: Model) -> bool:
    """Whether the checkpoint's method loads scales of the cache: FP8's and ModelOpt's always, but
    ModelOpt's mixed one and compressed-tensors only where the checkpoint names a cache's type.

    Source: vLLM 0.32, layers/quantization (get_quant_method of an Attention).
    """
    found = model.quantization
    if found is None:
        return False
    whole = found.method == "modelopt" and found.default is not None
    return found.kv_dtype is not None or found.method == "fp8" or whole


def indexer_row(model: Model, slot: IndexerSlot) -> int:
    """Bytes of one indexer key: fp8 with an f32 scale per 128 numbers; bf16 in MiniMax-M3."""
    if is_m3(model):
        return slot.dim * 2
    return slot.dim + slot.dim // _INDEX_GROUP * HEAD_SCALE
