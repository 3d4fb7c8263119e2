"""The element types of SGLang's pools: the type that backend and GPU settle on, with its scales."""

from __future__ import annotations

from kvproof.engine.base import Deployment
from kvproof.engine.sglang.backend import is_sparse, kv_type, raw_rows
from kvproof.engine.sglang.flags import read_flags
from kvproof.engine.sglang.four_bits import BLOCK, scales
from kvproof.engine.sglang.pools import scaled_latent
from kvproof.kinds import LatentSlot, Types, element_type
from kvproof.kinds.elements import ElementType
from kvproof.model.types import Model


def types_for(model: Model, deployment: Deployment) -> Types:
    """Element types of keys, values and states that follow the model's own type."""
    flags = read_flags(deployment)
    stored = kv_type(model, deployment, flags)
    if stored.name == "fp8_e4m3" and is_sparse(model) and not raw_rows(model, deployment, flags):
        stored = _beside_scales(model, stored)
    if stored.name == "fp4":
        stored = ElementType("fp4", BLOCK, stored.bytes(BLOCK) + scales(BLOCK), "SGLang's FP4 pool")
    return Types(stored, stored, element_type(model.dtype))


def _beside_scales(model: Model, plain: ElementType) -> ElementType:
    """A sparse latent in FP8 with its scales, its rotary key in 16 bits."""
    latent = next((slot for slot in model.slots if isinstance(slot, LatentSlot)), None)
    if latent is None:
        return plain
    width = latent.latent_dim + latent.rope_dim
    source = "SGLang 0.5.23: values in FP8, f32 scales, the rotary key in 16 bits"
    return ElementType("fp8_ds_mla", width, scaled_latent(latent), source)
