"""From a view of the pool to the decode kernel: which arrays, which items, how many threads."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch

from kvproof.lab.attention import threads
from kvproof.lab.attention.decode import Shape, kernels, merge, tiles_for
from kvproof.lab.attention.latent import LatentShape, latent_kernels
from kvproof.lab.attention.simd import INT4, KINDS, WIDTH
from kvproof.lab.attention.view import GroupView, View
from kvproof.lab.pool.planes import Plane

_MIN_POSITIONS = 512  # a shorter range is not worth a second item
_ITEMS_PER_THREAD = 4


def can_decode(view: View, slot: int) -> bool:
    """Whether a kernel runs this step: one new token each, all in whole vectors."""
    group, index = view.pool.home[slot]
    planes = view.pool.groups[group].planes[index]
    if not view.single or not all(isinstance(p, Plane) and _whole_vectors(p) for p in planes):
        return False
    return len(planes) == 1 or view.pool.block_size % WIDTH == 0


def _whole_vectors(plane: Plane) -> bool:
    codec = plane.codec
    group = plane.dim // max(1, codec.groups)
    return group % (32 if codec.family == "int4" else WIDTH) == 0


def decode(view: View, slot: int, q: torch.Tensor, scale: float) -> torch.Tensor:
    """Outputs [sequences, heads, v_dim] of one query per sequence, [sequences, heads, k_dim].

    The new keys and values are in the pool already. Raises nothing: ask `can_decode` first.
    """
    group, (keys, values) = view.planes(slot)
    queries = q.shape[1] // keys.heads
    shape = Shape(
        keys.heads, queries, keys.dim, values.dim, keys.block_size,
        max(1, keys.codec.groups), max(1, values.codec.groups),
    )  # fmt: skip
    k_kind, v_kind = KINDS[keys.codec.family], KINDS[values.codec.family]
    scaled = (q.float() * scale).reshape(len(q), keys.heads, queries * keys.dim)
    items = cut(group, keys.heads)
    out = np.empty((len(q), q.shape[1], values.dim), np.float32)
    run_items(
        (k_kind, v_kind), shape, scaled.contiguous().numpy(),
        (flat(keys.data), flat(keys.scales), flat(values.data), flat(values.scales)),
        group.tables, items, out,
    )  # fmt: skip
    return torch.from_numpy(out).to(q.dtype)


def decode_latent(view: View, slot: int, q: torch.Tensor, scale: float, v_dim: int) -> torch.Tensor:
    """Outputs [sequences, heads, v_dim] of queries [sequences, heads, width] over latents."""
    group, (plane,) = view.planes(slot)
    kind, heads = KINDS[plane.codec.family], q.shape[1]
    padded = -(-heads // 32) * 32
    shape = LatentShape(padded, plane.dim, v_dim, plane.block_size, max(1, plane.codec.groups))
    turned = torch.zeros(len(q), plane.dim, padded)
    turned[:, :, :heads] = (q.float() * scale).transpose(1, 2)
    if kind == INT4:
        turned = turned.view(len(q), -1, 16, 2, padded).transpose(2, 3)
    queries = turned.reshape(len(q), -1).contiguous().numpy()
    items = cut(group, 1, split_entries=True)
    parts = np.empty((len(items), padded * v_dim), np.float32)
    tops, sums = np.empty((2, len(items), padded), np.float32)
    parallel, serial = latent_kernels(kind)
    with threads.numba_threads():
        run = parallel if threads.count() > 1 and len(items) > 1 else serial
        run(
            queries, flat(plane.data), flat(plane.scales), group.tables, items, shape,
            parts, tops, sums,
        )  # fmt: skip
    out = np.empty((len(q), padded, v_dim), np.float32)
    merge(items, parts, tops, sums, padded, v_dim, kind == INT4, out)
    return torch.from_numpy(out[:, :heads]).to(q.dtype)


def run_items(
    kinds: tuple[int, int],
    shape: Shape,
    q: np.ndarray[Any, Any],
    arrays: tuple[Any, Any, Any, Any],
    tables: np.ndarray[Any, Any],
    items: np.ndarray[Any, Any],
    out: np.ndarray[Any, Any],
) -> None:
    """Run the kernel over `items` and merge them into `out`."""
    parallel, serial = kernels(*kinds, tiles_for(shape, kinds[1]))
    count, queries = len(items), shape.queries
    parts = np.empty((count, queries * shape.v_dim), np.float32)
    tops, sums = np.empty((2, count, queries), np.float32)
    threaded = threads.count() > 1 and count > 1
    with threads.numba_threads():
        run = parallel if threaded else serial
        run(q, *arrays, tables, items, shape, parts, tops, sums)
    merge(items, parts, tops, sums, queries, shape.v_dim, kinds[1] == INT4, out)


def cut(group: GroupView, heads: int, *, split_entries: bool = False) -> np.ndarray[Any, Any]:
    """Items (sequence, head, first block, end block, first and end visible entry).

    Cut along the context only as far as the threads need it. `split_entries` narrows the visible
    entries of each item to its blocks.
    """
    size = group.group.block_size
    ranges = []
    wanted = _ITEMS_PER_THREAD * threads.count()
    splits = -(-wanted // (len(group.entries) * heads)) if threads.count() > 1 else 1
    for s, (low, high) in enumerate(zip(group.first.tolist(), group.entries.tolist(), strict=True)):
        begin, end = low // size, -(-high // size)
        pieces = max(1, min(splits, (high - low) // _MIN_POSITIONS))
        edges = [begin + (end - begin) * i // pieces for i in range(pieces + 1)]
        spans = list(pairwise(edges))
        ranges += [(s, h, b, e, low, high) for h in range(heads) for b, e in spans]
    items = np.array(ranges, dtype=np.int64)
    if split_entries:
        items[:, 4] = np.maximum(items[:, 4], items[:, 2] * size)
        items[:, 5] = np.minimum(items[:, 5], items[:, 3] * size)
    return items


_NOTHING = np.zeros(WIDTH, np.float32)


def flat(tensor: torch.Tensor | None) -> np.ndarray[Any, Any]:
    """The tensor's memory as one flat array that numba can read; bf16 as uint16."""
    if tensor is None:
        return _NOTHING
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.view(torch.int16)
    array: np.ndarray[Any, Any] = tensor.view(-1).numpy()
    return array.view(np.uint16) if array.dtype == np.int16 else array
