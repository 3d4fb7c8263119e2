"""Decode attention that reads the blocks in place: one query position per sequence.

The work is cut into items: a sequence, one of its KV heads, a range of its blocks. An item streams
its blocks once, in chunks, for all query heads that share the KV head (the saving of grouped-query
attention is in bandwidth too), and dequantises on the way. Items of one head are merged at the end
by their maxima and sums, as in flash-decoding (Dao et al., 2023); the running maximum within an
item is online softmax (Milakov and Gimelshein, 2018).

    scores   16 positions a vector: keys lie transposed in their block, so a number of the query
             meets 16 keys at once and no horizontal sum is needed; scales are applied per group
    values   16 numbers of a head a vector, R queries x N vectors of accumulators in registers

Arrays are flat; `shape` holds the sizes. Work is in f32 whatever is stored.
"""

# numba reads these functions, not mypy: their arguments are flat arrays and sizes.
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# ruff: noqa: ANN001, ANN201, ANN202, PLR0913, C901

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numba import njit, prange

from kvproof.lab.attention.simd import (
    INT4,
    INT8,
    LINE,
    STORED_BYTES,
    WIDTH,
    pair_high,
    pair_low,
    prefetch,
    splat,
    stored,
    tile_add_each,
    tile_first,
    tile_fma_each,
    tile_fma_outer,
    tile_fold,
    tile_load,
    tile_scale_add,
    tile_store,
    tile_zero,
    vadd,
    vexp,
    vlanes,
    vload,
    vmax,
    vmul,
    vstore,
    vsub,
    vsum,
    vtop,
)

CHUNK = 64  # positions whose scores are held at a time, at least one block
AHEAD = 8192  # bytes of a head's blocks that are asked for before they are read


class Shape(NamedTuple):
    """Sizes the kernel gets at run time; `queries` is query heads per KV head."""

    kv_heads: int
    queries: int
    k_dim: int
    v_dim: int
    block_size: int
    k_groups: int
    v_groups: int


class Tiles(NamedTuple):
    """How many queries share a load, and how many vectors of keys and values a step takes."""

    rows: int
    key_steps: int
    value_vectors: int


def tiles_for(shape: Shape, v_kind: int) -> Tiles:
    """Accumulators for 8 to 16 registers: enough to hide the latency of a multiply-add."""
    rows = next(r for r in range(min(8, shape.queries), 0, -1) if shape.queries % r == 0)
    group = shape.k_dim // shape.k_groups
    steps = next(u for u in (8, 4, 2) if u * rows <= 16 and group % u == 0)
    vectors = shape.v_dim // shape.v_groups // WIDTH
    even = 2 if v_kind == INT4 else 1
    fits = [n for n in range(1, vectors + 1) if vectors % n == 0 and n * rows <= 16]
    return Tiles(rows, steps, [n for n in fits if n % even == 0][-1])


