"""Bytes of given sequences: what they hold, and what a context made for them allocates."""

from __future__ import annotations

from kvproof.engine.base import Cache, CacheRequest
from kvproof.engine.llamacpp.builds import build_of
from kvproof.engine.llamacpp.context import context_of
from kvproof.engine.llamacpp.flags import CACHE_TYPES, Flags
from kvproof.engine.llamacpp.layout import Piece, pieces
from kvproof.engine.llamacpp.terms import buffer_terms
from kvproof.errors import unknown_name
from kvproof.kinds import ConvSlot, CrossSlot, FullSlot, RecurrentSlot, Slot, Types
from kvproof.kinds.elements import ElementType, element_type
from kvproof.model.types import Model


def cache_of(model: Model, request: CacheRequest, version: str | None) -> Cache:
    """The bytes of `request`'s sequences in a context with one stream for each."""
    types = _types(request)
    longest = max(request.lengths, default=0) + request.decode_steps
    cells = max(request.static_length or longest, 1)
    count = max(len(request.lengths), 1)
    flags = Flags(
        build=build_of(version),
        ctx_size=cells * count,
        parallel=count,
        kv_unified=False,
        cache_type_k=types.k,
        cache_type_v=types.v,
    )
    allocated = pieces(model, context_of(model, flags))
    sizes = tuple(
        _held(slot, index, request, types, allocated) for index, slot in enumerate(model.slots)
    )
    layers = [0] * model.layers
    for slot, size in zip(model.slots, sizes, strict=True):
        layers[slot.layer] += size
    return Cache(
        bytes=sum(sizes),
        allocated_bytes=sum(piece.bytes for piece in allocated),
        slots=sizes,
        layers=tuple(layers),
        terms=buffer_terms(allocated),
    )


def _held(
    slot: Slot, index: int, request: CacheRequest, types: Types, allocated: tuple[Piece, ...]
) -> int:
    """Bytes in use: held positions of the attention slots, whole states of the others."""
    if isinstance(slot, CrossSlot):
        return 0
    if isinstance(slot, ConvSlot | RecurrentSlot):
        return sum(piece.bytes for piece in allocated if piece.slot == index)
    if isinstance(slot, FullSlot) and not slot.v_dim:
        row = types.k.bytes(slot.kv_heads * slot.k_dim)
        return sum(slot.held(n + request.decode_steps) * row for n in request.lengths)
    return sum(slot.bytes(n + request.decode_steps, types) for n in request.lengths)


def _types(request: CacheRequest) -> Types:
    both = request.dtype or "f16"
    k, v = _type(request.k_dtype or both), _type(request.v_dtype or both)
    return Types(k, v, k)


def _type(name: str) -> ElementType:
    found = element_type(name)
    if found.name not in CACHE_TYPES:
        raise unknown_name("llama.cpp cache type", name, list(CACHE_TYPES),
                           see=f"known: {', '.join(CACHE_TYPES)}")  # fmt: skip
    return found
