"""Latent attention: queries absorbed into the latent, every head's own keys, and sparse indexers.

Source: llama.cpp's src/models/deepseek2.cpp, minicpm3.cpp, deepseek32.cpp, glm-dsa.cpp and
llama-graph.cpp (build_attn_mha, build_attn of llm_graph_input_attn_k_dsa), b11549.
"""

from __future__ import annotations

from kvproof.engine.llamacpp.graph.blocks import Blocks
from kvproof.engine.llamacpp.graph.shape import Latent, Layer
from kvproof.engine.llamacpp.graph.tensors import Tensor

_F16, _F32, _I32, _I64 = 2, 4, 4, 8


def latent_attended(
    blocks: Blocks, layer: Layer, latent: Latent, normed: Tensor, chosen: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """The attention of one layer through its last weight, and the cells its indexer chose.

    `chosen` are those of an earlier layer, for layers without an indexer of their own.
    """
    if latent.index_dim:
        _index_keys(blocks, latent, normed)
    low = blocks.rms_norm(blocks.matmul(normed, latent.query_rank)) if latent.query_rank else normed
    query = blocks.matmul(low, layer.heads * (latent.nope + latent.rope))
    if not latent.absorbed:
        return _expanded(blocks, layer, latent, normed, query), None
    turned = absorbed_query(blocks, layer, latent, query)
    key, value = _latent_key(blocks, latent, normed)
    for tensor in (turned, value, key):
        blocks.graph.expand(tensor)
    blocks.store(layer, key, None)
    mask = blocks.mask(layer)
    if latent.index_dim:
        chosen = _chosen_cells(blocks, latent, normed, low)
    if chosen is not None:
        mask = _sparse_mask(blocks, latent, mask, chosen)
    attended = attend_latent(blocks, layer, latent, turned, mask)
    if blocks.shape.recipe.gate == "heads":
        attended = _gated(blocks, layer, latent, attended, normed)
    elif blocks.shape.recipe.gate == "all":
        gate = blocks.graph.like(blocks.matmul(normed, attended.shape[0]))
        attended = blocks.graph.like(attended, gate)
    return blocks.matmul(attended, blocks.shape.hidden), chosen


def _gated(
    blocks: Blocks, layer: Layer, latent: Latent, attended: Tensor, normed: Tensor
) -> Tensor:
    """Every head's output times a gate of its own."""
    graph, tokens, heads = blocks.graph, blocks.shape.tokens, layer.heads
    shaped = graph.view(attended, latent.value, heads, tokens)
    each = graph.view(blocks.matmul(normed, heads), 1, heads, tokens)
    gate = graph.new(each.shape, (each,), reuses=True)
    product = graph.new(shaped.shape, (shaped, gate), reuses=True)
    return blocks.contiguous(product, latent.value * heads, tokens)


def _part(blocks: Blocks, source: Tensor, width: int, heads: int, of: int) -> Tensor:
    """`width` of the `of` numbers of each head."""
    tokens = blocks.shape.tokens
    strides = (_F32, of * _F32, heads * of * _F32, heads * of * tokens * _F32)
    return blocks.graph.view(source, width, heads, tokens, strides=strides)


def _rotated(blocks: Blocks, part: Tensor) -> Tensor:
    if blocks.shape.recipe.rope == "none":
        return part
    return blocks.graph.new(part.shape, (part, blocks.positions()), reuses=True)


def absorbed_query(blocks: Blocks, layer: Layer, latent: Latent, query: Tensor) -> Tensor:
    """Queries in the latent's space, with their rotary part behind."""
    graph, tokens, heads = blocks.graph, blocks.shape.tokens, layer.heads
    whole = latent.nope + latent.rope
    shaped = graph.view(query, whole, heads, tokens)
    plain = _part(blocks, shaped, latent.nope, heads, whole)
    turned = graph.view(plain, latent.nope, tokens, heads, strides=plain.strides)
    absorbed = graph.new((latent.rank, tokens, heads), (turned,))
    absorbed.weight = latent.nope * latent.rank * heads
    back = graph.view(absorbed, latent.rank, heads, tokens, strides=absorbed.strides)
    if not latent.rope:
        return back
    rotary = _rotated(blocks, _part(blocks, shaped, latent.rope, heads, whole))
    return graph.new((latent.rank + latent.rope, heads, tokens), (back, rotary))


def _latent_key(blocks: Blocks, latent: Latent, normed: Tensor) -> tuple[Tensor, Tensor]:
    """The normed latent with its rotary key, and the latent alone as the value."""
    graph, tokens = blocks.graph, blocks.shape.tokens
    whole = latent.rank + latent.rope
    both = blocks.matmul(normed, whole)
    part = _part(blocks, both, latent.rank, 1, whole)
    low = graph.new((latent.rank, tokens), (part,), reuses=True)
    value = graph.view(low, latent.rank, 1, tokens)
    rotary = _rotated(blocks, _part(blocks, both, latent.rope, 1, whole))
    return graph.new((whole, 1, tokens), (value, rotary)), value


def _expanded(
    blocks: Blocks, layer: Layer, latent: Latent, normed: Tensor, query: Tensor
) -> Tensor:
    """Keys and values of every head, made from the latent before they are stored."""
    graph, tokens, heads = blocks.graph, blocks.shape.tokens, layer.heads
    width = latent.nope + latent.rope
    turned = _rotated(blocks, graph.view(query, width, heads, tokens))
    both = blocks.matmul(normed, latent.rank + latent.rope)
    part = _part(blocks, both, latent.rank, 1, latent.rank + latent.rope)
    low = graph.new((latent.rank, tokens), (part,), reuses=True)
    whole = latent.nope + latent.value
    expanded = blocks.matmul(low, heads * whole)
    value = blocks.contiguous(_part(blocks, expanded, latent.value, heads, whole))
    plain = _part(blocks, expanded, latent.nope, heads, whole)
    rotary = _rotated(blocks, _part(blocks, both, latent.rope, 1, latent.rank + latent.rope))
    repeated = graph.new((latent.rope, heads, tokens), (rotary,))
    key = graph.new((width, heads, tokens), (plain, repeated))
    return blocks.attention(layer, turned, key, value)


def attend_latent(
    blocks: Blocks, layer: Layer, latent: Latent, query: Tensor, mask: Tensor
) -> Tensor:
    """Attention in the latent's space, then down to the heads' own values."""
    graph, shape, heads = blocks.graph, blocks.shape, layer.heads
    streams, cells = shape.streams, shape.cells_of(layer)
    each = shape.tokens // streams
    split = graph.view(query, query.shape[0], heads, each, streams, strides=query.strides)
    turned = graph.view(split, query.shape[0], each, heads, streams, strides=query.strides)
    numbers = (latent.rank + latent.rope) * cells * streams
    keys, values = (blocks.cached(shape.k, numbers) for _ in "kv")
    if shape.flash:
        reads = [turned, keys, values]
        if shape.k == "f32":
            reads[1:] = [
                graph.new((width, cells, 1, streams), (cache,), element=_F16)
                for width, cache in ((query.shape[0], keys), (latent.rank, values))
            ]
        made = graph.new((latent.rank, heads, each, streams), (*reads, mask))
        permuted = graph.view(made, latent.rank, each, heads, streams, strides=made.strides)
        down = _lifted(blocks, latent, permuted)
        back = graph.view(down, latent.value, heads, each, streams, strides=down.strides)
        whole = blocks.contiguous(back)
        current = graph.view(whole, latent.value * heads, shape.tokens)
    else:
        rows = shape.k_bytes(cells) * latent.rank
        value = graph.new((rows, 1, 1, streams), (values,), element=1)
        soft = graph.like(graph.new((cells, each, heads, streams), (keys, turned)), mask)
        made = graph.new((latent.rank, each, heads, streams), (value, soft))
        down = _lifted(blocks, latent, made)
        permuted = graph.view(down, latent.value, heads, each, streams, strides=down.strides)
        current = blocks.contiguous(permuted, latent.value * heads, shape.tokens)
        current.beside_cache = True
    graph.expand(current)
    return current


def _lifted(blocks: Blocks, latent: Latent, attended: Tensor) -> Tensor:
    """From the latent's space to the values of every head."""
    _, each, heads, streams = attended.shape
    made = blocks.graph.new((latent.value, each, heads, streams), (attended,))
    made.weight = latent.rank * latent.value * heads
    return made


def _index_keys(blocks: Blocks, latent: Latent, normed: Tensor) -> None:
    """Store the indexer's keys of the batch."""
    graph, tokens, dim = blocks.graph, blocks.shape.tokens, latent.index_dim
    made = blocks.matmul(normed, dim)
    even = graph.new(made.shape, (made,))  # a norm with a mean
    rotary = _rotated(blocks, graph.view(even, dim, 1, tokens))
    turned = _index_turned(blocks, rotary, dim)
    rows = blocks.input("index rows", tokens, element=_I64)
    flat = graph.view(turned, dim, tokens)
    graph.expand(graph.view(graph.outside(1), 1, more=(flat, rows)))


def _index_turned(blocks: Blocks, tensor: Tensor, dim: int) -> Tensor:
    """An indexer's queries or keys times a Hadamard matrix, where the architecture does that."""
    if not blocks.shape.recipe.index_rotates:
        return tensor
    return blocks.graph.new(tensor.shape, (blocks.input("index rotation", dim, dim), tensor))


def _chosen_cells(blocks: Blocks, latent: Latent, normed: Tensor, low: Tensor) -> Tensor:
    """Numbers of the cells that the indexer ranks first."""
    graph, shape = blocks.graph, blocks.shape
    tokens, streams, dim, heads = shape.tokens, shape.streams, latent.index_dim, latent.index_heads
    each = tokens // streams
    query = graph.view(blocks.matmul(low, dim * heads), dim, heads, tokens)
    rotary = _rotated(blocks, query)
    turned = _index_turned(blocks, rotary, dim)
    split = graph.view(turned, dim, heads, each, streams)
    weights = blocks.matmul(normed, heads)
    scaled = graph.like(graph.view(weights, heads, each, 1, streams))
    cells = shape.cells
    mask = blocks.input("index mask", cells, each, 1, streams, element=_F16)
    keys = blocks.cached(shape.k, dim * cells * streams)
    scores = graph.new((cells, each, 1, streams), (split, keys, scaled, mask))
    count = min(latent.index_top, cells)
    best = graph.new((count, each, 1, streams), (scores,), element=_I32)
    return graph.new(best.shape, (best,), element=_I32)


def _sparse_mask(blocks: Blocks, latent: Latent, mask: Tensor, chosen: Tensor) -> Tensor:
    """The mask with all cells but the chosen ones closed."""
    graph = blocks.graph
    element = mask.strides[0]
    count, each, _, streams = chosen.shape
    zeros = graph.like(graph.blank(1, count, each, streams))
    rows = graph.view(chosen, count, each, streams)
    closed = graph.new(mask.shape, (mask,), element=element, reuses=True)
    flat = graph.view(closed, 1, mask.shape[0], each, streams)
    opened = graph.view(flat, 1, mask.shape[0], each, streams, more=())
    opened.sources = (zeros, rows, flat)
    back = graph.view(opened, *mask.shape)
    return graph.new(mask.shape, (back, mask), element=element, reuses=True)
