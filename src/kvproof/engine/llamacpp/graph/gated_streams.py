"""Qwen4-exp's graph: streams weighed number by number, pooled indexers, hashed neighbours.

Source: llama.cpp's src/models/qwen4exp.cpp, asked at b11549.
"""

from __future__ import annotations

import functools

from kvproof.engine.llamacpp.graph.blocks import Blocks
from kvproof.engine.llamacpp.graph.mixers import columns, mixed
from kvproof.engine.llamacpp.graph.plain import feed, gated
from kvproof.engine.llamacpp.graph.pooled import closed_mask, ranked_cells
from kvproof.engine.llamacpp.graph.pools import Pools, pools_of
from kvproof.engine.llamacpp.graph.shape import Hashed, Layer, Pooling, Shape
from kvproof.engine.llamacpp.graph.tensors import Graph, Tensor

_F32, _I32, _I64 = 4, 4, 8


def gated_streams_graph(shape: Shape) -> Graph:
    """The whole graph: the embedding in every stream, layers, and the streams' gated mean."""
    blocks = Blocks(shape)
    graph, hidden, count = blocks.graph, shape.hidden, shape.residuals
    rows = _hashed_rows(blocks)
    embedding = blocks.embedding()
    streams = _Streams(blocks)
    blocks.pools = pools_of(graph, shape)
    one = graph.view(embedding, hidden, 1, shape.tokens)
    current = graph.new((hidden, count, shape.tokens), (one,))
    graph.expand(current)
    for layer in shape.layers:
        graph.layer = layer.index
        if layer.neighbours is not None and rows is not None:
            current = _with_neighbours(blocks, layer.neighbours, rows, current)
        current = streams.layer(layer, current, last=layer is shape.layers[-1])
    graph.layer = shape.layer_count
    current.kept = True  # what a model that predicts further tokens would read
    end = streams.mean(current)
    end.kept = True
    graph.expand(blocks.matmul(end, shape.vocabulary) if shape.outputs else end)
    return graph


class _Streams:
    """The streams around one layer: read with a gate for every number, and spread again."""

    def __init__(self, blocks: Blocks) -> None:
        self.blocks, self.graph, self.shape = blocks, blocks.graph, blocks.shape
        self.wide = blocks.shape.hidden * blocks.shape.residuals

    def layer(self, layer: Layer, current: Tensor, *, last: bool) -> Tensor:
        """Mixer or attention, then experts."""
        blocks = self.blocks
        normed, read = self._read(current)
        self.graph.expand(read)
        if layer.mixer is not None:
            made = mixed(blocks, layer.mixer, read)
        else:
            made = _attended(blocks, layer, read)
        share = blocks.matmul(normed, self.shape.residuals)
        if last:
            made, share = blocks.chosen_rows(made), blocks.chosen_rows(share)
            flat = self.graph.view(current, self.wide, current.shape[2])
            current = self._apart(blocks.chosen_rows(flat))
        current = self._spread(made, current, share)
        normed, read = self._read(current)
        fed = feed(blocks, layer, read)
        return self._spread(fed, current, blocks.matmul(normed, self.shape.residuals))

    def mean(self, current: Tensor) -> Tensor:
        """The gated streams' mean, step by step."""
        normed, gate = self._gates(current)
        product = self._apart(self.graph.like(normed, gate))
        hidden, rows = self.shape.hidden, current.shape[2]
        apart = (_F32, self.wide * _F32, 0, 0)
        parts = [
            self.graph.view(product, hidden, rows, strides=apart)
            for _ in range(self.shape.residuals)
        ]
        return functools.reduce(
            self.blocks.add, parts[1:], self.blocks.contiguous(parts[0], hidden, rows)
        )

    def _read(self, current: Tensor) -> tuple[Tensor, Tensor]:
        """The normed streams as one row, and their gated mean."""
        normed, gate = self._gates(current)
        parts = (self._apart(normed), self._apart(gate))
        return normed, self.graph.new((self.shape.hidden, current.shape[2]), parts)

    def _gates(self, current: Tensor) -> tuple[Tensor, Tensor]:
        blocks = self.blocks
        normed = self.graph.view(blocks.rms_norm(current), self.wide, current.shape[2])
        low = self.graph.like(blocks.matmul(normed, self.shape.stream_rank))
        return normed, blocks.matmul(low, self.wide)

    def _spread(self, made: Tensor, current: Tensor, share: Tensor) -> Tensor:
        return self.graph.new(current.shape, (made, current, self.graph.like(share)))

    def _apart(self, rows: Tensor) -> Tensor:
        return self.graph.view(rows, self.shape.hidden, self.shape.residuals, rows.shape[1])


def _attended(blocks: Blocks, layer: Layer, read: Tensor) -> Tensor:
    """Attention, to the cells that a pooled indexer chooses where the layer has one."""
    graph, shape, pools, index = blocks.graph, blocks.shape, blocks.pools, layer.pooled
    mask = None
    if index is not None and pools is not None:
        _keep_keys(blocks, index, pools, read)
        cells, live = _ranked(blocks, index, pools, read)
        graph.expand(cells)
        rows = graph.like(graph.new(live.shape, (graph.like(live),)))
        mask = closed_mask(blocks, pools, cells, (live, rows), blocks.mask(layer))
    both = blocks.matmul(read, 2 * layer.heads * layer.k_dim)
    halves = [graph.view(both, layer.k_dim, layer.heads, shape.tokens, strides=both.strides)
              for _ in "qg"]  # fmt: skip
    query = blocks.rope(blocks.rms_norm(halves[0]))
    key, value = (
        graph.view(blocks.matmul(read, dim * layer.kv_heads), dim, layer.kv_heads, shape.tokens)
        for dim in (layer.k_dim, layer.v_dim)
    )
    key = blocks.rope(blocks.rms_norm(key))
    attended = blocks.attention(layer, query, key, value, project=False, mask=mask)
    return gated(blocks, layer, read, attended, halves[1])


