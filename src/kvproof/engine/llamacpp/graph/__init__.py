"""The compute buffer, from the graph that llama.cpp builds and its allocator's own rules."""

from __future__ import annotations

import functools

from kvproof.engine.llamacpp.context import Context
from kvproof.engine.llamacpp.graph.allocator import peak_bytes
from kvproof.engine.llamacpp.graph.plain import plain_graph
from kvproof.engine.llamacpp.graph.reading import shape_of
from kvproof.engine.llamacpp.graph.shape import Shape
from kvproof.model.types import Model


def graph_bytes(model: Model, context: Context) -> int | None:
    """Bytes of the compute buffer of one device; None where the graph is not known."""
    shape = shape_of(model, context)
    return None if shape is None else shape_bytes(shape)


@functools.lru_cache(maxsize=256)
def shape_bytes(shape: Shape) -> int:
    """Bytes of the compute buffer of a graph's shape."""
    return peak_bytes(plain_graph(shape))
