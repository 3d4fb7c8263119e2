"""Tables: which blocks hold a sequence's entries, in order.

    positions of the sequence   0 1 2 3 | 4 5 6 7 | 8 9 . .        block_size 4, length 10
    table of a full slot        block 7 | block 2 | block 5
    table of a sliding slot       gone  | block 3 | block 9        dropped = 4, window 5

`dropped` positions in front have no block any more; `entries` are counted from the first block
that is left. A compacted table (after an eviction by score) keeps entries of any positions.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kvproof.lab.pool.blocks import BlockHash, BlockId


@dataclass(slots=True)
class Table:
    """One sequence's blocks in one group of slots."""

    blocks: list[BlockId] = field(default_factory=list)
    entries: int = 0
    dropped: int = 0
    compacted: bool = False


@dataclass(slots=True, eq=False)
class Sequence:
    """A sequence that a pool holds: a table per group, its length in tokens, its sealed names.

    Only the pool changes it. `alive` is False once it is closed or swapped out.
    """

    tables: list[Table]
    length: int = 0
    hashes: list[BlockHash] = field(default_factory=list)
    alive: bool = True
