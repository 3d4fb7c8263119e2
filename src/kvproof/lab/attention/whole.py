"""Queries and weights as 16-bit integers, for caches of integers.

An int8 or int4 number times a 16-bit one is exact in 32 bits, and so is the sum of a group's or a
run's products. What is rounded is the query (to 1/32767 of its group's largest number, once) and
the weight times its position's scale (to 1/32767 of the largest of a run of 64 positions). Both
stay two orders of magnitude below what int8 itself rounds (1/127).
"""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# ruff: noqa: ANN001, ANN201, ANN202

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from kvproof.lab.attention.emit import WIDTH
from kvproof.lab.attention.shapes import RUN, inner, kernel
from kvproof.lab.attention.stored import INT4, first_vector, stored_minima, stored_scales
from kvproof.lab.attention.vectors import (
    by_two,
    lanes_or_zero,
    splat,
    vfma,
    vload,
    vmax,
    vmul,
    vstore,
    vstore16,
    vsum,
    vtop,
)

LARGEST = np.float32(32767)
TINY = np.float32(1e-30)  # runs below weigh nothing, and 1 / them would overflow


@kernel
def round_queries(q, scale, shape, nibbles, out, scales, sums):
    """out = q in 16 bits, a unit being scales[query, group]; sums[query, group] of q * scale.

    `nibbles`: in the order that int4's products take, (0, 4), (1, 5), (2, 6), (3, 7) of eight.
    """
    size = shape.k_dim // shape.k_groups
    for i in range(shape.queries * shape.k_groups):
        largest, total = np.float32(0), np.float32(0)
        for d in range(i * size, (i + 1) * size):
            largest = max(largest, abs(q[d]))
            total += q[d]
        unit = largest / LARGEST
        inverse = LARGEST / largest if largest > TINY else np.float32(0)
        for d in range(i * size, (i + 1) * size):
            at = d // 8 * 8 + d % 4 * 2 + d % 8 // 4 if nibbles else d
            out[at] = np.int16(np.rint(q[d] * inverse))
        scales[i] = unit * scale
        sums[i] = total * scale


@lru_cache(maxsize=2)
def spread_kernel(kind: int) -> Any:
    """spread(room, scales, at, count, g, low, high, shape): group g's scales to the room.

    By position, with int4's minima; 0 where a position is not low..high. Returns the largest.
    """

    @inner
    def seen(x, t, low, high):
        if t < low or t + WIDTH > high:
            x = lanes_or_zero(x, low - t, high - t)
        return x

    @kernel
    def spread(room, scales, at, count, g, low, high, shape):
        tile, largest = shape.tile, splat(np.float32(0))
        for j in range(count):
            place = at[j] * shape.v_groups + g * tile
            for t in range(0, tile, WIDTH):
                x, here = stored_scales(scales, place + t, 1, kind), j * tile + t
                x = seen(first_vector(x), here, low, high)
                largest = vmax(largest, x)
                vstore(room.scales, here, x)
                if kind == INT4:
                    x = first_vector(stored_minima(scales, place + t, 1))
                    vstore(room.minima, here, seen(x, here, low, high))
        return vtop(largest)

    return spread


@kernel
def heaviest(scores, first, size):
    """The largest of `size` weights."""
    most = vload(scores, first)
    for t in range(WIDTH, size, WIDTH):
        most = vmax(most, vload(scores, first + t))
    return vtop(most)


@lru_cache(maxsize=2)
def fold_kernel(kind: int) -> Any:
    """fold(room, scales, at, count, start, bounds, shape): weights of a run's tiles as integers.

    The run's `count` tiles hold the chunk's positions from `start` on; those of `bounds` count.
    weights[group, query, position] = weight times scale in 16 bits, for int4 in the order of its
    products, (0, 2), (1, 3) of each four. factors[run, group, query] is what a unit is worth in
    each RUN of positions, lows[run, group, query] the weighted sum of minima.
    """
    spread = spread_kernel(kind)

    @kernel
    def fold(room, scales, at, count, start, bounds, shape):
        chunk, size, run = shape.chunk, count * shape.tile, start // RUN
        low, high = bounds[0] - start, bounds[1] - start
        for g in range(shape.v_groups):
            most = spread(room, scales, at, count, g, low, high, shape)
            for r in range(shape.queries):
                i, first = g * shape.queries + r, r * chunk + start
                peak, factor = heaviest(room.scores, first, size) * most, run * shape.v_groups
                factor = factor * shape.queries + i
                room.factors[factor] = peak / LARGEST
                inverse = splat(LARGEST / peak if peak > TINY else np.float32(0))
                total = splat(np.float32(0))
                for t in range(0, size, WIDTH):
                    w = vload(room.scores, first + t)
                    x = vmul(vmul(w, inverse), vload(room.scales, t))
                    if kind == INT4:
                        x = by_two(x)
                        total = vfma(w, vload(room.minima, t), total)
                    vstore16(room.weights, i * chunk + start + t, x)
                room.lows[factor] = vsum(total)

    return fold