def _keep_keys(blocks: Blocks, index: Pooling, pools: Pools, read: Tensor) -> None:
    """Store the batch's keys, and the means of the pools that they complete."""
    graph, tokens, dim = blocks.graph, blocks.shape.tokens, index.dim
    packed = graph.new((2 * dim, tokens), (
        blocks.matmul(read, dim), graph.like(graph.blank(dim, tokens))
    ))  # fmt: skip
    rows = blocks.input("index rows", tokens, element=_I64)
    graph.expand(graph.view(graph.outside(1), 1, more=(packed, rows)))
    gathered = graph.new((dim, pools.each * pools.new), (pools.new_members,))
    parts = [graph.view(gathered, dim, pools.new, strides=(
        _F32, dim * pools.each * _F32, 0, 0)) for _ in range(pools.each)]  # fmt: skip
    mean = functools.reduce(blocks.add, parts[1:], blocks.contiguous(parts[0], dim, pools.new))
    even = graph.view(blocks.rms_norm(mean), dim, 1, pools.new)
    places = blocks.input("pool positions", blocks.shape.position_parts * pools.new, element=_I32)
    made = graph.view(graph.like(even, places), dim, pools.new)
    graph.expand(graph.view(graph.outside(1), 1, more=(made, pools.new_places)))


def _ranked(blocks: Blocks, index: Pooling, pools: Pools, read: Tensor) -> tuple[Tensor, Tensor]:
    """The chosen cells, and which of them hold a token."""
    graph, tokens, dim, heads = blocks.graph, blocks.shape.tokens, index.dim, index.heads
    query = graph.view(blocks.matmul(read, dim * heads), dim, heads, tokens)
    query = blocks.rope(blocks.rms_norm(query))
    keys = graph.new((dim, pools.count), (pools.places,))
    ones = graph.like(graph.blank(heads, tokens))
    scores = graph.new((pools.count, tokens), (query, keys, ones, pools.mask))
    best = graph.new((pools.chosen, tokens), (scores,), element=_I32)
    return ranked_cells(blocks, pools, best), _live(blocks, pools, scores, best)


def _live(blocks: Blocks, pools: Pools, scores: Tensor, best: Tensor) -> Tensor:
    """Which of the chosen cells hold a token: by their pool's score, and by number behind pools."""
    graph, tokens = blocks.graph, blocks.shape.tokens
    rows = graph.view(scores, 1, pools.count, tokens)
    ranks = graph.like(graph.new((1, pools.chosen, tokens), (rows, best)))
    spread = graph.new((pools.each, pools.chosen, tokens), (ranks,))
    tail = graph.like(graph.new((pools.each - 1, tokens), (pools.tail,)))
    flat = graph.view(spread, pools.each * pools.chosen, tokens)
    return graph.new((pools.selected, tokens), (flat, tail))


def _hashed_rows(blocks: Blocks) -> Tensor | None:
    """Rows of the table of hashed neighbours, where a layer reads it."""
    graph, tokens = blocks.graph, blocks.shape.tokens
    for layer in blocks.shape.layers:
        if layer.neighbours is not None:
            heads, width = layer.neighbours.heads, layer.neighbours.width
            made = graph.new((width, heads * tokens), (graph.input(heads * tokens, element=_I32),))
            made.looks_up = True
            rows = graph.view(made, width * heads, tokens)
            graph.expand(rows)
            return rows
    return None


def _with_neighbours(blocks: Blocks, own: Hashed, rows: Tensor, current: Tensor) -> Tensor:
    """The streams with what the hashed neighbours add: gated, and through a spread convolution."""
    graph, shape = blocks.graph, blocks.shape
    hidden, count, tokens = shape.hidden, shape.residuals, shape.tokens
    apart = (hidden, count, tokens)
    key = blocks.rms_norm(graph.view(blocks.matmul(rows, hidden * count), *apart))
    query = blocks.rms_norm(graph.view(current, *apart))
    scores = graph.like(graph.new((1, count, tokens), (graph.like(key, query),)))
    gate = graph.like(graph.like(scores), graph.like(scores))
    value = graph.view(blocks.matmul(rows, hidden), hidden, 1, tokens)
    product = graph.like(graph.new(apart, (value,)), gate)
    even = graph.view(blocks.rms_norm(graph.view(product, *apart)), hidden * count, tokens)
    made = _spread_convolution(blocks, own, even)
    return blocks.add(current, blocks.add(product, graph.view(made, *apart)))


def _spread_convolution(blocks: Blocks, own: Hashed, entering: Tensor) -> Tensor:
    """A convolution whose taps lie apart, as a sum of shifted copies."""
    graph, shape = blocks.graph, blocks.shape
    sequences, each = shape.sequences, shape.tokens // shape.sequences
    channels, kept = entering.shape[0], (own.taps - 1) * own.span
    turned = graph.view(entering, each, channels, sequences, strides=entering.strides)
    whole = columns(blocks, kept, channels, own.planes, turned)
    terms = []
    for _ in range(own.taps):
        part = graph.view(whole, channels, each, sequences, strides=whole.strides)
        weight = graph.new((1, channels), (graph.outside(1),))
        flat = graph.view(weight, channels)
        terms.append(graph.like(blocks.contiguous(part, channels, each, sequences), flat))
    total = graph.like(functools.reduce(blocks.add, terms))
    return blocks.contiguous(total)
