"""Gemma 3n's graph: several streams of which one is computed and all are corrected.

Source: llama.cpp's src/models/gemma3n.cpp, b11549.
"""

from __future__ import annotations

from kvproof.engine.llamacpp.graph.blocks import Blocks
from kvproof.engine.llamacpp.graph.plain import attention, embedded, layer_inputs, layer_rows
from kvproof.engine.llamacpp.graph.shape import Layer, Shape
from kvproof.engine.llamacpp.graph.tensors import Graph, Tensor

_LAUREL = 64  # rank of the low-rank path beside attention
_SPARSE_LAYERS = 10
_STREAMS = 4


def altup_graph(shape: Shape) -> Graph:
    """The whole graph: streams made of the embedding, layers, and streams brought together."""
    blocks = Blocks(shape)
    stream = embedded(blocks)
    rows = layer_rows(blocks)
    scaled = blocks.graph.new((shape.layer_width, shape.layer_count, shape.tokens), (
        blocks.graph.view(rows, shape.layer_width, shape.layer_count, shape.tokens),))  # fmt: skip
    blocks.graph.expand(scaled)
    per_layer = layer_inputs(blocks, stream, scaled)
    streams = _spread(blocks, stream)
    for layer in shape.layers:
        blocks.graph.layer = layer.index
        streams = _layer(blocks, layer, streams, per_layer)
    blocks.graph.layer = shape.layer_count
    merged = blocks.chosen_rows(_merged(blocks, streams))
    normed = blocks.norm(merged)
    normed.kept = True
    blocks.graph.expand(blocks.matmul(normed, shape.vocabulary) if shape.outputs else normed)
    return blocks.graph


def _magnitude(blocks: Blocks, source: Tensor) -> Tensor:
    """The length of every row."""
    graph = blocks.graph
    squared = graph.new(source.shape, (source,), reuses=True)
    return graph.like(graph.new((1, *source.shape[1:]), (squared,)))


def _rescaled(blocks: Blocks, source: Tensor, target: Tensor) -> Tensor:
    """Rows brought to the target's length."""
    product = blocks.graph.like(source, target)
    return blocks.graph.like(product, _magnitude(blocks, source))


def _spread(blocks: Blocks, stream: Tensor) -> Tensor:
    graph, shape = blocks.graph, blocks.shape
    dims = (shape.hidden, shape.tokens, _STREAMS - 1)
    made = blocks.matmul(graph.new(dims, (stream,)), shape.hidden)
    made = _rescaled(blocks, made, _magnitude(blocks, stream))
    return graph.new((shape.hidden, shape.tokens, _STREAMS), (stream, made))


def _one(blocks: Blocks, streams: Tensor) -> Tensor:
    return blocks.graph.view(streams, blocks.shape.hidden, blocks.shape.tokens)


def _rest(blocks: Blocks, streams: Tensor) -> Tensor:
    return blocks.graph.view(streams, blocks.shape.hidden, blocks.shape.tokens, _STREAMS - 1)


def _modalities(blocks: Blocks, source: Tensor) -> Tensor:
    normed = blocks.graph.new(source.shape, (source,), reuses=True)
    return blocks.graph.like(blocks.matmul(normed, _STREAMS))


def _predicted(blocks: Blocks, streams: Tensor) -> Tensor:
    graph, shape = blocks.graph, blocks.shape
    wide = (_STREAMS, shape.hidden, shape.tokens)
    turned = graph.new(wide, (graph.view(streams, *wide, strides=streams.strides),))
    weights = blocks.matmul(_modalities(blocks, _one(blocks, streams)), _STREAMS**2)
    shaped = graph.view(weights, _STREAMS, _STREAMS, shape.tokens)
    mixed = graph.new((shape.hidden, _STREAMS, shape.tokens), (turned, shaped))
    back = graph.view(mixed, *streams.shape, strides=mixed.strides)
    return graph.like(blocks.contiguous(back), streams)


def _corrected(blocks: Blocks, predicted: Tensor, active: Tensor) -> Tensor:
    graph, shape = blocks.graph, blocks.shape
    gap = graph.like(active, _one(blocks, predicted))
    repeated = graph.new(predicted.shape, (gap,))
    weights = graph.like(blocks.matmul(_modalities(blocks, active), _STREAMS))
    turned = graph.view(weights, shape.tokens, _STREAMS, strides=weights.strides)
    each = graph.new((1, shape.tokens, _STREAMS), (turned,))
    return graph.like(graph.like(repeated, each), predicted)


def _layer(blocks: Blocks, layer: Layer, streams: Tensor, per_layer: Tensor) -> Tensor:
    graph, shape = blocks.graph, blocks.shape
    predicted = _predicted(blocks, streams)
    active = _one(blocks, predicted)
    normed = graph.new(active.shape, (active,), reuses=True)
    low = blocks.norm(blocks.matmul(blocks.matmul(normed, _LAUREL), shape.hidden))
    beside = graph.like(low, normed)
    attended = graph.like(blocks.norm(attention(blocks, layer, normed, active)), active)
    middle = graph.like(graph.like(attended, beside))
    fed = blocks.norm(_fed(blocks, layer, blocks.norm(middle)))
    corrected = _corrected(blocks, predicted, graph.like(fed, middle))
    first, rest = _one(blocks, corrected), _rest(blocks, corrected)
    own = _one(blocks, corrected)
    gate = blocks.matmul(graph.new(own.shape, (own,), reuses=True), shape.layer_width)
    gate = graph.like(gate)
    given = graph.view(per_layer, shape.layer_width, shape.tokens)
    added = blocks.norm(blocks.matmul(graph.like(gate, given), shape.hidden))
    total = graph.new(rest.shape, (rest, added), reuses=True)
    return graph.new(predicted.shape, (first, total))


def _fed(blocks: Blocks, layer: Layer, tensor: Tensor) -> Tensor:
    """Gate and up; the gates of the first layers keep only what stands out."""
    graph = blocks.graph
    up, gate = blocks.matmul(tensor, layer.wide), blocks.matmul(tensor, layer.wide)
    if layer.index < _SPARSE_LAYERS:
        mean = graph.new((1, gate.shape[1]), (gate,))
        spread = graph.like(graph.new(gate.shape, (gate, mean), reuses=True))
        deviation = graph.like(graph.new((1, gate.shape[1]), (spread,)))
        gate = graph.like(gate, graph.like(mean, deviation))
    return blocks.matmul(graph.like(up, graph.like(gate)), blocks.shape.hidden)


def _merged(blocks: Blocks, streams: Tensor) -> Tensor:
    """The streams brought back to one length and averaged."""
    graph, shape = blocks.graph, blocks.shape
    made = blocks.matmul(_rest(blocks, streams), shape.hidden)
    target = _magnitude(blocks, _one(blocks, streams))
    made = _rescaled(blocks, made, target)
    total = _one(blocks, streams)
    for _ in range(_STREAMS - 1):
        part = graph.view(made, shape.hidden, shape.tokens)
        total = graph.new(total.shape, (total, part), reuses=True)
    return graph.like(total)
