"""From a slot of kvproof.kinds to the planes that hold it."""

from __future__ import annotations

import torch

from kvproof.errors import UsageError
from kvproof.kinds import (
    ConvSlot,
    ElementType,
    FullSlot,
    LatentSlot,
    RecurrentSlot,
    Slot,
    Types,
)
from kvproof.lab.pool.planes import AnyPlane, Plane, StatePlane

_STATE_TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def planes_of(slot: Slot, types: Types, *, blocks: int, block_size: int) -> tuple[AnyPlane, ...]:
    """The planes of a slot: keys and values, one latent plane, or one state.

    Raises UsageError for a kind that the lab does not run.
    """
    size = {"blocks": blocks, "block_size": block_size}
    if isinstance(slot, LatentSlot):
        width = slot.latent_dim + slot.rope_dim
        return (Plane(types.k, "rows", heads=1, dim=width, **size),)
    if isinstance(slot, FullSlot):
        return (
            Plane(types.k, "columns", heads=slot.kv_heads, dim=slot.k_dim, **size),
            Plane(types.v, "slices", heads=slot.kv_heads, dim=slot.v_dim, **size),
        )
    if isinstance(slot, RecurrentSlot):
        return (StatePlane(slot.shape, _state_dtype(slot.element or types.model), blocks=blocks),)
    if isinstance(slot, ConvSlot):
        dtype = _state_dtype(slot.element or types.model)
        return (StatePlane((slot.channels, slot.kernel), dtype, blocks=blocks),)
    raise UsageError(f"the lab does not run {slot.kind} slots", hint="see kvproof.lab.pool.slots")


def is_state(slot: Slot) -> bool:
    """Whether the slot keeps a state of fixed size instead of entries."""
    return isinstance(slot, RecurrentSlot | ConvSlot)


def window_of(slot: Slot) -> int | None:
    """How many of the last positions the slot's attention sees; None for all."""
    window: int | None = getattr(slot, "window", None)
    return window


def _state_dtype(element: ElementType) -> torch.dtype:
    if element.name not in _STATE_TYPES:
        raise UsageError(f"the lab keeps no states in {element.name}", hint="use f32 or bf16")
    return _STATE_TYPES[element.name]
