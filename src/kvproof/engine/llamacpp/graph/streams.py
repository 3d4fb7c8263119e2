"""Residual streams beside each other: how a block reads one from them and is spread over them.

Source: llama.cpp's src/models/deepseek4.cpp, glm5-next.cpp, hy-v4.cpp, b11549.
"""

from __future__ import annotations

import functools

from kvproof.engine.llamacpp.graph.blocks import Blocks
from kvproof.engine.llamacpp.graph.tensors import Tensor

_F32 = 4
Spreading = tuple[Tensor, ...]
"""The weights by which what a block made goes back into the streams."""


class Streams:
    """`count` streams that are mixed with each other at every block (DeepSeek-V4, GLM-5 Next)."""

    def __init__(self, blocks: Blocks, count: int) -> None:
        self.blocks, self.graph, self.count = blocks, blocks.graph, count
        self.hidden = blocks.shape.hidden

    def start(self, embedding: Tensor) -> Tensor:
        """The embedding in every stream."""
        tokens = embedding.shape[1]
        one = self.graph.view(embedding, self.hidden, 1, tokens)
        return self.graph.new((self.hidden, self.count, tokens), (one,))

    def read(self, streams: Tensor) -> tuple[Tensor, Spreading]:
        """One stream for a block, and how its result is spread."""
        rows = streams.shape[2]
        mixes = self.mixes(streams, (2 + self.count) * self.count)
        before, post = self.weights(mixes), self.weights(mixes)
        mixing = self.graph.new((self.count, self.count, rows), (mixes,))
        return self.graph.new((self.hidden, rows), (streams, before)), (post, mixing)

    def spread(self, made: Tensor, streams: Tensor, how: Spreading) -> Tensor:
        """The streams after a block."""
        return self.graph.new(streams.shape, (made, streams, *how))

    def chosen_rows(self, streams: Tensor) -> Tensor:
        """The streams of the tokens that have an output."""
        flat = self.graph.view(streams, self.hidden * self.count, streams.shape[2])
        rows = self.blocks.chosen_rows(flat)
        return self.graph.view(rows, self.hidden, self.count, rows.shape[1])

    def weighed(self, streams: Tensor) -> Tensor:
        """The streams as one, each by a weight of its own."""
        return self.summed(streams, self.weights(self.mixes(streams, self.count)))

    def mean(self, streams: Tensor) -> Tensor:
        """The streams' mean."""
        parts = [self._one(streams) for _ in range(self.count)]
        return functools.reduce(self._added, parts)

    # parts

    def mixes(self, streams: Tensor, width: int) -> Tensor:
        """What the normed streams, as one row, say about how to mix them."""
        flat = self.graph.view(streams, self.hidden * self.count, streams.shape[2])
        return self.blocks.matmul(self.graph.new(flat.shape, (flat,), reuses=True), width)

    def weights(self, mixes: Tensor) -> Tensor:
        """A weight for every stream: some of the mixes scaled, shifted, through a sigmoid."""
        width, rows = mixes.shape[:2]
        if width == self.count:
            return self.graph.like(mixes)
        part = self.graph.view(mixes, self.count, rows, strides=(
            _F32, width * _F32, width * rows * _F32, width * rows * _F32))  # fmt: skip
        return self.graph.new(part.shape, (part,), reuses=True)

    def summed(self, streams: Tensor, weights: Tensor) -> Tensor:
        """The streams times their weights, added up."""
        products = [
            self.graph.new(one.shape, (one, self._of_stream(weights)), reuses=True)
            for one in (self._one(streams) for _ in range(self.count))
        ]
        return functools.reduce(self.graph.like, products)

    def _one(self, streams: Tensor) -> Tensor:
        apart = (_F32, self.hidden * self.count * _F32, 0, 0)
        return self.graph.view(streams, self.hidden, streams.shape[2], strides=apart)

    def _of_stream(self, weights: Tensor) -> Tensor:
        apart = (_F32, self.count * _F32, 0, 0)
        return self.graph.view(weights, 1, weights.shape[1], strides=apart)

    def _added(self, total: Tensor, part: Tensor) -> Tensor:
        return self.graph.new(part.shape, (total, part), reuses=True)


class IndependentStreams(Streams):
    """Streams that only a block's reading mixes, computed on copies (HY-V4)."""

    def read(self, streams: Tensor) -> tuple[Tensor, Spreading]:
        """One stream for a block, and the weight of its result in every stream."""
        mixes = self.mixes(streams, 2 * self.count)
        before, post = self.weights(mixes), self.weights(mixes)
        return self.copied(self.summed(self.copied(streams), before)), (post,)

    def weighed(self, streams: Tensor) -> Tensor:
        """The streams as one, each by a weight of its own."""
        weights = self.weights(self.mixes(streams, self.count))
        return self.copied(self.summed(self.copied(streams), weights))

    def spread(self, made: Tensor, streams: Tensor, how: Spreading) -> Tensor:
        """Every stream plus the block's result times its weight, put together again."""
        result, post, old = self.copied(made), self.copied(how[0]), self.copied(streams)
        rows = made.shape[1]
        parts = []
        for _ in range(self.count):
            share = self.graph.like(result, self._of_stream(post))
            new = self.graph.new(made.shape, (self._one(old), share), reuses=True)
            parts.append(self.graph.view(new, self.hidden, 1, rows))
        return self.copied(functools.reduce(self._behind, parts))

    def _behind(self, first: Tensor, second: Tensor) -> Tensor:
        """Two groups of streams put together."""
        width, rows = first.shape[0], first.shape[2]
        return self.graph.new((width, first.shape[1] + second.shape[1], rows), (first, second))

    def copied(self, tensor: Tensor) -> Tensor:
        """A copy in the type of the computation."""
        return self.graph.new(tensor.shape, (tensor,))
