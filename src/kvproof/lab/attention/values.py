"""Weighted values of a chunk of positions."""

# numba reads these functions, not mypy: their arguments are flat arrays and sizes.
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# ruff: noqa: ANN001, ANN202, PLR0913

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from kvproof.lab.attention.asking import Asking, asking
from kvproof.lab.attention.emit import WIDTH
from kvproof.lab.attention.shapes import RUN, Plan, inner, kernel, pack_of, step_of
from kvproof.lab.attention.stored import INT4, INTEGERS, pair_of, stored_rows
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
from kvproof.lab.attention.vectors import splat
from kvproof.lab.pool.planes import SLICE

STRIPE = SLICE // WIDTH  # vectors of a slice


def width_of(plan: Plan) -> int:
    """Numbers of a value that are summed at a time: outputs are [part, query, number of it]."""
    return across_of(plan) * WIDTH


def across_of(plan: Plan) -> int:
    """Vectors of numbers of a value that are summed at a time."""
    return plan.value_columns * pack_of(plan.v_kind)


def value_form(plan: Plan) -> int:
    """The form of a product of weights and values; see `tile_dot`."""
    return 16 * plan.value_rows + across_of(plan)


def asking_of(plan: Plan) -> Asking:
    """How the next keys are asked for while values are read."""
    return asking(plan.streams, plan.k_kind, step_of(plan.v_kind))


@lru_cache(maxsize=64)
def run_kernel(plan: Plan) -> Any:
    """sum_run(acc, weights, w, values, at, run, begin, upcoming, shape) -> acc, spots.

    Adds to `acc` the weighted values of the tiles run[0]..run[1], of each the part from `begin` on;
    their weights start at `w`. `upcoming` (keys, spots, whether): as much of the keys' memory is
    asked for. Where places are asked for by turns, tiles are read so too, a step of each.
    """
    kind, columns, form = plan.v_kind, plan.value_columns, value_form(plan)
    step, ask_next = step_of(kind), asking_of(plan).next

    @inner
    def a_tile(acc, weights, w, values, at, run, begin, upcoming, shape):
        keys, spots, ahead = upcoming
        base = at[run[0]] * shape.v_rows + begin
        for t in range(0, shape.tile, step):
            if ahead:
                spots = ask_next(keys, spots, t * SLICE)
            numbers = stored_rows(values, base + t * SLICE, SLICE, step, columns, kind)
            acc = tile_dot(acc, weights, w + t, shape.chunk, numbers, form)
        return acc, (spots[0] + shape.tile * SLICE,)

    @inner
    def by_turns(acc, weights, w, values, at, run, begin, upcoming, shape):
        keys, spots, ahead = upcoming
        for t in range(0, shape.tile, step):
            for j in range(run[0], run[1]):
                if ahead:
                    spots = ask_next(keys, spots, 0)
                base = at[j] * shape.v_rows + begin + t * SLICE
                numbers = stored_rows(values, base, SLICE, step, columns, kind)
                place = w + (j - run[0]) * shape.tile + t
                acc = tile_dot(acc, weights, place, shape.chunk, numbers, form)
        return acc, spots

    return a_tile if plan.streams == 1 else by_turns


@lru_cache(maxsize=64)
def add_kernel(plan: Plan) -> Any:
    """add(acc, room, out, place, some): sums of a chunk to the outputs from `place` on.

    `some`: where an integer's factors are.
    """
    kind, rows, across, width = plan.v_kind, plan.value_rows, across_of(plan), width_of(plan)
    tile = rows * across

    @inner
    def add(acc, room, out, place, some):
        total, acc = tile_load(out, place, width, rows, across), tile_fold(acc, tile)
        if kind in INTEGERS:
            total = tile_add_whole(total, acc, room.factors, some, 1, across)
            if kind == INT4:
                total = tile_add_each(total, room.lows, some, 1, across)
        else:
            total = tile_fma(total, acc, splat(np.float32(1)))
        tile_store(out, place, width, across, total)

    return add


@lru_cache(maxsize=64)
def weigh_kernel(plan: Plan) -> Any:
    """weigh(room, values, at, first, last, upcoming, shape, out).

    Adds the weighted values of tiles first..last of a chunk to the outputs. The room's `weights`
    are [query, position], for integers [group, query, position] in 16 bits, with what a product is
    worth in `factors` [run, group, query] and what the minima add in `lows`.

    A value is read in parts of plan.value_columns vectors, whose sums stay in registers over the
    chunk, or (integers) a run of it. `upcoming` (keys, from, to): meanwhile the keys of the tiles
    from..to, the next chunk's, are asked for, by one of the groups of queries that take turns.
    """
    kind, rows, columns, streams = plan.v_kind, plan.value_rows, plan.value_columns, plan.streams
    whole, wide = kind in INTEGERS, rows * across_of(plan) * plan.value_sums
    width, pair = width_of(plan), pair_of(kind)
    sum_run, add = run_kernel(plan), add_kernel(plan)
    places = asking_of(plan).places

    @kernel
    def weigh(room, values, at, first, last, upcoming, shape, out):
        keys, ask, end = upcoming
        positions, turns = shape.tile, shape.queries // rows
        group, turn, asked, due = shape.v_dim // shape.v_groups, 0, 0, end - ask
        stored, share = (positions, shape.k_rows), positions * shape.k_rows // streams
        left, spots = share, places(at, ask, due, 0, stored, 0)
        per = RUN // positions if whole else max(1, last - first)
        for part in range(shape.v_dim // width):
            begin = (
                part * columns // STRIPE * positions * SLICE
                + part * columns % STRIPE * WIDTH * pair
            )
            g = part * width // group * shape.queries if whole else 0
            for row in range(0, shape.queries, rows):
                target, some = (part * shape.queries + row) * width, g + row
                for start in range(first, last, per):
                    acc, until = tile_zero_whole(wide) if whole else tile_zero(wide), start + per
                    until = min(until, last)
                    for j in range(start, until, streams):
                        far, ahead = min(j + streams, until), turn == 0 and asked < due
                        w = (g + row) * shape.chunk + j * positions
                        meanwhile = keys, spots, ahead
                        acc, after = sum_run(
                            acc, room.weights, w, values, at, (j, far), begin, meanwhile, shape
                        )
                        if ahead:
                            spots, left = after, left - (far - j) * positions * SLICE // streams
                            if left <= 0:
                                left, asked = share, asked + 1
                                spots = places(at, ask, due, asked, stored, 0)
                        turn = turn + 1 if turn + 1 < turns else 0
                    add(acc, room, out, target, some)
                    some += shape.v_groups * shape.queries

    return weigh
