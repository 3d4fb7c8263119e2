"""Planes: the tensors behind the blocks of one slot.

A plane holds one vector per position and head. Keys and values are cut into tiles of TILE positions
(or half of it, or the block), so that a kernel reads them in the order of memory: `columns` planes
(keys) keep a tile transposed, `slices` planes (values) keep SLICE elements of every position of a
tile together. What is multiplied together lies side by side: two rows of keys, two positions of
values (f32 one, int4 four). `rows` planes (latents) keep each position's vector together:

    columns  data [blocks, heads, tiles, rows / pair, tile, pair]  (rows: numbers, or int4's bytes)
    slices   data [blocks, heads, tiles, rows / slice, tile / pair, slice, pair]
    rows     data [blocks, heads, block_size, rows]                (one tile: the block)
    all      scales [blocks, heads, tiles, groups, tile]
"""

from __future__ import annotations

import ctypes
import sys
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch

from kvproof.kinds import ElementType
from kvproof.lab.pool.codecs import Codec, Encoded

Layout = Literal["columns", "slices", "rows"]
TILE = 16  # positions
SLICE = 16  # elements of a value
FEW = 16  # entries up to which they are written one by one


class Plane:
    """Keys, values or latents of one slot in `blocks` blocks of `block_size` positions."""

    def __init__(
        self,
        element: ElementType,
        layout: Layout,
        *,
        blocks: int,
        block_size: int,
        heads: int,
        dim: int,
    ) -> None:
        self.codec = Codec(element, dim)
        self.layout = layout
        self.block_size, self.heads, self.dim = block_size, heads, dim
        rows = self.codec.rows
        self.tile = block_size if layout == "rows" else tile_of(block_size)
        self.slice = SLICE if rows % SLICE == 0 else rows
        paired = rows if layout == "columns" else self.tile
        most = {"f32": 1, "int4": 4}.get(self.codec.family, 2)
        self.pair = (
            1 if layout == "rows" else next(n for n in (4, 2, 1) if n <= most and paired % n == 0)
        )
        tiles, pair = block_size // self.tile, self.pair
        inner = {
            "columns": (tiles, rows // pair, self.tile, pair),
            "slices": (tiles, rows // self.slice, self.tile // pair, self.slice, pair),
            "rows": (block_size, rows),
        }[layout]
        self.data = _by_head((blocks, heads, *inner), self.codec.data_dtype)
        self.scales: torch.Tensor | None = None
        if not self.codec.plain:
            shape = (blocks, heads, tiles, self.codec.groups, self.tile)
            self.scales = _by_head(shape, self.codec.scale_dtype)

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The tensors whose storage the plane is."""
        return (self.data,) if self.scales is None else (self.data, self.scales)

    @cached_property
    def arrays(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Data and scales as flat arrays in the order of their memory, [heads, blocks, ...]."""
        scales = _NOTHING if self.scales is None else flat(self.scales.transpose(0, 1))
        return flat(self.data.transpose(0, 1)), scales

    @cached_property
    def _cells(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Data and scales as arrays [heads, blocks, ...] over the same memory."""
        data, scales = self.arrays
        shapes = [t.transpose(0, 1).shape for t in self.tensors]
        return data.reshape(shapes[0]), scales.reshape(shapes[1]) if len(shapes) > 1 else scales

    def write(self, blocks: torch.Tensor, offsets: torch.Tensor, x: torch.Tensor) -> None:
        """Store `x` [positions, heads, dim] at the given block and offset of each position."""
        self.write_encoded(blocks, offsets, self.codec.encode(x))

    def write_encoded(self, blocks: torch.Tensor, offsets: torch.Tensor, encoded: Encoded) -> None:
        """Store rows that are already encoded, [positions, heads, rows]."""
        if len(offsets) <= FEW:
            self._write_few(blocks.tolist(), offsets.tolist(), encoded)
            return
        rows, pair = encoded.data, self.pair
        tiles, at = offsets // self.tile, offsets % self.tile
        if self.layout == "columns":
            self.data[blocks, :, tiles, :, at] = rows.unflatten(-1, (-1, pair))
        elif self.layout == "slices":
            sliced = rows.unflatten(-1, (-1, self.slice))
            self.data[blocks, :, tiles, :, at // pair, :, at % pair] = sliced
        else:
            self.data[blocks, :, offsets] = rows
        if self.scales is not None:
            self.scales[blocks, :, tiles, :, at] = encoded.scales

    def _write_few(self, blocks: list[int], offsets: list[int], encoded: Encoded) -> None:
        """The same, entry by entry: torch's indexing takes 60 us and more for a decode step's."""
        data, scales = self._cells
        rows, *factors = (
            flat(t.detach().contiguous()).reshape(len(offsets), self.heads, -1)
            for t in encoded
            if t is not None
        )
        across, pair = {"columns": self.pair, "slices": self.slice}.get(self.layout), self.pair
        for i, (block, offset) in enumerate(zip(blocks, offsets, strict=True)):
            tile, at = divmod(offset, self.tile)
            if across is None:
                data[:, block, offset] = rows[i]
            elif self.layout == "columns":
                data[:, block, tile, :, at] = rows[i].reshape(self.heads, -1, across)
            else:
                sliced = rows[i].reshape(self.heads, -1, across)
                data[:, block, tile, :, at // pair, :, at % pair] = sliced
            if factors:
                scales[:, block, tile, :, at] = factors[0][i]

    def read_encoded(self, blocks: torch.Tensor, positions: torch.Tensor | slice) -> Encoded:
        """Encoded rows [positions, heads, rows] of entries counted from the first of `blocks`."""
        order, places = _ORDERS[self.layout]
        data = self.data[blocks].permute(*order).flatten(0, places)
        rows = data[positions].flatten(2)
        if self.scales is None:
            return Encoded(rows, None)
        scales = self.scales[blocks].permute(0, 2, 4, 1, 3).flatten(0, 2)
        return Encoded(rows, scales[positions])

    def read(self, blocks: torch.Tensor, positions: torch.Tensor | slice) -> torch.Tensor:
        """Numbers [positions, heads, dim] in f32."""
        return self.codec.decode(self.read_encoded(blocks, positions))


def tile_of(block_size: int) -> int:
    """Positions of a tile: TILE or half of it where that divides the block, else the block."""
    return next((n for n in (TILE, TILE // 2) if block_size % n == 0), block_size)


# The order of a plane's axes with those of the position first, and how many those are but one.
_ORDERS = {
    "columns": ((0, 2, 4, 1, 3, 5), 2),
    "slices": ((0, 2, 4, 6, 1, 3, 5), 3),
    "rows": ((0, 2, 1, 3), 1),
}
_HUGE = 2**21  # bytes of a huge page
_MADV_HUGEPAGE = 14


def zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Zeros in huge pages where Linux has them.

    Blocks are read in any order, so with small pages every block costs address look-ups.
    """
    tensor = torch.empty(shape, dtype=dtype)
    first = -(-tensor.data_ptr() // _HUGE) * _HUGE
    length = (tensor.data_ptr() + tensor.nbytes - first) // _HUGE * _HUGE
    if length > 0 and sys.platform == "linux":
        libc = ctypes.CDLL(None)
        libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(length), _MADV_HUGEPAGE)
    return tensor.zero_()


def _by_head(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Zeros [blocks, heads, ...] whose memory is [heads, blocks, ...].

    Neighbouring blocks of one head are one run of memory: a kernel that reads a head block by block
    reads at the speed of a plain stream, with the heads side by side at about half of it.
    """
    blocks, heads, *rest = shape
    return zeros((heads, blocks, *rest), dtype).transpose(0, 1)


_NOTHING = np.zeros(8, np.float32)


def flat(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """The tensor's memory as one flat array that numba can read; bf16 as uint16."""
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.view(torch.int16)
    array: np.ndarray[Any, Any] = tensor.view(-1).numpy()
    return array.view(np.uint16) if array.dtype == np.int16 else array


class StatePlane:
    """A state of fixed shape per sequence: its "block" is the whole state."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, *, blocks: int) -> None:
        self.data = torch.zeros((blocks, *shape), dtype=dtype)

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The tensors whose storage the plane is."""
        return (self.data,)


AnyPlane = Plane | StatePlane


def storage_bytes(tensors: list[torch.Tensor]) -> int:
    """Bytes really allocated behind the tensors; a storage that two of them share counts once."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())
