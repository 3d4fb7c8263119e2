"""vLLM's own element types as formats: what keys and values take with their scales.

A head's scales lie beside it: four bytes a head and token (`rows.side_bytes`), so a format is as
wide as a head.
"""

from __future__ import annotations

from collections import Counter

from kvproof.engine.base import Deployment
from kvproof.engine.stored_types import plain_types
from kvproof.engine.vllm.backends import stored_latent_dtype
from kvproof.engine.vllm.blocks import settle_blocks
from kvproof.engine.vllm.rows import DS_MLA_NVFP4, HEAD_SCALE
from kvproof.engine.vllm.settings import Settings, settle
from kvproof.errors import UsageError
from kvproof.kinds import FullSlot, LatentSlot, Types, element_type
from kvproof.kinds.elements import ElementType
from kvproof.model.types import Model

_PER_HEAD = "_per_token_head"
_SOURCE = "vLLM 0.32, v1/kv_cache_interface.py: a head's elements and one f32 scale"
_AS = {"nvfp4_4over6": "nvfp4", "fp8_inc": "fp8"}
_LATENT = "nvfp4_ds_mla"


def types_for(model: Model, deployment: Deployment) -> Types:
    """Element types of keys, values and states that follow the model's own type.

    The cache's is what flags, checkpoint, model and GPU settle on, and how the backend stores it.
    """
    name = _stored(model, settle(model, deployment))
    own = element_type(model.dtype)
    if name.endswith(_PER_HEAD):
        heads = [slot for slot in model.slots if isinstance(slot, FullSlot)]
        return Types(
            _beside_scale(name, _usual([slot.k_dim for slot in heads])),
            _beside_scale(name, _usual([slot.v_dim for slot in heads])),
            own,
        )
    if name == _LATENT:
        widths = [s.latent_dim + s.rope_dim for s in model.slots if isinstance(s, LatentSlot)]
        source = "vLLM 0.32: DeepSeek's latent in NVFP4, its rotary key in bf16"
        packed = ElementType(_LATENT, _usual(widths), DS_MLA_NVFP4, source)
        return Types(packed, packed, own)
    return plain_types(model, _AS.get(name, name))


def _stored(model: Model, settings: Settings) -> str:
    """The cache's type as it is stored: FlashMLA keeps FP8 latents in DeepSeek's own layout."""
    name = settings.kv_dtype
    if not any(isinstance(slot, LatentSlot) for slot in model.slots):
        return name
    try:
        return stored_latent_dtype(settle_blocks(model, settings).backend, name)
    except UsageError:
        return name  # the planner says why


def _beside_scale(name: str, width: int) -> ElementType:
    """A head of `width` elements with its scale."""
    stored = width // 2 if name.startswith("int4") else width
    return ElementType(name, width, stored + HEAD_SCALE, _SOURCE)


def _usual(widths: list[int]) -> int:
    """The width that most layers have; 1 without any."""
    return Counter(widths).most_common(1)[0][0] if widths else 1
