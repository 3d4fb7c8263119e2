"""Matrix times vector for decode steps: one token's row through a weight matrix, read once.

A decode step of one sequence is limited by reading weights; torch's general matrix product does
not reach the memory's speed on one row of bf16. The matrix is read in the order of memory, row
after row: eight rows side by side read at 5 to 6 GB/s where one stream of the same bytes reads at
8 to 9 (rows of 576 numbers, one thread, Zen 3). Sums are in f32 whatever is stored.

Several rows go through torch. Without bf16 instructions it multiplies bf16 row by row: 64 rows
take five times as long as the same product in f32, widening the weights included, and from 8 rows
on that is the faster way. Its numbers are the same: products of bf16 are exact in f32, and sums are
f32 either way.
"""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# ruff: noqa: ANN001, ANN201, ANN202

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch

from kvproof.lab.attention import threads
from kvproof.lab.attention.crew import begin, end
from kvproof.lab.attention.emit import WIDTH as LANES
from kvproof.lab.attention.shapes import entry, kernel
from kvproof.lab.attention.stored import BF16, F32, first_vector, stored
from kvproof.lab.attention.vectors import prefetch, splat, vadd, vfma, vload, vsum
from kvproof.lab.pool.planes import flat

_SUMS = 4  # vectors of a row that are summed apart, so that no sum waits for the last
_AHEAD = {BF16: 2048, F32: 0}  # numbers; f32 is read best by the processor's own prefetching
_WIDENED = 8  # rows of x from which on bf16 weights are widened; measured on Zen 3
_SLAB = 1024  # rows of a weight widened at a time: what is written stays in the cache
_NARROW = torch.backends.cpu.get_cpu_capability() in ("DEFAULT", "AVX2")  # no bf16 instructions
KINDS = {torch.float32: F32, torch.bfloat16: BF16}


def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x @ weight.T, by the kernel for one row in whole vectors, else by torch."""
    rows, width = weight.shape
    fits = width % LANES == 0 and weight.is_contiguous()
    if x.shape[0] != 1 or weight.dtype not in KINDS or not fits:
        return _several(x, weight)
    out = np.empty(rows, np.float32)
    args = flat(weight), x.float().view(-1).numpy(), out
    threads.share(_all_rows(KINDS[weight.dtype]), *args)
    return torch.from_numpy(out)[None].to(x.dtype)


def _several(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x @ weight.T by torch, in f32 where its bf16 product is the slower one."""
    if x.dtype != torch.bfloat16 or x.shape[0] < _WIDENED or not _NARROW:
        return torch.nn.functional.linear(x, weight)
    wide = x.float()
    parts = [torch.nn.functional.linear(wide, slab.float()) for slab in weight.split(_SLAB)]
    return torch.cat(parts, -1).to(x.dtype)


@lru_cache(maxsize=2)
def some_rows(kind: int) -> Any:
    """rows(weight, x, first, last, out): out[first:last] of the product."""
    ahead, step = _AHEAD[kind], _SUMS * LANES

    @kernel
    def vector(weight, at, x, d):
        return first_vector(stored(weight, at + d, 0, 1, kind)), vload(x, d)

    @kernel
    def rows(weight, x, first, last, out):
        width = x.size
        whole = width // step * step
        for row in range(first, last):
            at = row * width
            a = b = c = e = splat(np.float32(0))
            for d in range(0, whole, step):
                if ahead:
                    prefetch(weight, at + d + ahead, 0, 1, 1)
                a = vfma(*vector(weight, at, x, d), a)
                b = vfma(*vector(weight, at, x, d + LANES), b)
                c = vfma(*vector(weight, at, x, d + 2 * LANES), c)
                e = vfma(*vector(weight, at, x, d + 3 * LANES), e)
            for d in range(whole, width, LANES):
                a = vfma(*vector(weight, at, x, d), a)
            out[row] = vsum(vadd(vadd(a, b), vadd(c, e)))

    return rows


@kernel
def share_of(count, me, number):
    """The first and the end of `count` rows that thread `me` of `number` takes."""
    return count * me // number, count * (me + 1) // number


@lru_cache(maxsize=2)
def _all_rows(kind: int) -> Any:
    rows = some_rows(kind)

    @entry
    def all_rows(weight, x, out, marks, me, number):
        ticket = begin(marks, me)
        first, last = share_of(out.size, me, number)
        rows(weight, x, first, last, out)
        end(marks, me, number, ticket)

    return all_rows
