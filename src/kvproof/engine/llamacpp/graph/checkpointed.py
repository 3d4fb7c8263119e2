"""Kimi-K3's graph: every layer reads a mix of earlier streams; experts work in a narrower space.

Source: llama.cpp's src/models/kimi-k3.cpp, b11549.
"""

from __future__ import annotations

from kvproof.engine.llamacpp.graph.blocks import Blocks
from kvproof.engine.llamacpp.graph.plain import attended_by, ending, feed
from kvproof.engine.llamacpp.graph.shape import Layer, Shape
from kvproof.engine.llamacpp.graph.tensors import Graph, Tensor


def checkpointed_graph(shape: Shape) -> Graph:
    """The whole graph: the stream restarts at every checkpoint, and the end mixes them all."""
    blocks = Blocks(shape)
    kept = _Checkpoints(blocks)
    stream = blocks.embedding()
    for layer in shape.layers:
        blocks.graph.layer = layer.index
        stream = _layer(blocks, kept, layer, stream)
    blocks.graph.layer = shape.layer_count
    ending(blocks, blocks.chosen_rows(kept.mixed(stream)))
    return blocks.graph


def _layer(blocks: Blocks, kept: _Checkpoints, layer: Layer, stream: Tensor) -> Tensor:
    mixed = kept.mixed(stream)
    restarts = bool(blocks.shape.checkpoints) and layer.index % blocks.shape.checkpoints == 0
    if restarts:
        kept.add(stream)
    normed = blocks.norm(mixed)
    blocks.graph.expand(normed)
    attended = attended_by(blocks, layer, normed, stream)
    stream = attended if restarts else blocks.add(stream, attended)
    return blocks.add(stream, feed(blocks, layer, blocks.norm(kept.mixed(stream))))


class _Checkpoints:
    """Earlier streams, and how each is weighed for a layer."""

    def __init__(self, blocks: Blocks) -> None:
        self.blocks = blocks
        self.stack: Tensor | None = None

    def add(self, stream: Tensor) -> None:
        """Keep a stream behind those that are kept."""
        graph, tokens = self.blocks.graph, stream.shape[1]
        one = graph.view(stream, stream.shape[0], 1, tokens)
        if self.stack is None:
            self.stack = one
        else:
            width, count = self.stack.shape[:2]
            self.stack = graph.new((width, count + 1, tokens), (self.stack, one))

    def mixed(self, stream: Tensor) -> Tensor:
        """The kept streams and the current one, each by the score of its own norm."""
        if self.stack is None:
            return stream
        blocks, graph = self.blocks, self.blocks.graph
        width, count, tokens = self.stack.shape[:3]
        earlier = graph.new((1, count, tokens), (blocks.rms_norm(self.stack),))
        current = graph.new((1, tokens), (blocks.rms_norm(stream),))
        rows = graph.view(earlier, count, tokens)
        scores = graph.like(graph.new((count + 1, tokens), (rows, current)))
        shares = [
            blocks.contiguous(graph.view(scores, part, tokens, strides=scores.strides))
            for part in (count, 1)
        ]
        total = graph.new((width, tokens), (self.stack, shares[0]))
        return blocks.add(total, graph.like(stream, shares[1]))
