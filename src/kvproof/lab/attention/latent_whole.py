"""The latent kernel of int8 and int4: latents are widened to 16 bits and multiplied as integers.

One instruction takes sixteen products of 16-bit integers, where floats take eight; queries and
weights are rounded to 16 bits for it, as in `whole.py`: queries by the largest number of a head's
span, weights by the largest of a head's chunk, each times the scales of its group.
"""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# ruff: noqa: ANN001, ANN201, ANN202, PLR0913

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from kvproof.lab.attention.emit import WIDTH
from kvproof.lab.attention.latent_parts import (
    CHUNK,
    HEADS,
    ROWS,
    TOKENS,
    VALUES,
    VECTORS,
    asked,
    each_of,
    soften_chunk,
)
from kvproof.lab.attention.shapes import kernel, pack_of
from kvproof.lab.attention.stored import INT4, stored_whole
from kvproof.lab.attention.tiles import (
    tile_add_each,
    tile_add_scaled,
    tile_add_whole,
    tile_fma_outer,
    tile_load,
    tile_load_pairs,
    tile_scale_rows,
    tile_store,
    tile_store_pairs,
    tile_zero_whole,
    tile_zip,
)
from kvproof.lab.attention.vectors import (
    address,
    as_float,
    splat,
    vfma,
    vload,
    vmax,
    vmul,
    vstore,
    vstore_pairs,
)
from kvproof.lab.attention.whole import LARGEST, TINY

SPAN = 96  # numbers of a latent, of one group, that are summed as integers: at most


class Room(NamedTuple):
    """Pointers to what an item works in.

    queries [pair of numbers, head, 2] and latents [position, number] in 16 bits, values [pair of
    positions, number, 2]; units and totals [span, head] of queries; scales and minima [group,
    position]; scores [position, head]; weights [group, pair of positions, head] as pairs, what a
    unit of them is worth and what minima add [group, head]; peaks of weights [head] and what makes
    them LARGEST.
    """

    queries: Any
    latents: Any
    values: Any
    units: Any
    totals: Any
    scales: Any
    minima: Any
    scores: Any
    weights: Any
    worth: Any
    lows: Any
    factors: Any
    peaks: Any
    inverses: Any


@kernel
def span_of(shape):
    """Numbers of a span: an even divisor of a group."""
    group, size = shape.width // shape.groups, SPAN
    while group % size or size % 2:
        size -= 1
    return size


@kernel
def small_part(shape):
    """Numbers of the largest of a room's small parts."""
    spans = shape.width // span_of(shape)
    return max(spans * shape.heads, shape.groups * CHUNK)


