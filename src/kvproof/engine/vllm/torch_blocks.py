"""Blocks that torch's caching allocator makes of tensors: what loading a model really takes.

The engine prints what the allocator holds, and a block may be longer than its tensor. Source:
PyTorch 2.13, c10/core/AllocatorConfig.h (the sizes) and c10/cuda/CUDACachingAllocator.cpp
(get_allocation_size, should_split); vLLM 0.21 on load with a split limit of 20 MiB
(v1/worker/gpu_worker.py, pull request 41268), above which a block is never cut.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

from kvproof.units import MIB

_UNIT, _SMALL, _SEGMENT, _LARGE, _ROUND = 512, MIB, 20 * MIB, 10 * MIB, 2 * MIB
"""Sizes are rounded to 512 B; up to 1 MiB they share small blocks; below 10 MiB they are cut from
segments of 20 MiB; from there on each has a segment of its own, rounded to 2 MiB."""
_LIMIT = 20 * MIB


def block_bytes(sizes: Iterable[int], *, limited: bool) -> int:
    """Bytes of the blocks that tensors of these sizes get, allocated in this order.

    `limited`: blocks of 20 MiB and more are never cut.
    """
    free: list[int] = []
    return sum(_block(-(-size // _UNIT) * _UNIT, free, limited=limited) for size in sizes)


def _block(size: int, free: list[int], *, limited: bool) -> int:
    """The block of one tensor; what is cut off of it is free for the next ones."""
    if size <= _SMALL:
        return size
    place = bisect_left(free, size)
    if place < len(free):
        found = free.pop(place)
    else:
        found = _SEGMENT if size < _LARGE else -(-size // _ROUND) * _ROUND
    if found - size <= _SMALL or (limited and size >= _LIMIT):
        return found
    insort(free, found - size)
    return size
