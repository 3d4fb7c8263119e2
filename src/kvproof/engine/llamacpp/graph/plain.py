"""Graphs of architectures that are made of attention, feed-forward and experts alone.

Source: llama.cpp's src/models/*.cpp, b11549; what differs between them is in data/graphs.json.
"""

from __future__ import annotations

from kvproof.engine.llamacpp.graph.blocks import Blocks
from kvproof.engine.llamacpp.graph.blockwise import blockwise_attended
from kvproof.engine.llamacpp.graph.latent import latent_attended
from kvproof.engine.llamacpp.graph.mixers import mixed
from kvproof.engine.llamacpp.graph.pooled import pooled_attended
from kvproof.engine.llamacpp.graph.shape import Layer, Mixer, Shape
from kvproof.engine.llamacpp.graph.tensors import Graph, Tensor

# The feed-forward reads what the attention read; in this order the sums are made.
_SAME = frozenset({"fas", "afs", "fsa"})


def plain_graph(shape: Shape) -> Graph:
    """The whole graph: embedding, layers, norm and logits."""
    blocks = Blocks(shape)
    rows = layer_rows(blocks) if shape.layer_width else None
    stream = embedded(blocks)
    skip = stream if shape.recipe.skips else None
    per_layer = layer_inputs(blocks, stream, rows) if rows else None
    for layer in shape.layers:
        blocks.graph.layer = layer.index
        last = layer is shape.layers[-1] and shape.recipe.rows == "last layer"
        stream = _layer(blocks, layer, stream, skip, last=last)
        if per_layer is not None:
            stream = _with_input(blocks, stream, per_layer, last=last)
        if layer.stacks:
            stream = blocks.add(stream, blocks.stacked_part())
    ending(blocks, stream)
    return blocks.graph


def ending(blocks: Blocks, stream: Tensor) -> None:
    """The last norm and the logits of the tokens that have an output."""
    blocks.graph.layer = blocks.shape.layer_count
    recipe, outputs = blocks.shape.recipe, blocks.shape.outputs
    if recipe.rows == "before norm":
        stream.kept = True
        stream = blocks.chosen_rows(stream)
    normed = blocks.norm(stream)
    normed.kept = True
    if recipe.rows == "after norm":
        normed = blocks.chosen_rows(normed)
        normed.kept = True
    last = blocks.matmul(normed, blocks.shape.vocabulary) if outputs else normed
    if recipe.closed_logits:
        closed = blocks.graph.like(blocks.graph.blank(recipe.closed_logits))
        last = blocks.graph.new(last.shape, (last, closed))
    blocks.graph.expand(last)


def embedded(blocks: Blocks) -> Tensor:
    """Rows of the token table, with what an architecture adds to them."""
    shape, recipe = blocks.shape, blocks.shape.recipe
    stream = blocks.embedding()
    if recipe.learned_positions:
        stream = blocks.add(stream, blocks.looked_up(shape.hidden, blocks.positions()))
    if recipe.scaled_rows and shape.inputs == "mixed":
        stream = blocks.add(stream, blocks.graph.input(shape.tokens))
    return blocks.norm(stream) if recipe.embedding_norm else stream


def layer_rows(blocks: Blocks) -> Tensor:
    """Rows of the table that holds what every layer adds for a token."""
    graph, shape = blocks.graph, blocks.shape
    width = shape.layer_width * shape.layer_count
    rows = blocks.looked_up(width, graph.input(shape.tokens))
    graph.expand(rows)
    return rows


def layer_inputs(blocks: Blocks, stream: Tensor, rows: Tensor) -> Tensor:
    """What every layer adds for its tokens: a table's rows and a projection of the embedding."""
    graph, shape = blocks.graph, blocks.shape
    width, count, tokens = shape.layer_width, shape.layer_count, shape.tokens
    projected = graph.view(blocks.matmul(stream, width * count), width, count, tokens)
    scaled = graph.view(graph.like(rows), width, count, tokens)
    total = blocks.add(graph.like(projected), scaled)
    turned = graph.view(total, width, tokens, count, strides=total.strides)
    return blocks.contiguous(turned)


