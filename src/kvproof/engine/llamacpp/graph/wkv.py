"""RWKV's graphs: a state for every head, and the token before beside every token.

Source: llama.cpp's src/models/rwkv6-base.cpp, rwkv7-base.cpp, rwkv6.cpp, rwkv7.cpp and
arwkv7.cpp, b11549.
"""

from __future__ import annotations

from kvproof.engine.llamacpp.graph.blocks import Blocks
from kvproof.engine.llamacpp.graph.mixers import state
from kvproof.engine.llamacpp.graph.plain import ending
from kvproof.engine.llamacpp.graph.shape import Layer, Shape, Wkv
from kvproof.engine.llamacpp.graph.tensors import Graph, Tensor

_MIXES_6, _MIXES_7 = 5, 6


def wkv_graph(shape: Shape) -> Graph:
    """The whole graph: embedding, layers, norm and logits."""
    blocks = Blocks(shape)
    stream = blocks.embedding()
    if shape.recipe.embedding_norm:
        stream = blocks.norm(stream)
    first: list[Tensor] = []
    for layer in shape.layers:
        blocks.graph.layer = layer.index
        if layer.wkv is not None:
            last = layer is shape.layers[-1]
            stream = _Wkv(blocks, layer, layer.wkv, first).layer(stream, last=last)
    ending(blocks, stream)
    return blocks.graph


