"""What attribute access means on each kind of value."""

from __future__ import annotations

import functools
import types
from typing import Any

import torch
from torch import nn
from transformers.modeling_utils import PreTrainedModel

from . import configs, tensors
from .configs import Cfg, LayerCfg
from .expressions import E, mk
from .values import (
    MISSING,
    AutoRef,
    Bound,
    Carried,
    Choice,
    InterpFn,
    LoopCarried,
    Obj,
    Opaque,
    Param,
    Raised,
    Super,
    SymList,
    SymRange,
    Tensor,
)

STUB_METHODS = {
    "post_init",
    "init_weights",
    "reset_parameters",
    "_reset_parameters",
    "_init_weights",
    "register_buffer",
    "requires_grad_",
    "tie_weights",
    "apply",
    "eval",
    "train",
    "to",
    "register_load_state_dict_pre_hook",
    "register_forward_hook",
    "_register_load_state_dict_pre_hook",
    "register_state_dict_hook",
    "register_forward_pre_hook",
    "half",
    "float",
    "initialize_weights",
    "init_parameters",
    "gradient_checkpointing_enable",
    "_tie_weights",
    "_backward_compatibility_gradient_checkpointing",
    "freeze_feature_encoder",
    "_freeze_parameters",
    "freeze",
    "add_model_tags",
    "_register_hooks",
    "_rope_init",
    "warn",
    "warning",
    "warning_once",
    "info",
    "debug",
    "error",
    "manual_seed",
    "prune_heads",
    "_init_rope",
    "rope_init_fn",
    "flatten_parameters",
    "bfloat16",
    "disable_input_require_grads",
    "_adjust_dac_decoder",
    "replace_batch_norm",
    "get_submodule",
    "_init_transformers_backbone",
    "_init_timm_backbone",
    "verify_out_features_out_indices",
    "_compute_default_rope_parameters",
    "compute_default_rope_parameters",
}
STUB_OWNERS = (nn.Module, PreTrainedModel)


def find_attr(cls: type, name: str, after: type | None = None) -> Any:
    """The class attribute a method resolution finds, with its owner."""
    order = cls.__mro__
    if after is not None:
        order = order[order.index(after) + 1 :]
    for owner in order:
        if name in owner.__dict__:
            return owner.__dict__[name], owner
    return MISSING, None


def get_attr(interp: Any, owner: Any, name: str) -> Any:
    """owner.name."""
    if isinstance(owner, Choice):
        return interp.fork(
            owner.cond,
            lambda: get_attr(interp, owner.yes, name),
            lambda: get_attr(interp, owner.no, name),
        )
    if isinstance(owner, Carried):
        raise LoopCarried(owner.name)
    if isinstance(owner, Opaque):
        return Opaque(name)
    if owner is MISSING:
        raise Raised(f"AttributeError {name}")
    if isinstance(owner, Obj):
        return _obj_attr(interp, owner, name)
    if isinstance(owner, Super):
        return _class_attr(
            interp,
            owner.receiver,
            owner.receiver.cls if isinstance(owner.receiver, (Obj, Cfg)) else owner.receiver,
            name,
            owner.after,
        )
    if isinstance(owner, Cfg):
        return _config_attr(interp, owner, name)
    if isinstance(owner, LayerCfg):
        return configs.layer_get(interp, owner, name)
    if isinstance(owner, E):
        return _expr_attr(owner, name)
    if isinstance(owner, Tensor):
        return tensors.tensor_attr(owner, name)
    if isinstance(owner, Param):
        return tensors.tensor_attr(Tensor(owner.shape, owner.dtype), name)
    if isinstance(owner, AutoRef):
        if name in STUB_METHODS:
            return Bound(owner, "stub")
        if name == "get_output_embeddings":
            return InterpFnNone
        return owner.config if name == "config" else Opaque(f"model.{name}")
    if isinstance(owner, (SymList, SymRange, dict, set)):
        return Bound(owner, name)
    if isinstance(owner, (InterpFn, Bound)):
        return Opaque(name)
    if isinstance(owner, type):
        return _type_attr(owner, name)
    if owner is torch and name == "classes":
        return Opaque("torch.classes")
    try:
        return getattr(owner, name)
    except Exception:
        raise Raised(f"AttributeError {name} of {owner!r}"[:100]) from None


