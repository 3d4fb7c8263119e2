"""Decode attention over latents (MLA, absorbed): every query head reads the same one vector.

With 32 or more heads on one stored vector there are more multiply-adds than bytes, so this kernel
turns the roles around: 16 query heads a vector, a chunk of latents dequantised once into a small
f32 buffer, and both products run from it. Keys are the whole latent with its rotary part, values
its first numbers; nothing is expanded. Absorption: DeepSeek-V2, 2024.
"""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# ruff: noqa: ANN001, ANN201, ANN202, PLR0913

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from kvproof.lab.attention.crew import begin, end
from kvproof.lab.attention.disk import kept
from kvproof.lab.attention.emit import WIDTH
from kvproof.lab.attention.shapes import entry, kernel, pack_of
from kvproof.lab.attention.stored import INT4, INT8, STORED_BYTES, stored
from kvproof.lab.attention.tiles import (
    tile_exp,
    tile_fma,
    tile_fma_outer,
    tile_larger,
    tile_load,
    tile_scale,
    tile_scale_rows,
    tile_store,
    tile_times,
    tile_zero,
)
from kvproof.lab.attention.vectors import LINE, address, as_float, prefetch, splat

CHUNK = 64  # latents dequantised at a time: they, the queries and the outputs fit the second cache
DEPTH = 96  # numbers of latents that meet queries at a time: both fit the first cache
TOKENS, HEADS = 4, 2  # score tile: positions x vectors of heads
ROWS, VECTORS = 4, 2  # value tile: heads x vectors of numbers
SCORE_TILE = TOKENS * HEADS
VALUES = VECTORS * WIDTH  # outputs are [part, head, number of VALUES]


class LatentShape(NamedTuple):
    """Sizes at run time: heads (a multiple of 32), widths of keys and values, the block."""

    heads: int
    width: int
    v_dim: int
    block_size: int
    groups: int


