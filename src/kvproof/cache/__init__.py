"""The kinds of cached state and the element types they are stored in."""

from kvproof.cache.elements import BF16, ELEMENT_TYPES, F32, INT64, ElementType, element_type
from kvproof.cache.slots import (
    ChunkedSlot,
    CompressedSlot,
    ConvSlot,
    CrossSlot,
    FullSlot,
    IndexerSlot,
    Kind,
    LatentSlot,
    RecurrentSlot,
    SharedSlot,
    SlidingSlot,
    Slot,
    Tokens,
    Types,
    at_most,
)

__all__ = [
    "BF16",
    "ELEMENT_TYPES",
    "F32",
    "INT64",
    "ChunkedSlot",
    "CompressedSlot",
    "ConvSlot",
    "CrossSlot",
    "ElementType",
    "FullSlot",
    "IndexerSlot",
    "Kind",
    "LatentSlot",
    "RecurrentSlot",
    "SharedSlot",
    "SlidingSlot",
    "Slot",
    "Tokens",
    "Types",
    "at_most",
    "element_type",
]
