"""Layers that repeat: which of them a graph can leave out without another peak."""

from __future__ import annotations

import itertools

import msgspec

from kvproof.engine.llamacpp.graph.schedule import Where
from kvproof.engine.llamacpp.graph.shape import Layer

_LEADING, _PERIOD, _ROUNDS = 6, 13, 2
Run = tuple[tuple[Layer, ...], tuple[int, int] | None]
"""Layers on the same devices; where some are left out, two that must end with memory alike."""


def by_device(layers: tuple[Layer, ...], where: Where | None) -> list[Run]:
    """The layers without repetitions, runs on the same devices each for themselves."""
    marks = [(0,) if where is None else where.mark(layer.index) for layer in layers]
    runs = itertools.groupby(range(len(layers)), key=lambda place: marks[place])
    return [_distinct(tuple(layers[i] for i in places)) for _, places in runs]


def _distinct(layers: tuple[Layer, ...]) -> Run:
    """The layers without repetitions that should not change the peak.

    Every layer ends with one tensor alive, whose place mostly alternates; so after two rounds of
    the pattern of layers memory is as it was two rounds before. Such pairs of rounds are left out.
    """
    parts = [part for layer in layers for part in (layer.latent, layer.compressed) if part]
    if any(part.index_dim for part in parts) or any(layer.pooled for layer in layers):
        return layers, None  # each has a constant of its own, made before everything else
    kinds = [msgspec.structs.replace(layer, index=0) for layer in layers]
    for start in range(min(_LEADING, len(layers))):
        for period in range(1, _PERIOD):
            if kinds[start:-period] == kinds[start + period :]:
                rounds = (len(layers) - start) // (2 * period) - _ROUNDS
                left = start + 2 * period * _ROUNDS
                if rounds < 1:
                    return layers, None
                end = layers[left - 2 - 2 * period].index, layers[left - 2].index
                return layers[:left] + layers[left + 2 * period * rounds :], end
    return layers, None
