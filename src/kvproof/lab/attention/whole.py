"""Queries and weights as 16-bit integers, for caches of integers.

An int8 or int4 number times a 16-bit one is exact in 32 bits, and so is the sum of a group's or a
chunk's products. What is rounded is the query (to 1/32767 of its group's largest number, once) and
the weight times its position's scale (to 1/32767 of the chunk's largest). Both stay two orders of
magnitude below what int8 itself rounds (1/127).
"""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# ruff: noqa: ANN001, ANN201, ANN202, PLR0913

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from kvproof.lab.attention.emit import WIDTH
from kvproof.lab.attention.shapes import kernel
from kvproof.lab.attention.stored import INT4, first_vector, stored_minima, stored_scales
from kvproof.lab.attention.vectors import (
    lanes_or_zero,
    splat,
    vadd,
    vload,
    vmax,
    vmul,
    vstore16,
    vsum,
    vtop,
)

LARGEST = np.float32(32767)
_TINY = np.float32(1e-30)  # chunks below weigh nothing, and 1 / them would overflow


@kernel
def round_queries(q, scale, shape, nibbles, out, scales, sums):
    """out = q in 16 bits, a unit being scales[query, group]; sums[query, group] of q * scale.

    `nibbles`: in the order that int4's products take, (0, 2), (1, 3) of each four.
    """
    size = shape.k_dim // shape.k_groups
    for i in range(shape.queries * shape.k_groups):
        largest, total = np.float32(0), np.float32(0)
        for d in range(i * size, (i + 1) * size):
            largest = max(largest, abs(q[d]))
            total += q[d]
        unit = largest / LARGEST
        inverse = LARGEST / largest if largest > _TINY else np.float32(0)
        for d in range(i * size, (i + 1) * size):
            at = d // 4 * 4 + (d % 2) * 2 + d % 4 // 2 if nibbles else d
            out[at] = np.int16(np.rint(q[d] * inverse))
        scales[i] = unit * scale
        sums[i] = total * scale


@kernel
def gather_scales(scales, at, count, shape, out):
    """out[group, position] = the values' scales of a chunk, side by side."""
    for j in range(count):
        for g in range(shape.v_groups):
            start = at[j, 3] + g * shape.block_size
            place = g * shape.chunk + j * shape.piece
            for t in range(shape.piece):
                out[place + t] = scales[start + t]


@lru_cache(maxsize=2)
def fold_kernel(kind: int) -> Any:
    """fold(weights, peaks, scales, low, high, shape, out, factors, lows).

    out[group, query, position] = weight times scale in 16 bits; positions low..high count.
    factors[group, query] is what a unit is worth, lows[group, query] the weighted sum of minima.
    """

    @kernel
    def fold(weights, peaks, scales, low, high, shape, out, factors, lows):
        chunk = shape.chunk
        for g in range(shape.v_groups):
            largest = splat(np.float32(0))
            for t in range(0, high, WIDTH):
                x = first_vector(stored_scales(scales, g * chunk + t, 1, kind))
                largest = vmax(largest, lanes_or_zero(x, low - t, high - t))
            most = vtop(largest)
            for r in range(shape.queries):
                i = g * shape.queries + r
                peak = peaks[r] * most
                factors[i] = peak / LARGEST
                inverse = splat(LARGEST / peak if peak > _TINY else np.float32(0))
                total = splat(np.float32(0))
                for t in range(0, high, WIDTH):
                    w = vload(weights, r * chunk + t)
                    x = first_vector(stored_scales(scales, g * chunk + t, 1, kind))
                    x = vmul(vmul(w, inverse), x)
                    vstore16(out, i * chunk + t, lanes_or_zero(x, low - t, high - t))
                    if kind == INT4:
                        x = vmul(w, first_vector(stored_minima(scales, g * chunk + t, 1)))
                        total = vadd(total, lanes_or_zero(x, low - t, high - t))
                lows[i] = vsum(total)

    return fold