def _with_input(blocks: Blocks, stream: Tensor, per_layer: Tensor, *, last: bool) -> Tensor:
    gate = blocks.graph.like(blocks.matmul(stream, blocks.shape.layer_width))
    own = blocks.graph.view(per_layer, blocks.shape.layer_width, blocks.shape.tokens)
    if last:
        own = blocks.chosen_rows(own)
    added = blocks.matmul(blocks.graph.like(gate, own), blocks.shape.hidden)
    return blocks.add(stream, blocks.norm(added))


def _layer(
    blocks: Blocks, layer: Layer, stream: Tensor, skip: Tensor | None, *, last: bool
) -> Tensor:
    recipe = blocks.shape.recipe
    if recipe.partial and not (layer.attends and layer.wide):
        return _partial(blocks, layer, stream, last=last)
    normed = blocks.norm(stream) if recipe.norms_before else stream
    if recipe.single:
        return _single(blocks, layer, normed, stream, last=last)
    if recipe.both and layer.mixer is not None:
        return _both(blocks, layer, layer.mixer, normed, stream, last=last)
    logits = None
    if recipe.routing and recipe.routing.early:
        logits = blocks.matmul(stream, blocks.shape.experts.count)
    attended = attended_by(blocks, layer, normed, stream)
    if recipe.norms_after and recipe.rows_after_norm:
        attended = blocks.norm(attended)
    if last:
        attended, stream = blocks.chosen_rows(attended), blocks.chosen_rows(stream)
        normed = blocks.chosen_rows(normed) if recipe.residual in _SAME else normed
        logits = blocks.chosen_rows(logits) if logits else None
        skip = blocks.chosen_rows(skip) if skip else None
    if recipe.norms_after and not recipe.rows_after_norm:
        attended = blocks.norm(attended)
    if recipe.adds_normed:
        normed = blocks.chosen_rows(normed) if last else normed
        middle = blocks.norm(blocks.add(attended, blocks.graph.like(normed)))
        return blocks.add(feed(blocks, layer, middle), blocks.graph.like(middle))
    if recipe.residual != "serial":
        return _parallel(blocks, layer, normed, attended, stream)
    out = _serial(blocks, layer, attended, stream, logits)
    return blocks.add(out, blocks.graph.like(skip)) if skip else out


def _serial(
    blocks: Blocks, layer: Layer, attended: Tensor, stream: Tensor, logits: Tensor | None
) -> Tensor:
    """Attention added to the stream, then the feed-forward of the sum."""
    recipe = blocks.shape.recipe
    middle = _sum(blocks, attended, stream, "attention")
    beside = recipe.routing.beside if recipe.routing and layer.routed else ""
    if beside == "arctic":
        return _arctic(blocks, middle, stream)
    if beside == "gemma":
        return blocks.add(blocks.norm(_gemma(blocks, layer, middle)), middle)
    fed = feed(blocks, layer, blocks.norm(middle) if recipe.norms_before else middle, logits)
    if recipe.norms_after:
        fed = blocks.norm(fed)
    return _sum(blocks, fed, middle, "feed-forward")


def _sum(blocks: Blocks, made: Tensor, stream: Tensor, what: str) -> Tensor:
    if blocks.shape.recipe.stream_first in ("both", what):
        return blocks.add(stream, made)
    return blocks.add(made, stream)


def _single(blocks: Blocks, layer: Layer, normed: Tensor, stream: Tensor, *, last: bool) -> Tensor:
    """A mixer, attention or a feed-forward, added to the stream."""
    if layer.mixer is not None or layer.attends:
        made = attended_by(blocks, layer, normed, stream)
    else:
        made = feed(blocks, layer, normed)
    if last:
        made, stream = blocks.chosen_rows(made), blocks.chosen_rows(stream)
    return blocks.add(made, stream)


