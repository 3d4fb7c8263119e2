"""Prefix sharing: the longest start of a prompt whose blocks every group still has."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from kvproof.lab.pool.blocks import BlockHash, BlockId
from kvproof.lab.pool.groups import Group
from kvproof.lab.pool.tables import Sequence, Table


def match(groups: Seq[Group], sequence: Sequence, names: Seq[BlockHash]) -> None:
    """Give a new sequence the found blocks of its first names, shared with their holders.

    A full slot needs every block from the start on; a sliding slot only those that the next
    position still sees, which is why a shorter hit may be possible where a longer one is not.
    """
    for count in range(_longest_full(groups, names), 0, -1):
        tables = [_table(group, names[:count]) for group in groups]
        if all(table is not None for table in tables):
            sequence.tables = [table for table in tables if table is not None]
            break
    else:
        return
    for group, table in zip(groups, sequence.tables, strict=True):
        for block in table.blocks:
            group.books.share(block)
    sequence.hashes = list(names[:count])
    sequence.length = count * groups[0].block_size


def _longest_full(groups: Seq[Group], names: Seq[BlockHash]) -> int:
    count = len(names)
    for group in groups:
        if group.window is None:
            found = (i for i, name in enumerate(names) if group.books.find(name) is None)
            count = min(count, next(found, len(names)))
    return count


def _table(group: Group, names: Seq[BlockHash]) -> Table | None:
    """The table of a hit on all `names` in this group, or None when a needed block is gone."""
    size = group.block_size
    length = len(names) * size
    first = 0 if group.window is None else max(0, length - group.window + 1) // size
    blocks: list[BlockId] = []
    for name in names[first:]:
        block = group.books.find(name)
        if block is None:
            return None
        blocks.append(block)
    return Table(blocks, length - first * size, first * size)
