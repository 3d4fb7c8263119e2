"""Positions copied from the pool's tiles into others: of blocks too small, or seen in part only."""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# ruff: noqa: ANN001, ANN201, ANN202

from __future__ import annotations

from functools import lru_cache
from typing import Any

from kvproof.lab.attention.shapes import Plan, kernel
from kvproof.lab.attention.stored import INTEGERS, pair_of
from kvproof.lab.pool.planes import SLICE, TILE


@kernel
def pair_in(tile, most):
    """As many of a tile's positions as lie side by side: `most`, or a half or quarter of it."""
    while tile % most:
        most //= 2
    return most


@kernel
def copy_key(source, spot, target, place, rows, pair):
    """One position's stored rows; a spot is its tile's start, the tile's positions, and which."""
    (start, tile, t), (begin, wide, u) = spot, place
    for i in range(rows // pair):
        x, y = start + (i * tile + t) * pair, begin + (i * wide + u) * pair
        for j in range(pair):
            target[y + j] = source[x + j]


@kernel
def copy_value(source, spot, target, place, rows):
    """One position's stored elements; a spot has as well how many lie side by side."""
    (start, tile, t, pair), (begin, wide, u, other) = spot, place
    for part in range(0, rows, SLICE):
        x = start + part * tile + t // pair * SLICE * pair + t % pair
        y = begin + part * wide + u // other * SLICE * other + u % other
        for d in range(SLICE):
            target[y + d * other] = source[x + d * pair]


@kernel
def copy_scales(source, spot, target, place, groups):
    """One position's scales; a spot is as for keys."""
    (start, tile, t), (begin, wide, u) = spot, place
    for g in range(groups):
        target[begin + g * wide + u] = source[start + g * tile + t]


@lru_cache(maxsize=64)
def gather_kernel(plan: Plan) -> Any:
    """gather(planes, table, head, first, count, shape, out): positions first..first + count.

    From blocks too small for a vector into tiles of TILE.
    """
    k_pair, v_pair = pair_of(plan.k_kind), pair_of(plan.v_kind)
    k_whole, v_whole = plan.k_kind in INTEGERS, plan.v_kind in INTEGERS

    @kernel
    def gather(planes, table, head, first, count, shape, out):
        size = shape.block_size
        stored = pair_in(size, v_pair)
        for i in range(count):
            block, t = divmod(first + i, size)
            cell, near, u = (head * shape.blocks + table[block]) * size, i // TILE * TILE, i % TILE
            rows = shape.k_rows
            copy_key(planes.keys, (cell * rows, size, t), out.keys, (near * rows, TILE, u), rows,
                     k_pair)  # fmt: skip
            rows = shape.v_rows
            copy_value(planes.values, (cell * rows, size, t, stored), out.values,
                       (near * rows, TILE, u, v_pair), rows)  # fmt: skip
            if k_whole:
                rows = shape.k_groups
                copy_scales(planes.k_scales, (cell * rows, size, t), out.k_scales,
                            (near * rows, TILE, u), rows)  # fmt: skip
            if v_whole:
                rows = shape.v_groups
                copy_scales(planes.v_scales, (cell * rows, size, t), out.v_scales,
                            (near * rows, TILE, u), rows)  # fmt: skip

    return gather
