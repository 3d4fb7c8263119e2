"""PagedPool: sequences over groups of blocks, the cache that everything else in the lab uses.

The verbs come in pairs: `can_append` answers and changes nothing, `append` does it or raises
PoolFullError and changes nothing. The way of one step:

    seq, cached = pool.open(prompt)        cached tokens were found in sealed blocks
    pool.append(seq, n)                    room for n more entries in every group
    ... write each layer's keys and values, attend (kvproof.lab.attention) ...
    pool.settle(seq, tokens)               seal full blocks, let windows slide
    pool.close(seq)                        sealed blocks stay findable until they are needed
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Seq

import torch

from kvproof.errors import KvproofError, UsageError
from kvproof.kinds import Slot, Types
from kvproof.lab.pool.groups import Group
from kvproof.lab.pool.hashes import chain
from kvproof.lab.pool.planes import storage_bytes
from kvproof.lab.pool.prefix import match
from kvproof.lab.pool.slots import is_state, window_of
from kvproof.lab.pool.tables import Sequence, Table


class PagedPool:
    """A pool of blocks for the slots of one model.

    `blocks` is the number of blocks of every group, or one number per group; states take one
    block per sequence, whatever the number. `groups="layer"` gives each slot its own tables, so
    that an eviction may keep different positions in each layer. `share_prefixes` lets sequences
    find each other's sealed blocks.
    """

    def __init__(
        self,
        slots: Seq[Slot],
        types: Types,
        *,
        blocks: int | Seq[int],
        block_size: int = 16,
        groups: str = "kind",
        share_prefixes: bool = True,
    ) -> None:
        if block_size < 1 or not slots:
            raise UsageError("a pool needs slots and a block size of 1 or more")
        self.slots, self.types, self.block_size = tuple(slots), types, block_size
        parts = _parts(self.slots, by_layer=groups == "layer")
        counts = [blocks] * len(parts) if isinstance(blocks, int) else list(blocks)
        if len(counts) != len(parts):
            raise UsageError(f"{len(counts)} block counts for {len(parts)} groups")
        self.groups = [
            Group([self.slots[i] for i in part], types, blocks=n, block_size=block_size)
            for part, n in zip(parts, counts, strict=True)
        ]
        self.home = {i: (g, j) for g, part in enumerate(parts) for j, i in enumerate(part)}
        self.share_prefixes = share_prefixes and not any(g.is_state for g in self.groups)
        self.sequences: set[Sequence] = set()

    @classmethod
    def with_states(
        cls, slots: Seq[Slot], types: Types, *, blocks: int, states: int, block_size: int = 16
    ) -> PagedPool:
        """A pool of `blocks` blocks for each group of entries and `states` for each of states."""
        parts = _parts(tuple(slots), by_layer=False)
        counts = [states if is_state(slots[part[0]]) else blocks for part in parts]
        return cls(slots, types, blocks=counts, block_size=block_size)

    # -- sequences ---------------------------------------------------------------------------

    def open(self, tokens: Seq[int] = ()) -> tuple[Sequence, int]:
        """A new sequence and how many of `tokens` its shared blocks hold already.

        At least one token is always left to compute, for its logits are wanted.
        """
        sequence = Sequence([Table() for _ in self.groups])
        if self.share_prefixes and len(tokens) > 1:
            match(self.groups, sequence, chain(tokens[:-1], self.block_size))
        self.sequences.add(sequence)
        return sequence, sequence.length

    def can_append(self, sequence: Sequence, count: int) -> bool:
        """Whether every group has the blocks for `count` more entries."""
        return all(
            g.books.can_take(g.needs(t, count))
            for g, t in zip(self.groups, sequence.tables, strict=True)
        )

    def append(self, sequence: Sequence, count: int) -> None:
        """Reserve `count` entries in every group; all or nothing."""
        self._check_alive(sequence)
        _check_count(count)
        pairs = list(zip(self.groups, sequence.tables, strict=True))
        for group, table in pairs:
            if not group.books.can_take(group.needs(table, count)):
                group.books.take(group.needs(table, count))  # raises with the figures
        for group, table in pairs:
            group.append(table, count)
        sequence.length += count

    def settle(self, sequence: Sequence, tokens: Seq[int] | None = None) -> None:
        """After a step: seal blocks that are full of `tokens` (the whole sequence), slide windows.

        Without `tokens` nothing is sealed, so nothing will be shared.
        """
        self._check_alive(sequence)
        if self.share_prefixes and tokens is not None:
            self._seal(sequence, tokens)
        for group, table in zip(self.groups, sequence.tables, strict=True):
            group.trim(table, sequence.length)

    def _seal(self, sequence: Sequence, tokens: Seq[int]) -> None:
        done, size = len(sequence.hashes), self.block_size
        held = tokens[: sequence.length]
        if len(held) // size == done or any(t.compacted for t in sequence.tables):
            return  # after an eviction the entries no longer follow from the tokens alone
        parent = {"parent": sequence.hashes[-1]} if done else {}
        names = chain(held[done * size :], size, **parent)
        for group, table in zip(self.groups, sequence.tables, strict=True):
            for i, name in enumerate(names, start=done - table.dropped // size):
                if i >= 0:
                    group.books.seal(table.blocks[i], name)
        sequence.hashes += names

    def can_fork(self, sequence: Sequence) -> bool:
        """Whether a fork has the blocks it takes at once (states only)."""
        pairs = zip(self.groups, sequence.tables, strict=True)
        return all(g.books.can_take(len(t.blocks)) for g, t in pairs if g.is_state)

    def fork(self, sequence: Sequence) -> Sequence:
        """A second sequence with the same entries; blocks are shared until one of them writes."""
        self._check_alive(sequence)
        for group, table in zip(self.groups, sequence.tables, strict=True):
            if group.is_state and not group.books.can_take(len(table.blocks)):
                group.books.take(len(table.blocks))  # raises with the figures
        tables = [g.fork(t) for g, t in zip(self.groups, sequence.tables, strict=True)]
        twin = Sequence(tables, sequence.length, list(sequence.hashes))
        self.sequences.add(twin)
        return twin

    def rearrange(self, sequences: Seq[Sequence], rows: Seq[int]) -> list[Sequence]:
        """Close `sequences`; the i-th of those that come back continues the `rows[i]`-th.

        Entries are shared as by `fork`. States move in one go, into the lowest blocks in order, so
        that as many rows as before need no spare block; PoolFullError changes nothing.
        """
        old = [sequences[i] for i in rows]
        for i, group in enumerate(self.groups):
            own = sum(len(s.tables[i].blocks) for s in sequences) if group.is_state else 0
            if group.is_state and not group.books.can_take(len(rows) - own):
                group.books.take(len(rows) - own)  # raises with the figures
        saved = [_states(g, [s.tables[i] for s in old]) for i, g in enumerate(self.groups)]
        twins = [
            Sequence(
                [Table() if g.is_state else g.fork(t)
                 for g, t in zip(self.groups, s.tables, strict=True)],
                s.length, list(s.hashes),
            )
            for s in old
        ]  # fmt: skip
        for sequence in sequences:
            self.close(sequence)
        for i, (group, states) in enumerate(zip(self.groups, saved, strict=True)):
            if states:
                blocks = group.books.take_lowest(len(rows))
                for twin, block in zip(twins, blocks, strict=True):
                    twin.tables[i].blocks = [block]
                for tensor, rows_of in zip(group.tensors(), states, strict=True):
                    tensor[torch.tensor(blocks)] = rows_of
        self.sequences.update(twins)
        return twins

    def states(self, sequences: Seq[Sequence], slot: int) -> torch.Tensor:
        """The states of `sequences` in a slot, [sequences, *shape], as a view of the plane.

        UsageError unless their blocks lie side by side in this order, as in a pool of their own.
        """
        at, index = self.home[slot]
        blocks = [b for s in sequences for b in s.tables[at].blocks]
        if blocks != list(range(blocks[0], blocks[0] + len(sequences))):
            raise UsageError("these sequences' states do not lie side by side")
        plane = self.groups[at].planes[index][0]
        return plane.data[blocks[0] : blocks[0] + len(blocks)]

    def shorten(self, sequence: Sequence, count: int) -> None:
        """Take back the last `count` tokens (rejected guesses of a draft, a cropped cache).

        UsageError, and nothing changes, where a state or a window has moved on.
        """
        self._check_alive(sequence)
        _check_count(count)
        pairs = list(zip(self.groups, sequence.tables, strict=True))
        if not all(_can_shorten(g, t, count) for g, t in pairs):
            raise UsageError("these tokens can't be taken back", hint="a state or window moved on")
        for group, table in pairs:
            group.shorten(table, count)
        sequence.length -= count
        del sequence.hashes[sequence.length // self.block_size :]

    def keep(self, sequence: Sequence, group: int, entries: torch.Tensor) -> None:
        """Evict all but `entries` (rising indices) from one group's table and pack the rest.

        UsageError for indices that do not rise within the table.
        """
        self._check_alive(sequence)
        held = sequence.tables[group].entries
        edges = torch.cat((torch.tensor([-1]), entries, torch.tensor([held])))
        if not bool((edges.diff() > 0).all()):
            raise UsageError("entries to keep must rise", hint=f"give indices from 0 to {held - 1}")
        self.groups[group].keep(sequence.tables[group], entries)

    def close(self, sequence: Sequence) -> None:
        """Release everything the sequence holds."""
        self._check_alive(sequence)
        for group, table in zip(self.groups, sequence.tables, strict=True):
            group.close(table)
        sequence.alive = False
        self.sequences.discard(sequence)

    # -- figures -----------------------------------------------------------------------------

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the storages behind all planes, read off the tensors."""
        return storage_bytes([t for g in self.groups for t in g.tensors()])

    @property
    def usage(self) -> float:
        """Share of the blocks that sequences hold, in the fullest group."""
        return max(g.books.held / g.books.total if g.books.total else 0.0 for g in self.groups)

    def check_integrity(self) -> None:
        """Raise KvproofError unless books, tables and lengths agree."""
        for i, group in enumerate(self.groups):
            tables = [s.tables[i] for s in self.sequences]
            group.books.check_integrity(Counter(b for t in tables for b in t.blocks))
            for sequence, table in zip(self.sequences, tables, strict=True):
                _check_table(group, table, sequence.length)

    def _check_alive(self, sequence: Sequence) -> None:
        if not sequence.alive or sequence not in self.sequences:
            raise UsageError("the sequence is closed", hint="open a new one")


