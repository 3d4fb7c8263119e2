"""How many inputs of a short convolution an engine keeps: mostly one less than it is wide."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from kvproof.kinds import ConvSlot
from kvproof.model.types import Model


def keeping(model: Model, columns: Callable[[ConvSlot], int]) -> Model:
    """The model with `columns` inputs kept of each convolution."""
    slots = tuple(
        msgspec.structs.replace(slot, kept=columns(slot)) if isinstance(slot, ConvSlot) else slot
        for slot in model.slots
    )
    return msgspec.structs.replace(model, slots=slots)


def before_current(slot: ConvSlot) -> int:
    """The inputs before the current one, which is not stored."""
    return max(slot.kernel - 1, 0)
