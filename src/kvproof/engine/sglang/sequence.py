"""Bytes of sequences in SGLang's pools without a deployment: one GPU, the newest rules."""

from __future__ import annotations

from kvproof.engine.base import Cache, CacheRequest, Deployment
from kvproof.engine.sglang.compressed import compressed_slot_bytes
from kvproof.engine.sglang.flags import read_flags, takes_kv_dtype
from kvproof.engine.sglang.pools import Pools, make_pools, slot_bytes
from kvproof.model.multimodal import with_encoder_tokens
from kvproof.model.types import Model

_NAMES = {"bf16": "bfloat16", "f16": "float16"}


def sequence_cache(model: Model, request: CacheRequest, version: str | None) -> Cache:
    """Logical bytes slot by slot; allocated: whole pages, and the window's pages kept."""
    name = f"sglang@{version}" if version else "sglang"
    asked = request.dtype or request.k_dtype or "auto"
    deployment = Deployment(name, **_typed(_NAMES.get(asked, asked), version))
    flags = read_flags(deployment)
    if request.encoder_tokens is not None:
        model = with_encoder_tokens(model, request.encoder_tokens)
    pools = make_pools(model, deployment, flags)
    lengths = [length + request.decode_steps for length in request.lengths]
    slots = tuple(
        sum(slot_bytes(model, deployment, flags, slot, n) for n in lengths) for slot in model.slots
    )
    layers = [0] * model.layers
    for slot, size in zip(model.slots, slots, strict=True):
        layers[slot.layer] += size
    allocated = sum(_allocated(model, pools, length) for length in lengths)
    return Cache(bytes=sum(slots), allocated_bytes=allocated, slots=slots, layers=tuple(layers))


def _typed(dtype: str, version: str | None) -> dict[str, str]:
    """The flag for the cache's type; a release without one for 16 bits follows the model's."""
    plain = dtype == "bfloat16" and not takes_kv_dtype(dtype, version)
    return {"dtype" if plain else "kv_cache_dtype": dtype}


def _allocated(model: Model, pools: Pools, length: int) -> int:
    """Whole pages, and the pages that the window touches."""
    pages = -(-(length + pools.encoder) // pools.page) * pools.page
    if pools.compressed is not None:
        return sum(compressed_slot_bytes(model, slot, pages, pools.page) for slot in model.slots)
    near = min(pages, (pools.window or 0) + pools.page)
    return pages * pools.full + near * pools.sliding + pools.state
