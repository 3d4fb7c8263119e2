"""Weighted values of a chunk of positions."""

# numba reads these functions, not mypy: their arguments are flat arrays and sizes.
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# ruff: noqa: ANN001, ANN201, ANN202

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from kvproof.lab.attention.emit import WIDTH
from kvproof.lab.attention.shapes import STEP, Plan, inner, kernel, pack_of
from kvproof.lab.attention.stored import INT4, INTEGERS, STORED_BYTES, pair_of, stored_rows
from kvproof.lab.attention.tiles import (
    tile_add_each,
    tile_add_whole,
    tile_dot,
    tile_fma,
    tile_fold,
    tile_load,
    tile_store,
    tile_zero,
    tile_zero_whole,
)
from kvproof.lab.attention.vectors import LINE, prefetch, splat
from kvproof.lab.pool.planes import SLICE

STRIPE = SLICE // WIDTH  # vectors of a slice


def width_of(plan: Plan) -> int:
    """Numbers of a value that are summed at a time: outputs are [part, query, number of it]."""
    return plan.value_columns * WIDTH * pack_of(plan.v_kind)


@inner
def onward(count, offset, size):
    """The count and offset, or, past `size`, the next count and offset 0."""
    if offset >= size:
        count, offset = count + 1, 0
    return count, offset


@lru_cache(maxsize=64)
def weigh_kernel(plan: Plan) -> Any:
    """weigh(room, values, at, first, last, upcoming, shape, out).

    Adds the weighted values of tiles first..last of a chunk to the outputs. The room's `weights`
    are [query, position], for integers [group, query, position] in 16 bits, with what a product is
    worth in `factors` [group, query] and what the minima add in `lows`.

    A value is read in parts of plan.value_columns vectors, whose sums stay in registers over the
    chunk. `upcoming` (keys, from, to): meanwhile the keys of the tiles from..to, the next chunk's,
    are asked for in the order of memory.
    """
    kind, rows, columns = plan.v_kind, plan.value_rows, plan.value_columns
    across = columns * pack_of(kind)
    tile, form, whole = rows * across, 16 * rows + across, kind in INTEGERS
    wide, width, pair = tile * plan.value_sums, width_of(plan), pair_of(kind)
    lines, line = STORED_BYTES[plan.k_kind], LINE // STORED_BYTES[plan.k_kind]

    @kernel
    def weigh(room, values, at, first, last, upcoming, shape, out):
        keys, ask, end = upcoming
        chunk, positions, turns = shape.chunk, shape.tile, shape.queries // rows
        group, turn, offset = shape.v_dim // shape.v_groups, 0, 0
        stored = positions * shape.k_rows
        for part in range(shape.v_dim // width):
            begin = (
                part * columns // STRIPE * positions * SLICE
                + part * columns % STRIPE * WIDTH * pair
            )
            g = part * width // group * shape.queries if whole else 0
            for row in range(0, shape.queries, rows):
                acc = tile_zero_whole(wide) if whole else tile_zero(wide)
                for j in range(first, last):
                    base, w = at[j] * shape.v_rows + begin, (g + row) * chunk + j * positions
                    asking = turn == 0 and ask < end
                    source = at[min(ask, end)] * shape.k_rows + offset
                    for t in range(0, positions, STEP):
                        if asking:
                            prefetch(keys, source + t * SLICE, line, lines, 1)
                        numbers = stored_rows(values, base + t * SLICE, SLICE, STEP, columns, kind)
                        acc = tile_dot(acc, room.weights, w + t, chunk, numbers, form)
                    if asking:
                        ask, offset = onward(ask, offset + positions * SLICE, stored)
                    _, turn = onward(0, turn + 1, turns)
                place = (part * shape.queries + row) * width
                total = tile_load(out, place, width, rows, across)
                acc = tile_fold(acc, tile)
                if whole:
                    total = tile_add_whole(total, acc, room.factors, g + row, 1, across)
                    if kind == INT4:
                        total = tile_add_each(total, room.lows, g + row, 1, across)
                else:
                    total = tile_fma(total, acc, splat(np.float32(1)))
                tile_store(out, place, width, across, total)

    return weigh
