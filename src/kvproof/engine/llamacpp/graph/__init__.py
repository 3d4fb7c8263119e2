"""The compute buffer, from the graph that llama.cpp builds and its allocator's own rules."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import MappingProxyType

from kvproof.engine.llamacpp.context import Context
from kvproof.engine.llamacpp.graph.allocator import peak_bytes
from kvproof.engine.llamacpp.graph.altup import altup_graph
from kvproof.engine.llamacpp.graph.checkpointed import checkpointed_graph
from kvproof.engine.llamacpp.graph.compressed import compressed_graph
from kvproof.engine.llamacpp.graph.gated_streams import gated_streams_graph
from kvproof.engine.llamacpp.graph.plain import plain_graph
from kvproof.engine.llamacpp.graph.reading import shape_of
from kvproof.engine.llamacpp.graph.schedule import Where, device_bytes
from kvproof.engine.llamacpp.graph.shape import Shape
from kvproof.engine.llamacpp.graph.streamed import streamed_graph
from kvproof.engine.llamacpp.graph.tensors import Graph
from kvproof.engine.llamacpp.graph.wkv import wkv_graph
from kvproof.model.types import Model


def graph_bytes(model: Model, context: Context) -> int | None:
    """Bytes of the compute buffer where a CPU computes all; None where the graph is not known."""
    shape = shape_of(model, context)
    return None if shape is None else shape_bytes(shape)


def split_bytes(model: Model, context: Context, where: Where) -> Mapping[int, int] | None:
    """Bytes of the compute buffer of every GPU and of the host, where `where` puts the layers."""
    shape = shape_of(model, context, where=where)
    return None if shape is None else _split(shape, where)


@functools.lru_cache(maxsize=256)
def shape_bytes(shape: Shape) -> int:
    """Bytes of the compute buffer of a graph's shape."""
    return peak_bytes(built(shape))


def built(shape: Shape) -> Graph:
    """The graph of a shape."""
    if shape.recipe.compressed:
        return compressed_graph(shape)
    if shape.recipe.wkv:
        return wkv_graph(shape)
    if shape.recipe.streams:
        gated = shape.recipe.streams == "gated"
        return gated_streams_graph(shape) if gated else streamed_graph(shape)
    if shape.recipe.checkpoints:
        return checkpointed_graph(shape)
    return altup_graph(shape) if shape.recipe.altup else plain_graph(shape)


@functools.lru_cache(maxsize=256)
def _split(shape: Shape, where: Where) -> Mapping[int, int]:
    return MappingProxyType(device_bytes(built(shape), where, shape.tokens))
