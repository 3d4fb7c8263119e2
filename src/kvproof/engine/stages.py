"""Pipeline stages: the layers of each, and those on the GPU that is answered for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from kvproof.engine.base import Deployment
from kvproof.errors import UsageError

Extra = Literal["first", "last", "final"]
"""Who holds the layers that are left over: one each the first or the last stages, or the final
stage all of them."""


def stage_layers(layers: int, stages: int, extra: Extra) -> tuple[range, ...]:
    """The layers of every stage, in order; UsageError for more stages than layers."""
    if stages > max(layers, 1):
        raise UsageError(f"{layers} layers make no {stages} pipeline stages", hint="give fewer")
    each, left = divmod(layers, stages)
    counts = [each] * stages
    if extra == "final":
        counts[-1] += left
    else:
        for i in range(left):
            counts[i if extra == "first" else stages - 1 - i] += 1
    starts = [sum(counts[:i]) for i in range(stages)]
    return tuple(range(start, start + n) for start, n in zip(starts, counts, strict=True))


def own_stages(deployment: Deployment, ranks: int, stages: int) -> tuple[int, ...]:
    """The stages whose ranks lie on the GPU that is answered for: all where GPUs are alike.

    Ranks follow the order of the GPUs, stage after stage of `ranks` ranks, replica after replica.
    """
    if not deployment.mixed:
        return tuple(range(stages))
    return tuple(sorted({rank // ranks % stages for rank in deployment.own_ranks}))


def scarcest(parts: Sequence[range], own: Sequence[int], tokens: Callable[[range], float]) -> range:
    """Of the own stages, the one that holds the fewest tokens: every rank keeps its count."""
    each = sorted({parts[i].start: parts[i] for i in own}.values(), key=lambda part: -len(part))
    return each[0] if len(each) == 1 else min(each, key=tokens)
