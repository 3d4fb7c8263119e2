"""Bytes of a model's weights: per tensor group, per role, and what a decode step streams."""

from __future__ import annotations

import functools
from math import prod

from kvproof.errors import ModelError
from kvproof.kinds import element_type
from kvproof.model.quantization import Quantization, Scheme
from kvproof.model.tensors import TensorGroup
from kvproof.model.types import Model
from kvproof.terms import Term


def stored_bytes(model: Model, group: TensorGroup) -> int:
    """Bytes of the tensors of `group` in the model's checkpoint, scales included."""
    plain = element_type("f32" if group.fp32 else model.dtype).bytes(prod(group.shape))
    quantization = model.quantization
    if quantization is None or not quantization.covers(linear=group.linear, role=group.role):
        return group.count * plain
    return sum(
        count * (plain if scheme is None else matrix_bytes(scheme, group.shape))
        for scheme, count in _schemes(quantization, group)
    )


def matrix_bytes(scheme: Scheme, shape: tuple[int, ...]) -> int:
    """Bytes of one tensor in `scheme`; leading axes (experts) are so many matrices."""
    rows, columns = (1, *shape)[-2:]
    return prod(shape[:-2]) * scheme.bytes(rows, columns)


@functools.lru_cache(maxsize=4096)
def _schemes(
    quantization: Quantization, group: TensorGroup
) -> tuple[tuple[Scheme | None, int], ...]:
    """How many tensors of `group` each scheme stores."""
    if not group.layers or "{}" not in group.name:
        return ((quantization.scheme(group.name), group.count),)
    per_layer = group.count // len(group.layers)
    counts: dict[Scheme | None, int] = {}
    for layer in group.layers:
        name = group.name.replace("{}", str(layer), 1).replace("{}", "0")
        scheme = quantization.scheme(name)
        counts[scheme] = counts.get(scheme, 0) + per_layer
    return tuple(counts.items())


def _types(model: Model, group: TensorGroup) -> list[str]:
    """What the tensors of `group` are stored in, by name."""
    plain, quantization = "f32" if group.fp32 else model.dtype, model.quantization
    if quantization is None or not quantization.covers(linear=group.linear, role=group.role):
        return [plain]
    return [plain if scheme is None else scheme.name for scheme, _ in _schemes(quantization, group)]


def weight_bytes(model: Model) -> int:
    """Bytes of all weights: exact from the checkpoint's headers when known, else computed."""
    if model.stored_weight_bytes is not None:
        return model.stored_weight_bytes
    return sum(stored_bytes(model, group) for group in known_tensors(model))


def known_tensors(model: Model) -> tuple[TensorGroup, ...]:
    """The model's tensors; ModelError when its architecture's weights are unknown."""
    if not model.tensors:
        raise unknown_weights(model)
    return model.tensors


def unknown_weights(model: Model) -> ModelError:
    """What is said of a model of which only the cache is read, and what can be done."""
    return ModelError(
        f"the weights of {model.name} ({model.model_type}) are unknown: only its cache is read",
        hint="name the folder of its checkpoint (config.json and *.safetensors) instead, or plan "
        "with --engine formula --weight-bytes SIZE",
    )


def streamed_weight_bytes(model: Model) -> int:
    """Bytes that a decode step reads when every expert is hit (looked-up tables left out).

    All that the checkpoint holds, where only its headers are known.
    """
    if not model.tensors and model.stored_weight_bytes is not None:
        return model.stored_weight_bytes
    return sum(stored_bytes(model, g) for g in known_tensors(model) if model.is_streamed(g))


def expert_bytes(model: Model) -> int:
    """Bytes of the routed experts' weights."""
    return sum(stored_bytes(model, g) for g in model.tensors if g.role == "expert")


def weight_terms(model: Model) -> tuple[Term, ...]:
    """One term per role of tensor; they add up to the computed weight bytes."""
    by_role: dict[str, tuple[int, int]] = {}
    types: dict[str, dict[str, None]] = {}
    for group in model.tensors:
        size, count = by_role.get(group.role, (0, 0))
        by_role[group.role] = (size + stored_bytes(model, group), count + group.elements)
        types.setdefault(group.role, {}).update(dict.fromkeys(_types(model, group)))
    return tuple(
        Term(
            name=f"weights: {role.replace('_', ' ')}",
            value=size,
            unit="B",
            formula=f"{count:,} parameters stored as {' and '.join(types[role])}: {size:,} B",
            source="tensor shapes of the architecture; quantization_config",
        )
        for role, (size, count) in sorted(by_role.items(), key=lambda item: -item[1][0])
    )
