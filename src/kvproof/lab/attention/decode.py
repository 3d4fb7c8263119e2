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
from typing import Any, NamedTuple

import numpy as np

from kvproof.lab.attention.crew import begin, end
from kvproof.lab.attention.scores import exp_of, score_chunk_kernel, soften
from kvproof.lab.attention.shapes import Plan, entry, kernel, pack_of, pair_of
from kvproof.lab.attention.stored import F32, INT4, INTEGERS
from kvproof.lab.attention.values import rescale, weigh_chunk_kernel
from kvproof.lab.attention.vectors import prefetch
from kvproof.lab.attention.whole import round_queries


class Planes(NamedTuple):
    """Flat arrays of a slot: what is stored, and what it is scaled by."""

    keys: Any
    k_scales: Any
    values: Any
    v_scales: Any


class Room(NamedTuple):
    """Arrays that an item works in; `numbers` are its queries as they are multiplied."""

    numbers: Any
    q_scales: Any
    q_sums: Any
    scores: Any
    peaks: Any
    weights: Any
    factors: Any
    lows: Any
    near_scales: Any


@kernel
def locate(table, first, end, head, shape, places, at):
    """at[j] = where piece first + j has its keys, their scales, its values, their scales.

    Beyond piece `end` it is the last piece once more.
    """
    per, (k_rows, k_pair, v_line) = shape.block_size // shape.piece, places
    for j in range(len(at)):
        block, part = min(first + j, end - 1), 0
        if per > 1:
            block, part = divmod(block, per)
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


@lru_cache(maxsize=64)
def gather_kernel(plan: Plan) -> Any:
    """gather(planes, at, count, shapes, places, out): `count` small blocks as one large one."""
    k_whole, v_whole = plan.k_kind in INTEGERS, plan.v_kind in INTEGERS

    @kernel
    def gather(planes, at, count, shapes, places, out):
        (shape, near), (k_rows, k_pair, v_line) = shapes, places
        size, chunk = shape.block_size, shape.chunk
        gather_keys(planes.keys, at, count, shape, near, k_rows, k_pair, out.keys)
        gather_runs(planes.values, at, 2, count, 1, size * v_line, 0, out.values)
        if k_whole:
            gather_runs(planes.k_scales, at, 1, count, shape.k_groups, size, chunk, out.k_scales)
        if v_whole:
            gather_runs(planes.v_scales, at, 3, count, shape.v_groups, size, chunk, out.v_scales)

    return gather


@lru_cache(maxsize=64)
def room_kernel(plan: Plan) -> Any:
    """room(q, scale, v_scales, shape): an item's arrays, its queries in place."""
    k_whole, v_whole = plan.k_kind in INTEGERS, plan.v_kind in INTEGERS
    nibbles = plan.k_kind == INT4

    @kernel
    def room(q, scale, v_scales, shape):
        queries, chunk = shape.queries, shape.chunk
        q_scales = np.empty(queries * shape.k_groups, np.float32)
        q_sums = np.empty(queries * shape.k_groups, np.float32)
        if k_whole:
            numbers = np.empty(queries * shape.k_dim, np.int16)
            round_queries(q, scale, shape, nibbles, numbers, q_scales, q_sums)
        else:
            numbers = q * scale
        return Room(
            numbers, q_scales, q_sums,
            np.empty(queries * chunk, np.float32), np.empty(queries, np.float32),
            np.empty(queries * shape.v_groups * chunk if v_whole else 1, np.int16),
            np.empty(queries * shape.v_groups, np.float32),
            np.empty(queries * shape.v_groups, np.float32),
            np.empty(shape.v_groups * chunk, v_scales.dtype),
        )  # fmt: skip

    return room


@kernel
def soften_chunk(scores, visible, beyond, width, shape, out, tops, sums, peaks):
    """Weights in place of a chunk's scores; outputs and sums shrink where a maximum rises."""
    for r in range(shape.queries):
        old = tops[r]
        top, peaks[r], total = soften(scores, r * shape.chunk, visible, beyond, width, old)
        if top > old:
            factor = exp_of(old - top) if sums[r] > 0 else np.float32(0)
            rescale(out, r * shape.v_dim, shape.v_dim, factor)
            sums[r] *= factor
            tops[r] = top
        sums[r] += total


