"""Decode attention that reads the blocks in place: one query position per sequence.

The work is cut into items: a sequence, one of its KV heads, a range of its blocks. An item streams
its blocks once, in chunks, for all query heads that share the KV head (the saving of grouped-query
attention is in bandwidth too). Items of one head are merged at the end by their maxima and sums, as
in flash-decoding (Dao et al., 2023); the running maximum within an item is online softmax (Milakov
and Gimelshein, 2018).

    scores   WIDTH positions a vector: keys lie transposed in their block, so a number of the query
             meets that many keys at once and no horizontal sum is needed
    values   WIDTH numbers of a head a vector, R queries x N vectors of sums in registers

f32, bf16 and fp8 are multiplied in f32. int8 and int4 are multiplied as integers, exactly, by
queries and weights that are rounded to 16 bits (`whole.py`).

Arrays are flat; `shape` holds the sizes.
"""

# numba reads these functions, not mypy: their arguments are flat arrays and sizes.
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# ruff: noqa: ANN001, ANN201, ANN202, PLR0913

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from kvproof.lab.attention.emit import WIDTH
from kvproof.lab.attention.scores import score_kernel, soften
from kvproof.lab.attention.shapes import Plan, entry, kernel, pack_of, pair_of
from kvproof.lab.attention.stored import INT4, INTEGERS
from kvproof.lab.attention.values import rescale, weigh_kernel
from kvproof.lab.attention.vectors import prefetch
from kvproof.lab.attention.whole import fold_kernel, gather_scales, round_queries


@kernel
def locate(table, first, count, head, shape, places, at):
    """at[j] = where piece first + j has its keys, their scales, its values, their scales."""
    per, (k_rows, k_pair, v_line) = shape.block_size // shape.piece, places
    for j in range(count):
        block, part = divmod(first + j, per)
        cell, offset = head * shape.blocks + table[block], part * shape.piece
        at[j, 0] = cell * k_rows * shape.block_size + offset * k_pair
        at[j, 1] = cell * shape.k_groups * shape.block_size + offset
        at[j, 2] = (cell * shape.block_size + offset) * v_line
        at[j, 3] = cell * shape.v_groups * shape.block_size + offset


@kernel
def in_order(table, first, end, per):
    """Whether pieces first..end lie one after the other in memory, judged by the two at the ends.

    Then the machine's own prefetching sees one stream, and asking for lines only slows it.
    """
    begin, last = first // per, (end - 1) // per
    return table[last] - table[begin] == last - begin


