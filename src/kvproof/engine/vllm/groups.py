"""From layers to groups: layers whose blocks are handed out together.

Source: vLLM 0.32, v1/core/kv_cache_utils.py (get_kv_cache_groups and what it calls).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from kvproof.engine.vllm.packed import packed_groups, tuple_groups
from kvproof.engine.vllm.specs import (
    FULL_KINDS,
    SLIDING_KINDS,
    Reserve,
    Spec,
    blocks_reserved,
    mergeable,
    one_type,
)
from kvproof.engine.vllm.types import Layer, LayerGroup
from kvproof.engine.vllm.versions import Rules
from kvproof.errors import UsageError


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """How groups are to be made: the release's rules and the switches that bear on them."""

    rules: Rules
    hybrid_manager: bool = True
    block_outermost: bool = False


def make_groups(layers: Sequence[Layer], layout: Layout) -> tuple[LayerGroup, ...]:
    """The groups of all layers of the model, in the engine's order."""
    if not layers:
        return ()
    layers = tuple(layers)
    if not layout.hybrid_manager or not layout.rules.groups:
        layers = _local_as_full(layers)
    specs = [layer.spec for layer in layers]
    if mergeable(specs):
        return (LayerGroup(layers, uniform=False),)
    if layout.rules.uniform_type and one_type(specs):
        return (LayerGroup(layers, uniform=True),)
    if layout.rules.packed == "tuples" and any(s.kind == "sliding_latent" for s in specs):
        return tuple_groups(layers)
    rings = any(spec.kind == "ring" for spec in specs)
    packs = layout.rules.packed == "layout" or rings
    if packs and layout.block_outermost and _several_pages(specs):
        return packed_groups(layers)
    unified = _unify_pages(layers)
    if unified is None:
        whole = _fallback(layers) if layout.rules.null_reserved else _local_as_full(layers)
        return (LayerGroup(whole, uniform=True),)
    return _equal_groups(unified, layout.rules.group_ratio)


def _fallback(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """Windows at full length beside latents; raises UsageError where that is no one type.

    Source: vLLM 0.32, v1/core/kv_cache_utils.py (_try_get_full_allocation_fallback_groups).
    """
    kinds = {layer.spec.kind for layer in layers}
    promoted = _local_as_full(layers)
    if "sliding" in kinds and not kinds & {"sliding_latent", "chunked"}:
        specs = [layer.spec for layer in promoted]
        if mergeable(specs) or one_type(specs):
            return promoted
    pages = sorted({layer.spec.page_bytes for layer in layers})
    raise UsageError(
        "vLLM can't bring the model's layers to one page size: a latent's page does not divide "
        f"the largest of {', '.join(f'{page:,}' for page in pages)} B",
        hint="leave the draft model or block_size out",
    )


def _several_pages(specs: Sequence[Spec]) -> bool:
    return len({spec.page_bytes for spec in specs}) > 1


def _local_as_full(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """Sliding and chunked layers allocated at full length, where full layers exist too."""
    specs = [layer.spec for layer in layers]
    if mergeable(specs) or one_type(specs):
        return layers
    full = [s for s in specs if s.kind in FULL_KINDS]
    if not full:
        return layers
    sizes = {s.block_size for s in full}
    block = sizes.pop() if len(sizes) == 1 else None
    return tuple(Layer(x.name, x.index, _promoted(x.spec, block)) for x in layers)


def _promoted(spec: Spec, block: int | None) -> Spec:
    if spec.kind not in (*SLIDING_KINDS, "chunked"):
        return spec
    return msgspec.structs.replace(
        spec,
        kind="latent" if spec.kind == "sliding_latent" else "full",
        block_size=block or spec.block_size,
        retained=0,
        padded_bytes=None,
    )


def _unify_pages(layers: tuple[Layer, ...]) -> tuple[Layer, ...] | None:
    """All layers at the page of the largest; None when a latent layer can't be brought there."""
    target = max(layer.spec.page_bytes for layer in layers)
    out = []
    for layer in layers:
        spec = layer.spec
        page = spec.page_bytes
        if page != target:
            if spec.kind == "state":
                spec = spec.padded(target)
            elif target % page == 0:
                _check_scaled(spec)
                spec = msgspec.structs.replace(
                    spec, block_size=spec.block_size * (target // page), padded_bytes=None
                )
            elif spec.kind == "latent":
                return None
            else:
                spec = spec.padded(target)
        out.append(Layer(layer.name, layer.index, spec))
    return tuple(out)


def _check_scaled(spec: Spec) -> None:
    """Raise UsageError for a page that was padded and would have to hold more tokens still.

    Source: vLLM 0.32, v1/core/kv_cache_utils.py (unify_kv_cache_spec_page_size): it keeps the
    padding and fails on its own assertion.
    """
    if spec.padded_bytes is not None:
        raise UsageError(
            "vLLM pads sliding layers to a quantized page and fails where another layer keeps the "
            "model's type",
            hint="leave the other layers out of kv_cache_dtype_skip_layers",
        )


def _equal_groups(layers: tuple[Layer, ...], ratio: float | None) -> tuple[LayerGroup, ...]:
    """Layers of equal spec split into groups of one common number of layers."""
    buckets = _buckets(layers)
    sizes = [len(bucket) for bucket in buckets]
    size = min(sizes)
    if ratio is not None and max(sizes) < size * ratio:
        size = max(sizes)
    groups = []
    for bucket in buckets:
        count = -(-len(bucket) // size)
        groups += [LayerGroup(tuple(bucket[i::count]), uniform=False) for i in range(count)]
    return tuple(groups)


def _buckets(layers: tuple[Layer, ...]) -> list[list[Layer]]:
    """Layers by spec, in order of first appearance; specs that merge share a bucket."""
    by_spec: dict[Spec, list[Layer]] = {}
    for layer in layers:
        by_spec.setdefault(layer.spec, []).append(layer)
    buckets: list[list[Layer]] = []
    for same in by_spec.values():
        for bucket in buckets:
            if mergeable([*{layer.spec for layer in bucket}, same[0].spec]):
                bucket.extend(same)
                break
        else:
            buckets.append(list(same))
    return buckets


def on_stage(groups: Sequence[LayerGroup], layers: range) -> tuple[LayerGroup, ...]:
    """The part of each group that a pipeline stage with these decoder layers holds."""
    return tuple(
        LayerGroup(tuple(x for x in group.layers if x.index in layers), group.uniform, group.spec)
        for group in groups
    )


def bytes_per_block(groups: Sequence[LayerGroup], *, block_outermost: bool = False) -> int:
    """Bytes that one block id takes on a rank: the widest group's pages (all groups overlay).

    Where a block's layers lie together, blocks start where every layer's kernel can read them.
    """
    widest = max((group.page_bytes for group in groups), default=0)
    if not block_outermost:
        return widest
    stride = math.lcm(*(layer.spec.stride for group in groups for layer in group.layers))
    return -(-widest // stride) * stride


def group_blocks(group: LayerGroup, reserve: Reserve) -> int:
    """Blocks of one request of max_model_len in `group`."""
    specs = {layer.spec for layer in group.layers} if group.uniform else set()
    return max(blocks_reserved(spec, reserve) for spec in specs or {group.spec})


def request_blocks(groups: Sequence[LayerGroup], reserve: Reserve) -> int:
    """Block ids that one request of max_model_len takes: the sum over groups."""
    return sum(group_blocks(group, reserve) for group in groups)
