"""transformers' quantized and offloaded caches: what they hold, and where.

Quantized: the whole prompt is quantized at once; decoded tokens stay in the model's type until
`residual` of them have gathered, then they are quantized too. hqq and quanto store, per group of
elements, a scale and a zero point in the model's type; fp8 stores one byte an element and two f32
scales a layer, with no residual. Measured with transformers 5.24 (hqq, fp8; quanto by its code).

Offloaded: the device holds the layer at work and the next one, which is fetched ahead; the host
holds the rest. States of linear attention never leave the device, and neither do sliding layers
of a static cache. Read from transformers' cache_utils.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from kvproof.engine.base import CacheRequest
from kvproof.engine.transformers import cache
from kvproof.errors import UsageError
from kvproof.kinds import ConvSlot, ElementType, FullSlot, RecurrentSlot, SlidingSlot, element_type

if TYPE_CHECKING:
    from kvproof.model.types import Model

Backend = Literal["hqq", "quanto", "fp8"]
_BITS: dict[str, tuple[int, ...]] = {"hqq": (1, 2, 4, 8), "quanto": (2, 4), "fp8": (8,)}


class QuantizedCache(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of a quantized cache: now, split in two, and at most at this length.

    `worst_bytes` is the size just before the next re-quantization (the residual is full but one).
    While a layer is updated its keys and values also exist in the model's type:
    `working_bytes`.
    """

    bytes: int
    quantized_bytes: int
    residual_bytes: int
    worst_bytes: int
    working_bytes: int


class OffloadedCache(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of an offloaded cache: what remains on the device at most, and the host's rest."""

    bytes: int
    device_bytes: int
    host_bytes: int


def quantized_cache(
    model: Model,
    tokens: int,
    *,
    decode_steps: int = 0,
    backend: Backend = "hqq",
    bits: int = 4,
    group: int = 64,
    residual: int = 128,
    dtype: str | None = None,
) -> QuantizedCache:
    """Bytes of one sequence in transformers' QuantizedCache.

    Raises UsageError for models with anything but full attention, as transformers does.
    """
    if backend not in _BITS or bits not in _BITS[backend]:
        known = ", ".join(f"{name} {list(b)}" for name, b in _BITS.items())
        raise UsageError(f"no quantized cache {backend!r} with {bits} bits", hint=f"known: {known}")
    if group < 1 or residual < 1:
        raise UsageError("group and residual must be positive", hint="defaults are 64 and 128")
    own = element_type(dtype or model.dtype)
    widths = [_numbers(slot) for slot in model.slots]
    late = 0 if backend == "fp8" else decode_steps % residual
    stored = tokens + decode_steps - late
    packed = sum(_packed(stored * n, backend, bits, group, own) for pair in widths for n in pair)
    per_token = sum(own.bytes(n) for pair in widths for n in pair)
    most = 0 if backend == "fp8" else residual - 1
    return QuantizedCache(
        bytes=packed + late * per_token,
        quantized_bytes=packed,
        residual_bytes=late * per_token,
        worst_bytes=packed + most * per_token,
        working_bytes=max(
            (own.bytes((tokens + decode_steps) * sum(pair)) for pair in widths), default=0
        ),
    )


def _numbers(slot: object) -> tuple[int, int]:
    """Key and value numbers of one position."""
    if type(slot) is not FullSlot:
        raise UsageError(
            "transformers quantizes the caches of models with full attention only",
            hint="leave the quantized cache out",
        )
    return slot.kv_heads * slot.k_dim, slot.kv_heads * slot.v_dim


def _packed(elements: int, backend: Backend, bits: int, group: int, own: ElementType) -> int:
    if backend == "fp8":
        return elements + (4 if elements else 0)
    return -(-elements * bits // 8) + 2 * own.bytes(-(-elements // group))


def offloaded_cache(model: Model, request: CacheRequest, version: str | None) -> OffloadedCache:
    """Where the bytes of a dynamic or static cache lie with offloading=True."""
    whole = cache(model, request, version)
    stays = [0] * len(whole.layers)
    for slot, size in zip(model.slots, whole.slots, strict=True):
        if _resident(slot, static=request.static_length is not None):
            stays[slot.layer] += size
    moves = [size - kept for size, kept in zip(whole.layers, stays, strict=True)]
    moves = [size for size in moves if size]
    pairs = [a + b for a, b in zip(moves, moves[1:] + moves[:1], strict=True)]
    ahead = max(pairs) if len(moves) > 1 else sum(moves)
    return OffloadedCache(
        bytes=whole.bytes,
        device_bytes=sum(stays) + ahead,
        host_bytes=sum(moves) - ahead,
    )


def _resident(slot: object, *, static: bool) -> bool:
    return isinstance(slot, (ConvSlot, RecurrentSlot)) or (static and isinstance(slot, SlidingSlot))
