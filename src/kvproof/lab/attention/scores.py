"""Scores of a chunk of positions, and their softmax."""

# numba reads these functions, not mypy: their arguments are flat arrays and sizes.
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# ruff: noqa: ANN001, ANN201, ANN202, PLR0913

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from kvproof.lab.attention.asking import asking
from kvproof.lab.attention.emit import WIDTH
from kvproof.lab.attention.shapes import Plan, inner, kernel, pack_of, step_of
from kvproof.lab.attention.stored import (
    INT4,
    INTEGERS,
    stored_minima,
    stored_rows,
    stored_scales,
)
from kvproof.lab.attention.tiles import (
    tile_add_scaled,
    tile_dot,
    tile_exp,
    tile_fma,
    tile_fma_outer,
    tile_fold,
    tile_larger,
    tile_load,
    tile_store,
    tile_top,
    tile_zero,
    tile_zero_whole,
)
from kvproof.lab.attention.vectors import (
    lanes_or_never,
    prefetch,
    splat,
    vexp,
    vload,
    vmul,
    vstore,
    vtop,
)
from kvproof.lab.pool.planes import TILE

ABREAST = 2  # vectors of scores that are turned into weights at a time
BATCH = ABREAST * WIDTH


@lru_cache(maxsize=64)
def score_kernel(plan: Plan) -> Any:
    """score(q, q_scales, q_sums, row, keys, at, scales, some, shape, ask, out, place).

    Scores of the tile of positions whose keys start at `at`, their scales at `some`, for the
    queries row..row + plan.rows, to out[place + r * shape.chunk].

    `ask` (memory, spots, from, to): while the stored rows from..to are met, as much of the values'
    memory is asked for.
    """
    kind, rows, columns = plan.k_kind, plan.rows, plan.columns
    tile, wide = rows * columns, rows * columns * plan.sums
    form = 16 * rows + columns
    pack, step = pack_of(kind), step_of(kind)
    ask_next = asking(plan.streams, plan.v_kind, step).next

    @inner
    def score(q, q_scales, q_sums, row, keys, at, scales, some, shape, ask, out, place):
        total = tile_zero(tile)
        first, i = row * shape.k_dim, 0
        values, spots, begin, end = ask
        for g in range(shape.k_groups):
            acc = tile_zero_whole(wide) if kind in INTEGERS else tile_zero(wide)
            for _ in range(0, shape.k_rows // shape.k_groups, step):
                if begin <= i < end:
                    spots = ask_next(values, spots, i * columns * WIDTH)
                numbers = stored_rows(keys, at, columns * WIDTH, step, columns, kind)
                acc = tile_dot(acc, q, first, shape.k_dim, numbers, form)
                at += step * columns * WIDTH
                first += step * pack
                i += step
            part = tile_fold(acc, tile)
            if kind in INTEGERS:
                s, by = row * shape.k_groups + g, some + g * columns * WIDTH
                factors = stored_scales(scales, by, columns, kind)
                total = tile_add_scaled(total, part, factors, q_scales, s, shape.k_groups)
                if kind == INT4:
                    minima = stored_minima(scales, by, columns)
                    total = tile_fma_outer(total, q_sums, s, shape.k_groups, minima)
            else:
                total = part
        tile_store(out, place, shape.chunk, columns, total)

    return score


@lru_cache(maxsize=64)
def score_chunk_kernel(plan: Plan) -> Any:
    """score_chunk(room, planes, at, count, ahead, shape).

    Scores of the tiles at[:count] to room.scores. While their keys are read, their values are asked
    for, if `ahead`. With several turns over the same keys each asks for its share, or the first
    would wait for all.
    """
    score, rows, whole = score_kernel(plan), plan.rows, plan.k_kind in INTEGERS
    step = step_of(plan.k_kind)
    places, least = asking(plan.streams, plan.v_kind, step).places, plan.streams * step

    @kernel
    def score_chunk(room, planes, at, count, ahead, shape):
        tile, turns = shape.tile, shape.queries // rows
        share = -(-shape.v_rows // (turns * least)) * least if ahead else 0
        for j in range(count):
            keys, scales = at[j] * shape.k_rows, at[j] * shape.k_groups
            if whole:
                prefetch(planes.k_scales, at[j + 1] * shape.k_groups, 0, 1, 1)
            for turn in range(turns):
                begin, row = turn * share, turn * rows
                spots = places(at, 0, count, j, (tile, shape.v_rows), begin * TILE)
                ask = planes.values, spots, begin, min(begin + share, shape.v_rows)
                score(
                    room.numbers, room.q_scales, room.q_sums, row, planes.keys, keys,
                    planes.k_scales, scales, shape, ask, room.scores, row * shape.chunk + j * tile,
                )  # fmt: skip

    return score_chunk


@kernel
def rescale(out, place, size, factor):
    """out[place:place + size] *= factor."""
    by = splat(factor)
    for d in range(0, size, WIDTH):
        vstore(out, place + d, vmul(vload(out, place + d), by))


@kernel
def exp_of(x):
    """e**x, as for the weights; the machine's own exp is a call."""
    return vtop(vexp(splat(np.float32(x))))


@kernel
def hide(scores, low, high, size, shape):
    """Scores of a chunk's `size` positions that are not low..high become minus infinity."""
    for r in range(shape.queries):
        for c in range(0, size, WIDTH):
            if c < low or c + WIDTH > high:
                place = r * shape.chunk + c
                vstore(scores, place, lanes_or_never(vload(scores, place), low - c, high - c))


@lru_cache(maxsize=8)
def soften_kernel(width: int) -> Any:
    """soften(room, low, high, size, shape, out, tops): scores become weights, in place.

    A weight is e**(score - running maximum) of its query. Of a chunk's `size` positions only
    low..high count; the others become about zero. Outputs [part, query, width] and sums [query,
    lane] shrink where a maximum rises; `peaks` are the chunk's maxima.
    """

    @kernel
    def soften(room, low, high, size, shape, out, tops):
        scores, sums = room.scores, room.sums
        size = -(-size // BATCH) * BATCH
        if low > 0 or high < size:
            hide(scores, low, high, size, shape)
        for r in range(shape.queries):
            best = tile_load(scores, r * shape.chunk, 0, 1, ABREAST)
            for place in range(r * shape.chunk + BATCH, r * shape.chunk + size, BATCH):
                best = tile_larger(best, tile_load(scores, place, 0, 1, ABREAST))
            room.peaks[r] = tile_top(best)
        for r in range(shape.queries):
            if room.peaks[r] > tops[r]:
                factor = exp_of(tops[r] - room.peaks[r])
                tops[r] = room.peaks[r]
                rescale(sums, r * BATCH, BATCH, factor)
                for part in range(shape.v_dim // width):
                    rescale(out, (part * shape.queries + r) * width, width, factor)
        one = splat(np.float32(1))
        for r in range(shape.queries):
            most, total = splat(tops[r]), tile_load(sums, r * BATCH, 0, 1, ABREAST)
            for place in range(r * shape.chunk, r * shape.chunk + size, BATCH):
                x = tile_exp(tile_load(scores, place, 0, 1, ABREAST), most)
                tile_store(scores, place, 0, ABREAST, x)
                total = tile_fma(total, x, one)
            tile_store(sums, r * BATCH, 0, ABREAST, total)

    return soften
