"""What the latent kernels of floats and of integers share."""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# ruff: noqa: ANN001, ANN201, ANN202

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from kvproof.lab.attention.emit import WIDTH
from kvproof.lab.attention.shapes import kernel, pack_of
from kvproof.lab.attention.stored import STORED_BYTES
from kvproof.lab.attention.tiles import (
    tile_exp,
    tile_fma,
    tile_larger,
    tile_load,
    tile_store,
    tile_times,
    tile_zero,
)
from kvproof.lab.attention.vectors import LINE, prefetch, splat

CHUNK = 64  # latents widened at a time: they, the queries and the outputs fit the second cache
TOKENS, HEADS = 4, 2  # score tile: positions x vectors of heads
HEAD_TILE = HEADS * WIDTH
ROWS, VECTORS = 4, 2  # value tile: heads x vectors of numbers
VALUES = VECTORS * WIDTH  # outputs are [part, head, number of VALUES]


class LatentShape(NamedTuple):
    """Sizes at run time: heads (whole score tiles), real ones, widths of keys and values, the
    block, groups of a latent."""

    heads: int
    kept: int
    width: int
    v_dim: int
    block_size: int
    groups: int


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


@kernel
def row_of(table, latent, shape):
    """Where a latent lies, in latents."""
    block, offset = divmod(latent, shape.block_size)
    return table[block] * shape.block_size + offset


@lru_cache(maxsize=8)
def asked(kind: int) -> Any:
    """ask(data, table, state, each, shape): ask for `each` lines more of the next latents.

    `state` (latent, its row or -1 if not looked up, done, end): the latent that is asked for, how
    much of it was, where they end; returns the next state.
    """
    pack, line = pack_of(kind), LINE // STORED_BYTES[kind]

    @kernel
    def ask(data, table, state, each, shape):
        (latent, row, done, end), width = state, shape.width // pack
        for _ in range(each):
            if latent < end:
                if row < 0:
                    row = row_of(table, latent, shape)
                prefetch(data, row * width + done, 0, 1, 1)
                done += line
                if done >= width:
                    latent, row, done = latent + 1, -1, 0
        return latent, row, done, end

    return ask


@lru_cache(maxsize=8)
def each_of(kind: int) -> Any:
    """each(count, turns, shape): lines to ask for in each of `turns`, so that all are asked for."""
    pack, line = pack_of(kind), LINE // STORED_BYTES[kind]

    @kernel
    def each(count, turns, shape):
        lines = count * -(-(shape.width // pack) // line)
        return -(-lines // turns)

    return each
