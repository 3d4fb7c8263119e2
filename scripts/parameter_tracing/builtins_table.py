"""What attribute access, indexing and calls mean on each kind of value."""

from __future__ import annotations

import collections
import copy
import functools
import inspect
import math
import types
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig
from transformers.activations import ACT2CLS, ACT2FN
from transformers.modeling_utils import PreTrainedModel
from transformers.models.auto import auto_factory

from . import configs, torch_table
from .configs import Cfg, LayerCfg
from .expressions import E, concrete, conj, freeze, mk
from .values import (
    MISSING,
    AutoRef,
    Bound,
    Carried,
    Choice,
    Elem,
    Guarded,
    InterpFn,
    Loop,
    LoopCarried,
    Obj,
    Opaque,
    Param,
    Raised,
    Store,
    Super,
    SymList,
    SymRange,
    Tensor,
    Unsupported,
    merge,
    scalar,
    unwrap,
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
        return torch_table.tensor_attr(owner, name)
    if isinstance(owner, Param):
        return torch_table.tensor_attr(Tensor(owner.shape, owner.dtype), name)
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


def length(interp: Any, value: Any) -> Any:
    """len()."""
    if isinstance(value, Choice):
        return merge(value.cond, length(interp, value.yes), length(interp, value.no))
    if isinstance(value, SymRange):
        return value.count
    if isinstance(value, Obj):
        return length(interp, module_items(interp, value))
    if isinstance(value, SymList):
        return segs_length(value.items)
    if isinstance(value, E):
        return mk("len", value)
    if isinstance(value, (Opaque, Cfg)):
        return Opaque("len")
    return len(value)


def segs_length(segs: tuple[Any, ...]) -> Any:
    """How many elements the segments hold."""
    total: Any = 0
    for seg in segs:
        if isinstance(seg, Elem):
            total = mk("+", total, 1)
        elif isinstance(seg, Guarded):
            total = mk("+", total, mk("if", seg.cond, segs_length(seg.segs), 0))
        else:
            inner = segs_length(seg.segs)
            free = isinstance(inner, E) and seg.var in inner.free
            total = mk(
                "+",
                total,
                E("sum", seg.var, seg.count, inner) if free else mk("*", seg.count, inner),
            )
    return total


def list_expr(interp: Any, value: Any) -> Any:
    """A list of scalars as one expression."""
    if isinstance(value, E):
        return value
    if isinstance(value, SymRange):
        var = interp.next_var
        interp.next_var += 1
        return E("list", var, value.count, value.item(E("v", var)), True)
    if not isinstance(value, SymList):
        return freeze(value)
    parts = []
    for seg in value.items:
        if isinstance(seg, Elem) and scalar(seg.value):
            parts.append(
                mk("tuple", seg.value)
                if isinstance(seg.value, E)
                else E("tuple", freeze(seg.value))
            )
        elif isinstance(seg, Loop) and len(seg.segs) == 1:
            inner, cond = seg.segs[0], True
            if isinstance(inner, Guarded) and len(inner.segs) == 1:
                cond, inner = inner.cond, inner.segs[0]
            if not (isinstance(inner, Elem) and scalar(inner.value)):
                raise Unsupported("list of objects in an expression")
            parts.append(E("list", seg.var, seg.count, freeze(inner.value), cond))
        elif isinstance(seg, Guarded):
            part = SymList()
            part.box["items"] = seg.segs
            parts.append(mk("if", seg.cond, list_expr(interp, part), ()))
        else:
            raise Unsupported("uneven list in an expression")
    return parts[0] if len(parts) == 1 else E("concat", *parts)


def module_items(interp: Any, obj: Obj) -> Any:
    """The children of a container module."""
    if "_items" in obj.attrs:
        return obj.attrs["_items"]
    if issubclass(obj.cls, (nn.ModuleDict, nn.ParameterDict)):
        return SymList([k for k in obj.attrs])
    raise Unsupported(f"iteration over {obj!r}")


def get_item(interp: Any, owner: Any, key: Any) -> Any:
    """owner[key]."""
    if isinstance(key, Choice):
        return merge(key.cond, get_item(interp, owner, key.yes), get_item(interp, owner, key.no))
    if isinstance(owner, Choice):
        return interp.fork(
            owner.cond,
            lambda: get_item(interp, owner.yes, key),
            lambda: get_item(interp, owner.no, key),
        )
    if isinstance(owner, Carried):
        raise LoopCarried(owner.name)
    if isinstance(owner, Opaque) or isinstance(key, Opaque):
        return Opaque("item")
    if owner is ACT2FN:
        return _activation(interp, key)
    if isinstance(owner, tuple) and len(owner) == 2 and owner[0] == "per_layer":
        return Opaque("layer config") if isinstance(key, str) else LayerCfg(owner[1], key)
    if isinstance(owner, Obj):
        if key in owner.attrs:
            return owner.attrs[key]
        return get_item(interp, module_items(interp, owner), key)
    if isinstance(owner, SymRange) and isinstance(key, slice):
        if key.start in (None, 0) and key.step is None:
            return SymRange(owner.count if key.stop is None else key.stop, owner.item)
        return Opaque("slice of a range")
    if isinstance(owner, SymRange):
        return owner.item(
            key if not (isinstance(key, int) and key < 0) else mk("+", owner.count, key)
        )
    if isinstance(owner, SymList):
        return _list_item(interp, owner, key)
    if isinstance(owner, E):
        if isinstance(key, slice) and key.step not in (None, 1):
            return (
                mk("reversed", owner) if key == slice(None, None, -1) else Opaque("strided slice")
            )
        if isinstance(key, slice):
            return mk("slice", owner, key.start, key.stop)
        return mk("idx", owner, key)
    if isinstance(owner, (Tensor, Param)):
        return torch_table.tensor_item(owner, key)
    if isinstance(owner, dict) and isinstance(key, tuple) and not concrete(key):
        value = list(owner.items())[-1][1]
        for name, candidate in reversed(list(owner.items())[:-1]):
            cond: Any = True
            for part, want in zip(key, name, strict=True):
                cond = conj(
                    cond, mk("==", mk("bool", part) if isinstance(want, bool) else part, want)
                )
            value = merge(cond, candidate, value)
        return value
    if isinstance(owner, (dict, collections.abc.Mapping)) and isinstance(key, E):
        return _dict_item(interp, owner, key)
    if isinstance(key, E) and isinstance(owner, (tuple, list)):
        return mk("idx", freeze(owner), key)
    if isinstance(owner, type):
        return owner
    try:
        return owner[key]
    except (KeyError, IndexError, TypeError) as error:
        raise Raised(f"{type(error).__name__} {key!r}") from None


def _dict_item(interp: Any, owner: Any, key: E) -> Any:
    items = list(owner.items())
    if not items or all(isinstance(v, types.FunctionType) for _, v in items):
        return Opaque("function table")
    value = items[-1][1]
    for name, candidate in reversed(items[:-1]):
        value = merge(mk("==", key, name), candidate, value)
    return value


def _list_item(interp: Any, owner: SymList, key: Any) -> Any:
    segs = owner.items
    plain = owner.plain()
    if isinstance(key, slice):
        if plain is not None and concrete((key.start, key.stop, key.step)):
            return SymList(plain[key])
        if (
            key.start is None
            and isinstance(key.stop, int)
            and key.stop < 0
            and len(segs) == 1
            and isinstance(segs[0], Loop)
        ):
            out = SymList()
            out.box["items"] = (Loop(segs[0].var, mk("+", segs[0].count, key.stop), segs[0].segs),)
            return out
        return _slice_expr(interp, owner, key)
    if plain is not None and isinstance(key, int):
        try:
            return plain[key]
        except IndexError:
            raise Raised("IndexError") from None
    if (
        isinstance(key, int)
        and 0 <= key < len(segs)
        and all(isinstance(s, Elem) for s in segs[: key + 1])
    ):
        return segs[key].value
    if (
        isinstance(key, int)
        and key < 0
        and all(isinstance(s, Elem) for s in segs[key:])
        and len(segs) >= -key
    ):
        return segs[key].value
    if (
        len(segs) == 1
        and isinstance(segs[0], Loop)
        and len(segs[0].segs) == 1
        and isinstance(segs[0].segs[0], Elem)
    ):
        index = mk("+", segs[0].count, key) if isinstance(key, int) and key < 0 else key
        return interp.rebind(segs[0].segs[0].value, segs[0].var, index)
    if plain is not None and isinstance(key, E):
        if all(scalar(v) for v in plain):
            return mk("idx", freeze(unwrap(owner)), key)
        value = plain[-1]
        for i in range(len(plain) - 2, -1, -1):
            value = merge(mk("==", key, i), plain[i], value)
        return value
    return mk("idx", list_expr(interp, owner), key)


def _slice_expr(interp: Any, owner: SymList, key: slice) -> Any:
    try:
        return mk("slice", list_expr(interp, owner), key.start, key.stop)
    except Unsupported:
        return Opaque("slice of objects")


def _activation(interp: Any, key: Any) -> Any:
    name = key
    if isinstance(key, E):
        try:
            name = interp.evaluate(key)
        except Exception:
            return Opaque("activation")
    entry = ACT2CLS.get(name)
    if name == "xielu" and entry is not None:
        cls, kwargs = entry if isinstance(entry, tuple) else (entry, {})
        made = construct(interp, cls, [], dict(kwargs))
        return merge(mk("==", key, "xielu"), made, None) if isinstance(key, E) else made
    return Opaque("activation")


# ---- calls ------------------------------------------------------------
def call(interp: Any, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """function(*args, **kwargs)."""
    if isinstance(function, Choice):
        return interp.fork(
            function.cond,
            lambda: call(interp, function.yes, args, kwargs),
            lambda: call(interp, function.no, args, kwargs),
        )
    if isinstance(function, Opaque) or function is MISSING or function is None:
        return Opaque("call")
    if isinstance(function, InterpFn):
        return interp.run_nested(function, args, kwargs)
    if isinstance(function, Bound):
        return _call_bound(interp, function, args, kwargs)
    if isinstance(function, functools.partial):
        return call(interp, function.func, [*function.args, *args], {**function.keywords, **kwargs})
    if function in BUILTINS:
        return BUILTINS[function](interp, *args, **kwargs)
    if isinstance(function, type):
        return _call_type(interp, function, args, kwargs)
    if isinstance(function, Obj):
        return Opaque("forward")
    if isinstance(function, InterpSet):
        return interp.set_attr(function.owner, *args)
    name = getattr(function, "__module__", None) or ""
    if getattr(function, "__name__", "") == "weight_norm":
        return torch_table.weight_norm(interp, args, kwargs)
    if name.startswith("torch") or (
        isinstance(function, types.BuiltinFunctionType) and _of_torch(function)
    ):
        return torch_table.call_torch(interp, function, args, kwargs)
    return _call_python(interp, function, name, args, kwargs)


def _of_torch(function: Any) -> bool:
    return (
        getattr(torch, getattr(function, "__name__", "?"), None) is function
        or getattr(torch.nn.init, getattr(function, "__name__", "?"), None) is function
    )


def _call_python(
    interp: Any, function: Any, module: str, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    name = getattr(function, "__name__", "")
    if (
        name in STUB_METHODS
        or name == "freeze_model"
        or "logging" in module
        or ".initialization" in module
    ):
        return None
    if isinstance(function, types.MethodType):
        if isinstance(function.__self__, type):
            return _call_bound(interp, Bound(function.__self__, function.__func__), args, kwargs)
        if module.startswith("logging") or type(function.__self__).__name__ == "Logger":
            return None
    plain_args = [unwrap(a) for a in args]
    plain_kwargs = {k: unwrap(v) for k, v in kwargs.items()}
    if function is inspect.signature:
        return Opaque("signature")
    simple = all(_native(a) for a in [*plain_args, *plain_kwargs.values()])
    if (
        isinstance(function, types.FunctionType)
        and module.startswith("transformers")
        and (args or kwargs)
    ):
        if name == "weight_norm":
            return torch_table.weight_norm(interp, args, kwargs)
        if name == "_find_nth_prime_after":
            return mk("nth_prime", *args)
        if name == "_build_layer_multipliers":
            return Opaque(name)
        if name == "plan_out_scales":
            return mk("hmlp_scales", *args)
        if name == "signature":
            return Opaque("signature")
        if name in ("requires_backends",):
            return None
        if name in ("load_backbone", "load_timm_backbone"):
            return AutoRef(
                "backbone", args[0] if args else next(iter(kwargs.values())), interp.loops
            )
        return interp.run(inspect.unwrap(function), args, kwargs)
    if simple:
        try:
            return function(*plain_args, **plain_kwargs)
        except Exception as error:
            raise Raised(f"{type(error).__name__} in {name}") from error
    if isinstance(function, types.FunctionType) and not module.startswith(("numpy", "torch")):
        return interp.run(inspect.unwrap(function), args, kwargs)
    return Opaque(f"{module}.{name}")


def _native(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_native(v) for v in value)
    if isinstance(value, dict):
        return all(_native(v) for v in value.values())
    return not isinstance(
        value,
        (
            E,
            Obj,
            Cfg,
            LayerCfg,
            Choice,
            Opaque,
            SymList,
            SymRange,
            Tensor,
            Param,
            InterpFn,
            Bound,
            AutoRef,
        ),
    )


def _call_bound(interp: Any, bound: Bound, args: list[Any], kwargs: dict[str, Any]) -> Any:
    receiver, function = bound.receiver, bound.function
    if function == "stub":
        return receiver
    if function == "nothing":
        return []
    if isinstance(function, tuple):
        return _init(interp, receiver, function[1], args, kwargs)
    if isinstance(function, str):
        if isinstance(receiver, Obj):
            return _module_call(interp, receiver, function, args, kwargs)
        if isinstance(receiver, Cfg):
            if function == "update":
                for name, value in (args[0] if isinstance(args[0], dict) else {}).items():
                    interp.set_attr(receiver, name, value)
                return None
            if function == "to_dict":
                return Store(
                    {
                        n: configs.get(interp, receiver, n)
                        for n in vars(receiver.inst)
                        if not n.startswith("_")
                    }
                )
            return (
                configs.text_config(receiver, kwargs)
                if function == "get_text_config"
                else Opaque(function)
            )
        if isinstance(receiver, SymList):
            return _list_call(interp, receiver, function, args)
        if isinstance(receiver, (dict, set)):
            return _dict_call(interp, receiver, function, args, kwargs)
        if isinstance(receiver, E):
            return _expr_call(receiver, function, args)
        if isinstance(receiver, Tensor):
            return torch_table.tensor_call(receiver, function, args, kwargs)
        if isinstance(receiver, type):
            return _from_config(interp, receiver, function, args, kwargs)
        return Opaque(function)
    if not isinstance(function, types.FunctionType):
        return Opaque("bound")
    if function.__name__ == "from_model_config":
        return Opaque("generation config")
    if function.__name__ in ("_from_config", "from_config"):
        return _from_config(interp, receiver, function.__name__, args, kwargs)
    return interp.run(inspect.unwrap(function), [receiver, *args], kwargs)


def _expr_call(receiver: E, name: str, args: list[Any]) -> Any:
    if name == "get":
        return mk("get", receiver, args[0], args[1] if len(args) > 1 else None)
    if name == "pop":
        return mk("get", receiver, args[0], args[1] if len(args) > 1 else None)
    if name in ("index", "count", "startswith", "endswith", "lower"):
        return mk("call", name, receiver, *args)
    if name == "split":
        return mk("split", receiver, *args)
    if name == "values":
        return mk("dictvalues", receiver)
    if name == "keys":
        return mk("dictkeys", receiver)
    if name in ("copy",):
        return receiver
    return Opaque(name)


def _list_call(interp: Any, receiver: SymList, name: str, args: list[Any]) -> Any:
    if name == "append":
        interp.write(receiver.box, "items", (*receiver.items, Elem(args[0])))
    elif name == "extend":
        interp.extend(receiver, args[0])
    elif name == "insert":
        items = receiver.items
        interp.write(receiver.box, "items", (*items[: args[0]], Elem(args[1]), *items[args[0] :]))
    elif name == "pop":
        plain = list(receiver.items)
        last = plain.pop(*args)
        interp.write(receiver.box, "items", tuple(plain))
        return last.value if isinstance(last, Elem) else Opaque("pop")
    elif name in ("index", "count"):
        plain_list = unwrap(receiver)
        if isinstance(plain_list, list) and concrete(plain_list) and concrete(args[0]):
            return getattr(plain_list, name)(args[0])
        return mk("call", name, list_expr(interp, receiver), args[0])
    elif name == "copy":
        out = SymList()
        out.box["items"] = receiver.items
        return out
    elif name == "reverse":
        interp.write(receiver.box, "items", tuple(reversed(receiver.items)))
    return None


def _dict_call(
    interp: Any, receiver: Any, name: str, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    if isinstance(receiver, set):
        return Opaque("set") if name != "add" else receiver.add(args[0])
    if name == "get" and isinstance(args[0], E):
        value = args[1] if len(args) > 1 else None
        for key, candidate in receiver.items():
            value = merge(mk("==", args[0], key), candidate, value)
        return value
    if name in ("keys", "values", "items"):
        return list(getattr(receiver, name)())
    if name == "update":
        for key, value in {
            **(args[0] if args and isinstance(args[0], dict) else {}),
            **kwargs,
        }.items():
            interp.write(receiver, key, value)
        return None
    return getattr(receiver, name)(*args, **kwargs)


def _module_call(
    interp: Any, receiver: Obj, name: str, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    items = receiver.attrs.get("_items")
    if name in ("register_parameter", "add_module", "register_module"):
        key = args[0] if args else kwargs["name"]
        interp.set_attr(
            receiver, key, args[1] if len(args) > 1 else kwargs.get("param", kwargs.get("module"))
        )
    elif name in ("append", "extend", "insert", "pop") and isinstance(items, SymList):
        return _list_call(interp, items, name, args)
    elif name in ("keys", "values", "items"):
        pairs = [(k, v) for k, v in receiver.attrs.items() if k != "_items"]
        return {"keys": [k for k, _ in pairs], "values": [v for _, v in pairs], "items": pairs}[
            name
        ]
    elif name == "update" and isinstance(args[0], dict):
        for key, value in args[0].items():
            interp.set_attr(receiver, key, value)
    return None


def _from_config(interp: Any, cls: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    config = args[0] if args else kwargs.get("config")
    kinds = {
        "AutoModel": "base",
        "AutoModelForCausalLM": "causal",
        "AutoBackbone": "backbone",
        "AutoModelForImageTextToText": "itt",
        "AutoModelForSeq2SeqLM": "s2s",
        "AutoModelForTextEncoding": "text",
        "AutoModelForCTC": "ctc",
        "AutoModelForAudioFrameClassification": "frames",
        "AutoModelForMultimodalLM": "itt",
        "AutoModelForSpeechSeq2Seq": "s2s",
        "AutoModelForAudioTokenization": "base",
        "AutoModelForImage": "base",
        "AutoModelForKeypointDetection": "base",
    }
    if issubclass(cls, auto_factory._BaseAutoModelClass):
        if isinstance(config, Choice):
            return interp.fork(
                config.cond,
                lambda: _from_config(interp, cls, name, [config.yes], {}),
                lambda: _from_config(interp, cls, name, [config.no], {}),
            )
        if isinstance(config, Cfg) and config.fixed and cls.__name__ == "AutoModel":
            from transformers import MODEL_MAPPING

            if type(config.inst) in MODEL_MAPPING:
                real = MODEL_MAPPING[type(config.inst)]
                real = real[0] if isinstance(real, (tuple, list)) else real
                return construct(interp, real, [config], {})
        return AutoRef(kinds.get(cls.__name__, cls.__name__), config, interp.loops)
    return construct(
        interp,
        cls,
        [config],
        {
            k: v
            for k, v in kwargs.items()
            if k not in ("config", "dtype", "attn_implementation", "torch_dtype")
        },
    )


def _call_type(interp: Any, cls: type, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if cls is nn.Parameter:
        return torch_table.parameter(interp, args, kwargs)
    if cls is getattr(nn, "Buffer", None):
        return args[0] if isinstance(args[0], Tensor) else Opaque("buffer")
    if issubclass(cls, nn.Module):
        return construct(interp, cls, args, kwargs)
    if issubclass(cls, torch.Tensor) or (
        cls.__module__ == "torch" and cls.__name__.endswith("Tensor")
    ):
        return torch_table.sized(interp, args, kwargs)
    if cls.__name__ == "GenerationConfig":
        return Opaque("generation config")
    if issubclass(cls, PreTrainedConfig):
        return _new_config(cls, kwargs)
    if all(_native(unwrap(a)) for a in [*args, *kwargs.values()]):
        try:
            return cls(*[unwrap(a) for a in args], **{k: unwrap(v) for k, v in kwargs.items()})
        except Exception as error:
            raise Raised(f"{type(error).__name__} in {cls.__name__}") from error
    if cls.__module__.startswith("transformers"):
        return construct(interp, cls, args, kwargs)
    return Opaque(cls.__name__)


def _new_config(cls: type, kwargs: dict[str, Any]) -> Cfg:
    made = Cfg((), cls(**{k: unwrap(v) for k, v in kwargs.items() if _native(unwrap(v))}))
    for name in vars(made.inst):
        value = getattr(made.inst, name)
        if _native(value) and not isinstance(value, PreTrainedConfig):
            made.overlay[name] = value
    for name, value in kwargs.items():
        made.overlay[made.alias(name)] = value
    return made


@functools.cache
def _rotary(cls: type) -> bool:
    return (
        "Rotary" in cls.__name__
        and "Parameter(" not in inspect.getsource(cls)
        and "nn.Linear" not in inspect.getsource(cls)
    )


def construct(interp: Any, cls: type, args: list[Any], kwargs: dict[str, Any]) -> Obj:
    """Create an instance and run its constructor."""
    obj = Obj(cls, interp.loops)
    if cls.__name__ == "TimmWrapperModel":
        size = mk("timm", configs.get(interp, args[0], "architecture"))
        obj.attrs.update(config=args[0], timm_model=Param((size,), None, interp.loops))
        return obj
    if _rotary(cls) or cls.__name__ in torch_table.NO_PARAMETERS:
        obj.attrs["__opaque__"] = True
        return obj
    _, owner = find_attr(cls, "__init__")
    _init(interp, obj, owner, args, kwargs)
    return obj


def _init(interp: Any, obj: Any, owner: type, args: list[Any], kwargs: dict[str, Any]) -> None:
    if isinstance(obj, Cfg) or owner in (object, None):
        return
    if owner in torch_table.INIT:
        torch_table.INIT[owner](interp, obj, *args, **kwargs)
        return
    if owner is nn.Module:
        return
    if owner is PreTrainedModel:
        interp.write(obj.attrs, "config", args[0] if args else kwargs["config"])
        return
    function = owner.__dict__["__init__"]
    if not isinstance(function, types.FunctionType):
        return
    interp.run(inspect.unwrap(function), [obj, *args], kwargs)


# ---- builtins ------------------------------------------------------------
def _range(interp: Any, *args: Any) -> Any:
    start, stop, step = (0, args[0], 1) if len(args) == 1 else (*args, 1)[:3]
    if any(isinstance(a, Opaque) for a in (start, stop, step)):
        raise Unsupported("range of opaque")
    if any(isinstance(a, Choice) for a in (start, stop, step)):
        raise Unsupported("range of choice")
    if concrete((start, stop, step)):
        try:
            return range(start, stop, step)
        except TypeError:
            raise Raised("TypeError range") from None
    span = mk("-", stop, start)
    count = span if step == 1 else mk("neg", mk("//", span, mk("neg", step)))
    return SymRange(count, lambda i: mk("+", start, i if step == 1 else mk("*", step, i)))


def _as_range(interp: Any, value: Any) -> SymRange | list[Any]:
    pieces = interp.pieces(value)
    if all(isinstance(p, Elem) for p in pieces):
        return [p.value for p in pieces]
    if len(pieces) == 1 and isinstance(pieces[0], SymRange):
        return pieces[0]
    raise Unsupported("uneven iterable")


def _enumerate(interp: Any, value: Any, start: Any = 0) -> Any:
    try:
        seq = _as_range(interp, value)
    except Unsupported:
        if isinstance(value, SymList) and all(
            not isinstance(v, (Obj, Param)) for v in _leaves(value.items)
        ):
            return []  # names of layers, enumerated for bookkeeping
        raise
    if isinstance(seq, list):
        return [(mk("+", start, i), v) for i, v in enumerate(seq)]
    return SymRange(seq.count, lambda i: (mk("+", start, i), seq.item(i)))


def _leaves(segs: Any) -> list[Any]:
    return [x for s in segs for x in ([s.value] if isinstance(s, Elem) else _leaves(s.segs))]


def _zip(interp: Any, *values: Any, strict: bool = False) -> Any:
    seqs = [_as_range(interp, v) for v in values]
    if all(isinstance(s, list) for s in seqs):
        return list(zip(*seqs, strict=False))
    count = next(s.count for s in seqs if isinstance(s, SymRange))
    items = [
        (lambda i, s=s: mk("idx", freeze(s), i)) if isinstance(s, list) else s.item for s in seqs
    ]
    return SymRange(count, lambda i: tuple(item(i) for item in items))


def _reversed(interp: Any, value: Any) -> Any:
    seq = _as_range(interp, value)
    if isinstance(seq, list):
        return SymList(reversed(seq))
    return SymRange(seq.count, lambda i: seq.item(mk("-", mk("-", seq.count, 1), i)))


def _isinstance(interp: Any, value: Any, kinds: Any) -> Any:
    if isinstance(value, Choice):
        return merge(
            value.cond, _isinstance(interp, value.yes, kinds), _isinstance(interp, value.no, kinds)
        )
    kinds = unwrap(kinds)
    if isinstance(kinds, types.UnionType):
        kinds = kinds.__args__
    kinds = tuple(kinds) if isinstance(kinds, (tuple, list)) else (kinds,)
    if isinstance(value, (Obj, Cfg)):
        return any(isinstance(k, type) and issubclass(value.cls, k) for k in kinds)
    if isinstance(value, (SymList, SymRange)):
        return (
            list in kinds or collections.abc.Iterable in kinds or collections.abc.Sequence in kinds
        )
    if isinstance(value, E):
        names = [getattr(k, "__name__", "?") for k in kinds]
        return E("isa", value, *sorted(names))
    if isinstance(value, (Tensor, Opaque, Param)):
        return any(k in (torch.Tensor, nn.Parameter) for k in kinds) and not isinstance(
            value, Opaque
        )
    return any(isinstance(k, type) and isinstance(value, k) for k in kinds)


def _getattr(interp: Any, owner: Any, name: Any, default: Any = MISSING) -> Any:
    if isinstance(name, E):
        return Opaque("dynamic attribute")
    if default is MISSING:
        return get_attr(interp, owner, name)
    if isinstance(owner, Choice):
        return interp.fork(
            owner.cond,
            lambda: _getattr(interp, owner.yes, name, default),
            lambda: _getattr(interp, owner.no, name, default),
        )
    if isinstance(owner, E) and scalar(default):
        return mk("get", owner, name, unwrap(default))
    try:
        return get_attr(interp, owner, name)
    except Raised:
        if isinstance(owner, Cfg) and scalar(default):
            return mk(
                "get",
                configs.key(owner.path) if owner.path else E("root"),
                owner.alias(name),
                unwrap(default),
            )
        return default


def _hasattr(interp: Any, owner: Any, name: str) -> Any:
    if isinstance(owner, Choice):
        return merge(
            owner.cond, _hasattr(interp, owner.yes, name), _hasattr(interp, owner.no, name)
        )
    if isinstance(owner, Cfg):
        return configs.has(interp, owner, name)
    if isinstance(owner, Opaque):
        return False
    if isinstance(owner, E) and owner.op == "c":
        return mk("has", *owner.args, name)
    try:
        found = get_attr(interp, owner, name)
    except Raised:
        return False
    if isinstance(found, Choice) and found.no is MISSING:
        return found.cond
    return found is not MISSING


def _reduce(op: str) -> Any:
    def run(interp: Any, *args: Any, default: Any = MISSING, key: Any = None) -> Any:
        values = unwrap(args[0]) if len(args) == 1 else [unwrap(a) for a in args]
        if isinstance(values, (SymList, SymRange)):
            return mk(op + "of", list_expr(interp, values))
        if isinstance(values, E):
            return mk(op + "of", values)
        values = list(values)
        if any(isinstance(v, Opaque) for v in values):
            return Opaque(op)
        if any(isinstance(v, Choice) for v in values):
            raise Unsupported(f"{op} of choice")
        if concrete(values):
            return {"max": max, "min": min}[op](values) if values else default
        return mk(op, *values)

    return run


def _sum(interp: Any, value: Any, start: Any = 0) -> Any:
    if isinstance(value, SymList) and value.plain() is None:
        return _sum_segs(value.items)
    if isinstance(value, (E, SymRange)):
        return mk("total", list_expr(interp, value))
    total: Any = start
    for item in interp.pieces(value):
        total = interp.binop("+", total, item.value)
    return total


def _sum_segs(segs: tuple[Any, ...]) -> Any:
    total: Any = 0
    for seg in segs:
        if isinstance(seg, Elem):
            if not scalar(seg.value):
                return Opaque("sum")
            total = mk("+", total, seg.value)
        elif isinstance(seg, Guarded):
            total = mk("+", total, mk("if", seg.cond, _sum_segs(seg.segs), 0))
        else:
            total = mk("+", total, E("sum", seg.var, seg.count, _sum_segs(seg.segs)))
    return total


def _quantifier(which: str) -> Any:
    def run(interp: Any, value: Any) -> Any:
        plain = unwrap(value)
        if isinstance(plain, (list, tuple)) and concrete(plain):
            return all(plain) if which == "all" else any(plain)
        if isinstance(plain, (list, tuple)):
            result: Any = which == "all"
            for item in plain:
                cond = interp.truth(item)
                result = (
                    conj(result, cond)
                    if which == "all"
                    else mk("or", result, cond)
                    if result is not False
                    else cond
                )
            return result
        if isinstance(value, dict):
            return all(value) if which == "all" else any(value)
        return mk(which + "of", list_expr(interp, value))

    return run


def _scalar_op(op: str) -> Any:
    def run(interp: Any, value: Any = 0, *rest: Any) -> Any:
        if isinstance(value, (Opaque, Tensor)):
            return value if isinstance(value, Opaque) else Opaque(op)
        if isinstance(value, Choice):
            return merge(value.cond, run(interp, value.yes), run(interp, value.no))
        if op == "bool":
            value = interp.truth(value)
        if isinstance(value, Carried):
            raise LoopCarried(value.name)
        try:
            return mk(op, value, *rest)
        except (TypeError, ValueError) as error:
            raise Raised(type(error).__name__) from None

    return run


def _list(interp: Any, value: Any = ()) -> Any:
    if isinstance(value, Opaque):
        return value
    out = SymList()
    interp.extend(out, value)
    return out


def _tuple(interp: Any, value: Any = ()) -> Any:
    if isinstance(value, E):
        return value
    out = _list(interp, value)
    plain = out.plain()
    return tuple(plain) if plain is not None else out


def _set(interp: Any, value: Any = ()) -> Any:
    if isinstance(value, Opaque):
        return value
    plain = unwrap(value)
    if isinstance(plain, (list, tuple, set)) and concrete(list(plain)):
        return set(plain)
    return mk("set", list_expr(interp, value))


def _sorted(interp: Any, value: Any, **kwargs: Any) -> Any:
    if isinstance(value, Opaque):
        return value
    plain = unwrap(value)
    if isinstance(plain, (list, tuple, set, dict, range)) and concrete(list(plain)):
        return SymList(sorted(plain))
    return mk("sorted", list_expr(interp, value))


def _dict(interp: Any, value: Any = (), **kwargs: Any) -> Any:
    out: dict[Any, Any] = {}
    if isinstance(value, dict):
        out.update(value)
    else:
        plain = unwrap(value)
        if isinstance(plain, (SymList, E, Opaque)):
            return Opaque("dict")
        for pair in plain:
            out[pair[0]] = pair[1]
    out.update(kwargs)
    return out


def _type(interp: Any, value: Any) -> Any:
    return (
        value.cls
        if isinstance(value, (Obj, Cfg))
        else Opaque("type")
        if not _native(value)
        else type(value)
    )


def _deepcopy(interp: Any, value: Any, memo: Any = None) -> Any:
    if isinstance(value, Choice):
        return merge(value.cond, _deepcopy(interp, value.yes), _deepcopy(interp, value.no))
    if isinstance(value, Cfg):
        return value.copy()
    if isinstance(value, Obj):
        return _copy_obj(interp, value)
    return value if not _native(value) else copy.deepcopy(value)


def _copy_obj(interp: Any, value: Any) -> Any:
    if isinstance(value, Obj):
        out = Obj(value.cls, interp.loops)
        out.attrs.update({k: _copy_obj(interp, v) for k, v in value.attrs.items()})
        return out
    if isinstance(value, Param):
        return Param(value.shape, value.dtype, interp.loops)
    if isinstance(value, SymList):
        out_list = SymList()
        out_list.box["items"] = tuple(
            Elem(_copy_obj(interp, s.value)) if isinstance(s, Elem) else s for s in value.items
        )
        return out_list
    return value


def _next(interp: Any, value: Any, default: Any = MISSING) -> Any:
    plain = unwrap(value)
    if isinstance(plain, list):
        return plain[0] if plain else default
    return mk("first", list_expr(interp, value), None if default is MISSING else default)


def _map(interp: Any, function: Any, value: Any) -> Any:
    seq = _as_range(interp, value)
    if isinstance(seq, list):
        return [call(interp, function, [v], {}) for v in seq]
    return SymRange(seq.count, lambda i: call(interp, function, [seq.item(i)], {}))


def _prod_segs(segs: tuple[Any, ...]) -> Any:
    total: Any = 1
    for seg in segs:
        if isinstance(seg, Elem):
            total = mk("*", total, seg.value)
        elif isinstance(seg, Guarded):
            total = mk("*", total, mk("if", seg.cond, _prod_segs(seg.segs), 1))
        else:
            inner = _prod_segs(seg.segs)
            total = (
                total
                if inner == 1
                else mk("*", total, mk("prod", E("list", seg.var, seg.count, inner, True)))
            )
    return total


def _prod(interp: Any, value: Any, **kwargs: Any) -> Any:
    plain = unwrap(value)
    if isinstance(plain, (list, tuple)):
        total: Any = 1
        for item in plain:
            total = interp.binop("*", total, item)
        return total
    if isinstance(value, SymList):
        return _prod_segs(value.items)
    return mk("prod", list_expr(interp, value)) if not isinstance(value, Opaque) else value


def _to_iterable(interp: Any, value: Any) -> Any:
    if isinstance(value, E):
        pair = E("tuple", value, value)
        return mk("if", E("isa", value, "Iterable"), value, pair)
    return value if isinstance(value, (tuple, SymList, list)) else (value, value)


import numpy as np  # noqa: E402

BUILTINS: dict[Any, Any] = {
    range: _range,
    enumerate: _enumerate,
    zip: _zip,
    reversed: _reversed,
    isinstance: _isinstance,
    getattr: _getattr,
    hasattr: _hasattr,
    setattr: lambda i, o, n, v: i.set_attr(o, n, v),
    len: length,
    max: _reduce("max"),
    min: _reduce("min"),
    sum: _sum,
    any: _quantifier("any"),
    all: _quantifier("all"),
    int: _scalar_op("int"),
    float: _scalar_op("float"),
    bool: _scalar_op("bool"),
    abs: _scalar_op("abs"),
    round: _scalar_op("round"),
    str: _scalar_op("str"),
    list: _list,
    tuple: _tuple,
    set: _set,
    sorted: _sorted,
    dict: _dict,
    collections.OrderedDict: _dict,
    type: _type,
    math.ceil: _scalar_op("ceil"),
    math.floor: _scalar_op("floor"),
    math.sqrt: _scalar_op("sqrt"),
    math.log: _scalar_op("log"),
    math.log2: _scalar_op("log2"),
    math.prod: _prod,
    np.prod: _prod,
    copy.deepcopy: _deepcopy,
    copy.copy: _deepcopy,
    next: _next,
    map: _map,
    iter: lambda i, v: v,
    print: lambda i, *a, **k: None,
    callable: lambda i, v: True,
    issubclass: lambda i, c, k: isinstance(c, type) and issubclass(c, k),
    np.sqrt: _scalar_op("sqrt"),
    np.log2: _scalar_op("log2"),
    np.ceil: _scalar_op("ceil"),
    np.log: _scalar_op("log"),
}
