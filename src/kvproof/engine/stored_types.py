"""The element types of a deployment's cache, by its engine's rules where it has its own."""

from __future__ import annotations

from kvproof.engine import formula
from kvproof.engine.base import Deployment, own_rule
from kvproof.errors import UsageError
from kvproof.kinds import LatentSlot, Types
from kvproof.model.types import Model


def types_of(model: Model, deployment: Deployment) -> Types:
    """Element types of keys, values and states that follow the model's own type."""
    own = own_rule(deployment, "types_for")
    if own is not None:
        types: Types = own(model, deployment)
        return types
    return plain_types(model, asked_type(model, deployment))


def named_types(
    model: Model, engine: str, dtype: str | None, k: str | None, v: str | None
) -> Types:
    """The element types that are named; a name that only the engine has is as it stores it.

    Raises UsageError where neither knows the name.
    """
    try:
        return formula.types_of(model, dtype, k, v)
    except UsageError as unknown:
        try:
            return types_of(model, Deployment(engine, kv_cache_dtype=dtype))
        except UsageError:
            raise unknown from None


def asked_type(model: Model, deployment: Deployment) -> str | None:
    """The cache type of the flags, else what the checkpoint asks engines for."""
    name: str | None = deployment.flags.get("kv_cache_dtype")
    if name in (None, "auto") and model.quantization:
        return model.quantization.kv_dtype
    return name


def plain_types(model: Model, name: str | None) -> Types:
    """The element types that `name` means where no rule of the engine's own says otherwise."""
    return formula.types_of(model, _element_name(model, name))


def _element_name(model: Model, name: str | None) -> str | None:
    """The element type behind an engine's name for it."""
    if name is None or name == "fp8_e5m2" or not name.startswith("fp8"):
        return name
    packed = any(
        isinstance(s, LatentSlot) and s.latent_dim + s.rope_dim == 576 for s in model.slots
    )
    return "fp8_ds_mla" if name == "fp8_ds_mla" and packed else "fp8"
