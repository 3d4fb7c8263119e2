"""From a view of the pool to the decode kernel: which arrays, which items, how many threads."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch

from kvproof.lab.attention import threads
from kvproof.lab.attention.decode import kernels, needed
from kvproof.lab.attention.job import Job, job
from kvproof.lab.attention.latent import latent_kernels
from kvproof.lab.attention.latent_parts import HEAD_TILE, LatentShape
from kvproof.lab.attention.shapes import Sizes, plan_for, sums_fit, vectors_of_group
from kvproof.lab.attention.stored import KINDS
from kvproof.lab.attention.view import GroupView, View
from kvproof.lab.pool.planes import AnyPlane, Plane

_MIN_POSITIONS = 512  # a shorter range is not worth a second item
_ITEMS_PER_THREAD = 8  # who is done takes the next one


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
    job: Job
    room: int


def _prepare(view: View, slot: int, heads: int) -> Prepared:
    group, (keys, values) = view.planes(slot)
    plan, shape = plan_for(Sizes(
        keys.data.shape[0], keys.heads, keys.block_size, heads // keys.heads, keys.dim, values.dim,
        _groups(keys), _groups(values), _kind(keys), _kind(values),
    ))  # fmt: skip
    items = group.kept((keys.heads, threads.count()), lambda: cut(group, keys.heads))
    made = job(group.tables, items, shape, (*keys.arrays, *values.arrays))
    return Prepared(kernels(plan), made, needed(len(items), shape.queries, shape.v_dim))


def decode(view: View, slot: int, q: torch.Tensor, scale: float) -> torch.Tensor:
    """Outputs [sequences, heads, v_dim] of one query per sequence, [sequences, heads, k_dim].

    The new keys and values are in the pool already. Raises nothing: ask `can_decode` first.
    """
    count, heads, _ = q.shape
    group, (_, values) = view.planes(slot)
    key = "decode", slot, heads, threads.count()
    made: Prepared = group.kept(key, lambda: _prepare(view, slot, heads))
    return _run(made, q, (count, heads, values.dim), scale)


def _run(made: Prepared, q: torch.Tensor, shape: tuple[int, ...], scale: float) -> torch.Tensor:
    """The kernel's outputs, of this shape and the queries' type."""
    given, out = q.float().contiguous(), torch.empty(shape)
    threads.share(
        made.run, made.job.numbers, given.data_ptr(), out.data_ptr(), scale, room=made.room
    )
    return out.to(q.dtype)


def _prepare_latent(view: View, slot: int, heads: int, v_dim: int) -> Prepared:
    group, (plane,) = view.planes(slot)
    padded = -(-heads // HEAD_TILE) * HEAD_TILE
    shape = LatentShape(padded, heads, plane.dim, v_dim, plane.block_size, _groups(plane))
    items = group.kept((0, threads.count()), lambda: cut(group, 1, split_entries=True))
    made = job(group.tables, items, shape, plane.arrays)
    return Prepared(latent_kernels(_kind(plane)), made, needed(len(items), padded, v_dim))


def decode_latent(view: View, slot: int, q: torch.Tensor, scale: float, v_dim: int) -> torch.Tensor:
    """Outputs [sequences, heads, v_dim] of queries [sequences, heads, width] over latents."""
    count, heads, _ = q.shape
    group = view.groups[view.pool.home[slot][0]]
    key = "latent", slot, heads, v_dim, threads.count()
    made: Prepared = group.kept(key, lambda: _prepare_latent(view, slot, heads, v_dim))
    return _run(made, q, (count, heads, v_dim), scale)


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