def _partial(blocks: Blocks, layer: Layer, stream: Tensor, *, last: bool) -> Tensor:
    """A layer without attention, with a weight in its place, or without a feed-forward (Deci)."""
    if not layer.wide:  # what its attention makes is not read, its keys and values are kept
        if layer.attends:
            attention(blocks, layer, blocks.norm(stream), stream)
        return stream
    made = blocks.matmul(blocks.norm(stream), blocks.shape.hidden) if layer.heads else None
    if last:
        made = blocks.chosen_rows(made) if made else None
        stream = blocks.chosen_rows(stream)
    middle = blocks.add(made, stream) if made else stream
    return blocks.add(feed(blocks, layer, blocks.norm(middle)), middle)


def _both(
    blocks: Blocks, layer: Layer, mixer: Mixer, normed: Tensor, stream: Tensor, *, last: bool
) -> Tensor:
    """Attention and a mixer beside each other, then a feed-forward."""
    attended = attention(blocks, layer, normed, stream)
    made = mixed(blocks, mixer, blocks.norm(stream))
    middle = blocks.add(blocks.add(attended, made), stream)
    if last:
        middle = blocks.chosen_rows(middle)
    return blocks.add(feed(blocks, layer, blocks.norm(middle)), middle)


def _parallel(
    blocks: Blocks, layer: Layer, normed: Tensor, attended: Tensor, stream: Tensor
) -> Tensor:
    """Attention and feed-forward beside each other: the sums in the architecture's order."""
    residual = blocks.shape.recipe.residual
    if residual == "own":
        fed = feed(blocks, layer, blocks.norm(stream))
        return blocks.add(blocks.add(fed, stream), attended)
    parts = {"a": attended, "f": feed(blocks, layer, normed), "s": stream}
    first, second, third = (parts[name] for name in residual)
    return blocks.add(blocks.add(first, second), third)


def attended_by(blocks: Blocks, layer: Layer, normed: Tensor, stream: Tensor) -> Tensor:
    """What a layer's mixer or its attention makes of the normed stream."""
    if layer.mixer is not None:
        return mixed(blocks, layer.mixer, normed)
    return attention(blocks, layer, normed, stream)


def attention(blocks: Blocks, layer: Layer, normed: Tensor, stream: Tensor) -> Tensor:
    """The layer's attention, gated where the architecture gates it, through its last weight."""
    shape, recipe = blocks.shape, blocks.shape.recipe
    if layer.latent is not None:
        attend = pooled_attended if blocks.pools else latent_attended
        out, blocks.chosen = attend(blocks, layer, layer.latent, normed, blocks.chosen)
        return out
    source = blocks.norm(stream) if shape.second_norm else normed
    query, key, value = blocks.heads_of(source, layer)
    gate = None
    if recipe.gate == "queries":  # one weight makes queries and a gate for them
        both = blocks.matmul(source, 2 * layer.heads * layer.k_dim)
        query, gate = (
            blocks.graph.view(both, layer.k_dim, layer.heads, shape.tokens, strides=both.strides)
            for _ in "qg"
        )
    if shape.queries_norm == "head":
        query, key = blocks.norm(query), blocks.norm(key)
    if layer.rotates:
        query, key = blocks.rope(query), blocks.rope(key)
    elif recipe.temperature:
        query = blocks.graph.like(query, blocks.input("temperature", shape.tokens))
    if recipe.values_norm:
        value = blocks.norm(value)
    if layer.blockwise is not None:
        return blockwise_attended(blocks, layer, layer.blockwise, normed, (query, key, value))
    stored = (key, value) if layer.stores else (None, None)
    attended = blocks.attention(layer, query, *stored, project=not recipe.gate)
    return gated(blocks, layer, normed, attended, gate)


