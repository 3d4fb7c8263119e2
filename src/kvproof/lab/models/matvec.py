"""Matrix times vector for decode steps: one token's row through a weight matrix, read once.

A decode step of one sequence is limited by reading weights; torch's general matrix product does
not reach the memory's speed on one row of bf16. Eight rows of the matrix share each vector of the
input. Sums are in f32 whatever is stored.
"""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# ruff: noqa: ANN001, ANN202

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numba import njit, prange

from kvproof.lab.attention import threads
from kvproof.lab.attention.emit import WIDTH as LANES
from kvproof.lab.attention.stored import BF16, F32, stored
from kvproof.lab.attention.tiles import tile_fma, tile_sums, tile_zero
from kvproof.lab.attention.vectors import prefetch, vload
from kvproof.lab.pool.planes import flat

ROWS = 8
WIDTH = 2 * LANES  # numbers of a row that a step takes
_SMALL = 1 << 19  # numbers below which a second thread costs more than it brings
KINDS = {torch.float32: F32, torch.bfloat16: BF16}


def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x @ weight.T, by the kernel for one row in whole vectors, else by torch."""
    rows, width = weight.shape
    fits = rows % ROWS == 0 and width % WIDTH == 0 and weight.is_contiguous()
    if x.shape[0] != 1 or weight.dtype not in KINDS or not fits:
        return torch.nn.functional.linear(x, weight)
    parallel, serial = _kernels(KINDS[weight.dtype])
    out = np.empty(rows, np.float32)
    given = x.float().view(-1).numpy()
    if threads.count() > 1 and rows * width > _SMALL:
        with threads.numba_threads():
            parallel(flat(weight), given, out, threads.count() * 4)
    else:
        serial(flat(weight), given, 0, rows, out)
    return torch.from_numpy(out)[None].to(x.dtype)


@lru_cache(maxsize=2)
def some_rows(kind: int) -> Any:
    """rows(weight, x, first, last, out): out[first:last] of the product, in whole ROWS."""

    @njit(nogil=True)
    def rows(weight, x, first, last, out):
        width = x.size
        for row in range(first, last, ROWS):
            acc = tile_zero(ROWS)
            for d in range(0, width, WIDTH):
                prefetch(weight, (row + ROWS) * width + d, width, ROWS, 1)
                for half in range(0, WIDTH, LANES):
                    numbers = stored(weight, row * width + d + half, width, ROWS, kind)
                    acc = tile_fma(acc, numbers, vload(x, d + half))
            tile_sums(out, row, acc)

    return rows


@lru_cache(maxsize=2)
def _kernels(kind: int) -> Any:
    rows = some_rows(kind)

    @njit(nogil=True, parallel=True)
    def all_rows(weight, x, out, parts):
        tiles = out.size // ROWS
        for i in prange(parts):
            rows(weight, x, tiles * i // parts * ROWS, tiles * (i + 1) // parts * ROWS, out)

    return all_rows, rows
