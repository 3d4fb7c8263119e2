"""Groups of layers with several page sizes in one block: DeepSeek-V4 and its kin.

`tuple_groups` is the rule of vLLM 0.20 to 0.28 (group_and_unify_kv_cache_specs and
_get_kv_cache_groups_uniform_groups), `packed_groups` that of 0.29 on for block-outermost
layouts (_get_packed_kv_cache_groups). Read in the source; logs confirm them in part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from kvproof.engine.vllm.specs import Spec, one_type
from kvproof.engine.vllm.types import Layer, LayerGroup


def approximate_gcd(values: Sequence[int], lower: int) -> int:
    """The divisor from `lower` up that pads `values` least; the largest of equally good ones."""
    best, least = max(1, lower), None
    for candidate in range(max(1, lower), max(values) + 1):
        padding = sum(-value % candidate for value in values)
        if least is None or padding <= least:
            best, least = candidate, padding
    return best


def _by_page(layers: Sequence[Layer]) -> dict[int, list[Layer]]:
    out: dict[int, list[Layer]] = {}
    for layer in layers:
        out.setdefault(layer.spec.page_bytes, []).append(layer)
    return out


def _repeats(layers: Sequence[Layer]) -> int:
    return max(Counter(layer.spec.page_bytes for layer in layers).values())


def _interleaved(by_page: dict[int, list[Layer]], start: int, step: int) -> tuple[Layer, ...]:
    repeats = list(zip(*by_page.values(), strict=False))
    return tuple(layer for repeat in repeats[start::step] for layer in repeat)


def tuple_groups(layers: tuple[Layer, ...]) -> tuple[LayerGroup, ...]:
    """One group of latent layers; sliding groups split and padded to its layer tuples."""
    latent = [x for x in layers if x.spec.kind == "latent"]
    sliding: dict[tuple[int, int], list[Layer]] = {}
    for layer in layers:
        if layer.spec.kind == "sliding_latent":
            key = (layer.spec.block_size, layer.spec.window)
            sliding.setdefault(key, []).append(layer)
    counts = [_repeats(latent), *(_repeats(group) for group in sliding.values())]
    size = approximate_gcd(counts, counts[0])
    pages = sorted({layer.spec.page_bytes for layer in latent})
    groups = [LayerGroup(tuple(latent), uniform=True)]
    for members in sliding.values():
        padded = [Layer(x.name, x.index, _pad_up(x.spec, pages)) for x in members]
        by_page = _by_page(padded)
        count = -(-_repeats(padded) // size)
        groups += [LayerGroup(_interleaved(by_page, i, count), uniform=True) for i in range(count)]
    return tuple(groups)


def _pad_up(spec: Spec, pages: list[int]) -> Spec:
    target = next((page for page in pages if page >= spec.page_bytes), spec.page_bytes)
    return spec if target == spec.page_bytes else spec.padded(target)


class _Bucket:
    """Layers of one type: how they repeat by page size."""

    def __init__(self, layers: list[Layer]) -> None:
        self.layers = layers
        self.by_page = _by_page(layers)
        self.balanced = len({len(group) for group in self.by_page.values()}) == 1
        self.repeats = _repeats(layers)
        self.first = layers[0].spec

    def widest(self, count: int) -> int:
        """Page bytes of the largest of `count` groups."""
        return sum(-(-len(group) // count) * page for page, group in self.by_page.items())


def mixed_width(groups: Sequence[LayerGroup], *, whole_tuples: bool) -> int:
    """Bytes of a block whose groups overlay page by page of the same size.

    Each page size takes as many places as the group with most of them needs (0.24 to 0.28), or
    as the commonest size of all (`whole_tuples`, 0.20 to 0.23).
    """
    places: dict[int, int] = {}
    for group in groups:
        sizes = Counter(layer.spec.page_bytes for layer in group.layers)
        for size, count in sizes.items():
            places[size] = max(places.get(size, 0), count)
    if whole_tuples:
        return sum(places) * max(places.values(), default=0)
    return sum(size * count for size, count in places.items())


def packed_groups(layers: tuple[Layer, ...]) -> tuple[LayerGroup, ...]:
    """Buckets of one type, split so that all groups pack into the same block."""
    buckets = [_Bucket(group) for group in _greedy(layers)]
    floor = max((b.repeats for b in buckets if b.balanced and len(b.by_page) > 1), default=0)
    repeats = approximate_gcd([b.repeats for b in buckets if b.balanced], floor) if floor else None

    def is_state(bucket: _Bucket) -> bool:
        kind = bucket.first.kind
        return kind in ("state", "ring") or (
            repeats is None and kind in ("sliding", "sliding_latent")
        )

    def count(bucket: _Bucket) -> int:
        if bucket.balanced and repeats is not None:
            return -(-bucket.repeats // repeats)
        return 1

    anchor = max(b.widest(len(b.layers) if is_state(b) else count(b)) for b in buckets)
    groups: list[LayerGroup] = []
    for bucket in buckets:
        pieces = count(bucket)
        if is_state(bucket):
            per_block = max(anchor // bucket.first.page_bytes, 1)
            pieces = max(pieces, -(-len(bucket.layers) // per_block))
        if pieces == 1:
            groups.append(LayerGroup(tuple(bucket.layers), uniform=True))
            continue
        groups += [
            LayerGroup(_interleaved(bucket.by_page, i, pieces), uniform=True) for i in range(pieces)
        ]
    return tuple(groups)


def _greedy(layers: tuple[Layer, ...]) -> list[list[Layer]]:
    buckets: list[list[Layer]] = []
    for layer in layers:
        for bucket in buckets:
            if one_type([*(x.spec for x in bucket), layer.spec]):
                bucket.append(layer)
                break
        else:
            buckets.append([layer])
    return buckets
