"""The compute buffer, from the graph that llama.cpp builds and its allocator's own rules."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import MappingProxyType

from kvproof.engine.llamacpp.context import Context
from kvproof.engine.llamacpp.graph.allocator import ALIGNMENT, Pool, repeats
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
    if shape is None:
        return None
    size = shape_bytes(shape)
    if size is None:
        whole = shape_of(model, context, whole=True)
        size = shape_bytes(whole) if whole is not None else None
    return size


def split_bytes(model: Model, context: Context, where: Where) -> Mapping[int, int] | None:
    """Bytes of the compute buffer of every GPU and of the host, where `where` puts the layers."""
    shape = shape_of(model, context, where=where)
    if shape is None:
        return None
    sizes = _split(shape, where)
    if sizes is None:
        whole = shape_of(model, context, where=where, whole=True)
        sizes = _split(whole, where) if whole is not None else None
    return sizes


@functools.lru_cache(maxsize=256)
def shape_bytes(shape: Shape) -> int | None:
    """Bytes of the compute buffer of a graph's shape; None where layers left out would count."""
    graph, pool = built(shape), Pool(ALIGNMENT)
    alike = repeats(graph.leaves, graph.nodes, {None: pool}, shape.ends)
    return pool.peak if alike else None


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
def _split(shape: Shape, where: Where) -> Mapping[int, int] | None:
    sizes = device_bytes(built(shape), where, shape.tokens, shape.ends)
    return None if sizes is None else MappingProxyType(sizes)
