"""Groups: slots whose blocks are handed out together, with one table per sequence."""

from __future__ import annotations

import torch

from kvproof.errors import UsageError
from kvproof.kinds import Slot, Types
from kvproof.lab.pool.blocks import BlockBooks, BlockId
from kvproof.lab.pool.planes import AnyPlane, Plane
from kvproof.lab.pool.slots import is_state, planes_of, window_of
from kvproof.lab.pool.tables import Table


class Group:
    """Slots of one kind: their planes share block numbers, their books and their tables.

    Every verb that takes blocks has a `needs` twin that counts them beforehand.
    """

    def __init__(self, slots: list[Slot], types: Types, *, blocks: int, block_size: int) -> None:
        self.slots = slots
        self.is_state = is_state(slots[0])
        self.window = window_of(slots[0])
        self.block_size = block_size
        self.books = BlockBooks(blocks)
        size = {"blocks": blocks, "block_size": block_size}
        self.planes: list[tuple[AnyPlane, ...]] = [planes_of(s, types, **size) for s in slots]

    def blocks_for(self, entries: int) -> int:
        """Blocks that hold `entries` entries of one table."""
        return -(-entries // self.block_size)

    def needs(self, table: Table, count: int) -> int:
        """Blocks that appending `count` entries takes, a copy of a shared last block included."""
        if self.is_state:
            return 0 if table.blocks else 1
        total = self.blocks_for(table.entries + count)
        return total - len(table.blocks) + (1 if count and self._tail_is_shared(table) else 0)

    def append(self, table: Table, count: int) -> None:
        """Reserve `count` entries at the table's end; copies a shared last block first."""
        new = self.books.take(self.needs(table, count))
        if self.is_state:
            table.blocks += new
            return
        if count and self._tail_is_shared(table):
            self._copy_block(table.blocks[-1], new[0])
            self.books.release(table.blocks[-1])
            table.blocks[-1] = new.pop(0)
        table.blocks += new
        table.entries += count

    def trim(self, table: Table, length: int) -> None:
        """Release leading blocks that no later position can see (sliding windows only)."""
        if self.window is None or table.compacted:
            return
        first_needed = length - self.window + 1
        while table.blocks and table.dropped + self.block_size <= first_needed:
            self.books.release(table.blocks.pop(0))
            table.dropped += self.block_size
            table.entries -= self.block_size

    def shorten(self, table: Table, count: int) -> None:
        """Forget the last `count` entries and release the blocks that held only them."""
        if self.is_state or count > table.entries:
            raise UsageError("these entries can't be taken back", hint="a state or window moved on")
        table.entries -= count
        while len(table.blocks) > self.blocks_for(table.entries):
            self.books.release(table.blocks.pop())

    def fork(self, table: Table) -> Table:
        """A table that shares all blocks; states are copied at once, for they change in place."""
        if self.is_state:
            new = self.books.take(len(table.blocks))
            for source, target in zip(table.blocks, new, strict=True):
                self._copy_block(source, target)
            return Table(new)
        for block in table.blocks:
            self.books.share(block)
        return Table(list(table.blocks), table.entries, table.dropped, table.compacted)

    def close(self, table: Table) -> None:
        """Release every block, the last one first, so that a prefix outlives its tail."""
        for block in reversed(table.blocks):
            self.books.release(block)
        table.blocks, table.entries = [], 0

    def keep(self, table: Table, entries: torch.Tensor) -> None:
        """Keep only `entries` (rising indices into the table), packed into as few blocks.

        The gathered bytes are copied before any block is released, so it works in a full pool
        unless blocks that others hold too have to stay; then PoolFullError leaves the table
        unchanged.
        """
        if self.is_state:
            raise UsageError("a state has no entries to evict", hint="evict from attention slots")
        count = len(entries)
        wanted = self.blocks_for(count)
        alone = sum(self.books.references(b) == 1 for b in table.blocks)
        if not self.books.can_take(max(0, wanted - alone)):
            self.books.take(wanted - alone)  # raises with the figures
        old = torch.tensor(table.blocks, dtype=torch.long)
        saved = [
            [p.read_encoded(old, entries) for p in planes if isinstance(p, Plane)]
            for planes in self.planes
        ]
        self.close(table)
        table.blocks, table.entries, table.compacted = self.books.take(wanted), count, True
        blocks, offsets = self.places(table, 0, count)
        for planes, rows in zip(self.planes, saved, strict=True):
            for plane, encoded in zip(planes, rows, strict=True):
                assert isinstance(plane, Plane)  # noqa: S101 - states were refused above
                plane.write_encoded(blocks, offsets, encoded)

    def places(self, table: Table, start: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Block and offset of `count` entries from entry `start` on."""
        index = torch.arange(start, start + count)
        blocks = torch.tensor(table.blocks, dtype=torch.long)
        return blocks[index // self.block_size], index % self.block_size

    def _tail_is_shared(self, table: Table) -> bool:
        """Whether the next entry would land in a block that others hold or can find."""
        partial = table.entries % self.block_size != 0
        return partial and not self.books.is_private(table.blocks[-1])

    def _copy_block(self, source: BlockId, target: BlockId) -> None:
        for tensor in self.tensors():
            tensor[target] = tensor[source]

    def tensors(self) -> list[torch.Tensor]:
        """Every tensor of the group's planes."""
        return [t for planes in self.planes for plane in planes for t in plane.tensors]
