"""Scores of a chunk of positions, and their softmax."""

# numba reads these functions, not mypy: their arguments are flat arrays and sizes.
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# ruff: noqa: ANN001, ANN201, ANN202, PLR0913

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from kvproof.lab.attention.emit import WIDTH
from kvproof.lab.attention.shapes import Plan, kernel, pack_of, pair_of
from kvproof.lab.attention.stored import (
    INT4,
    INTEGERS,
    STORED_BYTES,
    stored_keys,
    stored_minima,
    stored_scales,
)
from kvproof.lab.attention.tiles import (
    tile_add_scaled,
    tile_dot,
    tile_fma_outer,
    tile_fold,
    tile_store,
    tile_zero,
    tile_zero_whole,
)
from kvproof.lab.attention.vectors import (
    LINE,
    lanes_or_never,
    prefetch,
    splat,
    vadd,
    vexp,
    vload,
    vmax,
    vstore,
    vsub,
    vsum,
    vtop,
)


@lru_cache(maxsize=64)
def score_kernel(plan: Plan) -> Any:
    """score(q, q_scales, q_sums, row, keys, k0, block, ahead, scales, s0, shape, out, place).

    Scores of columns * WIDTH positions for the queries row..row + plan.rows, to
    out[place + r * shape.chunk]. Memory `ahead` of what is read is asked for on the way (0: not).
    """
    kind, rows, columns = plan.k_kind, plan.rows, plan.columns
    tile, wide, step = rows * columns, rows * columns * plan.sums, plan.key_rows
    form = 16 * rows + columns
    pack = pack_of(kind)
    pair = pair_of(kind)
    lines = step // pair  # runs of columns * WIDTH positions that a step reads
    every = min(lines, max(1, LINE // (columns * WIDTH * STORED_BYTES[kind] * pair)))

    @kernel
    def score(q, q_scales, q_sums, row, keys, k0, block, ahead, scales, s0, shape, out, place):
        total = tile_zero(tile)
        at, first = k0, row * shape.k_dim
        if kind in INTEGERS:
            for g in range(shape.k_groups):
                acc = tile_zero_whole(wide)
                for _ in range(0, shape.k_dim // shape.k_groups, step * pack):
                    if ahead != 0:
                        prefetch(keys, at + ahead, block * pair, lines, every)
                    numbers = stored_keys(keys, at, block, step, columns, kind)
                    acc = tile_dot(acc, q, first, shape.k_dim, numbers, form)
                    at += step * block
                    first += step * pack
                s, i = s0 + g * block, row * shape.k_groups + g
                factors = stored_scales(scales, s, columns, kind)
                part = tile_fold(acc, tile)
                total = tile_add_scaled(total, part, factors, q_scales, i, shape.k_groups)
                if kind == INT4:
                    minima = stored_minima(scales, s, columns)
                    total = tile_fma_outer(total, q_sums, i, shape.k_groups, minima)
        else:
            acc = tile_zero(wide)
            for _ in range(0, shape.k_dim, step):
                if ahead != 0:
                    prefetch(keys, at + ahead, block * pair, lines, every)
                numbers = stored_keys(keys, at, block, step, columns, kind)
                acc = tile_dot(acc, q, first, shape.k_dim, numbers, form)
                at += step * block
                first += step
            total = tile_fold(acc, tile)
        tile_store(out, place, shape.chunk, columns, total)

    return score


@kernel
def soften(scores, place, low, high, width, top):
    """Turn one query's scores into weights e**(score - maximum), in place.

    Only positions low..high count; the others become about zero. Returns the new running maximum,
    the largest weight and the sum of the weights.
    """
    best = splat(np.float32(-np.inf))
    for c in range(0, width, WIDTH):
        x = vload(scores, place + c)
        if c < low or c + WIDTH > high:
            x = lanes_or_never(x, low - c, high - c)
            vstore(scores, place + c, x)
        best = vmax(best, x)
    largest = vtop(best)
    top = max(top, largest)
    maximum, total = splat(top), splat(np.float32(0))
    for c in range(0, width, WIDTH):
        x = vexp(vsub(vload(scores, place + c), maximum))
        vstore(scores, place + c, x)
        total = vadd(total, x)
    return top, np.exp(largest - top), vsum(total)
