"""Where the parts of a model's graph are computed, for the scheduler that splits it.

Source: llama_context's constructor (llama-context.cpp, pipeline_parallel), b11549.
"""

from __future__ import annotations

import msgspec

from kvproof.engine.llamacpp.devices import Placement
from kvproof.engine.llamacpp.flags import Flags
from kvproof.engine.llamacpp.graph.schedule import Weights, Where
from kvproof.engine.llamacpp.overrides import HOST, overridden
from kvproof.model.tensors import TensorGroup
from kvproof.model.types import Model
from kvproof.model.weights import stored_bytes

_PLAIN = 2.0  # bytes of a number where nothing is known of the weights


def where_of(model: Model, flags: Flags, place: Placement) -> Where:
    """The device of every layer's weights, cache and experts."""
    layers = tuple(range(len(place.layers)))
    experts = tuple(_experts(model, place, layer) for layer in layers)
    away = place.gpus > 0 and HOST in (*place.layers, place.output, *experts)
    return Where(
        layers=place.layers,
        caches=tuple(HOST if place.kv_on_host else device for device in place.layers),
        experts=experts,
        output=place.output,
        gpus=place.gpus,
        weights=_weights(model, layers) if away else (),
        offloads=flags.op_offload,
        pipelined=_pipelined(flags, place),
        kv_on_host=place.kv_on_host,
    )


def _pipelined(flags: Flags, place: Placement) -> bool:
    """Whether GPUs work on several batches in turn, each with inputs of its own."""
    return (
        place.gpus > 1
        and flags.split_mode == "layer"
        and HOST not in (*place.layers, place.output)
        and not place.kv_on_host
        and not place.moves_tensors
    )


def _experts(model: Model, place: Placement, layer: int) -> int:
    """The device of most of a layer's routed experts."""
    held: dict[int, int] = {}
    for group in model.tensors if place.overrides else ():
        if group.role == "expert" and layer in group.layers:
            device = overridden(place.overrides, group, layer)
            own = place.expert_device(layer) if device is None else device
            held[own] = held.get(own, 0) + group.elements
    return max(held, key=lambda device: held[device]) if held else place.expert_device(layer)


def _weights(model: Model, layers: tuple[int, ...]) -> tuple[Weights, ...]:
    """Bytes of every layer's tensors, then of the output's."""
    by_layer: dict[int, list[TensorGroup]] = {layer: [] for layer in layers}
    rest: list[TensorGroup] = []
    for group in model.tensors:
        if not group.layers:
            rest.append(group)
        for layer in group.layers:
            if layer in by_layer:
                one = msgspec.structs.replace(
                    group, layers=(layer,), count=group.count // len(group.layers)
                )
                by_layer[layer].append(one)
    mean = _PLAIN
    if model.stored_weight_bytes and model.parameters:
        mean = model.stored_weight_bytes / model.parameters
    return (*(_table(model, by_layer[layer], mean) for layer in layers), _table(model, rest, mean))


def _table(model: Model, groups: list[TensorGroup], mean: float) -> Weights:
    sizes: dict[int, int] = {}
    counted = {True: [0, 0], False: [0, 0]}
    for group in groups:
        size = stored_bytes(model, group)
        sizes[group.elements] = max(size, sizes.get(group.elements, 0))
        both = counted[group.role == "expert"]
        both[0], both[1] = both[0] + size, both[1] + group.elements
    each, expert = (
        size / elements if elements else mean for size, elements in (counted[False], counted[True])
    )
    return Weights(sizes=tuple(sorted(sizes.items())), each=each, expert=expert)
