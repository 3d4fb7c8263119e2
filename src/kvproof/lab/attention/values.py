"""Weighted values of a chunk of positions."""

# numba reads these functions, not mypy: their arguments are flat arrays and sizes.
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# ruff: noqa: ANN001, ANN201, ANN202, PLR0913

from __future__ import annotations

from functools import lru_cache
from typing import Any

from kvproof.lab.attention.emit import WIDTH
from kvproof.lab.attention.shapes import Plan, kernel, pack_of
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


@kernel
def rescale(out, place, size, factor):
    """out[place:place + size] *= factor."""
    by = splat(factor)
    for d in range(0, size, WIDTH):
        vstore(out, place + d, vmul(vload(out, place + d), by))


@lru_cache(maxsize=64)
def ask_kernel(plan: Plan) -> Any:
    """ask(values, place, line): fetch a position's part of a row early; integers: two positions."""
    per_line = LINE // STORED_BYTES[plan.v_kind]
    lines = max(1, plan.value_vectors * WIDTH // pack_of(plan.v_kind) // per_line)
    whole = plan.v_kind in INTEGERS

    @kernel
    def ask(values, place, line):
        prefetch(values, place, per_line, lines, 1)
        if whole:
            prefetch(values, place + line, per_line, lines, 1)

    return ask


@lru_cache(maxsize=64)
def weigh_kernel(plan: Plan) -> Any:
    """weigh(weights, row, at, later, count, low, high, values, shape, factors, lows, out).

    Adds the weighted values of positions low..high of a chunk to the outputs of the queries
    row..row + plan.value_rows. `weights` are [query, position], for integers [group, query,
    position] in 16 bits, with what a product is worth in `factors` [group, query] and what the
    minima add in `lows`.

    One query takes whole rows of a piece before the next piece, so that memory is read nearly in
    order; several keep their sums in registers over the whole chunk.
    """
    kind, rows, vectors = plan.v_kind, plan.value_rows, plan.value_vectors
    pack, span, tile = pack_of(kind), vectors * WIDTH, rows * vectors
    whole = kind in INTEGERS
    ask, step = ask_kernel(plan), 2 if whole else 1

    @kernel
    def weigh(weights, row, at, later, count, low, high, values, shape, factors, lows, out):
        line, chunk = shape.v_dim // pack, shape.chunk
        group = shape.v_dim // shape.v_groups
        together = 1 if rows == 1 else count
        for some in range(0, count, together):
            for j in range(0, shape.v_dim, span):
                start = (j // group * shape.queries if whole else 0) + row
                if whole:
                    acc = tile_zero_whole(tile)
                else:
                    acc = tile_load(out, row * shape.v_dim + j, shape.v_dim, rows, vectors)
                for p in range(some, min(count, some + together)):
                    base = at[p, 2] + j // pack
                    ahead = later[p, 2] - at[p, 2] if row == 0 else 0
                    t0 = p * shape.piece
                    for t in range(max(0, low - t0), min(shape.piece, high - t0), step):
                        if ahead != 0:
                            ask(values, base + ahead + t * line, line)
                        numbers = stored_values(values, base + t * line, line, vectors, kind)
                        acc = tile_fma_outer(acc, weights, start * chunk + t0 + t, chunk, numbers)
                if whole:
                    total = tile_load(out, row * shape.v_dim + j, shape.v_dim, rows, vectors)
                    total = tile_add_whole(total, acc, factors, start, 1, vectors)
                    if kind == INT4 and some == 0:
                        total = tile_add_each(total, lows, start, 1, vectors)
                    tile_store(out, row * shape.v_dim + j, shape.v_dim, vectors, total)
                else:
                    tile_store(out, row * shape.v_dim + j, shape.v_dim, vectors, acc)

    return weigh
