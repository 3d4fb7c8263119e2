"""How much memory a graph takes: ggml's graph allocator, run on sizes alone.

Leaves and inputs come first; then every node gets the memory of a source that nobody else reads
and that has its layout (for operations that may work in place), else the smallest free block that
holds it, else the end. What nobody reads any more is freed. Source: ggml-alloc.c, b11549.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterable, Mapping, Sequence

from kvproof.engine.llamacpp.graph.tensors import Graph, Tensor

ALIGNMENT = 32
GPU_ALIGNMENT = 128
_ENDLESS = 2**62


def peak_bytes(graph: Graph, alignment: int = ALIGNMENT) -> int:
    """The size of the buffer in which every tensor of `graph` has its place."""
    pool = Pool(alignment)
    place_all(graph.leaves, graph.nodes, {None: pool})
    return pool.peak


def repeats(
    leaves: Iterable[Tensor], nodes: Sequence[Tensor], pools: Mapping[int | None, Pool],
    ends: Iterable[tuple[int, int]],
) -> bool:  # fmt: skip
    """Place all; whether memory is free alike after both layers of every pair."""
    pairs = tuple(ends)
    last = {node.layer: place for place, node in enumerate(nodes)}
    places = frozenset(last[layer] for pair in pairs for layer in pair if layer in last)
    seen = place_all(leaves, nodes, pools, places)
    return all(seen.get(last.get(first, -1)) == seen.get(last.get(second, -1))
               for first, second in pairs)  # fmt: skip


Free = tuple[tuple[int, ...], ...]
"""Where free blocks begin and how long they are, of every pool."""


def place_all(
    leaves: Iterable[Tensor], nodes: Sequence[Tensor], pools: Mapping[int | None, Pool],
    looks: Container[int] = (),
) -> dict[int, Free]:  # fmt: skip
    """Give every tensor its place in the pool of its device; what is free at some of the nodes."""
    seen: dict[int, Free] = {}
    for leaf in leaves:
        pools[leaf.device].place(leaf)
    for node in nodes:
        if node.base is not None and not node.waits:
            node.base.views += 1
        for source in node.sources:
            source.children += 1
    for place, node in enumerate(nodes):
        pools[node.device].place(node)
        for source in node.sources:
            source.children -= 1
            if source.children == 0 and source.views == 0:
                pools[source.device].release(source)
        if place in looks:
            seen[place] = tuple((*pool.starts, *pool.sizes) for pool in pools.values())
    return seen


class Pool:
    """Free blocks by address; the last one has no end."""

    def __init__(self, alignment: int) -> None:
        self.alignment = alignment
        self.starts = [0]
        self.sizes = [_ENDLESS]
        self.peak = 0

    def _padded(self, size: int) -> int:
        return -(-size // self.alignment) * self.alignment

    def place(self, tensor: Tensor) -> None:
        """Give a tensor its memory; views have their base's."""
        if tensor.base is not None or tensor.outside or tensor.held:
            return
        tensor.held = True
        if tensor.reuses:
            for source in tensor.sources:
                if self._take_over(tensor, source):
                    return
        tensor.place = self._take(self._padded(tensor.size))

    def release(self, tensor: Tensor) -> None:
        """Free the memory of a tensor that nobody reads, or of the base of such a view."""
        base = tensor.base
        if base is not None:
            base.views -= 1
            if base.views or base.children:
                return
            tensor = base
        if tensor.held and not tensor.kept:
            tensor.held = False
            self._free(tensor.place, self._padded(tensor.size))

    def _take_over(self, tensor: Tensor, source: Tensor) -> bool:
        """Work in place of `source`, when this is its last reader and the layout is the same."""
        if not source.held or source.kept or source.children != 1 or source.views:
            return False
        if source.shape != tensor.shape or source.strides != tensor.strides:
            return False
        source.held = False
        tensor.place = source.place
        return True

    def _take(self, size: int) -> int:
        best, best_size = len(self.sizes) - 1, _ENDLESS + 1
        for index in range(len(self.sizes) - 1):
            if size <= self.sizes[index] <= best_size:
                best, best_size = index, self.sizes[index]
        start = self.starts[best]
        if self.sizes[best] == size:
            del self.starts[best], self.sizes[best]
        else:
            self.starts[best] += size
            self.sizes[best] -= size
        self.peak = max(self.peak, start + size)
        return start

    def _free(self, start: int, size: int) -> None:
        if not size:
            return
        index = bisect_left(self.starts, start)
        if index and self.starts[index - 1] + self.sizes[index - 1] == start:
            index -= 1
            self.sizes[index] += size
        else:
            self.starts.insert(index, start)
            self.sizes.insert(index, size)
        if index + 1 < len(self.starts) and start + size == self.starts[index + 1]:
            self.sizes[index] += self.sizes.pop(index + 1)
            del self.starts[index + 1]
