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

from kvproof.lab.attention.crew import begin, end, take
from kvproof.lab.attention.disk import kept
from kvproof.lab.attention.emit import WIDTH
from kvproof.lab.attention.gather import copy_value, gather_kernel
from kvproof.lab.attention.job import COUNT, ITEM, ITEMS, SIZES, TABLES, WIDEST, shape_of
from kvproof.lab.attention.merge import NOTHING, Found, merge, same_head
from kvproof.lab.attention.scores import BATCH, score_chunk_kernel, soften_kernel
from kvproof.lab.attention.shapes import RUN, Plan, Shape, entry, kernel
from kvproof.lab.attention.stored import ARRAYS, INT4, INTEGERS, SCALES, pair_of
from kvproof.lab.attention.values import asking_of, weigh_kernel, width_of
from kvproof.lab.attention.vectors import address, pointer_to, vload, vsum
from kvproof.lab.attention.whole import fold_kernel, round_queries
from kvproof.lab.pool.planes import TILE


class Planes(NamedTuple):
    """Pointers to what a slot stores, and to what it is scaled by."""

    keys: Any
    k_scales: Any
    values: Any
    v_scales: Any


class Room(NamedTuple):
    """Pointers to what an item works in; `numbers` are its queries as they are multiplied."""

    numbers: Any
    weights: Any
    scores: Any
    q_scales: Any
    q_sums: Any
    peaks: Any
    sums: Any
    factors: Any
    lows: Any
    scales: Any
    minima: Any


class Owned(NamedTuple):
    """The arrays behind a room and what else a thread works in: pointers do not keep them."""

    numbers: Any
    weights: Any
    scores: Any
    floats: Any
    places: Any
    spare: Any