@njit(nogil=True)
def blocks_ahead(block_bytes):
    """How many blocks of one head lie in AHEAD bytes."""
    return max(1, AHEAD // block_bytes)


@lru_cache(maxsize=64)
def score_kernel(k_kind: int, tiles: Tiles) -> Any:
    """score(q, sums, row, keys, k0, ahead, scales, s0, shape, out, place, width).

    Scores of 16 positions for the queries row..row + tiles.rows, to out[place + r * width].
    Memory `ahead` of what is read is asked for on the way (0: it was already).
    """
    rows, steps, tile = tiles.rows, tiles.key_steps, tiles.rows * tiles.key_steps
    pack = 2 if k_kind == INT4 else 1
    lines = steps // pack  # stored rows a step reads
    every = min(lines, max(1, LINE // (WIDTH * STORED_BYTES[k_kind])))

    @njit(nogil=True)
    def score(q, sums, row, keys, k0, ahead, scales, s0, shape, out, place, width):
        size = shape.k_dim // shape.k_groups
        step = steps // pack * shape.block_size
        total = tile_zero(rows)
        at = k0
        for g in range(shape.k_groups):
            acc = tile_zero(tile)
            for d in range(g * size, (g + 1) * size, steps):
                numbers = stored(keys, at, shape.block_size, steps, k_kind)
                if ahead != 0:
                    prefetch(keys, at + ahead, shape.block_size, lines, every)
                acc = tile_fma_each(acc, q, row * shape.k_dim + d, shape.k_dim, numbers)
                at += step
            part = tile_fold(acc, rows)
            s = s0 + g * shape.block_size
            if k_kind == INT8:
                total = tile_scale_add(total, part, vload(scales, s))
            elif k_kind == INT4:
                total = tile_scale_add(total, part, pair_high(scales, s))
                first = row * shape.k_groups + g
                total = tile_fma_outer(total, sums, first, shape.k_groups, pair_low(scales, s))
            else:
                total = part
        tile_store(out, place, width, 1, total)

    return score


@njit(nogil=True)
def soften(scores, place, low, high, width, top):
    """Turn one query's scores into weights e**(score - maximum), in place.

    Only positions low..high count; the others become about zero. Returns the new running maximum
    and the sum of the weights.
    """
    best = splat(np.float32(-np.inf))
    for c in range(0, width, WIDTH):
        x = vload(scores, place + c)
        if c < low or c + WIDTH > high:
            x = vlanes(x, low - c, high - c)
            vstore(scores, place + c, x)
        best = vmax(best, x)
    top = max(top, vtop(best))
    maximum, total = splat(top), splat(np.float32(0))
    for c in range(0, width, WIDTH):
        x = vexp(vsub(vload(scores, place + c), maximum))
        vstore(scores, place + c, x)
        total = vadd(total, x)
    return top, vsum(total)


@njit(nogil=True)
def rescale(out, place, size, factor):
    """out[place:place + size] *= factor."""
    by = splat(factor)
    for d in range(0, size, WIDTH):
        vstore(out, place + d, vmul(vload(out, place + d), by))


@lru_cache(maxsize=64)
def weigh_kernel(v_kind: int, tiles: Tiles) -> Any:
    """weigh(weights, row, width, first, count, end, table, head, values, scales, shape, ...).

    Adds the chunk's weighted values to the outputs of the queries row..row + tiles.rows.
    """
    rows, vectors = tiles.rows, tiles.value_vectors
    pack = 2 if v_kind == INT4 else 1
    grouped = v_kind in (INT8, INT4)
    span, bytes_each = vectors * WIDTH, STORED_BYTES[v_kind]
    per_line = LINE // bytes_each
    lines = max(1, span // pack // per_line)

    @njit(nogil=True)
    def fold_scales(weights, row, width, scales, s, size, c, scratch):
        """scratch = weights times the scales of a group, for one block; int4: sums of minima."""
        for r in range(rows):
            low = splat(np.float32(0))
            for t in range(0, size, WIDTH):
                w = vload(weights, (row + r) * width + c + t)
                if v_kind == INT4:
                    vstore(scratch, r * size + t, vmul(w, pair_high(scales, s + t)))
                    low = vadd(low, vmul(w, tile_first(pair_low(scales, s + t))))
                else:
                    vstore(scratch, r * size + t, vmul(w, vload(scales, s + t)))
            scratch[rows * size + r] = vsum(low)

    @njit(nogil=True)
    def weigh(
        weights, row, width, first, count, end, table, head, values, scales, shape, scratch, out
    ):
        size, line = shape.block_size, shape.v_dim // pack
        group = shape.v_dim // shape.v_groups
        distance = blocks_ahead(size * line * bytes_each)
        for j in range(0, shape.v_dim, span):
            acc = tile_load(out, row * shape.v_dim + j, shape.v_dim, rows, vectors)
            for b in range(count):
                cell = table[first + b] * shape.kv_heads + head
                at = cell * size * line + j // pack
                later = table[min(first + b + distance, end - 1)] * shape.kv_heads + head
                ahead = (later - cell) * size * line if row == 0 else 0
                if grouped:
                    s = cell * shape.v_groups + j // group
                    prefetch(scales, (later * shape.v_groups + j // group) * size, 0, 1, 1)
                    fold_scales(weights, row, width, scales, s * size, size, b * size, scratch)
                    acc = tile_add_each(acc, scratch, rows * size, vectors)
                    for t in range(size):
                        numbers = stored(values, at + t * line, WIDTH, vectors, v_kind)
                        if ahead != 0:
                            prefetch(values, at + ahead + t * line, per_line, lines, 1)
                        acc = tile_fma_outer(acc, scratch, t, size, numbers)
                else:
                    for t in range(size):
                        numbers = stored(values, at + t * line, WIDTH, vectors, v_kind)
                        if ahead != 0:
                            prefetch(values, at + ahead + t * line, per_line, lines, 1)
                        acc = tile_fma_outer(
                            acc, weights, row * width + b * size + t, width, numbers
                        )
            tile_store(out, row * shape.v_dim + j, shape.v_dim, vectors, acc)

    return weigh


@lru_cache(maxsize=64)
def item_kernel(k_kind: int, v_kind: int, tiles: Tiles) -> Any:
    """item(...): one sequence's KV head over one range of blocks, for all its queries."""
    score, weigh = score_kernel(k_kind, tiles), weigh_kernel(v_kind, tiles)
    rows, pack = tiles.rows, 2 if k_kind == INT4 else 1
    summed, grouped = k_kind == INT4, k_kind in (INT8, INT4)
    bytes_each = STORED_BYTES[k_kind]

    @njit(nogil=True)
    def item(
        q, keys, k_scales, values, v_scales, table, head, begin, end, low, high, shape, out,
        tops, sums,
    ):  # fmt: skip
        size, queries = shape.block_size, shape.queries
        blocks = max(1, CHUNK // size)
        width, lines = blocks * size, shape.k_dim // pack
        distance = blocks_ahead(lines * size * bytes_each)
        scores = np.empty(queries * width, np.float32)
        scratch = np.empty(rows * size + rows, np.float32)
        group_sums = np.empty(queries * shape.k_groups, np.float32)
        if summed:
            add_up(q, shape, group_sums)
        out[:] = 0.0
        tops[:] = -np.inf
        sums[:] = 0.0
        for first in range(begin, end, blocks):
            count = min(blocks, end - first)
            for b in range(count):
                cell = table[first + b] * shape.kv_heads + head
                k0, s0 = cell * lines * size, cell * shape.k_groups * size
                later = table[min(first + b + distance, end - 1)] * shape.kv_heads + head
                ahead = (later - cell) * lines * size
                for g in range(shape.k_groups if grouped else 0):
                    prefetch(k_scales, (later * shape.k_groups + g) * size, 0, 1, 1)
                for t in range(0, size, WIDTH):
                    for row in range(0, queries, rows):
                        place = row * width + b * size + t
                        score(
                            q, group_sums, row, keys, k0 + t, ahead if row == 0 else 0,
                            k_scales, s0 + t, shape, scores, place, width,
                        )  # fmt: skip
            for r in range(queries):
                old = tops[r]
                top, total = soften(
                    scores, r * width, low - first * size, high - first * size, count * size, old
                )
                if top > old:
                    factor = np.exp(old - top)
                    rescale(out, r * shape.v_dim, shape.v_dim, factor)
                    sums[r] *= factor
                    tops[r] = top
                sums[r] += total
            for row in range(0, queries, rows):
                weigh(
                    scores, row, width, first, count, end, table, head, values, v_scales,
                    shape, scratch, out,
                )  # fmt: skip

    return item


@njit(nogil=True)
def add_up(q, shape, out):
    """out[query, group] = sum of the query's numbers in the group: what a minimum is times."""
    size = shape.k_dim // shape.k_groups
    for i in range(shape.queries * shape.k_groups):
        total = np.float32(0)
        for d in range(i * size, (i + 1) * size):
            total += q[d]
        out[i] = total


@lru_cache(maxsize=64)
def kernels(k_kind: int, v_kind: int, tiles: Tiles) -> Any:
    """run(...) over all items: the parallel kernel and its one-thread twin."""
    item = item_kernel(k_kind, v_kind, tiles)

    def run(q, keys, k_scales, values, v_scales, tables, items, shape, out, tops, sums):
        for i in prange(items.shape[0]):
            s, head, begin, end, low, high = items[i]
            item(
                q[s, head], keys, k_scales, values, v_scales, tables[s], head, begin, end,
                low, high, shape, out[i], tops[i], sums[i],
            )  # fmt: skip

    return njit(nogil=True, parallel=True)(run), njit(nogil=True)(run)


@njit(nogil=True)
def merge(items, parts, tops, sums, queries, v_dim, pairs, out):
    """Merge the items of each head into out [sequences, heads, v_dim]; `pairs`: int4's order.

    int4 values came out with the even numbers of each 32 before the odd ones.
    """
    n = items.shape[0]
    i = 0
    while i < n:
        j = i
        while j < n and items[j, 0] == items[i, 0] and items[j, 1] == items[i, 1]:
            j += 1
        for r in range(queries):
            top = tops[i, r]
            for k in range(i + 1, j):
                top = max(top, tops[k, r])
            total = np.float32(0)
            for k in range(i, j):
                total += sums[k, r] * np.exp(tops[k, r] - top)
            target = out[items[i, 0], items[i, 1] * queries + r]
            target[:] = 0.0
            for k in range(i, j):
                factor = np.exp(tops[k, r] - top) / total
                part = parts[k, r * v_dim : (r + 1) * v_dim]
                if pairs:
                    for d in range(v_dim):
                        base = d // 32 * 32
                        target[d] += factor * part[base + (d % 2) * 16 + (d - base) // 2]
                else:
                    for d in range(v_dim):
                        target[d] += factor * part[d]
        i = j
