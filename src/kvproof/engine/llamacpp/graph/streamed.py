"""Graphs whose layers read from several residual streams: HY-V4 and GLM-5 Next.

Source: llama.cpp's src/models/hy-v4.cpp and glm5-next.cpp, b11549.
"""

from __future__ import annotations

from kvproof.engine.llamacpp.graph.blocks import Blocks
from kvproof.engine.llamacpp.graph.plain import attended_by, ending, feed
from kvproof.engine.llamacpp.graph.pools import pools_of
from kvproof.engine.llamacpp.graph.shape import Layer, Shape
from kvproof.engine.llamacpp.graph.streams import IndependentStreams, Streams
from kvproof.engine.llamacpp.graph.tensors import Graph, Tensor


def streamed_graph(shape: Shape) -> Graph:
    """The whole graph: the embedding in every stream, layers, and the streams made one."""
    blocks = Blocks(shape)
    mixed = shape.recipe.streams == "mixed"
    streams = (Streams if mixed else IndependentStreams)(blocks, shape.residuals)
    embedding = blocks.embedding()
    blocks.pools = pools_of(blocks.graph, shape)
    current = streams.start(embedding)
    for layer in shape.layers:
        blocks.graph.layer = layer.index
        current = _layer(blocks, streams, layer, current)
    blocks.graph.layer = shape.layer_count
    chosen = streams.chosen_rows(current)
    ending(blocks, streams.mean(chosen) if mixed else streams.weighed(chosen))
    return blocks.graph


def _layer(blocks: Blocks, streams: Streams, layer: Layer, current: Tensor) -> Tensor:
    read, how = streams.read(current)
    normed = blocks.norm(read)
    if layer.mixer is not None or blocks.shape.recipe.streams == "mixed":
        blocks.graph.expand(normed)
    current = streams.spread(attended_by(blocks, layer, normed, normed), current, how)
    read, how = streams.read(current)
    return streams.spread(feed(blocks, layer, blocks.norm(read)), current, how)
