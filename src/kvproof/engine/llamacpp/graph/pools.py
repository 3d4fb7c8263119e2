"""Neighbouring cells that an indexer ranks together: how many there are, and their inputs.

Source: llama.cpp's src/models/glm5-next.cpp and qwen4exp.cpp (build_inp_kpool), asked at b11549.
"""

from __future__ import annotations

from kvproof.engine.llamacpp.graph.shape import Layer, Pooling, Shape
from kvproof.engine.llamacpp.graph.tensors import Graph

_F16, _I32, _I64 = 2, 4, 8
_PAD = 64


class Pools:
    """The pools of a batch's streams, and the inputs that name their cells."""

    def __init__(self, graph: Graph, shape: Shape, layer: Layer, pooling: Pooling) -> None:
        self.each, self.cells = pooling.each, shape.cells_of(layer)
        self.new = shape.sequences * (self.cells // self.each)
        self.count = max(_PAD, -(-(self.new + 1) // _PAD) * _PAD)
        self.chosen = min(self.count, pooling.top // self.each)
        self.selected = self.each * self.chosen + (self.each - 1 if pooling.tail else 0)
        self.places = graph.input(self.count, element=_I32)
        self.members = graph.input(self.each, self.count, element=_I32)
        self.mask = graph.input(self.count, shape.tokens, element=_F16)
        self.tail = graph.input(self.each - 1, shape.tokens, element=_I32)
        self.live = graph.input(self.selected, 1, 1, shape.tokens)
        shown = (self.live,) if pooling.masked else ()
        for tensor in (self.places, self.members, self.mask, self.tail, *shown):
            graph.expand(tensor)
        self.new_members = graph.input(self.each * self.new, element=_I32)
        self.new_places = graph.input(self.new, element=_I64)


def pools_of(graph: Graph, shape: Shape) -> Pools | None:
    """The pools of a graph, None where no indexer ranks such."""
    for layer in shape.layers:
        if layer.pooled is not None:
            return Pools(graph, shape, layer, layer.pooled)
    return None
