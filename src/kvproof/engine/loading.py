"""Weights as an engine holds them: what --quantization and --dtype make of a checkpoint.

What a decode step reads is what lies in memory, not what the checkpoint stores.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from kvproof.engine.base import Deployment, own_rule
from kvproof.engine.rank_weights import loaded_bytes
from kvproof.model.tensors import TensorGroup
from kvproof.model.types import Model
from kvproof.model.weights import stored_bytes, weight_bytes

_NOTEWORTHY = 0.02
"""A change that small is of routers and scales, and no other type of weights."""


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of one copy of the weights in memory; `name` is the type that the flags ask for.

    `total` is None where they aren't known (the formula can be given them).
    `streamed`: what a decode step reads when every expert is hit, `experts` the routed ones of
    it. None of both: as stored. `name` is None where the flags change nothing.
    """

    total: int | None
    streamed: int | None = None
    experts: int | None = None
    name: str | None = None


def asked_quantization(model: Model, deployment: Deployment) -> str | None:
    """The scheme that the engine's flag makes of plain weights; None without one."""
    asked = deployment.flags.get("quantization")
    return None if model.quantization is not None or not asked else str(asked).lower()


def loaded(model: Model, deployment: Deployment) -> Loaded:
    """The weights of `model`, as served (engine.base.served_model), in memory."""
    found, own = _loaded(model, deployment), own_rule(deployment, "streamed_for")
    return found if own is None else msgspec.structs.replace(found, streamed=own(model, deployment))


def _loaded(model: Model, deployment: Deployment) -> Loaded:
    if not model.tensors and model.stored_weight_bytes is None:
        return Loaded(total=None)
    total, asked = weight_bytes(model), asked_quantization(model, deployment)
    if asked is None or not model.tensors:
        return Loaded(total=total)
    size = _sizer(model, deployment)
    changed = total - sum(stored_bytes(model, g) - size(g) for g in model.tensors)
    return Loaded(
        total=changed,
        streamed=sum(size(g) for g in model.tensors if model.is_streamed(g)),
        experts=sum(size(g) for g in model.tensors if g.role == "expert"),
        name=asked if total - changed > _NOTEWORTHY * total else None,
    )


def _sizer(model: Model, deployment: Deployment) -> Callable[[TensorGroup], int]:
    """Bytes of a group of tensors in memory, by the engine's own rule where it has one."""
    own = own_rule(deployment, "loaded_for")
    if own is not None:
        found: Callable[[TensorGroup], int] = own(model, deployment)
        return found
    asked = asked_quantization(model, deployment)
    return lambda group: loaded_bytes(model, group, asked)
