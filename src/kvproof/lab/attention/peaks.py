"""The machine's two ceilings, by the same vector code as the kernels: reads and multiply-adds."""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# ruff: noqa: ANN001, ANN201, ANN202

from __future__ import annotations

import numpy as np
from numba import njit, prange

from kvproof.lab.attention.emit import WIDTH
from kvproof.lab.attention.tiles import (
    tile_fma,
    tile_fma_outer,
    tile_fold,
    tile_load,
    tile_store,
    tile_zero,
)
from kvproof.lab.attention.vectors import LINE, prefetch, splat

READS = 8  # vectors in flight
READ_SPAN = READS * WIDTH
LINES = READ_SPAN * 4 // LINE


@njit(nogil=True)
def _read(data, low, high, ahead, out):
    total = tile_zero(READS)
    one = splat(np.float32(1))
    for i in range(low, high - READ_SPAN + 1, READ_SPAN):
        if ahead != 0:
            prefetch(data, i + ahead, LINE // 4, LINES, 1)
        total = tile_fma(total, tile_load(data, i, 0, 1, READS), one)
    tile_store(out, 0, WIDTH, 1, tile_fold(total, 1))


@njit(nogil=True)
def _read_two(data, low, high, out):
    """Two halves side by side; nothing is asked for."""
    half, total, one = (high - low) // 2, tile_zero(READS), splat(np.float32(1))
    for i in range(low, low + half - READ_SPAN + 1, READ_SPAN):
        total = tile_fma(total, tile_load(data, i, 0, 1, READS), one)
        total = tile_fma(total, tile_load(data, i + half, 0, 1, READS), one)
    tile_store(out, 0, WIDTH, 1, tile_fold(total, 1))


@njit(nogil=True, parallel=True)
def read_two_loop(data, parts):
    """Read every number of `data` once, in `parts` parallel parts, two runs of memory in each."""
    out = np.empty((parts, WIDTH), np.float32)
    size = data.size // parts
    for i in prange(parts):
        _read_two(data, i * size, (i + 1) * size, out[i])
    return out[0, 0]


@njit(nogil=True, parallel=True)
def read_loop(data, parts, ahead):
    """Read every number of `data` once, in `parts` parallel parts, asking `ahead` numbers ahead."""
    out = np.empty((parts, WIDTH), np.float32)
    size = data.size // parts
    for i in prange(parts):
        _read(data, i * size, (i + 1) * size, ahead, out[i])
    return out[0, 0]


SUMS = 10  # enough to hide the latency, few enough for 16 registers


@njit(nogil=True)
def _multiply(steps, scalars, numbers, out):
    tile = tile_zero(SUMS)
    vector = tile_load(numbers, 0, 0, 1, 1)
    for _ in range(steps):
        tile = tile_fma_outer(tile, scalars, 0, 0, vector)
    tile_store(out, 0, WIDTH, 1, tile_fold(tile, 1))


@njit(nogil=True, parallel=True)
def fma_loop(steps, parts):
    """`steps` times SUMS vector multiply-adds in each part; returns how many numbers that were."""
    scalars, numbers = np.full(8, 1e-6, np.float32), np.full(WIDTH, 1e-6, np.float32)
    out = np.empty((parts, WIDTH), np.float32)
    for i in prange(parts):
        _multiply(steps, scalars, numbers, out[i])
    return steps * SUMS * WIDTH * parts
