"""From a view of the pool to the decode kernel: which arrays, which items, how many threads."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch

from kvproof.lab.attention import threads
from kvproof.lab.attention.decode import kernels, merge
from kvproof.lab.attention.latent import LatentShape, latent_kernels
from kvproof.lab.attention.shapes import Shape, Sizes, plan_for, sums_fit, vectors_of_group
from kvproof.lab.attention.stored import INT4, KINDS
from kvproof.lab.attention.values import width_of
from kvproof.lab.attention.view import GroupView, View
from kvproof.lab.pool.planes import AnyPlane, Plane

_MIN_POSITIONS = 512  # a shorter range is not worth a second item
_ITEMS_PER_THREAD = 4


def can_decode(view: View, slot: int) -> bool:
    """Whether a kernel runs this step: one new token each, heads in whole vectors."""
    if not view.single:
        return False
    group, index = view.pool.home[slot]
    planes = view.pool.groups[group].planes[index]
    found: bool = view.groups[group].kept(("fit", slot), lambda: _fit(planes))
    return found


def _fit(planes: Seq[AnyPlane]) -> bool:
    found = [p for p in planes if isinstance(p, Plane)]
    fit = len(found) == 1 or all(sums_fit(_group(p), _kind(p)) for p in found)
    vectors = all(vectors_of_group(_group(p), _kind(p)) for p in found)
    return len(found) == len(planes) and fit and vectors


def _group(plane: Plane) -> int:
    return plane.dim // _groups(plane)


def _groups(plane: Plane) -> int:
    return max(1, plane.codec.groups)


def _kind(plane: Plane) -> int:
    return KINDS[plane.codec.family]


class Prepared(NamedTuple):
    """What is the same for every query of a step and slot."""

    run: Any
    arrays: tuple[Any, ...]
    shape: Shape
    items: np.ndarray[Any, Any]
    kv_heads: int
    v_dim: int
    width: int
    pairs: bool


def _prepare(view: View, slot: int, heads: int) -> Prepared:
    group, (keys, values) = view.planes(slot)
    plan, shape = plan_for(Sizes(
        keys.data.shape[0], keys.heads, keys.block_size, heads // keys.heads, keys.dim, values.dim,
        _groups(keys), _groups(values), _kind(keys), _kind(values),
    ))  # fmt: skip
    items = group.kept((keys.heads, threads.count()), lambda: cut(group, keys.heads))
    arrays = (*keys.arrays, *values.arrays, group.tables)
    return Prepared(
        kernels(plan), arrays, shape, items, keys.heads, values.dim, width_of(plan),
        plan.v_kind == INT4,
    )  # fmt: skip


def decode(view: View, slot: int, q: torch.Tensor, scale: float) -> torch.Tensor:
    """Outputs [sequences, heads, v_dim] of one query per sequence, [sequences, heads, k_dim].

    The new keys and values are in the pool already. Raises nothing: ask `can_decode` first.
    """
    count, heads, width = q.shape
    group = view.groups[view.pool.home[slot][0]]
    made: Prepared = group.kept(
        ("decode", slot, heads, threads.count()), lambda: _prepare(view, slot, heads)
    )
    items, queries, v_dim = made.items, heads // made.kv_heads, made.v_dim
    given = q.float().contiguous().numpy().reshape(count, made.kv_heads, queries * width)
    out = np.empty((count, heads, v_dim), np.float32)
    parts = np.empty((len(items), queries * v_dim), np.float32)
    tops, sums = np.empty((2, len(items), queries), np.float32)
    threads.share(
        made.run, given, np.float32(scale), *made.arrays, items, made.shape, parts, tops, sums
    )
    merge(items, parts, tops, sums, queries, v_dim, made.width, made.pairs, out)
    return torch.from_numpy(out).to(q.dtype)


def decode_latent(view: View, slot: int, q: torch.Tensor, scale: float, v_dim: int) -> torch.Tensor:
    """Outputs [sequences, heads, v_dim] of queries [sequences, heads, width] over latents."""
    group, (plane,) = view.planes(slot)
    kind, heads = _kind(plane), q.shape[1]
    padded = -(-heads // 32) * 32
    shape = LatentShape(padded, plane.dim, v_dim, plane.block_size, _groups(plane))
    turned = torch.zeros(len(q), plane.dim, padded)
    turned[:, :, :heads] = (q.float() * scale).transpose(1, 2)
    if kind == INT4:
        turned = turned.view(len(q), -1, 8, 2, padded).transpose(2, 3)
    queries = turned.reshape(len(q), -1).contiguous().numpy()
    items = group.kept((0, threads.count()), lambda: cut(group, 1, split_entries=True))
    parts = np.empty((len(items), padded * v_dim), np.float32)
    tops, sums = np.empty((2, len(items), padded), np.float32)
    threads.share(
        latent_kernels(kind), queries, *plane.arrays, group.tables, items, shape, parts, tops, sums
    )
    out = np.empty((len(q), padded, v_dim), np.float32)
    merge(items, parts, tops, sums, padded, v_dim, 16, kind == INT4, out)
    return torch.from_numpy(out[:, :heads]).to(q.dtype)


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
