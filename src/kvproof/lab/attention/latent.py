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
from kvproof.lab.attention.emit import WIDTH
from kvproof.lab.attention.shapes import entry, kernel
from kvproof.lab.attention.stored import INT4, INT8, stored
from kvproof.lab.attention.tiles import (
    tile_fma_outer,
    tile_load,
    tile_scale,
    tile_store,
    tile_zero,
)
from kvproof.lab.attention.values import rescale
from kvproof.lab.attention.vectors import (
    as_float,
    splat,
    vadd,
    vexp,
    vload,
    vmax,
    vmul,
    vstore,
    vsub,
)

CHUNK = 32  # latents dequantised at a time
TOKENS, HEADS = 4, 2  # score tile: positions x vectors of heads
ROWS, VECTORS = 4, 2  # value tile: heads x vectors of numbers
SCORE_TILE = TOKENS * HEADS


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
    vectors = 2 if kind == INT4 else 1
    pack = 2 if kind == INT4 else 1
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
    for h in range(0, shape.heads, HEADS * WIDTH):
        for t in range(0, count, TOKENS):
            acc = tile_zero(SCORE_TILE)
            for d in range(shape.width):
                queries = tile_load(q, d * shape.heads + h, 0, 1, HEADS)
                acc = tile_fma_outer(acc, latents, t * shape.width + d, shape.width, queries)
            tile_store(scores, t * shape.heads + h, shape.heads, HEADS, acc)


@kernel
def soften_chunk(scores, count, shape, tops, sums, factors):
    """Weights in place of scores, all heads of a vector at once; what old outputs shrink by."""
    for h in range(0, shape.heads, WIDTH):
        old = vload(tops, h)
        top = old
        for t in range(count):
            top = vmax(top, vload(scores, t * shape.heads + h))
        total = splat(np.float32(0))
        for t in range(count):
            weight = vexp(vsub(vload(scores, t * shape.heads + h), top))
            vstore(scores, t * shape.heads + h, weight)
            total = vadd(total, weight)
        factor = vexp(vsub(old, top))
        vstore(sums, h, vadd(vmul(vload(sums, h), factor), total))
        vstore(tops, h, top)
        vstore(factors, h, factor)


@kernel
def weigh_chunk(scores, latents, count, shape, factors, out):
    """out[head] = out[head] * factor + weights times the values of the chunk."""
    for h in range(shape.heads):
        if factors[h] != np.float32(1):
            rescale(out, h * shape.v_dim, shape.v_dim, factors[h])
    for j in range(0, shape.v_dim, VECTORS * WIDTH):
        for h in range(0, shape.heads, ROWS):
            acc = tile_load(out, h * shape.v_dim + j, shape.v_dim, ROWS, VECTORS)
            for t in range(count):
                numbers = tile_load(latents, t * shape.width + j, 0, 1, VECTORS)
                acc = tile_fma_outer(acc, scores, t * shape.heads + h, 1, numbers)
            tile_store(out, h * shape.v_dim + j, shape.v_dim, VECTORS, acc)


@lru_cache(maxsize=8)
def latent_kernels(kind: int) -> Any:
    """run(..., start, step): every `step`-th item of latents from `start` on."""
    unpack = unpack_kernel(kind)

    @kernel
    def item(q, data, scales, table, low, high, shape, out, tops, sums):
        latents = np.zeros(CHUNK * shape.width, np.float32)
        scores = np.zeros(CHUNK * shape.heads, np.float32)
        factors = np.empty(shape.heads, np.float32)
        out[:] = 0.0
        tops[:] = -1e30
        sums[:] = 0.0
        for first in range(low, high, CHUNK):
            count = min(CHUNK, high - first)
            for t in range(count):
                block, offset = divmod(first + t, shape.block_size)
                unpack(data, scales, table[block], offset, shape, latents, t * shape.width)
            score_chunk(q, latents, count, shape, scores)
            soften_chunk(scores, count, shape, tops, sums, factors)
            weigh_chunk(scores, latents, count, shape, factors, out)

    @entry
    def run(q, data, scales, tables, items, shape, out, tops, sums, marks, start, step):
        ticket = begin(marks, start)
        for i in range(start, items.shape[0], step):
            s, low, high = items[i, 0], items[i, 4], items[i, 5]
            item(q[s], data, scales, tables[s], low, high, shape, out[i], tops[i], sums[i])
        end(marks, start, step, ticket)

    return run
