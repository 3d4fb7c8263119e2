"""Attention to blocks of cells that an indexer chooses for every group of heads.

Source: llama.cpp's src/models/minimax-m3.cpp and llama-kv-cache-msa.cpp (get_n_pos), b11549.
"""

from __future__ import annotations

from kvproof.engine.llamacpp.graph.blocks import Blocks
from kvproof.engine.llamacpp.graph.shape import Blockwise, Layer
from kvproof.engine.llamacpp.graph.tensors import Tensor

_F16, _I32, _I64 = 2, 4, 8
_POSITIONS = 256  # of a cache that is empty, as it is when memory is reserved


def blockwise_attended(
    blocks: Blocks, layer: Layer, chooser: Blockwise, normed: Tensor,
    heads: tuple[Tensor, Tensor, Tensor],
) -> Tensor:  # fmt: skip
    """The attention of one layer through its last weight, one stream after the other."""
    graph, shape = blocks.graph, blocks.shape
    index_query = _indexed(blocks, chooser, normed, chooser.heads)
    index_key = _indexed(blocks, chooser, normed, 1)
    rows = blocks.input("index rows", shape.tokens, element=_I64)
    flat = graph.view(index_key, chooser.dim, shape.tokens)
    graph.expand(graph.view(graph.outside(1), 1, more=(flat, rows)))
    turned_key, turned_value = shape.rotation(layer)
    query, key, value = heads
    if turned_key:
        query, key = (
            blocks.rotate(tensor, f"key rotation {layer.sliding}", turned_key)
            for tensor in (query, key)
        )
    if turned_value:
        value = blocks.rotate(value, f"value rotation {layer.sliding}", turned_value)
    for tensor in (query, key, value):
        graph.expand(tensor)
    blocks.store(layer, key, value)
    if shape.tokens == shape.streams:
        current = _gathered(blocks, layer, chooser, query, index_query)
    else:
        width = layer.v_dim * layer.heads
        streams = [
            _stream(blocks, layer, chooser, query, index_query) for _ in range(shape.streams)
        ]
        current = streams[0]
        for made in streams[1:]:
            current = graph.new((width, current.shape[1] + made.shape[1]), (current, made))
    if turned_value:
        current = blocks.rotate(current, f"value rotation {layer.sliding}", turned_value)
    return blocks.matmul(current, shape.hidden)


def _indexed(blocks: Blocks, chooser: Blockwise, normed: Tensor, heads: int) -> Tensor:
    """Queries or the key of the indexer."""
    made = blocks.matmul(normed, chooser.dim * heads)
    shaped = blocks.graph.view(made, chooser.dim, heads, blocks.shape.tokens)
    even = blocks.graph.new(shaped.shape, (shaped,), reuses=True)
    return blocks.rope(even)


def _stream(
    blocks: Blocks, layer: Layer, chooser: Blockwise, query: Tensor, index_query: Tensor
) -> Tensor:
    """Attention of the tokens of one stream, under a mask for every group of heads."""
    graph, shape = blocks.graph, blocks.shape
    each = shape.tokens // shape.streams
    mask = _mask(blocks, layer, chooser, index_query, each)
    own = graph.view(query, layer.k_dim, layer.heads, each, strides=query.strides)
    groups, size = layer.kv_heads, layer.heads // layer.kv_heads
    made = graph.new((layer.v_dim, size, each, groups), (own, mask))
    if groups > 1:
        permuted = graph.view(made, layer.v_dim, size, groups, each, strides=made.strides)
        made = blocks.contiguous(permuted)
    return graph.view(made, layer.v_dim * layer.heads, each)


def _gathered(
    blocks: Blocks, layer: Layer, chooser: Blockwise, query: Tensor, index_query: Tensor
) -> Tensor:
    """Attention where every stream has one token: the chosen blocks' cells are copied."""
    graph, shape, heads, block = blocks.graph, blocks.shape, chooser.heads, chooser.block
    streams, best = shape.streams, _best_of_one(blocks, chooser, index_query)
    chosen, count = best.shape[0], best.shape[0] * block
    number = graph.view(graph.like(graph.new(best.shape, (best,))), 1, chosen, heads, streams)
    spread = graph.new((block, chosen, heads, streams), (number,))
    places = graph.like(spread, _range(blocks, block))
    whole = (count * heads, streams)
    positions = graph.new(whole, (graph.view(places, *whole),), element=_I32)
    table = blocks.input("cells of positions, single", _counted(chooser), streams)
    cells = graph.new((1, *whole), (table, positions))
    shaped = graph.view(cells, block, chosen, heads, streams)
    scaled = graph.new(shaped.shape, (shaped,), reuses=True)
    rows = graph.new(whole, (graph.like(scaled, _range(blocks, layer.kv_heads)),), element=_I32)
    reads = []
    for kind, width in ((shape.k, layer.k_dim), (shape.v, layer.v_dim)):
        taken = graph.new((width, *whole), (rows,))
        part = graph.view(taken, width, count, 1, heads * streams)
        half = graph.new(part.shape, (part,), element=_F16)
        reads.append(part if kind == "f32" else half)
    visible = blocks.input("visible positions", _counted(chooser), shape.tokens)
    taken = graph.new((1, *whole), (visible, positions))
    part = graph.view(taken, count, 1, 1, heads * streams)
    mask = graph.new(part.shape, (part,), element=_F16)
    size = layer.heads // layer.kv_heads
    own = graph.view(query, layer.k_dim, 1, size, heads * streams, strides=query.strides)
    made = graph.new((layer.v_dim, size, 1, heads * streams), (own, *reads, mask))
    return graph.view(made, layer.v_dim * layer.heads, shape.tokens)