@kernel
def own(shape):
    """The arrays behind a room: of 16 bits, of 32, of floats."""
    pairs = shape.width * shape.heads + CHUNK * shape.width + CHUNK * shape.v_dim
    return (
        np.zeros(pairs, np.int16),
        np.zeros(shape.groups * CHUNK // 2 * shape.heads, np.int32),
        np.zeros(CHUNK * shape.heads + 9 * small_part(shape), np.float32),
    )


@kernel
def carve(owned, shape):
    """The room in these arrays."""
    whole, weights, floats = address(owned[0], 0), address(owned[1], 0), address(owned[2], 0)
    latents = address(whole, shape.width * shape.heads)
    small, step = address(floats, CHUNK * shape.heads), small_part(shape)
    return Room(
        whole, latents, address(latents, CHUNK * shape.width), small, address(small, step),
        address(small, 2 * step), address(small, 3 * step), floats, weights,
        address(small, 4 * step), address(small, 5 * step), address(small, 6 * step),
        address(small, 7 * step), address(small, 8 * step),
    )  # fmt: skip


@kernel
def turn(q, scale, shape, room):
    """The room's queries, units and totals, of q [head, number] * scale."""
    span, heads = span_of(shape), shape.heads
    for h in range(shape.kept):
        for s in range(shape.width // span):
            largest, total, start = np.float32(0), np.float32(0), h * shape.width + s * span
            for d in range(start, start + span):
                largest = max(largest, abs(q[d]))
                total += q[d]
            inverse = LARGEST / largest if largest > TINY else np.float32(0)
            for d in range(s * span, (s + 1) * span):
                number = np.int16(np.rint(q[h * shape.width + d] * inverse))
                room.queries[(d // 2 * heads + h) * 2 + d % 2] = number
            room.units[s * heads + h] = largest / LARGEST * scale
            room.totals[s * heads + h] = total * scale


@lru_cache(maxsize=2)
def unpack_kernel(kind: int) -> Any:
    """unpack(data, scales, table, first, count, shape, room): a chunk of latents to the room.

    Positions from `count` on, up to a whole tile, have scales of 0.
    """
    pack = pack_of(kind)

    @kernel
    def unpack(data, scales, table, first, count, shape, room):
        size, width, groups = shape.block_size, shape.width, shape.groups
        for t in range(count):
            block, offset = divmod(first + t, size)
            place = (table[block] * size + offset) * (width // pack)
            for d in range(0, width, 2 * WIDTH):
                numbers = stored_whole(data, place + d // pack, kind)
                tile_store_pairs(room.latents, t * width + d, numbers)
            for g in range(groups):
                scale = scales[(table[block] * groups + g) * size + offset]
                if kind == INT4:
                    bits = np.uint32(scale)
                    room.scales[g * CHUNK + t] = as_float(bits & np.uint32(0xFFFF0000))
                    room.minima[g * CHUNK + t] = as_float(bits << np.uint32(16))
                else:
                    room.scales[g * CHUNK + t] = scale
        for t in range(count, -(-count // TOKENS) * TOKENS):
            for g in range(groups):
                room.scales[g * CHUNK + t] = room.minima[g * CHUNK + t] = np.float32(0)
        for t in range(0, count, 2):
            for d in range(0, shape.v_dim, 2 * WIDTH):
                two = tile_load_pairs(room.latents, t * width + d, width, 2, 1)
                tile_store_pairs(room.values, t * shape.v_dim + 2 * d, tile_zip(two))

    return unpack


@lru_cache(maxsize=2)
def score_kernel(kind: int) -> Any:
    """score(room, count, shape): scores of `count` positions, rounded up to whole tiles."""
    tile = TOKENS * HEADS

    @kernel
    def score(room, count, shape):
        heads, width, span = shape.heads, shape.width, span_of(shape)
        for i in range(-(-count // TOKENS) * TOKENS * heads):
            room.scores[i] = np.float32(0)
        for s in range(width // span):
            g = s * span // (width // shape.groups) * CHUNK
            for h in range(0, heads, HEADS * WIDTH):
                for t in range(0, count, TOKENS):
                    acc = tile_zero_whole(tile)
                    for d in range(s * span, (s + 1) * span, 2):
                        queries = tile_load_pairs(room.queries, d * heads + 2 * h, 0, 1, HEADS)
                        acc = tile_fma_outer(acc, room.latents, t * width + d, width, queries)
                    total = tile_load(room.scores, t * heads + h, heads, TOKENS, HEADS)
                    units = tile_load(room.units, s * heads + h, 0, 1, HEADS)
                    total = tile_add_scaled(total, acc, units, room.scales, g + t, 1)
                    if kind == INT4:
                        totals = tile_load(room.totals, s * heads + h, 0, 1, HEADS)
                        total = tile_fma_outer(total, room.minima, g + t, 1, totals)
                    tile_store(room.scores, t * heads + h, heads, HEADS, total)

    return score


@kernel
def peaks_of(room, count, shape):
    """Each head's largest weight of a chunk, and what makes it LARGEST."""
    for h in range(0, shape.heads, WIDTH):
        peak = splat(np.float32(0))
        for t in range(count):
            peak = vmax(peak, vload(room.scores, t * shape.heads + h))
        vstore(room.peaks, h, peak)
    for h in range(shape.heads):
        peak = room.peaks[h]
        room.inverses[h] = LARGEST / peak if peak > TINY else np.float32(0)


@lru_cache(maxsize=2)
def fold_kernel(kind: int) -> Any:
    """fold(room, count, shape): weights as integers, their worth, and what the minima add."""

    @kernel
    def fold(room, count, shape):
        heads, group = shape.heads, shape.width // shape.groups
        peaks_of(room, count, shape)
        if count % 2:
            for h in range(heads):
                room.scores[count * heads + h] = np.float32(0)
        for g in range(-(-shape.v_dim // group)):
            scales, most = address(room.scales, g * CHUNK), TINY
            for t in range(count):
                most = max(most, scales[t])
            for h in range(0, heads, WIDTH):
                inverse, low = vload(room.inverses, h), splat(np.float32(0))
                for t in range(0, count, 2):
                    one = vload(room.scores, t * heads + h)
                    two = vload(room.scores, (t + 1) * heads + h)
                    if kind == INT4:
                        low = vfma(one, splat(room.minima[g * CHUNK + t]), low)
                        low = vfma(two, splat(room.minima[g * CHUNK + t + 1]), low)
                    vstore_pairs(
                        room.weights, (g * CHUNK // 2 + t // 2) * heads + h,
                        vmul(vmul(one, inverse), splat(scales[t] / most)),
                        vmul(vmul(two, inverse), splat(scales[t + 1] / most)),
                    )  # fmt: skip
                worth = vmul(vload(room.peaks, h), splat(most / LARGEST))
                vstore(room.worth, g * heads + h, worth)
                if kind == INT4:
                    vstore(room.lows, g * heads + h, low)

    return fold


@lru_cache(maxsize=2)
def weigh_kernel(kind: int) -> Any:
    """weigh(room, count, data, table, state, shape, out): as that of floats."""
    ask, each_turn, tile = asked(kind), each_of(kind), ROWS * VECTORS

    @kernel
    def weigh(room, count, data, table, state, shape, out):
        heads, group = shape.heads, shape.width // shape.groups
        each = each_turn(state[3] - state[0], heads * shape.v_dim // (ROWS * VALUES), shape)
        for j in range(0, shape.v_dim, VALUES):
            g = j // group
            for h in range(0, heads, ROWS):
                state = ask(data, table, state, each, shape)
                acc = tile_zero_whole(tile)
                for t in range(0, count, 2):
                    w = (g * CHUNK // 2 + t // 2) * heads + h
                    numbers = tile_load_pairs(room.values, t * shape.v_dim + 2 * j, 0, 1, VECTORS)
                    acc = tile_fma_outer(acc, room.weights, w, 1, numbers)
                at = j * heads + h * VALUES
                total = tile_load(out, at, VALUES, ROWS, VECTORS)
                total = tile_scale_rows(total, room.factors, h, VECTORS)
                total = tile_add_whole(total, acc, room.worth, g * heads + h, 1, VECTORS)
                if kind == INT4:
                    total = tile_add_each(total, room.lows, g * heads + h, 1, VECTORS)
                tile_store(out, at, VALUES, VECTORS, total)

    return weigh


@lru_cache(maxsize=2)
def item_kernel(kind: int) -> Any:
    """item(room, data, scales, table, low, high, shape, out, tops, sums): positions low..high."""
    unpack, score = unpack_kernel(kind), score_kernel(kind)
    fold, weigh = fold_kernel(kind), weigh_kernel(kind)

    @kernel
    def item(room, data, scales, table, low, high, shape, out, tops, sums):
        for first in range(low, high, CHUNK):
            count = min(CHUNK, high - first)
            unpack(data, scales, table, first, count, shape, room)
            score(room, count, shape)
            soften_chunk(room.scores, count, shape, tops, sums, room.factors)
            fold(room, count, shape)
            state = first + count, -1, 0, min(high, first + count + CHUNK)
            weigh(room, count, data, table, state, shape, out)

    return item