class _Wkv:
    """One layer; `first`: the values of the first layer, which later ones are mixed with."""

    def __init__(self, blocks: Blocks, layer: Layer, own: Wkv, first: list[Tensor]) -> None:
        self.blocks, self.graph, self.shape = blocks, blocks.graph, blocks.shape
        self.wide, self.own, self.first = layer.wide, own, first
        self.hidden, self.tokens = self.shape.hidden, self.shape.tokens
        self.sequences = self.shape.sequences
        self.each = self.tokens // self.sequences
        self.cube = (self.hidden, self.each, self.sequences)
        self.heads = (own.size, self.hidden // own.size, self.tokens)

    def layer(self, stream: Tensor, *, last: bool) -> Tensor:
        """Mixing over time, then over channels."""
        blocks, graph, own = self.blocks, self.graph, self.own
        stream = graph.view(stream, *self.cube)
        shifts = state(blocks, self.hidden * own.shifts)
        normed = blocks.norm(stream)
        before = self._before(shifts, normed)
        mixed = self._over_time(normed, before)
        kept = graph.view(normed, self.hidden, 1, self.sequences, strides=normed.strides)
        if own.shifts == 1:
            self._stored(kept)
        middle = blocks.add(graph.view(mixed, *self.cube), stream)
        if own.shifts == 1:
            return self._gated(middle, last=last)
        inner = blocks.norm(middle)
        before = self._before(shifts, inner)
        newest = graph.view(inner, self.hidden, 1, self.sequences, strides=inner.strides)
        self._stored(graph.new((self.hidden, own.shifts, self.sequences), (kept, newest)))
        parts = [self._flat(tensor) for tensor in (middle, inner, before)]
        if last:
            parts = [blocks.chosen_rows(part) for part in parts]
        middle, inner, before = parts
        return blocks.add(self._over_channels(inner, before), middle)

    def _flat(self, tensor: Tensor) -> Tensor:
        return self.graph.view(tensor, self.hidden, self.tokens)

    def _before(self, shifts: Tensor, normed: Tensor) -> Tensor:
        """Every token's predecessor: the state's, then the batch's."""
        graph = self.graph
        earlier = graph.view(shifts, self.hidden, 1, self.sequences)
        rest = graph.view(normed, self.hidden, self.each - 1, self.sequences,
                          strides=normed.strides)  # fmt: skip
        return graph.new(self.cube, (earlier, rest))

    def _stored(self, source: Tensor) -> None:
        graph = self.graph
        graph.expand(graph.view(graph.outside(1), 1, more=(graph.view(source, 1),)))

    def _gated(self, middle: Tensor, *, last: bool) -> Tensor:
        blocks = self.blocks
        flat = self._flat(middle)
        if last:
            flat = blocks.chosen_rows(flat)
        fed = blocks.feed_forward(blocks.norm(flat), self.wide, "gated")
        return blocks.add(fed, flat)

    def _over_channels(self, inner: Tensor, before: Tensor) -> Tensor:
        blocks, graph = self.blocks, self.graph
        gap = graph.new(before.shape, (before, inner), reuses=True)
        if self.own.version == _SEVEN:
            entering = graph.like(graph.like(gap), inner)
            return blocks.matmul(graph.like(blocks.matmul(entering, self.wide)), self.hidden)
        entering = graph.like(graph.like(gap), inner)
        gated = graph.like(graph.like(gap), inner)
        gate = graph.like(blocks.matmul(gated, self.hidden))
        fed = blocks.matmul(graph.like(blocks.matmul(entering, self.wide)), self.hidden)
        return graph.like(gate, fed)

    def _over_time(self, normed: Tensor, before: Tensor) -> Tensor:
        read = state(self.blocks, self.hidden * self.own.size)
        gap = self.graph.like(before, normed)
        if self.own.version == _SEVEN:
            return self._seven(normed, gap, read)
        return self._six(normed, gap, read)

    def _low(self, tensor: Tensor, rank: int) -> Tensor:
        """Through a low rank and back; activations work in place."""
        blocks = self.blocks
        made = blocks.matmul(self.graph.like(blocks.matmul(tensor, rank)), self.hidden)
        return self.graph.like(made)

    def _heads(self, tensor: Tensor) -> Tensor:
        return self.graph.view(tensor, *self.heads)

    def _out(self, sources: tuple[Tensor, ...]) -> Tensor:
        """The recurrence: outputs with the new states behind, which are kept."""
        rows = self.tokens + self.own.size * self.sequences
        made = self.graph.new((self.hidden, rows), sources)
        self._stored(made)
        normed = self.graph.new(self.heads, (self.graph.view(made, *self.heads),))
        flat = self._flat(normed)
        return self.graph.like(self.graph.new(flat.shape, (flat,)))

    def _six(self, normed: Tensor, gap: Tensor, read: Tensor) -> Tensor:
        blocks, graph, own = self.blocks, self.graph, self.own
        flat_gap, flat = self._flat(gap), self._flat(normed)
        mixed = graph.like(graph.new(flat.shape, (flat_gap,)), flat)
        low = graph.like(blocks.matmul(mixed, own.extra * _MIXES_6))
        turned = graph.view(low, own.extra, 1, self.tokens, _MIXES_6, strides=low.strides)
        whole = graph.new((self.hidden, 1, self.tokens, _MIXES_6), (blocks.contiguous(turned),))
        whole = graph.like(graph.like(graph.like(whole), flat_gap), flat)
        parts = [self._flat(whole) for _ in range(_MIXES_6)]
        receptance, key, value = (blocks.matmul(part, self.hidden) for part in parts[:3])
        decay = self._low(parts[3], own.decay)
        out = self._out((*map(self._heads, (key, value, receptance, decay)), read))
        gate = graph.like(blocks.matmul(parts[4], self.hidden))
        return blocks.matmul(graph.like(out, gate), self.hidden)

    def _seven(self, normed: Tensor, gap: Tensor, read: Tensor) -> Tensor:
        blocks, graph, own = self.blocks, self.graph, self.own
        repeated = graph.new((*self.cube, _MIXES_7), (gap,))
        whole = graph.like(graph.like(repeated), normed)
        parts = [self._flat(whole) for _ in range(_MIXES_7)]
        receptance = self._heads(blocks.matmul(parts[0], self.hidden))
        decay = self._heads(self._low(parts[1], own.decay))
        key = blocks.matmul(parts[2], self.hidden)
        value = self._value(parts[3])
        rate = self._low(parts[4], own.rate)
        scaled = graph.like(key)
        product = graph.like(rate, scaled)
        new_key = self._heads(graph.like(key, graph.like(product, scaled)))
        direction = self._heads(graph.like(key))
        unit = graph.new(direction.shape, (direction,))
        away, toward = graph.like(unit), graph.like(unit, self._heads(rate))
        values = self._heads(value)
        out = self._out((receptance, decay, new_key, values, away, toward, read))
        matched = graph.like(graph.like(new_key, receptance))
        bonus = graph.like(values, graph.new((1, *self.heads[1:]), (matched,)))
        total = graph.like(out, self._flat(bonus))
        if own.gate:
            total = graph.like(total, self._low_gate(parts[5]))
        return blocks.matmul(total, self.hidden)

    def _low_gate(self, tensor: Tensor) -> Tensor:
        blocks = self.blocks
        low = self.graph.like(blocks.matmul(tensor, self.own.gate))
        return blocks.matmul(low, self.hidden)

    def _value(self, part: Tensor) -> Tensor:
        """Values, mixed with the first layer's."""
        blocks, graph = self.blocks, self.graph
        value = blocks.matmul(part, self.hidden)
        if not self.first:
            self.first.append(value)
            return value
        gap = graph.like(self.first[0], value)
        low = blocks.matmul(blocks.matmul(part, self.own.value), self.hidden)
        return graph.like(value, graph.like(gap, graph.like(low)))


_SEVEN = 7
