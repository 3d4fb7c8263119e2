"""What calling each kind of value means: functions, classes, methods of tensors and modules."""

from __future__ import annotations

import functools
import inspect
import types
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig
from transformers.modeling_utils import PreTrainedModel
from transformers.models.auto import auto_factory

from . import configs, tensors, torch_table
from .attributes import STUB_METHODS, InterpSet, find_attr
from .configs import Cfg, LayerCfg
from .expressions import E, concrete, mk
from .indexing import list_expr
from .values import (
    MISSING,
    AutoRef,
    Bound,
    Choice,
    Elem,
    InterpFn,
    Obj,
    Opaque,
    Param,
    Raised,
    Store,
    SymList,
    SymRange,
    Tensor,
    merge,
    unwrap,
)


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
    if function in interp.builtins:
        return interp.builtins[function](interp, *args, **kwargs)
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
        return tensors.call_torch(interp, function, args, kwargs)
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
            return tensors.tensor_call(receiver, function, args, kwargs)
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
        return tensors.sized(interp, args, kwargs)
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
