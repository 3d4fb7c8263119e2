"""Matrix times a few vectors for decode steps: a weight is read once, for all sequences' rows.

A decode step is limited by reading weights; torch's general matrix product reaches the memory's
speed neither on one row of bf16 nor on two to eight of anything. The matrix is read in the order of
memory, row after row: eight rows side by side read at 5 to 6 GB/s where one stream of the same
bytes reads at 8 to 9 (rows of 576 numbers, one thread, Zen 3). Sums are in f32 whatever is stored.

A row of the matrix meets up to four rows of x at a time, in registers. More than four take turns,
as equal as they can be, over a block of the matrix that the first of them left in the cache; each
asks for its share of the next block. (One row after four that asked for all: 5 rows took 90 ms of
SmolLM2's matrices in f32, 58 this way.) A sum is made in the same order whichever rows share a
turn: a sequence's numbers are the same, bit by bit, alone and in a batch.

Many rows go through torch. Without bf16 instructions it multiplies bf16 row by row: 64 rows
take five times as long as the same product in f32, widening the weights included. The numbers of
f32 are the same: products of bf16 are exact in f32, and sums are f32 either way.
"""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# ruff: noqa: ANN001, ANN201, ANN202

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kvproof.lab.attention import threads
from kvproof.lab.attention.crew import begin, end
from kvproof.lab.attention.disk import kept
from kvproof.lab.attention.emit import WIDTH as LANES
from kvproof.lab.attention.shapes import entry, kernel
from kvproof.lab.attention.stored import BF16, F32, STORED_BYTES, first_vector, stored
from kvproof.lab.attention.tiles import tile_fma, tile_load, tile_zero
from kvproof.lab.attention.vectors import LINE, address, prefetch, splat
from kvproof.lab.models.lanes import apart, put_sums
from kvproof.lab.pool.planes import flat

FEW = 16  # rows of x up to which the kernel is faster than torch; measured on Zen 3
_TILE = 4  # rows of x that meet a vector of the weight; two sums of each are kept apart
_STEP = 4 * LANES  # numbers of a row that are taken at a time
# Bytes of a matrix over which one, two and more tiles take turns; measured on Zen 3.
_BLOCKS = {F32: (16384, 4096, 32768), BF16: (16384, 16384, 32768)}
_SLAB = 1024  # rows of a weight widened at a time: what is written stays in the cache
_NARROW = torch.backends.cpu.get_cpu_capability() in ("DEFAULT", "AVX2")  # no bf16 instructions
KINDS = {torch.float32: F32, torch.bfloat16: BF16}


def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x @ weight.T, by the kernel for a few rows in whole vectors, else by torch."""
    rows, width = weight.shape
    fits = width % LANES == 0 and weight.is_contiguous()
    if len(x) > FEW or weight.dtype not in KINDS or not fits:
        return _many(x, weight)
    out = np.empty((len(x), rows), np.float32)
    given = x.float().contiguous().numpy()
    threads.share(_all_rows(KINDS[weight.dtype]), flat(weight), given, out)
    return torch.from_numpy(out).to(x.dtype)


def _many(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x @ weight.T by torch, in f32 where its bf16 product is the slower one."""
    if x.dtype != torch.bfloat16 or not _NARROW:
        return torch.nn.functional.linear(x, weight)
    wide = x.float()
    parts = [torch.nn.functional.linear(wide, slab.float()) for slab in weight.split(_SLAB)]
    return torch.cat(parts, -1).to(x.dtype)


@lru_cache(maxsize=16)
def _tile_rows(kind: int, tile: int, *, asks: bool) -> Any:
    """rows(weight, x, width, span, ask, out, stride): `tile` rows of x times rows `span`.

    `asks` for the next ones: `ask` says how many numbers ahead, and how many in a step.
    """
    line = LINE // STORED_BYTES[kind]
    lines = _STEP // line

    @kernel
    def meet(sums, weight, at, x, d, width):
        vector = first_vector(stored(weight, at + d, 0, 1, kind))
        return tile_fma(sums, tile_load(x, d, width, tile, 1), vector)

    @kernel
    def rows(weight, x, width, span, ask, out, stride):
        apart()
        whole = width // _STEP * _STEP
        for row in range(span[0], span[1]):
            at = row * width
            even, odd, ahead = tile_zero(tile), tile_zero(tile), at + ask[0]
            for d in range(0, whole, _STEP):
                if asks:
                    prefetch(weight, ahead, line, lines, 1)
                    ahead += ask[1]
                even = meet(even, weight, at, x, d, width)
                odd = meet(odd, weight, at, x, d + LANES, width)
                even = meet(even, weight, at, x, d + 2 * LANES, width)
                odd = meet(odd, weight, at, x, d + 3 * LANES, width)
            for d in range(whole, width, LANES):
                even = meet(even, weight, at, x, d, width)
            put_sums(tile_fma(even, odd, splat(np.float32(1))), out, row, stride)

    return rows


@lru_cache(maxsize=4)
def _tiles(kind: int, *, asks: bool) -> Any:
    """rows(tile, ...): the rows of `_tile_rows` for so many rows of x."""
    one, two, three, four = (_tile_rows(kind, n, asks=asks) for n in range(1, _TILE + 1))

    @kernel
    def rows(tile, weight, x, width, span, ask, out, stride):
        if tile == 1:
            one(weight, x, width, span, ask, out, stride)
        elif tile == 2:
            two(weight, x, width, span, ask, out, stride)
        elif tile == 3:
            three(weight, x, width, span, ask, out, stride)
        else:
            four(weight, x, width, span, ask, out, stride)

    return rows


@kernel
def share_of(count, me, number):
    """The first and the end of `count` rows that thread (or turn) `me` of `number` takes."""
    return count * me // number, count * (me + 1) // number


@lru_cache(maxsize=2)
def some_rows(kind: int) -> Any:
    """rows(weight, x, first, last, out): out[:, first:last] of x @ weight.T, x [count, width]."""
    # f32 that no one takes turns over is read best by the processor's own prefetching
    alone, in_turn = _tiles(kind, asks=kind != F32), _tiles(kind, asks=True)
    held = tuple(size // STORED_BYTES[kind] for size in _BLOCKS[kind])

    @kernel
    def rows(weight, x, first, last, out):
        apart()
        (count, width), stride, whole = x.shape, out.shape[1], address(weight, 0)
        turns = -(-count // _TILE)
        block, share = max(1, held[min(turns, 3) - 1] // width), -(-_STEP // turns)
        for row in range(first, last, block):
            span = row, min(last, row + block)
            for turn in range(turns):
                r, until = share_of(count, turn, turns)
                given, target = address(x, r * width), address(out, r * stride)
                ask = block * width + turn * share * (width // _STEP), share
                if turns == 1:
                    alone(until - r, whole, given, width, span, ask, target, stride)
                else:
                    in_turn(until - r, whole, given, width, span, ask, target, stride)

    return rows


@lru_cache(maxsize=2)
def _all_rows(kind: int) -> Any:
    rows = some_rows(kind)

    @entry
    def all_rows(weight, x, out, marks, me, number):
        ticket = begin(marks, me)
        first, last = share_of(out.shape[1], me, number)
        rows(weight, x, first, last, out)
        end(marks, me, number, ticket)

    return kept(all_rows, kind, text())


@lru_cache(maxsize=1)
def text() -> str:
    """A digest of what this folder's kernels are made of, beside attention's modules."""
    digest = hashlib.sha256()
    for name in ("lanes", "matvec", "row"):
        digest.update(Path(__file__).with_name(f"{name}.py").read_bytes())
    return digest.hexdigest()
