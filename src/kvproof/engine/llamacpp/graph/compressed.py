"""DeepSeek-V4's graph: streams beside each other, compressed attention with its states.

Source: llama.cpp's src/models/deepseek4.cpp, llama-graph.cpp (build_inp_dsv4) and
llama-kv-cache-dsv4.cpp (dsv4_build_reserve_comp_plan), b11549.
"""

from __future__ import annotations

from kvproof.engine.llamacpp.graph.blocks import Blocks
from kvproof.engine.llamacpp.graph.plain import feed
from kvproof.engine.llamacpp.graph.shape import Compressed, Layer, Shape
from kvproof.engine.llamacpp.graph.streams import Streams
from kvproof.engine.llamacpp.graph.tensors import Graph, Tensor

_F16, _F32, _I32, _I64 = 2, 4, 4, 8
_CSA = 4


def compressed_graph(shape: Shape) -> Graph:
    """The whole graph: the embedding four times, layers, and the streams weighed into one."""
    blocks = Blocks(shape)
    graph, streams = blocks.graph, Streams(blocks, shape.residuals)
    embedding = blocks.embedding()
    graph.expand(blocks.mask(shape.layers[0]))
    current = streams.start(embedding)
    for layer in shape.layers:
        graph.layer = layer.index
        if layer.compressed is not None:
            current = _Compressing(blocks, layer, layer.compressed).layer(streams, current)
    graph.layer = shape.layer_count
    current.kept = True
    normed = blocks.norm(streams.weighed(streams.chosen_rows(current)))
    normed.kept = True
    graph.expand(blocks.matmul(normed, shape.vocabulary))
    return graph


