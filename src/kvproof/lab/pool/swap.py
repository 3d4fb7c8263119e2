"""Swapping: a paused sequence's blocks go to host memory and come back, byte for byte."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvproof.lab.pool.blocks import BlockHash
from kvproof.lab.pool.planes import storage_bytes
from kvproof.lab.pool.pool import PagedPool
from kvproof.lab.pool.tables import Sequence, Table


@dataclass(frozen=True, slots=True)
class HostCopy:
    """What `swap_out` saved: per group the blocks' bytes, and what the tables looked like."""

    tensors: list[list[torch.Tensor]]
    tables: list[Table]
    length: int
    hashes: list[BlockHash]

    @property
    def bytes(self) -> int:
        """Bytes of host memory that the copy takes, read off its tensors."""
        return storage_bytes([t for group in self.tensors for t in group])


def swap_out(pool: PagedPool, sequence: Sequence) -> HostCopy:
    """Copy the sequence's blocks out and close it; shared blocks are copied too."""
    saved = []
    for group, table in zip(pool.groups, sequence.tables, strict=True):
        blocks = torch.tensor(table.blocks, dtype=torch.long)
        saved.append([tensor[blocks] for tensor in group.tensors()])
    tables = [Table([], t.entries, t.dropped, t.compacted) for t in sequence.tables]
    copy = HostCopy(saved, tables, sequence.length, list(sequence.hashes))
    pool.close(sequence)
    return copy


def _counts(copy: HostCopy) -> list[int]:
    return [len(tensors[0]) for tensors in copy.tensors]


def can_swap_in(pool: PagedPool, copy: HostCopy, more: int = 0) -> bool:
    """Whether every group has room for the copy's entries, and for `more` after them."""
    tables = zip(pool.groups, copy.tables, _counts(copy), strict=True)
    return all(
        group.books.can_take(count if group.is_state else group.blocks_for(table.entries + more))
        for group, table, count in tables
    )


def swap_in(pool: PagedPool, copy: HostCopy) -> Sequence:
    """A live sequence again, in whatever blocks are free now; or PoolFullError, nothing changed."""
    counts = _counts(copy)
    for group, count in zip(pool.groups, counts, strict=True):
        if not group.books.can_take(count):
            group.books.take(count)  # raises with the figures
    tables = []
    for group, old, tensors, count in zip(
        pool.groups, copy.tables, copy.tensors, counts, strict=True
    ):
        blocks = group.books.take(count)
        index = torch.tensor(blocks, dtype=torch.long)
        for target, source in zip(group.tensors(), tensors, strict=True):
            target[index] = source
        tables.append(Table(blocks, old.entries, old.dropped, old.compacted))
    sequence = Sequence(tables, copy.length, list(copy.hashes))
    pool.sequences.add(sequence)
    return sequence
