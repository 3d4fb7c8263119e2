"""Scores of a chunk of positions, and their softmax."""

# numba reads these functions, not mypy: their arguments are flat arrays and sizes.
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# ruff: noqa: ANN001, ANN201, ANN202, PLR0913

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from kvproof.lab.attention.emit import WIDTH
from kvproof.lab.attention.shapes import Plan, inner, kernel, pack_of, pair_of
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
    """score(q, q_scales, q_sums, row, keys, at, block, ask, scales, some, shape, out, place).

    Scores of columns * WIDTH positions, whose keys start at `at`, their scales at `some`, for the
    queries row..row + plan.rows, to out[place + r * shape.chunk].

    `ask` (ahead, from, to): while the query's numbers from..to are met, memory `ahead` of what is
    read is asked for.
    """
    kind, rows, columns = plan.k_kind, plan.rows, plan.columns
    tile, wide, step = rows * columns, rows * columns * plan.sums, plan.key_rows
    form = 16 * rows + columns
    pack = pack_of(kind)
    pair = pair_of(kind)
    lines = step // pair  # runs of columns * WIDTH positions that a step reads
    every = min(lines, max(1, LINE // (columns * WIDTH * STORED_BYTES[kind] * pair)))

    @inner
    def score(q, q_scales, q_sums, row, keys, at, block, ask, scales, some, shape, out, place):
        total = tile_zero(tile)
        first = row * shape.k_dim
        ahead, begin, end = ask[0], first + ask[1], first + ask[2]
        for g in range(shape.k_groups):
            acc = tile_zero_whole(wide) if kind in INTEGERS else tile_zero(wide)
            for _ in range(0, shape.k_dim // shape.k_groups, step * pack):
                if begin <= first < end:
                    prefetch(keys, at + ahead, block * pair, lines, every)
                numbers = stored_keys(keys, at, block, step, columns, kind)
                acc = tile_dot(acc, q, first, shape.k_dim, numbers, form)
                at += step * block
                first += step * pack
            part = tile_fold(acc, tile)
            if kind in INTEGERS:
                i, s = row * shape.k_groups + g, some + g * block
                factors = stored_scales(scales, s, columns, kind)
                total = tile_add_scaled(total, part, factors, q_scales, i, shape.k_groups)
                if kind == INT4:
                    minima = stored_minima(scales, s, columns)
                    total = tile_fma_outer(total, q_sums, i, shape.k_groups, minima)
            else:
                total = part
        tile_store(out, place, shape.chunk, columns, total)

    return score


@lru_cache(maxsize=64)
def score_chunk_kernel(plan: Plan) -> Any:
    """score_chunk(q, q_scales, q_sums, keys, scales, at, count, steady, shape, out).

    Scores of `count` pieces, whose keys are at at[:, 0], their scales at at[:, 1]. While one is
    read, the next is asked for, unless memory is `steady`. With several turns over the same keys
    each asks for its share, or the first would wait for all.
    """
    score, rows, across = score_kernel(plan), plan.rows, plan.columns * WIDTH
    pair, whole = pair_of(plan.k_kind), plan.k_kind in INTEGERS

    @kernel
    def score_chunk(q, q_scales, q_sums, keys, scales, at, count, steady, shape, out):
        size, piece = shape.block_size, shape.piece
        share = 0 if steady else -(-shape.k_dim * rows // shape.queries)
        for j in range(count):
            if whole:
                for g in range(shape.k_groups):
                    prefetch(scales, at[j + 1, 1] + g * size, 0, 1, 1)
            for t in range(0, piece, across):
                ahead = across * pair if t + across < piece else at[j + 1, 0] - at[j, 0] - t * pair
                for r in range(0, shape.queries, rows):
                    begin = r // rows * share
                    score(
                        q, q_scales, q_sums, r, keys, at[j, 0] + t * pair, size,
                        (ahead, begin, begin + share), scales, at[j, 1] + t, shape, out,
                        r * shape.chunk + j * piece + t,
                    )  # fmt: skip

    return score_chunk


@kernel
def exp_of(x):
    """e**x, as for the weights; the machine's own exp is a call."""
    return vtop(vexp(splat(np.float32(x))))


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
    return top, exp_of(largest - top), vsum(total)
