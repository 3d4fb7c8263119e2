"""Graphs of architectures that are made of attention, feed-forward and experts alone.

Source: llama.cpp's src/models/*.cpp, b11549; what differs between them is in data/graphs.json.
"""

from __future__ import annotations

from kvproof.engine.llamacpp.graph.blocks import Blocks
from kvproof.engine.llamacpp.graph.shape import Layer, Shape
from kvproof.engine.llamacpp.graph.tensors import Graph, Tensor

# The feed-forward reads what the attention read; in this order the sums are made.
_SAME = frozenset({"fas", "afs", "fsa"})


def plain_graph(shape: Shape) -> Graph:
    """The whole graph: embedding, layers, norm and logits."""
    blocks = Blocks(shape)
    stream = blocks.embedding()
    if shape.recipe.learned_positions:
        rows = blocks.graph.new((shape.hidden, shape.tokens), (blocks.positions(),))
        stream = blocks.add(stream, rows)
    if shape.recipe.scaled_rows:
        stream = blocks.add(stream, blocks.graph.input(shape.tokens))
    if shape.recipe.embedding_norm:
        stream = blocks.norm(stream)
    for layer in shape.layers:
        stream = _layer(blocks, layer, stream, last=layer is shape.layers[-1])
    normed = blocks.norm(stream)
    normed.kept = True
    blocks.graph.expand(blocks.matmul(normed, shape.vocabulary) if shape.outputs else normed)
    return blocks.graph


def _layer(blocks: Blocks, layer: Layer, stream: Tensor, *, last: bool) -> Tensor:
    recipe = blocks.shape.recipe
    normed = blocks.norm(stream) if recipe.norms_before else stream
    query, key, value = blocks.heads_of(normed, layer, norm=recipe.queries_norm, fused=recipe.fused)
    if recipe.queries_norm == "head":
        query, key = blocks.norm(query), blocks.norm(key)
    if layer.rotates:
        query, key = blocks.rope(query), blocks.rope(key)
    attended = blocks.attention(layer, query, key, value)
    if last:
        attended, stream = blocks.chosen_rows(attended), blocks.chosen_rows(stream)
        if recipe.residual in _SAME:
            normed = blocks.chosen_rows(normed)
    if recipe.norms_after:
        attended = blocks.norm(attended)
    if recipe.residual in _SAME:
        parts = {"a": attended, "f": _feed(blocks, layer, normed), "s": stream}
        first, second, third = (parts[name] for name in recipe.residual)
        return blocks.add(blocks.add(first, second), third)
    if recipe.residual == "own":
        fed = _feed(blocks, layer, blocks.norm(stream))
        return blocks.add(blocks.add(fed, stream), attended)
    middle = blocks.add(attended, stream)
    if recipe.routing and recipe.routing.beside == "arctic":
        fed = blocks.feed_forward(blocks.norm(middle), layer.wide, recipe.feed_forward)
        middle = blocks.add(fed, middle)
        return blocks.add(blocks.routed(blocks.norm(stream)), middle)
    fed = _feed(blocks, layer, blocks.norm(middle) if recipe.norms_before else middle)
    if recipe.norms_after:
        fed = blocks.norm(fed)
    return blocks.add(fed, middle)


def _feed(blocks: Blocks, layer: Layer, tensor: Tensor) -> Tensor:
    """The layer's feed-forward: dense, or experts with those that all tokens share."""
    shape, form = blocks.shape, blocks.shape.recipe.feed_forward
    routing = shape.recipe.routing
    if not layer.routed or routing is None:
        return blocks.feed_forward(tensor, layer.wide, form)
    out = blocks.routed(tensor)
    if shape.experts.shared_width:
        shared = blocks.feed_forward(tensor, shape.experts.shared_width, form)
        if routing.shared == "gated":
            shared = blocks.graph.like(shared, blocks.graph.like(blocks.matmul(tensor, 1)))
        out = blocks.add(out, shared)
    return out
