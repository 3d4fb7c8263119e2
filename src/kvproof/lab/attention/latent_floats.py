"""The latent kernel of floats: latents are widened to f32."""

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
    row_of,
    soften_chunk,
)
from kvproof.lab.attention.shapes import kernel
from kvproof.lab.attention.stored import stored
from kvproof.lab.attention.tiles import tile_fma_outer, tile_load, tile_scale_rows, tile_store
from kvproof.lab.attention.vectors import address

DEPTH = 96  # numbers of latents that meet queries at a time: both fit the first cache
PART = (CHUNK + 1) * VALUES  # from one part of a chunk's latents to the next; not a power of two


class Room(NamedTuple):
    """Pointers to what an item works in: turned queries [number, head], widened latents [part,
    position, number of VALUES], scores [position, head], what old outputs shrink by."""

    queries: Any
    latents: Any
    scores: Any
    factors: Any


@kernel
def own(shape):
    """The arrays behind a room."""
    return (
        np.zeros(shape.width * shape.heads, np.float32),
        np.zeros(shape.width // VALUES * PART, np.float32),
        np.zeros(CHUNK * shape.heads, np.float32),
        np.zeros(shape.heads, np.float32),
    )


@kernel
def carve(owned, shape):
    """The room in these arrays."""
    return Room(
        address(owned[0], 0), address(owned[1], 0), address(owned[2], 0), address(owned[3], 0)
    )


@kernel
def turn(q, scale, shape, room):
    """The room's queries: q [head, number] * scale, turned; heads beyond the real ones are 0."""
    for h in range(shape.kept):
        for d in range(shape.width):
            room.queries[d * shape.heads + h] = q[h * shape.width + d] * scale


@lru_cache(maxsize=8)
def unpack_kernel(kind: int) -> Any:
    """unpack(data, place, shape, out, at): one latent as f32, its parts PART apart from `at` on."""

    @kernel
    def unpack(data, place, shape, out, at):
        for d in range(0, shape.width, VALUES):
            numbers = stored(data, place + d, WIDTH, VECTORS, kind)
            tile_store(out, at + d // VALUES * PART, 0, VECTORS, numbers)

    return unpack


@kernel
def score_chunk(q, latents, count, shape, scores):
    """scores[t, head] of `count` positions (rounded up to whole tiles)."""
    heads = shape.heads
    for i in range(-(-count // TOKENS) * TOKENS * heads):
        scores[i] = np.float32(0)
    for first in range(0, shape.width, DEPTH):
        for h in range(0, heads, HEADS * WIDTH):
            for t in range(0, count, TOKENS):
                acc = tile_load(scores, t * heads + h, heads, TOKENS, HEADS)
                for d in range(first, min(first + DEPTH, shape.width), VALUES):
                    place = d // VALUES * PART + t * VALUES
                    for i in range(VALUES):
                        queries = tile_load(q, (d + i) * heads + h, 0, 1, HEADS)
                        acc = tile_fma_outer(acc, latents, place + i, VALUES, queries)
                tile_store(scores, t * heads + h, heads, HEADS, acc)


@lru_cache(maxsize=8)
def weigh_kernel(kind: int) -> Any:
    """weigh(room, count, data, table, state, shape, out).

    out[head] = out[head] * factor + weights times the values of the chunk. Meanwhile the stored
    latents of `state`, the next chunk's, are asked for.
    """
    ask, each_turn = asked(kind), each_of(kind)

    @kernel
    def weigh(room, count, data, table, state, shape, out):
        heads = shape.heads
        each = each_turn(state[3] - state[0], heads * shape.v_dim // (ROWS * VALUES), shape)
        for j in range(0, shape.v_dim, VALUES):
            for h in range(0, heads, ROWS):
                state = ask(data, table, state, each, shape)
                at = j * heads + h * VALUES
                acc = tile_load(out, at, VALUES, ROWS, VECTORS)
                acc = tile_scale_rows(acc, room.factors, h, VECTORS)
                for t in range(count):
                    place = j // VALUES * PART + t * VALUES
                    numbers = tile_load(room.latents, place, 0, 1, VECTORS)
                    acc = tile_fma_outer(acc, room.scores, t * heads + h, 1, numbers)
                tile_store(out, at, VALUES, VECTORS, acc)

    return weigh


@lru_cache(maxsize=8)
def item_kernel(kind: int) -> Any:
    """item(room, data, scales, table, low, high, shape, out, tops, sums): positions low..high."""
    unpack, weigh = unpack_kernel(kind), weigh_kernel(kind)

    @kernel
    def item(room, data, scales, table, low, high, shape, out, tops, sums):
        for first in range(low, high, CHUNK):
            count = min(CHUNK, high - first)
            for t in range(count):
                place = row_of(table, first + t, shape) * shape.width
                unpack(data, place, shape, room.latents, t * VALUES)
            score_chunk(room.queries, room.latents, count, shape, room.scores)
            soften_chunk(room.scores, count, shape, tops, sums, room.factors)
            state = first + count, -1, 0, min(high, first + count + CHUNK)
            weigh(room, count, data, table, state, shape, out)

    return item