@kernel
def gather_keys(keys, at, count, shape, near, rows, pair, out):
    """Keys of `count` small blocks as if they were one block of near.block_size positions."""
    size, wide = shape.block_size, near.block_size
    for j in range(count):
        for i in range(rows // pair):
            source, target = at[j, 0] + i * size * pair, (i * wide + j * size) * pair
            for t in range(size * pair):
                out[target + t] = keys[source + t]


@kernel
def gather_runs(data, at, which, count, groups, size, stride, out):
    """Runs of `size` elements for every group of each small block, side by side by group."""
    for j in range(count):
        for g in range(groups):
            source, target = at[j, which] + g * size, g * stride + j * size
            for t in range(size):
                out[target + t] = data[source + t]


@kernel
def soften_chunk(scores, visible, beyond, width, shape, out, tops, sums, peaks):
    """Weights in place of a chunk's scores; outputs and sums shrink where a maximum rises."""
    for r in range(shape.queries):
        old = tops[r]
        top, peaks[r], total = soften(scores, r * shape.chunk, visible, beyond, width, old)
        if top > old:
            factor = np.exp(old - top)
            rescale(out, r * shape.v_dim, shape.v_dim, factor)
            sums[r] *= factor
            tops[r] = top
        sums[r] += total


@lru_cache(maxsize=64)
def score_chunk_kernel(plan: Plan) -> Any:
    """score_chunk(q, q_scales, q_sums, keys, scales, here, later, count, shape, out)."""
    score, rows, across = score_kernel(plan), plan.rows, plan.columns * WIDTH
    pair, whole = pair_of(plan.k_kind), plan.k_kind in INTEGERS

    @kernel
    def score_chunk(q, q_scales, q_sums, keys, scales, here, later, count, shape, out):
        size = shape.block_size
        for j in range(count):
            ahead = later[j, 0] - here[j, 0]
            for g in range(shape.k_groups if whole else 0):
                prefetch(scales, later[j, 1] + g * size, 0, 1, 1)
            for t in range(0, shape.piece, across):
                for row in range(0, shape.queries, rows):
                    score(
                        q, q_scales, q_sums, row, keys, here[j, 0] + t * pair, size,
                        ahead if row == 0 else 0, scales, here[j, 1] + t, shape, out,
                        row * shape.chunk + j * shape.piece + t,
                    )  # fmt: skip

    return score_chunk


@lru_cache(maxsize=64)
def weigh_chunk_kernel(plan: Plan) -> Any:
    """weigh_chunk(scores, peaks, values, scales, here, later, count, low, high, shape, out, ...).

    The last arguments are room for the weights in 16 bits and what belongs to them.
    """
    weigh, fold, rows = weigh_kernel(plan), fold_kernel(plan.v_kind), plan.value_rows
    whole = plan.v_kind in INTEGERS

    @kernel
    def weigh_chunk(
        scores, peaks, values, scales, here, later, count, low, high, shape, out,
        near_scales, weights, factors, lows,
    ):  # fmt: skip
        if whole:
            gather_scales(scales, here, count, later, shape, near_scales)
            fold(scores, peaks, near_scales, low, high, shape, weights, factors, lows)
            for row in range(0, shape.queries, rows):
                weigh(
                    weights, row, here, later, count, low // 2 * 2, high, values, shape, factors,
                    lows, out,
                )  # fmt: skip
        else:
            for row in range(0, shape.queries, rows):
                weigh(scores, row, here, later, count, low, high, values, shape, factors, lows, out)

    return weigh_chunk


@lru_cache(maxsize=64)
def item_kernel(plan: Plan) -> Any:
    """item(...): one sequence's KV head over one range of blocks, for all its queries."""
    score_chunk, weigh_chunk = score_chunk_kernel(plan), weigh_chunk_kernel(plan)
    k_whole, v_whole, gathered = plan.k_kind in INTEGERS, plan.v_kind in INTEGERS, plan.gathered
    k_pack, v_pack, pair = pack_of(plan.k_kind), pack_of(plan.v_kind), pair_of(plan.k_kind)
    nibbles = plan.k_kind == INT4

    @kernel
    def item(
        q, scale, keys, k_scales, values, v_scales, table, head, begin, end, low, high, shape,
        near, out, tops, sums,
    ):  # fmt: skip
        size, queries, chunk, piece = shape.block_size, shape.queries, shape.chunk, shape.piece
        k_rows, v_line, per = shape.k_dim // k_pack, shape.v_dim // v_pack, size // piece
        at = np.zeros((2, shape.pieces, 4), np.int64)
        scores = np.empty(queries * chunk, np.float32)
        q_scales = np.empty(queries * shape.k_groups, np.float32)
        q_sums = np.empty(queries * shape.k_groups, np.float32)
        factors = np.empty(queries * shape.v_groups, np.float32)
        lows = np.empty(queries * shape.v_groups, np.float32)
        peaks = np.empty(queries, np.float32)
        weights = np.empty(queries * shape.v_groups * chunk if v_whole else 1, np.int16)
        near_scales = np.empty(shape.v_groups * chunk, v_scales.dtype)
        if k_whole:
            numbers = np.empty(queries * shape.k_dim, np.int16)
            round_queries(q, scale, shape, nibbles, numbers, q_scales, q_sums)
        else:
            numbers = q * scale
        out[:] = 0.0
        tops[:] = -np.inf
        sums[:] = 0.0
        some_keys, some_k_scales, some_values, some_v_scales = keys, k_scales, values, v_scales
        if gathered:
            some_keys = np.zeros(k_rows * chunk, keys.dtype)
            some_k_scales = np.zeros(shape.k_groups * chunk, k_scales.dtype)
            some_values = np.zeros(v_line * chunk, values.dtype)
            some_v_scales = np.zeros(shape.v_groups * chunk, v_scales.dtype)
        first, last = max(begin * per, low // piece), min(end * per, -(-high // piece))
        places = k_rows, pair, v_line
        locate(table, first, min(shape.pieces, last - first), head, shape, places, at[0])
        turn = 0
        for p in range(first, last, shape.pieces):
            count = min(shape.pieces, last - p)
            here, later = at[turn], at[1 - turn]
            upcoming = min(shape.pieces, last - p - count)
            locate(table, p + count, upcoming, head, shape, places, later)
            for j in range(upcoming, count):
                later[j, :] = here[j, :]
            turn = 1 - turn
            steady = shape.queries == 1 and in_order(table, p, p + count + upcoming, per)
            ahead = here if steady else later
            visible, beyond = max(0, low - p * piece), min(high - p * piece, count * piece)
            width, now, then, runs = count * piece, here, ahead, count
            if gathered:
                gather_keys(keys, here, count, shape, near, k_rows, pair, some_keys)
                gather_runs(values, here, 2, count, 1, size * v_line, 0, some_values)
                if k_whole:
                    gather_runs(
                        k_scales, here, 1, count, shape.k_groups, size, chunk, some_k_scales
                    )
                if v_whole:
                    gather_runs(
                        v_scales, here, 3, count, shape.v_groups, size, chunk, some_v_scales
                    )
                now = np.zeros((1, 4), np.int64)
                then, runs = now, 1
            score_chunk(
                numbers, q_scales, q_sums, some_keys, some_k_scales, now, then, runs, near, scores
            )
            soften_chunk(scores, visible, beyond, width, shape, out, tops, sums, peaks)
            weigh_chunk(
                scores, peaks, some_values, some_v_scales, now, then, runs, visible, beyond, near,
                out, near_scales, weights, factors, lows,
            )  # fmt: skip

    return item


@lru_cache(maxsize=64)
def kernels(plan: Plan) -> Any:
    """run(..., start, step): every `step`-th item from `start` on, one thread's share."""
    item = item_kernel(plan)

    @entry
    def run(
        q, scale, keys, k_scales, values, v_scales, tables, items, shape, near, out, tops, sums,
        start, step,
    ):  # fmt: skip
        for i in range(start, items.shape[0], step):
            s, head, begin, end, low, high = items[i]
            item(
                q[s, head], scale, keys, k_scales, values, v_scales, tables[s], head, begin, end,
                low, high, shape, near, out[i], tops[i], sums[i],
            )  # fmt: skip

    return run


@entry
def merge(items, parts, tops, sums, queries, v_dim, pairs, out):
    """Merge the items of each head into out [sequences, heads, v_dim]; `pairs`: even before odd.

    bf16 and int4 values came out with the even numbers of each 16 before the odd ones.
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
                        base = d // 16 * 16
                        target[d] += factor * part[base + (d % 2) * 8 + (d - base) // 2]
                else:
                    for d in range(v_dim):
                        target[d] += factor * part[d]
        i = j