@kernel
def small_part(shape):
    """Numbers of the largest of a room's small parts."""
    factors = -(-shape.chunk // RUN) * shape.v_groups
    return max(shape.queries * max(BATCH, shape.k_groups, factors), shape.chunk)


@lru_cache(maxsize=64)
def own_kernel(plan: Plan) -> Any:
    """own(shape, widest): arrays for tables of up to `widest` blocks."""
    k_whole, v_whole = plan.k_kind in INTEGERS, plan.v_kind in INTEGERS
    v_type = ARRAYS[plan.v_kind]

    @kernel
    def own(shape, widest):
        queries, chunk = shape.queries, shape.chunk
        scores = np.empty(queries * chunk, np.float32)
        if k_whole:
            numbers = np.empty(queries * shape.k_dim, np.int16)
        else:
            numbers = np.empty(queries * shape.k_dim, np.float32)
        weights = np.empty(queries * shape.v_groups * chunk, np.int16) if v_whole else scores
        tiles = max(widest * shape.block_size // shape.tile, chunk) + 1
        return Owned(
            numbers, weights, scores, np.empty(8 * small_part(shape), np.float32),
            np.empty(tiles, np.int64), np.empty(max(TILE, shape.tile) * shape.v_rows, v_type),
        )  # fmt: skip

    return own


@kernel
def carve(owned, shape):
    """The room in these arrays; its small parts lie side by side in `floats`."""
    floats, step = address(owned.floats, 0), small_part(shape)
    return Room(
        address(owned.numbers, 0), address(owned.weights, 0), address(owned.scores, 0), floats,
        address(floats, step), address(floats, 2 * step), address(floats, 3 * step),
        address(floats, 4 * step), address(floats, 5 * step), address(floats, 6 * step),
        address(floats, 7 * step),
    )  # fmt: skip


@kernel
def in_tiles(shape):
    """The shape of a chunk that was copied together."""
    return Shape(
        shape.blocks, shape.heads, shape.queries, shape.k_dim, shape.v_dim, shape.k_rows,
        shape.v_rows, shape.k_groups, shape.v_groups, shape.block_size, TILE, shape.chunk,
    )  # fmt: skip


@kernel
def locate(table, first, last, head, shape, at):
    """at[j] = where, in positions, tile first + j of a table's blocks lies; the last once more."""
    size = shape.block_size
    for j in range(first, last):
        block, offset = divmod(j * shape.tile, size)
        at[j - first] = (head * shape.blocks + table[block]) * size + offset
    at[last - first] = at[last - first - 1]


@kernel
def fill(place, count, x):
    """place[:count] = x."""
    for i in range(count):
        place[i] = x


@lru_cache(maxsize=64)
def weigh_seen_kernel(plan: Plan) -> Any:
    """weigh_seen(room, planes, at, count, bounds, upcoming, shape, spare, out, tops).

    Adds the weighted values of positions bounds[0]..bounds[1] of a chunk's `count` tiles. Others
    have no weight, but may hold what is no number: a float's tile that is seen in part is copied.
    """
    weigh, whole = weigh_kernel(plan), plan.v_kind in INTEGERS
    fold, pair = fold_kernel(plan.v_kind), pair_of(plan.v_kind)
    ask_some = asking_of(plan).some

    @kernel
    def weigh_seen(room, planes, at, count, bounds, upcoming, shape, spare, out, tops):
        (low, high), tile = bounds, shape.tile
        if whole:
            for j in range(0, count, RUN // tile):
                ask_some(upcoming, at, 1 + j * tile // RUN, (tile, shape.k_rows))
                here, some = address(at, j), min(RUN // tile, count - j)
                fold(room, planes.v_scales, here, some, j * tile, bounds, shape)
            weigh(room, planes.values, at, 0, count, upcoming, shape, out)
        else:
            first, last = -(-low // tile), high // tile
            weigh(room, planes.values, at, first, last, upcoming, shape, out)
            for j in range(count):
                if j < first or j >= last:
                    fill(spare, tile * shape.v_rows, 0)
                    for t in range(max(0, low - j * tile), min(tile, high - j * tile)):
                        spot, place = (at[j] * shape.v_rows, tile, t, pair), (0, tile, t, pair)
                        copy_value(planes.values, spot, spare, place, shape.v_rows)
                    weigh(room, address(spare, -at[j] * shape.v_rows), at, j, j + 1,
                          (planes.keys, 0, 0), shape, out)  # fmt: skip

    return weigh_seen


class Desk(NamedTuple):
    """What a thread works with: its room, where tiles lie, spare tiles, copies of small blocks."""

    room: Room
    places: Any
    spare: Any
    near: Planes


@lru_cache(maxsize=64)
def item_kernel(plan: Plan) -> Any:
    """item(desk, planes, table, span, shape, out, tops): one KV head's queries.

    `span`: the head, its blocks begin..end, visible positions low..high; of one sequence.
    """
    score_chunk, soften = score_chunk_kernel(plan), soften_kernel(width_of(plan))
    weigh_seen, ask_some = weigh_seen_kernel(plan), asking_of(plan).some

    @kernel
    def item(desk, planes, table, span, shape, out, tops):
        head, begin, end, low, high = span
        room, at, tile, per = desk.room, desk.places, shape.tile, shape.block_size // shape.tile
        first, last = max(begin * per, low // tile), min(end * per, -(-high // tile))
        locate(table, first, last, head, shape, at)
        step = shape.chunk // tile
        for p in range(first, last, step):
            count, here = min(step, last - p), address(at, p - first)
            bounds = max(0, low - p * tile), min(high - p * tile, count * tile)
            score_chunk(room, planes, here, count, True, shape)
            upcoming = planes.keys, count, min(last - p, count + step)
            ask_some(upcoming, here, 0, (tile, shape.k_rows))
            soften(room, bounds[0], bounds[1], count * tile, shape, out, tops)
            weigh_seen(room, planes, here, count, bounds, upcoming, shape, desk.spare, out, tops)

    return item


@lru_cache(maxsize=64)
def near_item_kernel(plan: Plan) -> Any:
    """An item like `item_kernel`'s, of blocks too small for a vector: copied, a chunk at a time."""
    score_chunk, soften = score_chunk_kernel(plan), soften_kernel(width_of(plan))
    weigh_seen, gather = weigh_seen_kernel(plan), gather_kernel(plan)

    @kernel
    def item(desk, planes, table, span, shape, out, tops):
        head, begin, end, low, high = span
        room, at, near, chunk, size = (
            desk.room,
            desk.places,
            desk.near,
            shape.chunk,
            shape.block_size,
        )
        wide = in_tiles(shape)
        for j in range(chunk // TILE + 1):
            at[j] = j * TILE
        low, high = max(low, begin * size), min(high, end * size)
        for first in range(low, high, chunk):
            seen = min(chunk, high - first)
            count = -(-seen // TILE)
            gather(planes, table, head, first, seen, shape, near)
            score_chunk(room, near, at, count, False, wide)
            soften(room, 0, seen, count * TILE, wide, out, tops)
            bounds, none = (0, seen), (near.keys, 0, 0)
            weigh_seen(room, near, at, count, bounds, none, wide, desk.spare, out, tops)

    return item


@lru_cache(maxsize=64)
def query_kernel(plan: Plan) -> Any:
    """queries(q, scale, room, shape): an item's queries, as they are multiplied, to the room."""
    nibbles, whole = plan.k_kind == INT4, plan.k_kind in INTEGERS

    @kernel
    def queries(q, scale, room, shape):
        if whole:
            round_queries(q, scale, shape, nibbles, room.numbers, room.q_scales, room.q_sums)
        else:
            for i in range(shape.queries * shape.k_dim):
                room.numbers[i] = q[i] * scale

    return queries


@lru_cache(maxsize=64)
def whole_item_kernel(plan: Plan) -> Any:
    """do(i, part, job, q, scale, desk, planes, shape, found): item i, from its queries to its sums.

    `part`: the item whose sums this thread added to last, or -1. An item of the same head adds to
    them and leaves none of its own. Returns the item whose sums hold this one.
    """
    item = near_item_kernel(plan) if plan.gathered else item_kernel(plan)
    queries = query_kernel(plan)

    @kernel
    def do(i, part, job, q, scale, desk, planes, shape, found):
        items = pointer_to(job[ITEMS], np.int64)
        of, count, size = address(items, ITEM * i), shape.queries, shape.queries * shape.v_dim
        s, head, sums = of[0], of[1], desk.room.sums
        fill(address(found.tops, i * count), count, NOTHING)
        if not same_head(items, i, part):
            part = i
            fill(address(found.parts, i * size), size, np.float32(0))
            fill(sums, count * BATCH, np.float32(0))
            given = address(q, (s * shape.heads + head) * count * shape.k_dim)
            queries(given, scale, desk.room, shape)
        table = address(pointer_to(job[TABLES], np.int32), s * job[WIDEST])
        span, tops = (head, of[2], of[3], of[4], of[5]), address(found.tops, part * count)
        item(desk, planes, table, span, shape, address(found.parts, part * size), tops)
        for r in range(count):
            total = vsum(vload(sums, r * BATCH)) + vsum(vload(sums, r * BATCH + WIDTH))
            found.sums[part * count + r] = total
        return part

    return do


@lru_cache(maxsize=64)
def kernels(plan: Plan) -> Any:
    """run(job, q, out, scale, marks, me, number): a thread's part of a step's items (`job.py`).

    `q` [sequences, heads, k_dim] and `out` [sequences, heads, v_dim] are addresses of f32. Needs
    room for `needed` bytes.
    """
    do, own, copied = whole_item_kernel(plan), own_kernel(plan), int(plan.gathered)
    k_type, v_type = ARRAYS[plan.k_kind], ARRAYS[plan.v_kind]
    ks_type, vs_type = (SCALES.get(k, np.float32) for k in (plan.k_kind, plan.v_kind))
    width, pairs, first = width_of(plan), plan.v_kind == INT4, SIZES + len(Shape._fields)

    @entry
    def run(job, q, out, scale, marks, me, number):
        ticket, shape = begin(marks, me), shape_of(job)
        owned, queries, n = own(shape, job[WIDEST]), shape.queries, job[COUNT]
        planes = Planes(
            pointer_to(job[first], k_type), pointer_to(job[first + 1], ks_type),
            pointer_to(job[first + 2], v_type), pointer_to(job[first + 3], vs_type),
        )  # fmt: skip
        near_k = np.zeros(copied * shape.chunk * shape.k_rows, k_type)
        near_ks = np.zeros(copied * shape.chunk * shape.k_groups, ks_type)
        near_v = np.zeros(copied * shape.chunk * shape.v_rows, v_type)
        near_vs = np.zeros(copied * shape.chunk * shape.v_groups, vs_type)
        near = Planes(
            address(near_k, 0), address(near_ks, 0), address(near_v, 0), address(near_vs, 0)
        )
        places, spare = address(owned.places, 0), address(owned.spare, 0)
        desk, given = Desk(carve(owned, shape), places, spare, near), pointer_to(q, np.float32)
        parts = pointer_to(marks[2], np.float32)
        tops = address(parts, n * queries * shape.v_dim)
        found = Found(parts, tops, address(tops, n * queries))
        i, part = take(marks, number), -1
        while i < n:
            part = do(i, part, job, given, np.float32(scale), desk, planes, shape, found)
            i = take(marks, number)
        end(marks, me, number, ticket)
        if me == 0:
            items, target = pointer_to(job[ITEMS], np.int64), pointer_to(out, np.float32)
            merge(
                items, n, shape.heads, found, (queries, queries, shape.v_dim, width), pairs, target
            )
        # Their last use: what the pointers point to lives until here.
        return len(owned.numbers) + len(near_k) + len(near_ks) + len(near_v) + len(near_vs)

    return kept(run, plan)


def needed(items: int, queries: int, v_dim: int) -> int:
    """Bytes of room for what `items` items find."""
    return 4 * items * queries * (v_dim + 2)