@lru_cache(maxsize=8)
def unpack_kernel(kind: int) -> Any:
    """unpack(data, scales, block, offset, shape, out, place): one latent as f32.

    int4 leaves the even numbers of each 16 before the odd ones; queries come in that order too.
    """
    vectors = pack = pack_of(kind)
    span = vectors * WIDTH

    @kernel
    def unpack(data, scales, block, offset, shape, out, place):
        group = shape.width // shape.groups
        at = (block * shape.block_size + offset) * (shape.width // pack)
        for d in range(0, shape.width, span):
            numbers = stored(data, at + d // pack, WIDTH, vectors, kind)
            s = (block * shape.groups + d // group) * shape.block_size + offset
            if kind == INT8:
                numbers = tile_scale(numbers, scales[s], np.float32(0))
            elif kind == INT4:
                pair = np.uint32(scales[s])
                numbers = tile_scale(
                    numbers, as_float(pair & np.uint32(0xFFFF0000)), as_float(pair << np.uint32(16))
                )
            tile_store(out, place + d, WIDTH, vectors, numbers)

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
                for d in range(first, min(first + DEPTH, shape.width)):
                    queries = tile_load(q, d * heads + h, 0, 1, HEADS)
                    place = t * shape.width + d
                    acc = tile_fma_outer(acc, latents, place, shape.width, queries)
                tile_store(scores, t * heads + h, heads, HEADS, acc)


@kernel
def soften_chunk(scores, count, shape, tops, sums, factors):
    """Weights in place of scores, the heads of a tile at once; what old outputs shrink by."""
    heads, one = shape.heads, splat(np.float32(1))
    for h in range(0, heads, HEADS * WIDTH):
        old = tile_load(tops, h, 0, 1, HEADS)
        top = old
        for t in range(count):
            top = tile_larger(top, tile_load(scores, t * heads + h, 0, 1, HEADS))
        total = tile_zero(HEADS)
        for t in range(count):
            weight = tile_exp(tile_load(scores, t * heads + h, 0, 1, HEADS), top)
            tile_store(scores, t * heads + h, 0, HEADS, weight)
            total = tile_fma(total, weight, one)
        factor = tile_exp(old, top)
        total = tile_fma(total, tile_times(tile_load(sums, h, 0, 1, HEADS), factor), one)
        tile_store(sums, h, 0, HEADS, total)
        tile_store(tops, h, 0, HEADS, top)
        tile_store(factors, h, 0, HEADS, factor)


@lru_cache(maxsize=8)
def weigh_kernel(kind: int) -> Any:
    """weigh(scores, latents, count, shape, factors, out, data, ask, end, table).

    out[head] = out[head] * factor + weights times the values of the chunk. Meanwhile the stored
    latents ask..end, the next chunk's, are asked for.
    """
    pack, line = pack_of(kind), LINE // STORED_BYTES[kind]

    @kernel
    def weigh(scores, latents, count, shape, factors, out, data, ask, end, table):
        heads, size = shape.heads, shape.block_size
        row = shape.width // pack
        lines = -(-(end - ask) * row // line)
        each = -(-lines * ROWS * VALUES // (heads * shape.v_dim))
        place = done = 0
        for j in range(0, shape.v_dim, VALUES):
            for h in range(0, heads, ROWS):
                for _ in range(each):
                    if done == 0 and ask < end:
                        place = (table[ask // size] * size + ask % size) * row
                    if ask < end:
                        prefetch(data, place + done, 0, 1, 1)
                        done += line
                        if done >= row:
                            done, ask = 0, ask + 1
                at = j * heads + h * VALUES
                acc = tile_load(out, at, VALUES, ROWS, VECTORS)
                acc = tile_scale_rows(acc, factors, h, VECTORS)
                for t in range(count):
                    numbers = tile_load(latents, t * shape.width + j, 0, 1, VECTORS)
                    acc = tile_fma_outer(acc, scores, t * heads + h, 1, numbers)
                tile_store(out, at, VALUES, VECTORS, acc)

    return weigh


@lru_cache(maxsize=8)
def latent_kernels(kind: int) -> Any:
    """run(..., start, step): every `step`-th item of latents from `start` on."""
    unpack, weigh = unpack_kernel(kind), weigh_kernel(kind)

    @kernel
    def item(q, data, scales, table, low, high, shape, out, tops, sums, room):
        latents, scores, factors = room
        for first in range(low, high, CHUNK):
            count = min(CHUNK, high - first)
            for t in range(count):
                block, offset = divmod(first + t, shape.block_size)
                unpack(data, scales, table[block], offset, shape, latents, t * shape.width)
            score_chunk(q, latents, count, shape, scores)
            soften_chunk(scores, count, shape, tops, sums, factors)
            ask, end = first + count, min(high, first + count + CHUNK)
            weigh(scores, latents, count, shape, factors, out, data, ask, end, table)

    @entry
    def run(q, data, scales, tables, items, shape, out, tops, sums, marks, start, step):
        ticket = begin(marks, start)
        latents = np.zeros(CHUNK * shape.width, np.float32)
        scores = np.empty(CHUNK * shape.heads, np.float32)
        factors = np.empty(shape.heads, np.float32)
        room = address(latents, 0), address(scores, 0), address(factors, 0)
        stored, scaled, total = address(data, 0), address(scales, 0), shape.heads * shape.v_dim
        for i in range(start, items.shape[0], step):
            s, low, high = items[i, 0], items[i, 4], items[i, 5]
            out[i] = 0.0
            tops[i] = -1e30
            sums[i] = 0.0
            item(
                address(q, s * shape.width * shape.heads), stored, scaled,
                address(tables, s * tables.shape[1]), low, high, shape, address(out, i * total),
                address(tops, i * shape.heads), address(sums, i * shape.heads), room,
            )  # fmt: skip
        end(marks, start, step, ticket)
        # Their last use: what the pointers point to lives until here.
        return len(latents) + len(scores) + len(factors)

    return kept(run, kind)