class _Compressing:
    """One layer: its streams, its compressors' states, its attention and experts."""

    def __init__(self, blocks: Blocks, layer: Layer, compressed: Compressed) -> None:
        self.blocks, self.graph, self.shape = blocks, blocks.graph, blocks.shape
        self.layer_, self.own = layer, compressed

    def layer(self, streams: Streams, current: Tensor) -> Tensor:
        """Attention, then experts, each read from the streams and spread over them again."""
        blocks, graph = self.blocks, self.graph
        read, how = streams.read(current)
        current = streams.spread(self._attention(blocks.norm(read)), current, how)
        read, how = streams.read(current)
        for tensor in (current, *how):
            graph.expand(tensor)
        return streams.spread(feed(blocks, self.layer_, blocks.norm(read)), current, how)

    # compressors

    def _compress(self, normed: Tensor, name: str, dim: int) -> None:
        """Pool the batch's entries into compressed ones, and keep what is not complete."""
        graph, blocks, own = self.graph, self.blocks, self.own
        width = 2 * dim if own.ratio == _CSA else dim
        entering = [blocks.matmul(normed, width), self._scored(normed, name, width)]
        restored = [self._restored(name, width) for _ in entering]
        sources = [
            self._joined(self.graph.view(state, width, self._state_rows), new, self._state_rows)
            for state, new in zip(restored, entering, strict=True)
        ]
        pooled = self._pooled(sources, name, dim)
        position = blocks.input(f"{name} write positions", self._entries, element=_I32)
        pooled = graph.like(graph.like(pooled), position)
        if name == "index":
            pooled = self._turned(pooled, f"{name} rotation", dim)
        else:
            pooled = self._turned_if_quantized(pooled, name, dim)
        flat = graph.view(pooled, dim, self._entries)
        self._written(flat, blocks.input(f"{name} write rows", self._entries, element=_I64))
        if self._snapshot:
            for state, new in zip(restored, entering, strict=True):
                whole = self._joined(state, new, self._state_rows * own.planes)
                self._kept(whole, name, "snapshot", self._snapshot)
        for new in entering:
            self._kept(new, name, "persist", min(self.shape.tokens, self._state_rows))

    @property
    def _state_rows(self) -> int:
        size = self.own.ratio * (2 if self.own.ratio == _CSA else 1)
        return size * self.shape.sequences

    @property
    def _snapshot(self) -> int:
        return (self.own.planes - 1) * self._state_rows

    @property
    def _entries(self) -> int:
        return self.shape.tokens // self.own.ratio + self.shape.sequences

    def _scored(self, normed: Tensor, name: str, width: int) -> Tensor:
        made = self.blocks.matmul(normed, width)
        positions = self.blocks.input(f"{name} positions", self.shape.tokens, element=_I32)
        return self.graph.like(made, self.graph.new((width, self.shape.tokens), (positions,)))

    def _restored(self, name: str, width: int) -> Tensor:
        """The whole state, after the rows of another plane were copied to the front."""
        graph = self.graph
        state = graph.view(graph.outside(1), width, self._state_rows * self.own.planes)
        if self.own.planes == 1:
            return state
        rows = self._state_rows
        read = self.blocks.input(f"{name} restore source", rows, element=_I32)
        taken = graph.new((width, rows), (state, read))
        target = self.blocks.input(f"{name} restore target", rows, element=_I32)
        return graph.view(graph.outside(1), *state.shape, more=(taken, target))

    def _joined(self, state: Tensor, new: Tensor, rows: int) -> Tensor:
        return self.graph.new((new.shape[0], rows + self.shape.tokens), (state, new))

    def _kept(self, source: Tensor, name: str, what: str, rows: int) -> None:
        graph, blocks = self.graph, self.blocks
        read = blocks.input(f"{name} {what} source", rows, element=_I32)
        taken = graph.new((source.shape[0], rows), (source, read))
        self._written(taken, blocks.input(f"{name} {what} target", rows, element=_I32))

    def _written(self, rows: Tensor, target: Tensor) -> None:
        graph = self.graph
        graph.expand(graph.view(graph.outside(1), 1, more=(rows, target)))

    def _pooled(self, sources: list[Tensor], name: str, dim: int) -> Tensor:
        """Entries weighed by the softmax of their scores and added up."""
        graph, blocks = self.graph, self.blocks
        ratio, entries, overlaps = self.own.ratio, self._entries, self.own.ratio == _CSA
        count = ratio * (2 if overlaps else 1)
        read = blocks.input(f"{name} read rows", count * entries, element=_I32)
        if overlaps:
            sources = [self._with_blank_row(source) for source in sources]
        turned = []
        for source in sources:
            rows = graph.new((source.shape[0], count * entries), (source, read))
            whole = self._halves(rows, dim) if overlaps else graph.view(rows, dim, ratio, entries)
            flipped = graph.view(whole, count, dim, entries, strides=whole.strides)
            turned.append(blocks.contiguous(flipped))
        product = graph.like(turned[0], graph.like(turned[1]))
        summed = graph.new((1, dim, entries), (product,))
        return blocks.contiguous(graph.view(summed, dim, 1, entries, strides=summed.strides))

    def _with_blank_row(self, source: Tensor) -> Tensor:
        graph, width = self.graph, source.shape[0]
        row = graph.view(source, width)
        blank = graph.new((width,), (row,), reuses=True)
        return graph.new((width, source.shape[1] + 1), (source, graph.view(blank, width, 1)))

    def _halves(self, rows: Tensor, dim: int) -> Tensor:
        """One half of each entry's numbers from the group before, the other from its own."""
        graph, ratio, entries = self.graph, self.own.ratio, self._entries
        parts = []
        for _ in range(2):
            part = graph.view(rows, dim, ratio * entries, strides=rows.strides)
            whole = self.blocks.contiguous(part)
            parts.append(graph.view(whole, dim, ratio, entries))
        return graph.new((dim, 2 * ratio, entries), parts)

    # attention

    def _turned(self, tensor: Tensor, name: str, dim: int) -> Tensor:
        size = _ROTATION
        while dim % (2 * size) == 0:
            size *= 2
        return self.blocks.rotate(tensor, name, size)

    def _turned_if_quantized(self, tensor: Tensor, name: str, dim: int) -> Tensor:
        if not self.shape.rotation(self.layer_)[0]:
            return tensor
        return self._turned(tensor, f"{name} rotation", dim)

    def _attention(self, normed: Tensor) -> Tensor:
        blocks, graph, layer, own = self.blocks, self.graph, self.layer_, self.own
        tokens, heads, dim = self.shape.tokens, layer.heads, layer.k_dim
        low = blocks.rms_norm(blocks.matmul(normed, own.query_rank))
        query = graph.view(blocks.matmul(low, heads * dim), dim, heads, tokens)
        query = blocks.rope(graph.new(query.shape, (query,), reuses=True))
        entry = blocks.rms_norm(blocks.matmul(normed, dim))
        entry = graph.view(entry, dim, 1, tokens)
        entry = graph.new(entry.shape, (entry, blocks.positions()), reuses=True)
        if own.ratio:
            self._compress(normed, str(own.ratio), dim)
        if own.index_dim:
            self._compress(normed, "index", own.index_dim)
        chosen = self._chosen(low, normed) if own.index_dim else None
        query = self._turned_if_quantized(query, "raw", dim)
        entry = self._turned_if_quantized(entry, "raw", dim)
        graph.expand(query)
        graph.expand(entry)
        slots = blocks.input("raw rows", tokens, element=_I64)
        self._written(graph.view(entry, dim, tokens), slots)
        attended = self._attend(query, chosen)
        attended = self._turned_if_quantized(attended, "raw", dim)
        return self._projected(attended)

    def _projected(self, attended: Tensor) -> Tensor:
        """Rotated back, and through two weights, the first by groups of heads."""
        blocks, graph, own = self.blocks, self.graph, self.own
        tokens, heads, dim = self.shape.tokens, self.layer_.heads, self.layer_.k_dim
        back = graph.view(attended, dim, heads, tokens)
        back = graph.new(back.shape, (back, blocks.positions()), reuses=True)
        wide = heads // own.groups * dim
        grouped = graph.view(back, wide, own.groups, tokens)
        turned = graph.view(grouped, wide, tokens, own.groups, strides=grouped.strides)
        low = graph.new((own.rank, tokens, own.groups), (turned,))
        flipped = graph.view(low, own.rank, own.groups, tokens, strides=low.strides)
        flat = blocks.contiguous(flipped, own.rank * own.groups, tokens)
        return blocks.matmul(flat, self.shape.hidden)

    def _chosen(self, low: Tensor, normed: Tensor) -> Tensor:
        """Numbers of the compressed entries that the indexer ranks first."""
        blocks, graph, own = self.blocks, self.graph, self.own
        tokens, streams, dim, heads = (
            self.shape.tokens, self.shape.sequences, own.index_dim, own.index_heads,
        )  # fmt: skip
        each = tokens // streams
        query = graph.view(blocks.matmul(low, dim * heads), dim, heads, tokens)
        query = graph.new(query.shape, (query, blocks.positions()), reuses=True)
        query = graph.view(self._turned(query, "index rotation", dim), dim, heads, each, streams)
        weights = graph.like(blocks.matmul(normed, heads))
        weights = graph.view(weights, heads, each, 1, streams)
        mask = blocks.input("index mask", own.cells, each, 1, streams, element=_F16)
        scores = graph.new((own.cells, each, 1, streams), (query, weights, mask))
        count = min(own.index_top, own.cells)
        best = graph.new((count, each, 1, streams), (scores,), element=_I32)
        return graph.new(best.shape, (best,), element=_I32)

    def _masks(self, chosen: Tensor | None) -> Tensor:
        """The window's mask, with that of the compressed entries beside it."""
        blocks, graph, own = self.blocks, self.graph, self.own
        raw = blocks.mask(self.layer_)
        if not own.ratio:
            return raw
        each, streams, element = raw.shape[1], raw.shape[3], raw.strides[0]
        mask = blocks.input(f"mask {own.ratio}", own.cells, each, 1, streams, element=element)
        if chosen is not None:
            count = chosen.shape[0]
            zeros = graph.new(
                (1, count, each, streams), (graph.blank(1, count, each, streams, element=element),),
                element=element, reuses=True,
            )  # fmt: skip
            rows = graph.view(chosen, count, each, streams)
            closed = graph.new(mask.shape, (mask,), element=element, reuses=True)
            flat = graph.view(closed, 1, own.cells, each, streams)
            opened = graph.view(flat, 1, own.cells, each, streams)
            opened.sources = (zeros, rows, flat)
            back = graph.view(opened, *mask.shape)
            mask = graph.new(mask.shape, (back, mask), element=element, reuses=True)
        both = (raw.shape[0] + own.cells, each, 1, streams)
        return graph.new(both, (raw, mask), element=element)

    def _attend(self, query: Tensor, chosen: Tensor | None) -> Tensor:
        """Attention over the window and the compressed entries; keys are values."""
        blocks, graph, shape = self.blocks, self.graph, self.shape
        heads, dim, streams = self.layer_.heads, self.layer_.k_dim, shape.sequences
        each = shape.tokens // streams
        cells = shape.cells_of(self.layer_)
        split = graph.view(query, dim, heads, each, streams, strides=query.strides)
        turned = graph.view(split, dim, each, heads, streams, strides=query.strides)
        keys = graph.view(graph.outside(1), 1)
        if self.own.ratio:
            cells += self.own.cells
            size = shape.k_bytes(dim) * cells
            keys = graph.new((size, 1, 1, streams), (keys, keys), element=1)
        if shape.flash:
            reads = [turned, keys]
            if shape.k == "f32":
                whole = (dim, cells, 1, streams)
                reads = [turned, *(graph.new(whole, (keys,), element=_F16) for _ in "kv")]
            made = graph.new((dim, heads, each, streams), (*reads, self._masks(chosen)))
            current = graph.view(made, dim * heads, shape.tokens)
        else:
            scores = graph.new((cells, each, heads, streams), (keys, turned))
            soft = graph.like(scores, self._masks(chosen))
            size = shape.k_bytes(cells) * dim
            values = graph.new((size, 1, 1, streams), (keys,), element=1)
            made = graph.new((dim, each, heads, streams), (values, soft))
            permuted = graph.view(made, dim, heads, each, streams, strides=made.strides)
            current = blocks.contiguous(permuted, dim * heads, shape.tokens)
        graph.expand(current)
        return current


_ROTATION = 64
