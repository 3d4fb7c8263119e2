"""FP4 caches: scales and workspaces beside the packed numbers, by release and recipe.

`printed` is what the lines with K and V count, `held` what is allocated, `counted` what sizing
takes; each in bytes a token on one rank. Heads keep one scale of a byte for 16 numbers, and so do
latents. Sources: sglang/srt/mem_cache/memory_pool.py (MHATokenToKVPoolFP4, MLATokenToKVPoolFP4,
get_kv_size_bytes) and model_executor/pool_configurator.py of 0.5.5 to 0.5.23,
layers/quantization/fp4_kv_cache_quant_method.py and arg_groups/kv_cache_hook.py of 0.5.21 to 0.5.23
(`handle_nvfp4_prefill_kv_dequant_dtype`).
"""

from __future__ import annotations

import msgspec

from kvproof.engine.base import Deployment
from kvproof.engine.sglang.backend import capability
from kvproof.engine.sglang.flags import Flags

BLOCK = 16
"""Numbers that share a scale."""
_NATIVE = 10
"""Compute capability whose kernels read scales in a layout of their own (SM100, SM103)."""


class Extra(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes a token beside the packed numbers."""

    printed: int = 0
    held: int = 0
    counted: int = 0


def scales(elements: int) -> int:
    """Bytes of the scales of a token's `elements`."""
    return elements // BLOCK


def of_heads(deployment: Deployment, flags: Flags, by_layer: list[int]) -> Extra:
    """Of layers of heads with so many numbers a token each; the workspace is one layer's in FP8."""
    own = sum(scales(elements) for elements in by_layer)
    if not flags.rules.fp4_recipes:
        return Extra(held=own, counted=own)
    layer = max(by_layer, default=0)
    nvfp4 = flags.get("kv_cache_dtype") == "nvfp4"
    if not flags.rules.fp4_by_backend:
        held = own + (layer if nvfp4 else 0)
        return Extra(printed=held, held=held, counted=own + layer)
    held = own
    if nvfp4:
        native = int(capability(deployment) or 0) == _NATIVE
        unpacked = _unpacks(flags, native)
        held = own * (int(unpacked or not native) + int(native)) + (layer if unpacked else 0)
    return Extra(printed=held, held=held, counted=held)


def of_latents(by_layer: list[int]) -> Extra:
    """Of latents, whose scales no release's line counts."""
    own = sum(scales(elements) for elements in by_layer)
    return Extra(held=own, counted=own)


def _unpacks(flags: Flags, native: bool) -> bool:
    """Whether prefill reads numbers that were unpacked to FP8."""
    asked = str(flags.get("prefill_kv_cache_dequant_dtype", "auto"))
    if asked != "auto":
        return asked != "nvfp4"
    backend = flags.get("prefill_attention_backend") or flags.get("attention_backend")
    return backend != "trtllm_mha" if backend else not native
