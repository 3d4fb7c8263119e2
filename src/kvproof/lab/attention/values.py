"""Weighted values of a chunk of positions."""

# numba reads these functions, not mypy: their arguments are flat arrays and sizes.
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# ruff: noqa: ANN001, ANN201, ANN202, PLR0913

from __future__ import annotations

from functools import lru_cache
from typing import Any

from kvproof.lab.attention.emit import WIDTH
from kvproof.lab.attention.shapes import RUN, Plan, kernel, pack_of
from kvproof.lab.attention.stored import INT4, INTEGERS, STORED_BYTES, stored_values
from kvproof.lab.attention.tiles import (
    tile_add_each,
    tile_add_whole,
    tile_fma_outer,
    tile_load,
    tile_store,
    tile_zero_whole,
)
from kvproof.lab.attention.vectors import LINE, prefetch, splat, vload, vmul, vstore
from kvproof.lab.attention.whole import fold_kernel, gather_scales


@kernel
def rescale(out, place, size, factor):
    """out[place:place + size] *= factor."""
    by = splat(factor)
    for d in range(0, size, WIDTH):
        vstore(out, place + d, vmul(vload(out, place + d), by))


@lru_cache(maxsize=64)
def weigh_kernel(plan: Plan) -> Any:
    """weigh(weights, at, count, steady, low, high, values, shape, factors, lows, out).

    Adds the weighted values of positions low..high of a chunk, whose pieces start at at[:, 2], to
    the outputs of the queries row..row + plan.value_rows. `weights` are [query, position], for
    integers [group, query, position] in 16 bits, with what a product is worth in `factors` [group,
    query] and what the minima add in `lows`.

    A row is read in slices of value_vectors, whose sums stay in registers over a piece, or over the
    chunk where the slice is the row. Unless memory is `steady`, each step asks for its share of the
    next piece, in order; the last of `at` is only asked for.
    """
    kind, rows, vectors = plan.v_kind, plan.value_rows, plan.value_vectors
    pack, span, tile = pack_of(kind), vectors * WIDTH, rows * vectors
    whole = kind in INTEGERS
    step = 2 if whole else 1
    size = STORED_BYTES[kind]
    per_line = LINE // size
    lines = max(1, step * span // pack // per_line)

    @kernel
    def weigh(weights, at, count, steady, low, high, values, shape, factors, lows, out):
        line, chunk, piece = shape.v_dim // pack, shape.chunk, shape.piece
        group, slices = shape.v_dim // shape.v_groups, shape.v_dim // span
        groups = shape.queries // rows
        runs = slices * groups
        share, jump = piece * line // runs, -(-line // runs)
        most = count if slices == 1 else max(1, RUN // (piece * line * size))
        for some in range(0, count, most):
            together = min(most, count - some)
            # Where the slice is the row, the next piece comes next, else the next `together`.
            skip = 1 if runs == 1 else together
            for turn in range(runs):
                j, row = turn // groups * span, turn % groups * rows
                place = row * shape.v_dim + j
                start = (j // group * shape.queries if whole else 0) + row
                if whole:
                    acc = tile_zero_whole(tile)
                else:
                    acc = tile_load(out, place, shape.v_dim, rows, vectors)
                for p in range(some, some + together):
                    base, t0, n = at[p, 2] + j // pack, p * piece, turn * together + p - some
                    upcoming = at[some + skip + n // runs, 2] + n % runs * share
                    for t in range(max(0, low - t0), min(piece, high - t0), step):
                        if not steady:
                            prefetch(values, upcoming + t * jump, per_line, lines, 1)
                        numbers = stored_values(values, base + t * line, line, vectors, kind)
                        acc = tile_fma_outer(acc, weights, start * chunk + t0 + t, chunk, numbers)
                if whole:
                    total = tile_load(out, place, shape.v_dim, rows, vectors)
                    total = tile_add_whole(total, acc, factors, start, 1, vectors)
                    if kind == INT4 and some == 0:
                        total = tile_add_each(total, lows, start, 1, vectors)
                    tile_store(out, place, shape.v_dim, vectors, total)
                else:
                    tile_store(out, place, shape.v_dim, vectors, acc)

    return weigh


@lru_cache(maxsize=64)
def weigh_chunk_kernel(plan: Plan) -> Any:
    """weigh_chunk(scores, peaks, values, scales, at, count, steady, low, high, shape, out, ...).

    The last arguments are room for the weights in 16 bits and what belongs to them.
    """
    weigh, fold = weigh_kernel(plan), fold_kernel(plan.v_kind)
    whole = plan.v_kind in INTEGERS

    @kernel
    def weigh_chunk(
        scores, peaks, values, scales, at, count, steady, low, high, shape, out,
        near_scales, weights, factors, lows,
    ):  # fmt: skip
        if whole:
            gather_scales(scales, at, count, shape, near_scales)
            fold(scores, peaks, near_scales, low, high, shape, weights, factors, lows)
            weigh(weights, at, count, steady, low, high, values, shape, factors, lows, out)
        else:
            weigh(scores, at, count, steady, low, high, values, shape, factors, lows, out)

    return weigh_chunk
