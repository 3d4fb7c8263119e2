"""The same body with another attention design: MHA, GQA, MQA or MLA in place of its own."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from kvproof.errors import ModelError, UsageError
from kvproof.kinds import FullSlot, LatentSlot, Slot
from kvproof.model.types import Model

Design = Literal["mha", "gqa", "mqa", "mla"]

# DeepSeek-V2's and V3's own sizes: a latent of 512 numbers and a rotary key of 64.
LATENT_DIM, ROPE_DIM = 512, 64
DEFAULT_GROUPS = 8


def with_attention(model: Model, design: Design, *, groups: int | None = None) -> Model:
    """`model` with every full or latent layer's cache laid out as `design` would.

    MHA keeps a key and value for each query head, GQA for each of `groups` (the model's own
    count where it has one between 1 and its heads, else 8), MQA one, MLA the latent of
    DeepSeek-V3. Weights stay those of the body: an illustration of the cache, not a real model.
    Raises ModelError for a model without full attention.
    """
    if design not in get_args(Design):
        raise UsageError(f"unknown attention design {design!r}", hint="use mha, gqa, mqa or mla")
    heads = model.attention_heads
    if groups is not None and not (0 < groups <= heads and heads % groups == 0):
        raise UsageError(f"{groups} groups do not divide {heads} heads", hint="choose a divisor")
    if not any(isinstance(slot, FullSlot | LatentSlot) for slot in model.slots):
        raise ModelError(f"{model.name} has no attention layers", hint="choose another body")
    slots = tuple(_redesign(slot, model.attention_heads, design, groups) for slot in model.slots)
    return msgspec.structs.replace(model, name=f"{model.name} as {design.upper()}", slots=slots)


def _redesign(slot: Slot, heads: int, design: Design, groups: int | None) -> Slot:
    if not isinstance(slot, FullSlot | LatentSlot):
        return slot
    width = slot.v_dim if isinstance(slot, FullSlot) else slot.value_dim
    own = slot.kv_heads if isinstance(slot, FullSlot) else 0
    window = getattr(slot, "window", None)
    if design == "mla":
        return LatentSlot(
            layer=slot.layer, latent_dim=LATENT_DIM, rope_dim=ROPE_DIM, heads=heads,
            nope_dim=width, value_dim=width, window=window,
        )  # fmt: skip
    shared = groups or (own if 1 < own < heads else DEFAULT_GROUPS)
    kv_heads = {"mha": heads, "gqa": min(shared, heads), "mqa": 1}[design]
    if isinstance(slot, FullSlot):
        return msgspec.structs.replace(slot, kv_heads=kv_heads, k_dim=width, v_dim=width)
    return FullSlot(layer=slot.layer, kv_heads=kv_heads, k_dim=width, v_dim=width)