def _check_count(count: int) -> None:
    if count < 0:
        raise UsageError(f"a count of {count} entries", hint="append adds, shorten takes back")


def _parts(slots: tuple[Slot, ...], *, by_layer: bool) -> list[list[int]]:
    """Indices of slots that share tables: same window or state, or one slot each."""
    if by_layer:
        return [[i] for i in range(len(slots))]
    parts: dict[tuple[bool, int | None], list[int]] = {}
    for i, slot in enumerate(slots):
        parts.setdefault((is_state(slot), window_of(slot)), []).append(i)
    return list(parts.values())


def _states(group: Group, tables: list[Table]) -> list[torch.Tensor]:
    """Copies of the tables' states in every plane; nothing for a group of entries."""
    if not group.is_state:
        return []
    blocks = torch.tensor([table.blocks[0] for table in tables], dtype=torch.long)
    return [tensor[blocks] for tensor in group.tensors()]


def _can_shorten(group: Group, table: Table, count: int) -> bool:
    """Whether the next position still sees all that it should once `count` entries are gone."""
    if group.is_state or count > table.entries:
        return False
    window = group.window
    return window is None or not table.dropped or table.entries - count >= window - 1


def _check_table(group: Group, table: Table, length: int) -> None:
    if group.is_state:
        return
    fits = len(table.blocks) == -(-table.entries // group.block_size)
    whole = table.compacted or table.dropped + table.entries == length
    if not fits or not whole:
        raise KvproofError(
            f"a table holds {table.entries} entries in {len(table.blocks)} blocks "
            f"after {table.dropped} dropped, of a sequence of {length}"
        )