@lru_cache(maxsize=64)
def chunk_kernel(plan: Plan) -> Any:
    """chunk(planes, at, count, steady, bounds, shape, room, results): one chunk of positions.

    Positions bounds[0]..bounds[1] of the pieces `at` count.
    """
    score_chunk, weigh_chunk = score_chunk_kernel(plan), weigh_chunk_kernel(plan)
    whole = plan.v_kind in INTEGERS

    @kernel
    def chunk(planes, at, count, steady, bounds, shape, room, results):
        (low, high), (out, tops, sums) = bounds, results
        score_chunk(
            room.numbers, room.q_scales, room.q_sums, planes.keys, planes.k_scales, at, count,
            steady, shape, room.scores,
        )  # fmt: skip
        width = count * shape.piece
        if whole:
            for j in range(count):
                for g in range(shape.v_groups):
                    prefetch(planes.v_scales, at[j, 3] + g * shape.block_size, 0, 1, 1)
        soften_chunk(room.scores, low, high, width, shape, out, tops, sums, room.peaks)
        weigh_chunk(
            room.scores, room.peaks, planes.values, planes.v_scales, at, count, steady, low, high,
            shape, out, room.near_scales, room.weights, room.factors, room.lows,
        )  # fmt: skip

    return chunk


@lru_cache(maxsize=64)
def item_kernel(plan: Plan) -> Any:
    """item(q, scale, planes, table, span, shapes, results): all queries of one KV head.

    `span`: the head, its blocks begin..end, visible positions low..high; of one sequence.
    """
    room_of, chunk_of, gather = room_kernel(plan), chunk_kernel(plan), gather_kernel(plan)
    k_pack, v_pack, pair = pack_of(plan.k_kind), pack_of(plan.v_kind), pair_of(plan.k_kind)
    gathered = plan.gathered
    streams = plan.k_kind == F32 and plan.v_kind == F32

    @kernel
    def item(q, scale, planes, table, span, shapes, results):
        (shape, near), (out, tops, sums) = shapes, results
        (head, begin, end, low, high), piece = span, shape.piece
        places = shape.k_dim // k_pack, pair, shape.v_dim // v_pack
        room = room_of(q, scale, planes.v_scales, near)
        out[:] = 0.0
        tops[:] = -np.inf
        sums[:] = 0.0
        at, per = np.zeros((2 * shape.pieces, 4), np.int64), shape.block_size // piece
        if gathered:
            wide = shape.chunk
            nearby = Planes(
                np.zeros(places[0] * wide, planes.keys.dtype),
                np.zeros(shape.k_groups * wide, planes.k_scales.dtype),
                np.zeros(places[2] * wide, planes.values.dtype),
                np.zeros(shape.v_groups * wide, planes.v_scales.dtype),
            )
            start = np.zeros((2, 4), np.int64)
        first, last = max(begin * per, low // piece), min(end * per, -(-high // piece))
        for p in range(first, last, shape.pieces):
            count = min(shape.pieces, last - p)
            locate(table, p, last, head, shape, places, at)
            bounds = max(0, low - p * piece), min(high - p * piece, count * piece)
            if gathered:
                gather(planes, at, count, shapes, places, nearby)
                chunk_of(nearby, start, 1, True, bounds, near, room, results)
            else:
                steady = streams and shape.queries == 1 and in_order(table, p, p + count, per)
                chunk_of(planes, at, count, steady, bounds, shape, room, results)

    return item


@lru_cache(maxsize=64)
def kernels(plan: Plan) -> Any:
    """run(..., start, step): every `step`-th item from `start` on, one thread's share."""
    item = item_kernel(plan)

    @entry
    def run(
        q, scale, keys, k_scales, values, v_scales, tables, items, shape, near, out, tops, sums,
        marks, start, step,
    ):  # fmt: skip
        ticket = begin(marks, start)
        planes, shapes = Planes(keys, k_scales, values, v_scales), (shape, near)
        for i in range(start, items.shape[0], step):
            s, head, first, last, low, high = items[i]
            span, results = (head, first, last, low, high), (out[i], tops[i], sums[i])
            item(q[s, head], scale, planes, tables[s], span, shapes, results)
        end(marks, start, step, ticket)

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