class InterpSet:
    """config.__setattr__."""

    def __init__(self, owner: Any) -> None:
        self.owner = owner


def InterpFnNone(*args: Any) -> None:
    """A base model has no output embeddings."""


def _expr_attr(owner: E, name: str) -> Any:
    if name in (
        "index",
        "count",
        "get",
        "startswith",
        "endswith",
        "lower",
        "items",
        "keys",
        "values",
        "split",
        "append",
        "copy",
        "is_integer",
        "to_dict",
        "replace",
        "pop",
    ):
        return Bound(owner, name)
    if owner.op == "c":
        return configs.key((*owner.args, name))
    return mk("attr", owner, name)


def _config_attr(interp: Any, owner: Cfg, name: str) -> Any:
    if name in ("__class__",):
        return owner.cls
    if name == "__dict__":
        return Opaque("dict")
    if name == "__setattr__":
        return InterpSet(owner)
    if name in ("get_text_config", "to_dict", "to_diff_dict", "update"):
        return Bound(owner, name)
    return configs.get(interp, owner, name)


def _type_attr(owner: type, name: str) -> Any:
    if name in ("from_config", "_from_config", "from_pretrained"):
        return Bound(owner, name)
    static, _ = find_attr(owner, name)
    if isinstance(static, classmethod):
        return Bound(owner, static.__func__)
    try:
        return getattr(owner, name)
    except AttributeError:
        raise Raised(f"AttributeError {name}") from None


def _obj_attr(interp: Any, owner: Obj, name: str) -> Any:
    if name in owner.attrs:
        found = owner.attrs[name]
        if isinstance(found, Carried):
            raise LoopCarried(name)
        return interp.narrow(found) if interp.facts else found
    if name == "__class__":
        return owner.cls
    if "__opaque__" in owner.attrs:
        return Opaque(name)
    if name in STUB_METHODS and issubclass(owner.cls, nn.Module):
        return Bound(owner, "stub")
    if name in ("dtype", "device"):
        return Opaque(name)
    if name == "training":
        return False
    return _class_attr(interp, owner, owner.cls, name, None)


def _class_attr(interp: Any, receiver: Any, cls: type, name: str, after: type | None) -> Any:
    static, owner = find_attr(cls, name, after)
    if static is MISSING:
        if isinstance(receiver, Cfg):
            return configs.get(interp, receiver, name)
        raise Raised(f"AttributeError {cls.__name__}.{name}")
    if isinstance(static, property):
        return interp.run(static.fget, [receiver], {})
    if isinstance(static, functools.cached_property):
        return interp.run(static.func, [receiver], {})
    if isinstance(static, staticmethod):
        return static.__func__
    if isinstance(static, classmethod):
        return Bound(cls, static.__func__)
    if name == "__init__":
        return Bound(receiver, ("init", owner))
    if isinstance(static, types.FunctionType):
        torch_own = owner is not None and owner.__module__.startswith("torch.nn")
        if name in STUB_METHODS or torch_own or (owner in STUB_OWNERS and name not in KEEP_METHODS):
            return Bound(receiver, _module_method(name))
        return Bound(receiver, static)
    return static


KEEP_METHODS = {
    "get_input_embeddings",
    "set_input_embeddings",
    "get_output_embeddings",
    "set_output_embeddings",
}


def _module_method(name: str) -> Any:
    if name in (
        "parameters",
        "named_parameters",
        "modules",
        "named_modules",
        "children",
        "named_children",
        "buffers",
    ):
        return "nothing"
    return (
        name
        if name
        in (
            "register_parameter",
            "add_module",
            "register_module",
            "append",
            "extend",
            "insert",
            "update",
            "keys",
            "values",
            "items",
            "pop",
        )
        else "stub"
    )
