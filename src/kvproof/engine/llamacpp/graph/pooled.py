"""GLM-5 Next's sparse attention: an indexer ranks pools of neighbouring cells.

Source: llama.cpp's src/models/glm5-next.cpp (build_kpool_select, build_dsa_layer), asked at b11549.
"""

from __future__ import annotations

from kvproof.engine.llamacpp.graph.blocks import Blocks
from kvproof.engine.llamacpp.graph.latent import absorbed_query, attend_latent
from kvproof.engine.llamacpp.graph.pools import Pools
from kvproof.engine.llamacpp.graph.shape import Latent, Layer, Pooling
from kvproof.engine.llamacpp.graph.tensors import Tensor

_I32, _I64 = 4, 8


def pooled_attended(
    blocks: Blocks, layer: Layer, latent: Latent, normed: Tensor, chosen: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """The attention of one layer through its last weight, and the mask that its indexer made.

    `chosen` is an earlier layer's mask, for layers without an indexer of their own.
    """
    graph, shape, pools = blocks.graph, blocks.shape, blocks.pools
    low = blocks.rms_norm(blocks.matmul(normed, latent.query_rank))
    query = blocks.matmul(low, layer.heads * latent.nope)
    turned = absorbed_query(blocks, layer, latent, query)
    key = blocks.rms_norm(blocks.matmul(normed, latent.rank))
    if pools is not None and layer.pooled is not None:
        _keep_pools(blocks, layer.pooled, pools, normed)
        cells = _chosen(blocks, layer.pooled, pools, normed, low)
        graph.expand(cells)
        chosen = _mask(blocks, layer, pools, cells)
    graph.expand(turned)
    graph.expand(key)
    blocks.store(layer, graph.view(key, latent.rank, 1, shape.tokens), None)
    plain = blocks.mask(layer)
    mask = plain if chosen is None else graph.view(chosen, *plain.shape)
    attended = attend_latent(blocks, layer, latent, turned, mask)
    return blocks.matmul(attended, shape.hidden), chosen


def _keep_pools(blocks: Blocks, index: Pooling, pools: Pools, normed: Tensor) -> None:
    """Store the batch's keys and gates, and the pools that they complete."""
    graph, tokens, dim = blocks.graph, blocks.shape.tokens, index.dim
    key = blocks.matmul(normed, dim)
    even = graph.new(key.shape, (key,))  # a norm with a mean
    both = graph.new((2 * dim, tokens), (even, blocks.matmul(normed, dim)))
    blank = graph.like(graph.blank(dim, tokens))
    packed = graph.new((3 * dim, tokens), (both, blank))
    rows = blocks.input("index rows", tokens, element=_I64)
    graph.expand(graph.view(graph.outside(1), 1, more=(packed, rows)))
    gathered = graph.new((2 * dim, pools.each * pools.new), (pools.new_members,))
    part = graph.view(gathered, dim, pools.each, pools.new, strides=gathered.strides)
    scores = blocks.contiguous(graph.new(part.shape, (part,)), pools.each, dim, pools.new)
    flat = graph.view(scores, pools.each, dim * pools.new)
    shares = graph.view(graph.like(flat), *scores.shape)
    other = graph.view(gathered, pools.each, dim, pools.new, strides=gathered.strides)
    product = graph.like(shares, blocks.contiguous(other))
    made = graph.view(graph.new((1, dim, pools.new), (product,)), dim, pools.new)
    graph.expand(graph.view(graph.outside(1), 1, more=(made, pools.new_places)))


def _chosen(blocks: Blocks, index: Pooling, pools: Pools, normed: Tensor, low: Tensor) -> Tensor:
    """Numbers of the cells of the pools that rank first, then of those in no pool."""
    graph, tokens, dim = blocks.graph, blocks.shape.tokens, index.dim
    query = blocks.matmul(low, dim * index.heads)
    keys = graph.new((dim, pools.count), (pools.places,))
    weights = graph.like(blocks.matmul(normed, index.heads))
    scores = graph.new((pools.count, tokens), (query, keys, weights, pools.mask))
    best = graph.new((pools.chosen, tokens), (scores,), element=_I32)
    single = graph.view(graph.new(best.shape, (best,)), 1, pools.chosen, tokens)
    rows = graph.view(scores, 1, pools.count, tokens)
    ranks = graph.view(graph.new((1, pools.chosen, tokens), (rows, best)), pools.chosen, tokens)
    order = graph.new((pools.chosen, tokens), (ranks,), element=_I32)
    sorted_ = graph.view(graph.new((1, pools.chosen, tokens), (single, order)), *best.shape)
    numbers = graph.new(best.shape, (blocks.contiguous(sorted_),), element=_I32)
    return ranked_cells(blocks, pools, numbers)


def ranked_cells(blocks: Blocks, pools: Pools, best: Tensor) -> Tensor:
    """Numbers of the cells of the pools in `best`, then of those in no pool."""
    graph, tokens = blocks.graph, blocks.shape.tokens
    flat = graph.view(best, pools.chosen * tokens)
    cells = graph.new((pools.each, pools.chosen * tokens), (pools.members, flat), element=_I32)
    whole = graph.view(cells, pools.each * pools.chosen, tokens)
    if pools.selected == pools.each * pools.chosen:
        return whole
    return graph.new((pools.selected, tokens), (whole, pools.tail), element=_I32)


def _mask(blocks: Blocks, layer: Layer, pools: Pools, cells: Tensor) -> Tensor:
    """The mask with all cells but the chosen ones closed."""
    graph, count, tokens = blocks.graph, pools.selected, blocks.shape.tokens
    row = graph.new((count,), (graph.outside(1),))  # a range
    live = graph.new((count, tokens), (graph.view(pools.live, count, tokens),), reuses=True)
    plain = graph.view(blocks.mask(layer), pools.cells, tokens)
    return closed_mask(blocks, pools, cells, (live, row), plain)


def closed_mask(
    blocks: Blocks, pools: Pools, cells: Tensor, places: tuple[Tensor, Tensor], plain: Tensor
) -> Tensor:
    """`plain` with all cells but `cells` closed.

    `places`: which of the cells hold a token, and rows behind the cells' for the others.
    """
    graph, tokens = blocks.graph, blocks.shape.tokens
    element, count = plain.strides[0], pools.selected
    zero, closed = (
        graph.new((width, tokens), (_filled(blocks, width, element),), element=element)
        for width in (count, pools.cells + count)
    )
    live, row = places
    numbers = graph.new((count, tokens), (cells,))
    placed = graph.like(graph.like(graph.like(numbers, row), live), row)
    opened = graph.view(closed, 1, pools.cells + count, tokens)
    opened.sources = (
        graph.view(zero, 1, count, tokens),
        graph.new((count, tokens), (placed,), element=_I32), closed,
    )  # fmt: skip
    part = graph.view(opened, *plain.shape, strides=closed.strides)
    return graph.new(plain.shape, (part, plain), element=element, reuses=True)


def _filled(blocks: Blocks, width: int, element: int) -> Tensor:
    """A row of one value."""
    row = blocks.graph.blank(width, element=element)
    return blocks.graph.new((width,), (row,), element=element, reuses=True)
