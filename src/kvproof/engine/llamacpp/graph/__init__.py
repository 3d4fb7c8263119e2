"""The compute buffer, from the graph that llama.cpp builds and its allocator's own rules."""

from __future__ import annotations

import functools

from kvproof.engine.llamacpp.context import Context
from kvproof.engine.llamacpp.graph.allocator import ALIGNMENT, GPU_ALIGNMENT, peak_bytes
from kvproof.engine.llamacpp.graph.altup import altup_graph
from kvproof.engine.llamacpp.graph.compressed import compressed_graph
from kvproof.engine.llamacpp.graph.plain import plain_graph
from kvproof.engine.llamacpp.graph.reading import shape_of
from kvproof.engine.llamacpp.graph.shape import Shape
from kvproof.engine.llamacpp.graph.tensors import Graph
from kvproof.engine.llamacpp.graph.wkv import wkv_graph
from kvproof.model.types import Model


def graph_bytes(model: Model, context: Context, *, on_gpu: bool = False) -> int | None:
    """Bytes of the compute buffer of one device; None where the graph is not known."""
    shape = shape_of(model, context, on_gpu=on_gpu)
    return None if shape is None else shape_bytes(shape)


def host_bytes(model: Model, context: Context) -> int | None:
    """Bytes of the host's buffer when a GPU computes all layers: inputs, and rows looked up."""
    shape = shape_of(model, context)
    return None if shape is None else _inputs(shape)


@functools.lru_cache(maxsize=256)
def shape_bytes(shape: Shape) -> int:
    """Bytes of the compute buffer of a graph's shape."""
    alignment = GPU_ALIGNMENT if shape.on_gpu else ALIGNMENT
    return peak_bytes(built(shape), alignment)


def built(shape: Shape) -> Graph:
    """The graph of a shape."""
    if shape.recipe.compressed:
        return compressed_graph(shape)
    if shape.recipe.wkv:
        return wkv_graph(shape)
    return altup_graph(shape) if shape.recipe.altup else plain_graph(shape)


@functools.lru_cache(maxsize=64)
def _inputs(shape: Shape) -> int:
    leaves = sum(leaf.size for leaf in built(shape).leaves)
    looked_up = 2 if shape.inputs == "mixed" else 1
    return leaves + looked_up * shape.hidden * shape.tokens * _F32


_F32 = 4
