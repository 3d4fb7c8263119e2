"""Config objects as the interpreter sees them: keys are expressions, methods interpreted."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from transformers import AutoConfig, PreTrainedConfig

from .expressions import E, mk
from .values import Bound, Choice, Opaque, Raised, Store, SymRange, Unsupported

CONSTANT = {
    "model_type",
    "attribute_map",
    "sub_configs",
    "base_config_key",
    "base_model_tp_plan",
    "base_model_pp_plan",
}
NATIVE_ANSWER = {
    "use_return_dict": True,
    "return_dict": True,
    "output_attentions": False,
    "chunk_size_feed_forward": 0,
    "output_hidden_states": False,
    "torchscript": False,
    "pruned_heads": (),
    "name_or_path": "",
    "gradient_checkpointing": False,
    "quantization_config": None,
    "is_heterogeneous": False,
    "transformers_version": None,
    "architectures": None,
}


class Cfg:
    """A config at a path of the root config, with what the code assigned to it."""

    def __init__(self, path: tuple[str, ...], inst: Any, fixed: bool = True) -> None:
        self.path, self.inst, self.fixed, self.overlay = path, inst, fixed, Store()

    @property
    def cls(self) -> type:
        """The config class."""
        return type(self.inst)

    def alias(self, name: str) -> str:
        """The stored name of an attribute."""
        return self.cls.attribute_map.get(name, name)

    def copy(self) -> Cfg:
        """A copy with its own assignments."""
        new = Cfg(self.path, self.inst, self.fixed)
        new.overlay.update(self.overlay)
        return new

    def __repr__(self) -> str:
        return f"<config {'.'.join(self.path)} {self.cls.__name__}>"


class LayerCfg:
    """config.per_layer_config[i]: the layer's override, else the config's value."""

    def __init__(self, base: Cfg, index: Any) -> None:
        self.base, self.index, self.path = base, index, base.path


class ConfigClass(type):
    """Only to tell a config built by interpreted code (keys given as keywords)."""


def key(path: tuple[str, ...]) -> E:
    """The expression of a config key."""
    return E("c", *path)


def get(interp: Any, cfg: Cfg, name: str) -> Any:
    """config.name."""
    name = cfg.alias(name)
    if name in cfg.overlay:
        return cfg.overlay[name]
    if name in NATIVE_ANSWER:
        return NATIVE_ANSWER[name]
    if name in ("rope_theta", "rope_parameters"):
        return Opaque(name)
    if name == "kv_sharing_modes":
        return sharing_modes(cfg)
    if name == "per_layer_config":
        return ("per_layer", cfg)
    static = inspect.getattr_static(cfg.cls, name, None)
    if isinstance(static, property):
        if name in ("rope_scaling", "dtype"):
            return Opaque(name)
        try:
            return interp.run(static.fget, [cfg], {})
        except Unsupported:
            return Opaque(name)
    if isinstance(static, functools.cached_property):
        return interp.run(static.func, [cfg], {})
    if name in ("_attn_implementation", "_attn_implementation_internal", "attn_implementation"):
        return "eager"
    if name == "_remove_final_layer_norm":
        return key((*cfg.path, name))
    if name.startswith("_") or name in ("dtype", "torch_dtype"):
        return getattr(cfg.inst, name, None) if name.startswith("_") else Opaque("dtype")
    if name == "model_type" and not cfg.fixed:
        return key((*cfg.path, name))
    if name in CONSTANT:
        return getattr(cfg.cls, name)
    return _instance_attr(cfg, name)


def sharing_modes(cfg: Cfg) -> SymRange:
    """Which layers read another layer's keys and values; parameters do not ask who stores."""
    layers = key((*cfg.path, "num_hidden_layers"))
    if hasattr(cfg.inst, "kv_source_layers"):
        sources = key((*cfg.path, "kv_source_layers"))
        return SymRange(
            layers, lambda i: mk("if", mk("==", mk("idx", sources, i), i), None, "reuse")
        )
    first = mk("-", layers, key((*cfg.path, "num_kv_shared_layers")))
    return SymRange(layers, lambda i: mk("if", mk("<", i, first), None, "reuse"))


def _instance_attr(cfg: Cfg, name: str) -> Any:
    inst = cfg.inst
    if name in vars(inst) or name in getattr(inst, "__dataclass_fields__", {}):
        value = inst._getattr_without_heterogeneous_validation(name, None)
        if isinstance(value, PreTrainedConfig):
            declared = cfg.cls.sub_configs.get(name)
            return Cfg((*cfg.path, name), value, declared is not AutoConfig)
        declared = cfg.cls.sub_configs.get(name)
        if value is None and isinstance(declared, type) and declared is not AutoConfig:
            path = (*cfg.path, name)
            there = mk("not", mk("is", key(path), None))
            return Choice(there, Cfg(path, _default(declared)), None)
        if callable(value) and not isinstance(value, type):
            return Bound(cfg, value)
        return key((*cfg.path, name))
    try:
        value = getattr(inst, name)
    except AttributeError:
        raise Raised(f"AttributeError {cfg.cls.__name__}.{name}") from None
    if inspect.ismethod(value):
        return Bound(cfg if value.__self__ is inst else cfg.cls, value.__func__)
    return value


@functools.cache
def _default(cls: type) -> Any:
    return cls()


def has(interp: Any, cfg: Cfg, name: str) -> Any:
    """hasattr(config, name)."""
    try:
        get(interp, cfg, name)
        return True
    except Raised:
        return mk("has", *cfg.path, name)


def layer_get(interp: Any, layer: LayerCfg, name: str) -> Any:
    """config.per_layer_config[i].name."""
    value = get(interp, layer.base, name)
    if isinstance(value, E) and value.op == "c":
        return mk("layer", layer.index, *value.args)
    return value


def text_config(cfg: Cfg, kwargs: dict[str, Any]) -> Cfg:
    """config.get_text_config()."""
    real = cfg.inst.get_text_config(**{k: v for k, v in kwargs.items() if isinstance(v, bool)})
    for name, value in vars(cfg.inst).items():
        if value is real and isinstance(value, PreTrainedConfig):
            return Cfg((*cfg.path, name), value, cfg.cls.sub_configs.get(name) is not AutoConfig)
    return cfg


def for_class(cls: type, inst: Any) -> Cfg:
    """The config a class is built from: the root, or the part of it that the class wants."""
    wanted = getattr(cls, "config_class", None)
    root = Cfg((), inst)
    if wanted is None or isinstance(inst, wanted):
        return root
    text = text_config(root, {"decoder": True})
    if isinstance(text.inst, wanted):
        return text
    for name, value in vars(inst).items():
        if isinstance(value, wanted):
            return Cfg((name,), value)
    return root