def gated(
    blocks: Blocks, layer: Layer, normed: Tensor, attended: Tensor, gate: Tensor | None
) -> Tensor:
    """What the architecture's gate leaves of the attention, through its last weight."""
    shape, recipe = blocks.shape, blocks.shape.recipe
    if gate is not None:
        flat = blocks.contiguous(gate, layer.heads * layer.k_dim, shape.tokens)
        attended = blocks.matmul(blocks.graph.like(attended, flat), shape.hidden)
    elif recipe.gate == "all":
        gate = blocks.graph.like(blocks.matmul(normed, attended.shape[0]))
        attended = blocks.matmul(blocks.graph.like(attended, gate), shape.hidden)
    elif recipe.gate == "heads":
        gate = blocks.graph.like(blocks.matmul(normed, layer.heads))
        heads = blocks.graph.view(attended, layer.v_dim, layer.heads, shape.tokens)
        each = blocks.graph.view(gate, 1, layer.heads, shape.tokens)
        product = blocks.graph.like(heads, each)
        flat = blocks.graph.view(product, layer.v_dim * layer.heads, shape.tokens)
        attended = blocks.matmul(flat, shape.hidden)
    return attended


def _arctic(blocks: Blocks, middle: Tensor, stream: Tensor) -> Tensor:
    """A narrow dense feed-forward, and experts that read the layer's input."""
    width = blocks.shape.hidden
    fed = blocks.feed_forward(blocks.norm(middle), width, blocks.shape.recipe.feed_forward)
    total = blocks.add(fed, middle)
    return blocks.add(blocks.routed(blocks.norm(stream)), total)


def _gemma(blocks: Blocks, layer: Layer, middle: Tensor) -> Tensor:
    """A dense feed-forward and experts beside each other, each with norms of its own."""
    dense = blocks.feed_forward(blocks.norm(middle), layer.wide, blocks.shape.recipe.feed_forward)
    dense = blocks.norm(dense)
    logits = blocks.matmul(blocks.norm(middle), blocks.shape.experts.count)
    routed = blocks.norm(blocks.routed(blocks.norm(middle), logits))
    return blocks.add(dense, routed)


def feed(blocks: Blocks, layer: Layer, tensor: Tensor, logits: Tensor | None = None) -> Tensor:
    """The layer's feed-forward: dense, or experts with those that all tokens share."""
    shape, form = blocks.shape, blocks.shape.recipe.feed_forward
    routing, experts = shape.recipe.routing, shape.experts
    if not layer.routed or routing is None:
        return blocks.feed_forward(tensor, layer.wide, form)
    if routing.beside == "grove":
        return _grove(blocks, tensor)
    if experts.latent:
        out = _narrowed(blocks, tensor)
    else:
        out = blocks.routed(tensor, logits, clamped=layer.clamped, hashed=layer.hashed)
    if experts.shared_width:
        shared = blocks.feed_forward(tensor, experts.shared_width, routing.shared_form or form)
        if routing.shared == "gated":
            shared = blocks.graph.like(shared, blocks.graph.like(blocks.matmul(tensor, 1)))
        before = routing.shared == "before"
        out = blocks.add(shared, out) if before else blocks.add(out, shared)
    return out


def _narrowed(blocks: Blocks, tensor: Tensor) -> Tensor:
    """Experts in a narrower space, and the way back; the router reads the stream."""
    experts, routing = blocks.shape.experts, blocks.shape.recipe.routing
    logits = blocks.matmul(tensor, experts.count)
    out = blocks.routed(blocks.matmul(tensor, experts.latent), logits)
    if routing is not None and routing.narrows == "normed":
        out = blocks.norm(out)
    return blocks.matmul(out, blocks.shape.hidden)


def _grove(blocks: Blocks, tensor: Tensor) -> Tensor:
    """Experts, then the small experts of their groups over the result."""
    experts = blocks.shape.experts
    logits = blocks.matmul(tensor, experts.count)
    out = blocks.routed(tensor, logits)
    small = blocks.routed(out, logits, grouped=True)
    return blocks.add(out, blocks.graph.like(small))
