"""Blocks: who holds each one. No tensors, no time: only the books.

A block is in exactly one of three states:

    free     nobody holds it and its content is worthless
    cached   nobody holds it, but its content can be found again by hash; oldest goes first
    held     `references` tables hold it

    take: free -> held (or oldest cached -> held)      share: held -> held, cached -> held
    release: held -> cached when it was sealed with a hash and nobody is left, else -> free

free + cached + held == total, always; `check_integrity` says so. Idea of block tables: Kwon et al.,
"Efficient Memory Management for LLM Serving with PagedAttention", 2023.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NewType

from kvproof.errors import KvproofError, UsageError

BlockId = NewType("BlockId", int)
BlockHash = NewType("BlockHash", bytes)


class PoolFullError(KvproofError):
    """A verb was called without asking its `can_` twin first, and there were too few blocks."""


class BlockBooks:
    """The books of `total` blocks: free, cached or held, with reference counts."""

    def __init__(self, total: int) -> None:
        if total < 0:
            raise UsageError(f"a pool of {total} blocks", hint="give zero or more")
        self.total = total
        self._free = [BlockId(i) for i in range(total - 1, -1, -1)]
        self._references = [0] * total
        self._hash_of: dict[BlockId, BlockHash] = {}
        self._found_by: dict[BlockHash, BlockId] = {}
        self._cached: OrderedDict[BlockId, None] = OrderedDict()

    @property
    def free(self) -> int:
        """Blocks whose content is worthless."""
        return len(self._free)

    @property
    def cached(self) -> int:
        """Blocks that nobody holds and that a prefix can still find."""
        return len(self._cached)

    @property
    def held(self) -> int:
        """Blocks that at least one table holds."""
        return self.total - self.free - self.cached

    def references(self, block: BlockId) -> int:
        """How many tables hold `block`."""
        return self._references[block]

    def is_private(self, block: BlockId) -> bool:
        """Whether its one holder may write into it: not shared and not sealed."""
        return self._references[block] == 1 and block not in self._hash_of

    def can_take(self, count: int) -> bool:
        """Whether `count` blocks can be handed out, cached ones counted as available."""
        return count <= self.free + self.cached

    def take(self, count: int) -> list[BlockId]:
        """`count` blocks, each with one reference. Their old content is undefined.

        Free blocks go first, then the cached ones, least recently used first.
        """
        if not self.can_take(count):
            raise PoolFullError(
                f"{count} blocks asked, {self.free + self.cached} available of {self.total}"
            )
        return [self._take_one() for _ in range(count)]

    def take_lowest(self, count: int) -> list[BlockId]:
        """`count` blocks like `take`, of the lowest numbers that can be had, in order."""
        blocks = sorted(self.take(max(count, self.free)))
        for block in reversed(blocks[count:]):
            self.release(block)
        return blocks[:count]

    def _take_one(self) -> BlockId:
        if self._free:
            block = self._free.pop()
        else:
            block, _ = self._cached.popitem(last=False)
            self._forget(block)
        self._references[block] = 1
        return block

    def share(self, block: BlockId) -> None:
        """One more reference to a held or cached block."""
        if self._references[block] == 0:
            if block not in self._cached:
                raise UsageError(f"block {block} is free", hint="take it, don't share it")
            del self._cached[block]
        self._references[block] += 1

    def release(self, block: BlockId) -> None:
        """One reference less; the last one makes the block cached (when sealed) or free."""
        if self._references[block] <= 0:
            raise UsageError(f"block {block} is not held", hint="release once per reference")
        self._references[block] -= 1
        if self._references[block]:
            return
        if block in self._hash_of:
            self._cached[block] = None
        else:
            self._free.append(block)

    def seal(self, block: BlockId, name: BlockHash) -> None:
        """Name the full, final content of a held block, so that `find` finds it.

        A content that is already known under another block stays there: the first one wins.
        """
        if self._references[block] <= 0:
            raise UsageError(f"block {block} is not held", hint="seal while holding it")
        if name in self._found_by or block in self._hash_of:
            return
        self._hash_of[block] = name
        self._found_by[name] = block

    def find(self, name: BlockHash) -> BlockId | None:
        """The block with this content, held or cached; no reference is taken."""
        return self._found_by.get(name)

    def drop_cached(self) -> int:
        """Forget every cached block; returns how many became free."""
        count = len(self._cached)
        for block in list(self._cached):
            self._forget(block)
            self._free.append(block)
        self._cached.clear()
        return count

    def _forget(self, block: BlockId) -> None:
        del self._found_by[self._hash_of.pop(block)]

    def check_integrity(self, holders: dict[BlockId, int]) -> None:
        """Raise KvproofError unless the books balance and agree with the tables.

        `holders`: for each block, how many tables hold it.
        """
        free, cached = set(self._free), set(self._cached)
        held = {BlockId(i) for i, count in enumerate(self._references) if count}
        faults = {
            "a block has two states": free & cached or free & held or cached & held,
            "free + cached + held != total": len(free | cached | held) != self.total,
            "a free block is listed twice": len(free) != len(self._free),
            "a reference count differs from its tables": any(
                count != holders.get(BlockId(i), 0) for i, count in enumerate(self._references)
            ),
            "a cached block has no hash": any(b not in self._hash_of for b in cached),
            "the hash maps disagree": {h: b for b, h in self._hash_of.items()} != self._found_by,
            "a free block has a hash": any(b in self._hash_of for b in free),
        }
        for fault, found in faults.items():
            if found:
                raise KvproofError(f"the block books are wrong: {fault}")