def _best_of_one(blocks: Blocks, chooser: Blockwise, index_query: Tensor) -> Tensor:
    """Numbers of the blocks that rank first for every group of the one token of a stream."""
    graph, heads, streams = blocks.graph, chooser.heads, blocks.shape.streams
    positions = _counted(chooser)
    count = positions // chooser.block
    bias = blocks.input("block bias", count, blocks.shape.tokens)
    visible = blocks.input("visible positions", positions, blocks.shape.tokens)
    places = blocks.input("cells of positions", positions, streams, element=_I32)
    keys = graph.new((chooser.dim, positions, streams), (places,))
    own = graph.view(index_query, chooser.dim, heads, 1, streams)
    scores = graph.new((positions, heads, 1, streams),
                       (graph.view(keys, chooser.dim, positions, 1, streams), own))  # fmt: skip
    masked = graph.view(
        scores, *scores.shape, more=(graph.view(visible, positions, 1, 1, streams),)
    )
    pooled = graph.new((count, heads, 1, streams), (masked,))
    biased = graph.like(pooled, graph.view(bias, count, 1, 1, streams))
    return graph.new((min(chooser.top, count), heads, 1, streams), (biased,), element=_I32)


def _range(blocks: Blocks, count: int) -> Tensor:
    """The numbers from nought, made when they are needed."""
    return blocks.graph.new((count,), (blocks.graph.outside(1),))


def _counted(chooser: Blockwise) -> int:
    """Positions of whole blocks."""
    return -(-_POSITIONS // chooser.block) * chooser.block


def _mask(
    blocks: Blocks, layer: Layer, chooser: Blockwise, index_query: Tensor, each: int
) -> Tensor:
    """The mask of the chosen blocks, spread over their cells."""
    graph, shape, heads = blocks.graph, blocks.shape, chooser.heads
    cells, streams = shape.cells_of(layer), shape.streams
    bias = _bias(blocks, chooser, each)
    best = _best(blocks, chooser, index_query, each, bias)
    count = bias.shape[0]
    closed = graph.new(bias.shape, (bias,), reuses=True)
    half = graph.new(bias.shape, (closed,), element=_F16)
    repeated = graph.new((count, heads, each), (half,), element=_F16)
    zeros = graph.like(graph.new(best.shape, (best,)))
    chosen, rows = best.shape[0], heads * each
    opened = graph.view(repeated, 1, count, rows)
    opened.sources = (
        graph.view(zeros, 1, chosen, rows), graph.view(best, chosen, rows),
        graph.view(repeated, 1, count, rows),
    )  # fmt: skip
    back = graph.view(opened, count, each, heads)
    by_head = graph.new((count, each, heads), (back,), element=_F16)
    turned = graph.new((each * heads, count), (graph.view(by_head, each * heads, count),),
                       element=_F16)  # fmt: skip
    of_cell = graph.view(blocks.input("blocks of cells", cells, streams, element=_I32), cells)
    spread = graph.new((each * heads, cells), (turned, of_cell))
    upright = graph.new((cells, each * heads), (graph.view(spread, cells, each * heads),))
    single = blocks.inputs.get("single mask")
    if single is None:
        whole = blocks.mask(layer)
        single = blocks.inputs["single mask"] = graph.new(whole.shape, (whole,))
    shaped = graph.view(upright, cells, each, heads)
    total = graph.view(shaped, cells, each, heads, more=(graph.view(single, cells, each),))
    flat = graph.view(total, cells, each, 1, heads)
    return graph.new(flat.shape, (flat,), element=_F16)


def _bias(blocks: Blocks, chooser: Blockwise, each: int) -> Tensor:
    """What forces the blocks nearby, for the tokens of one stream."""
    count = _counted(chooser) // chooser.block
    whole = blocks.input("block bias", count, blocks.shape.tokens)
    return blocks.graph.view(whole, count, 1, each)


def _best(
    blocks: Blocks, chooser: Blockwise, index_query: Tensor, each: int, bias: Tensor
) -> Tensor:
    """Numbers of the blocks that the indexer ranks first for every group and token."""
    graph, shape, heads = blocks.graph, blocks.shape, chooser.heads
    positions = bias.shape[0] * chooser.block
    own = graph.view(index_query, chooser.dim, heads * each)
    places = blocks.input("cells of positions", positions, shape.streams, element=_I32)
    keys = graph.new((chooser.dim, positions), (graph.view(places, positions),))
    scores = graph.new((positions, heads * each), (keys, own))
    shaped = graph.view(scores, positions, heads, each)
    visible = blocks.input("visible positions", positions, shape.tokens)
    masked = graph.view(
        shaped, positions, heads, each, more=(graph.view(visible, positions, 1, each),)
    )
    pooled = graph.new((bias.shape[0], heads, each), (masked,))
    biased = graph.like(pooled, bias)
    return graph.new((min(chooser.top, bias.shape[0]), heads, each), (biased,), element=_I32)
