"""Bytes of sequences in SGLang's pools without a deployment: one GPU, the newest rules."""

from __future__ import annotations

from kvproof.engine.base import Cache, CacheRequest, Deployment
from kvproof.engine.sglang.flags import read_flags
from kvproof.engine.sglang.pools import make_pools, slot_bytes
from kvproof.model.types import Model

_NAMES = {"bf16": "bfloat16", "f16": "float16"}


def sequence_cache(model: Model, request: CacheRequest, version: str | None) -> Cache:
    """Logical bytes slot by slot; allocated: whole pages, and the window's pages kept."""
    name = f"sglang@{version}" if version else "sglang"
    asked = request.dtype or request.k_dtype or "auto"
    deployment = Deployment(name, kv_cache_dtype=_NAMES.get(asked, asked))
    flags = read_flags(deployment)
    pools = make_pools(model, deployment, flags)
    lengths = [length + request.decode_steps for length in request.lengths]
    slots = tuple(
        sum(slot_bytes(model, deployment, flags, slot, n) for n in lengths) for slot in model.slots
    )
    layers = [0] * model.layers
    for slot, size in zip(model.slots, slots, strict=True):
        layers[slot.layer] += size
    allocated = 0
    for length in lengths:
        pages = -(-length // pools.page) * pools.page
        near = min(pages, (pools.window or 0) + pools.page)
        allocated += pages * pools.full + near * pools.sliding + pools.state
    return Cache(bytes=sum(slots), allocated_bytes=allocated, slots=slots, layers=tuple(layers))
