"""Shapes of what torch creates, and the parameters of its modules."""

from __future__ import annotations

from typing import Any

from torch import nn

from .expressions import E, conj, freeze, mk
from .values import (
    Bound,
    Choice,
    Opaque,
    Param,
    Raised,
    SymList,
    Tensor,
    Unsupported,
    merge,
    unwrap,
)

NO_PARAMETERS = {
    "Dropout",
    "Dropout1d",
    "Dropout2d",
    "Identity",
    "GELU",
    "ReLU",
    "SiLU",
    "Tanh",
    "Sigmoid",
    "Softmax",
    "ELU",
    "LeakyReLU",
    "GLU",
    "MaxPool1d",
    "MaxPool2d",
    "AvgPool1d",
    "AvgPool2d",
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "PixelShuffle",
    "Flatten",
    "Unflatten",
    "Upsample",
    "ZeroPad2d",
    "CrossEntropyLoss",
    "Softplus",
    "ReLU6",
    "Mish",
    "Hardswish",
    "Unfold",
    "Fold",
    "ConstantPad1d",
    "ReflectionPad1d",
    "ReflectionPad2d",
    "PixelUnshuffle",
    "LogSoftmax",
    "MSELoss",
    "BCEWithLogitsLoss",
    "AdaptiveMaxPool2d",
    "AdaptiveAvgPool3d",
    "Hardsigmoid",
    "SELU",
    "CELU",
    "Threshold",
}


def parameter(interp: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """nn.Parameter(data)."""
    data = args[0] if args else kwargs.get("data")
    if isinstance(data, Choice):
        return merge(data.cond, parameter(interp, [data.yes], {}), parameter(interp, [data.no], {}))
    if isinstance(data, Param):
        return Param(data.shape, data.dtype, interp.loops)
    if isinstance(data, Tensor):
        return Param(data.shape, data.dtype, interp.loops)
    raise Unsupported(f"parameter of {data!r}")


def new(interp: Any, *shape: Any, dtype: Any = None) -> Param:
    """A parameter of this shape."""
    for size in shape:
        if isinstance(size, (Opaque, Choice)):
            raise Unsupported(f"shape of {size!r}")
    return Param(tuple(freeze(unwrap(s)) for s in shape), dtype, interp.loops)


def pair(value: Any, rank: int) -> list[Any]:
    """A kernel size as one value a dimension."""
    value = unwrap(value)
    if isinstance(value, (tuple, list)):
        return list(value)
    if isinstance(value, E):
        listed = E("isa", value, "list", "tuple")
        return [mk("if", listed, mk("idx", value, i), value) for i in range(rank)]
    return [value] * rank


def guarded(interp: Any, cond: Any, param: Any) -> Any:
    """A parameter that is there only under a condition."""
    return merge(interp.truth(cond), param, None)


def linear(
    interp: Any,
    obj: Any,
    in_features: Any,
    out_features: Any,
    bias: Any = True,
    *rest: Any,
    **kwargs: Any,
) -> None:
    """nn.Linear."""
    obj.attrs.update(in_features=in_features, out_features=out_features)
    obj.attrs["weight"] = new(interp, out_features, in_features)
    obj.attrs["bias"] = guarded(interp, bias, new(interp, out_features))


def conv1d_module(interp: Any, obj: Any, nf: Any, nx: Any) -> None:
    """transformers' Conv1D: a transposed linear."""
    obj.attrs.update(nf=nf, nx=nx, weight=new(interp, nx, nf), bias=new(interp, nf))


def embedding(
    interp: Any,
    obj: Any,
    num_embeddings: Any,
    embedding_dim: Any,
    padding_idx: Any = None,
    **kwargs: Any,
) -> None:
    """nn.Embedding."""
    obj.attrs.update(
        num_embeddings=num_embeddings, embedding_dim=embedding_dim, padding_idx=padding_idx
    )
    obj.attrs["weight"] = new(interp, num_embeddings, embedding_dim)


def layer_norm(
    interp: Any,
    obj: Any,
    normalized_shape: Any,
    eps: Any = 0,
    elementwise_affine: Any = True,
    bias: Any = True,
    *rest: Any,
    **kwargs: Any,
) -> None:
    """nn.LayerNorm."""
    shape = unwrap(normalized_shape)
    shape = list(shape) if isinstance(shape, (tuple, list)) else [shape]
    affine = interp.truth(elementwise_affine)
    obj.attrs["weight"] = guarded(interp, affine, new(interp, *shape))
    inner = guarded(interp, bias, new(interp, *shape))
    obj.attrs["bias"] = merge(affine, inner, None)


def rms_norm(
    interp: Any,
    obj: Any,
    normalized_shape: Any,
    eps: Any = None,
    elementwise_affine: Any = True,
    **kwargs: Any,
) -> None:
    """nn.RMSNorm."""
    shape = unwrap(normalized_shape)
    shape = list(shape) if isinstance(shape, (tuple, list)) else [shape]
    obj.attrs["weight"] = guarded(interp, elementwise_affine, new(interp, *shape))


def conv(rank: int, transposed: bool) -> Any:
    """nn.ConvNd and nn.ConvTransposeNd."""

    def init(
        interp: Any,
        obj: Any,
        in_channels: Any,
        out_channels: Any,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        *rest: Any,
        **kw: Any,
    ) -> None:
        names = (
            ("output_padding", "groups", "bias") if transposed else ("dilation", "groups", "bias")
        )
        kw = {**dict(zip(names, rest, strict=False)), **kw}
        groups, bias = kw.get("groups", 1), kw.get("bias", True)
        first, second = (in_channels, out_channels) if transposed else (out_channels, in_channels)
        kernel = pair(kernel_size, rank)
        obj.attrs.update(
            in_channels=in_channels,
            out_channels=out_channels,
            kernel_size=tuple(kernel),
            groups=groups,
            stride=tuple(pair(stride, rank)),
            padding=Opaque("padding"),
            dilation=Opaque("dilation"),
        )
        obj.attrs["weight"] = new(interp, first, mk("//", second, groups), *kernel)
        obj.attrs["bias"] = guarded(interp, bias, new(interp, out_channels))

    return init


def group_norm(
    interp: Any,
    obj: Any,
    num_groups: Any,
    num_channels: Any,
    eps: Any = 0,
    affine: Any = True,
    **kwargs: Any,
) -> None:
    """nn.GroupNorm."""
    for name in ("weight", "bias"):
        obj.attrs[name] = guarded(interp, affine, new(interp, num_channels))


def batch_norm(
    interp: Any,
    obj: Any,
    num_features: Any,
    eps: Any = 0,
    momentum: Any = 0,
    affine: Any = True,
    *rest: Any,
    **kwargs: Any,
) -> None:
    """nn.BatchNormNd."""
    for name in ("weight", "bias"):
        obj.attrs[name] = guarded(interp, affine, new(interp, num_features))


def instance_norm(
    interp: Any,
    obj: Any,
    num_features: Any,
    eps: Any = 0,
    momentum: Any = 0,
    affine: Any = False,
    *rest: Any,
    **kwargs: Any,
) -> None:
    """nn.InstanceNormNd."""
    batch_norm(interp, obj, num_features, eps, momentum, affine)


def attention(
    interp: Any,
    obj: Any,
    embed_dim: Any,
    num_heads: Any,
    dropout: Any = 0,
    bias: Any = True,
    *rest: Any,
    **kwargs: Any,
) -> None:
    """nn.MultiheadAttention with one width."""
    obj.attrs["in_proj_weight"] = new(interp, mk("*", 3, embed_dim), embed_dim)
    obj.attrs["in_proj_bias"] = guarded(interp, bias, new(interp, mk("*", 3, embed_dim)))
    from .builtins_table import construct

    obj.attrs["out_proj"] = construct(interp, nn.Linear, [embed_dim, embed_dim, bias], {})


def recurrent(gates: int) -> Any:
    """nn.LSTM, nn.GRU."""

    def init(
        interp: Any,
        obj: Any,
        input_size: Any,
        hidden_size: Any,
        num_layers: Any = 1,
        bias: Any = True,
        *rest: Any,
        bidirectional: Any = False,
        **kw: Any,
    ) -> None:
        limit = num_layers if isinstance(num_layers, int) else 8
        if not isinstance(num_layers, int):
            interp.bounds.append((num_layers, limit))
        for layer in range(limit):
            there = mk("<", layer, num_layers)
            width = (
                input_size if layer == 0 else mk("*", hidden_size, mk("if", bidirectional, 2, 1))
            )
            for suffix in ("", "_reverse"):
                wanted = conj(there, True if not suffix else bidirectional)
                for name, shape in (
                    ("weight_ih", (width,)),
                    ("weight_hh", (hidden_size,)),
                    ("bias_ih", ()),
                    ("bias_hh", ()),
                ):
                    made = new(interp, mk("*", gates, hidden_size), *shape)
                    obj.attrs[f"{name}_l{layer}{suffix}"] = guarded(interp, wanted, made)

    return init


def container(interp: Any, obj: Any, *args: Any) -> None:
    """nn.ModuleList, nn.Sequential, nn.ParameterList."""
    if len(args) == 1 and isinstance(args[0], dict):
        obj.attrs.update(args[0])
        return
    if obj.cls is not nn.Sequential and not issubclass(obj.cls, nn.Sequential):
        items = SymList()
        if args and args[0] is not None:
            interp.extend(items, args[0])
    else:
        items = SymList()
        for arg in args:
            if isinstance(arg, SymList):
                interp.extend(items, arg)
            else:
                interp.extend(items, [arg])
    obj.attrs["_items"] = items


def module_dict(interp: Any, obj: Any, modules: Any = None) -> None:
    """nn.ModuleDict."""
    if isinstance(modules, dict):
        obj.attrs.update(modules)
    elif modules is not None:
        raise Unsupported("module dict of a symbolic dict")


from transformers.pytorch_utils import Conv1D  # noqa: E402

INIT: dict[type, Any] = {
    nn.Linear: linear,
    Conv1D: conv1d_module,
    nn.Embedding: embedding,
    nn.LayerNorm: layer_norm,
    nn.RMSNorm: rms_norm,
    nn.Conv1d: conv(1, False),
    nn.Conv2d: conv(2, False),
    nn.Conv3d: conv(3, False),
    nn.ConvTranspose1d: conv(1, True),
    nn.ConvTranspose2d: conv(2, True),
    nn.ConvTranspose3d: conv(3, True),
    nn.GroupNorm: group_norm,
    nn.modules.batchnorm._NormBase: batch_norm,
    nn.modules.batchnorm._BatchNorm: batch_norm,
    nn.InstanceNorm1d: instance_norm,
    nn.modules.instancenorm._InstanceNorm: instance_norm,
    nn.InstanceNorm2d: instance_norm,
    nn.MultiheadAttention: attention,
    nn.LSTM: recurrent(4),
    nn.GRU: recurrent(3),
    nn.ModuleList: container,
    nn.Sequential: container,
    nn.ParameterList: container,
    nn.ModuleDict: module_dict,
    nn.ParameterDict: module_dict,
}


def weight_norm(interp: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """torch's weight norm: direction and length instead of the weight."""
    module = args[0] if args else kwargs["module"]
    dim = kwargs.get("dim", args[2] if len(args) > 2 else 0)
    weight = module.attrs.get("weight") if hasattr(module, "attrs") else None
    if not isinstance(weight, Param):
        return module
    shape = tuple(s if i == dim % len(weight.shape) else 1 for i, s in enumerate(weight.shape))
    interp.write(module.attrs, "weight", None)
    interp.write(
        module.attrs, "parametrizations.weight.original0", Param(shape, None, weight.loops)
    )
    interp.write(
        module.attrs, "parametrizations.weight.original1", Param(weight.shape, None, weight.loops)
    )
    return module


FACTORIES = {"empty", "zeros", "ones", "randn", "rand"}
SAME = {
    "log",
    "exp",
    "sqrt",
    "abs",
    "cos",
    "sin",
    "zeros_like",
    "ones_like",
    "empty_like",
    "rand_like",
    "randn_like",
    "full_like",
    "sigmoid",
    "expm1",
    "clamp",
    "log1p",
    "tanh",
    "neg",
}
SAME_METHODS = SAME | {
    "float",
    "to",
    "clone",
    "detach",
    "contiguous",
    "uniform_",
    "normal_",
    "fill_",
    "zero_",
    "half",
    "bfloat16",
    "long",
    "type",
    "mul_",
    "add_",
    "mul",
    "add",
    "div",
    "clamp_",
    "requires_grad_",
    "double",
    "type_as",
    "cpu",
    "pow",
    "log_",
    "data",
}


def sizes(args: list[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """The shape a factory was given."""
    if "size" in kwargs:
        args = [kwargs["size"]]
    args = [unwrap(a) for a in args]
    if len(args) == 1 and isinstance(args[0], (tuple, list)):
        args = list(args[0])
    elif len(args) == 1 and isinstance(args[0], E) and args[0].op == "tuple":
        args = list(args[0].args)
    for size in args:
        if isinstance(size, (Opaque, Choice, SymList)):
            raise Unsupported(f"shape of {size!r}")
    return tuple(args)


def sized(interp: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """torch.Tensor(*size) or torch.Tensor(list)."""
    if len(args) == 1 and isinstance(args[0], Tensor):
        return args[0]
    if len(args) == 1 and isinstance(unwrap(args[0]), list):
        return as_tensor(interp, args[0])
    return Tensor(sizes(args, kwargs))


def as_tensor(interp: Any, data: Any) -> Any:
    """torch.tensor(data)."""
    if isinstance(data, (Tensor, Opaque)):
        return data
    data = unwrap(data)
    if isinstance(data, (list, tuple)):
        inner = as_tensor(interp, data[0]) if data else Tensor(())
        return Tensor((len(data), *inner.shape)) if isinstance(inner, Tensor) else Opaque("tensor")
    if isinstance(data, (int, float, bool)) or (
        isinstance(data, E) and data.op not in ("list", "concat", "tuple")
    ):
        return Tensor(())
    if data is not None and not isinstance(data, (E, SymList)) and hasattr(data, "__len__"):
        return Opaque("tensor")
    return Tensor((interp.length(data),))


def call_torch(interp: Any, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """torch.name(...)."""
    name = getattr(function, "__name__", "")
    dtype = kwargs.get("dtype")
    if name in FACTORIES:
        return Tensor(sizes(args, kwargs), dtype)
    if name == "full":
        return Tensor(sizes(args[:1] or [kwargs.get("size")], {}), dtype)
    if name == "normal" and ("size" in kwargs or len(args) > 2):
        return Tensor(sizes(args[2:], kwargs), dtype)
    if name in ("tensor", "as_tensor"):
        made = as_tensor(interp, args[0] if args else kwargs.get("data"))
        return Tensor(made.shape, dtype) if isinstance(made, Tensor) else made
    if name == "arange":
        values = [a for a in (*args, *(kwargs[k] for k in ("start", "end", "step") if k in kwargs))]
        if any(isinstance(v, (Opaque, Choice)) for v in values):
            return Opaque("arange")
        from .builtins_table import _range

        seq = _range(interp, *values) if not any(isinstance(v, float) for v in values) else None
        return Opaque("arange") if seq is None else Tensor((interp.length(seq),), dtype)
    if name == "linspace":
        steps = kwargs.get("steps", args[2] if len(args) > 2 else 1)
        return Tensor((steps,), dtype)
    if name == "eye":
        return Tensor((args[0], args[1] if len(args) > 1 else args[0]), dtype)
    if name in ("cat", "concat"):
        parts = (
            [p for p in unwrap(args[0]) if p is not None]
            if isinstance(unwrap(args[0]), (list, tuple))
            else []
        )
        at = kwargs.get("dim", args[1] if len(args) > 1 else 0)
        if not parts or not all(isinstance(p, (Tensor, Param)) for p in parts):
            return Opaque("cat")
        shape = list(parts[0].shape)
        for part in parts[1:]:
            shape[at] = mk("+", shape[at], part.shape[at])
        return Tensor(tuple(shape), dtype)
    if name in SAME and args and isinstance(args[0], (Tensor, Param)):
        return Tensor(args[0].shape, dtype)
    if "nn/init" in name or name.endswith("_"):
        return args[0] if args else None
    return Opaque(f"torch.{name}")


def tensor_attr(owner: Tensor, name: str) -> Any:
    """tensor.name."""
    if name == "shape":
        return owner.shape
    if name in ("data",):
        return owner
    if name == "T":
        return Tensor(tuple(reversed(owner.shape)), owner.dtype)
    if name in ("dtype", "device", "grad"):
        return Opaque(name)
    return Bound(owner, name)


def tensor_call(owner: Tensor, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """tensor.name(...)."""
    if name in SAME_METHODS:
        return owner
    if name == "expand":
        shape = list(sizes(args, {}))
        lead = len(shape) - len(owner.shape)
        return Tensor(
            tuple(owner.shape[i - lead] if s == -1 else s for i, s in enumerate(shape)), owner.dtype
        )
    if name in ("view", "reshape"):
        return Tensor(_reshape(owner, sizes(args, {})), owner.dtype)
    if name in ("new_zeros", "new_empty"):
        return Tensor(sizes(args, {}), owner.dtype)
    if name == "unsqueeze":
        at = args[0] if args else kwargs["dim"]
        at = at if at >= 0 else len(owner.shape) + 1 + at
        return Tensor((*owner.shape[:at], 1, *owner.shape[at:]), owner.dtype)
    if name in ("repeat",):
        times = sizes(args, {})
        shape = (1,) * (len(times) - len(owner.shape)) + owner.shape
        return Tensor(tuple(mk("*", s, t) for s, t in zip(shape, times, strict=True)), owner.dtype)
    if name in ("t",):
        return Tensor(tuple(reversed(owner.shape)), owner.dtype)
    if name == "size":
        return owner.shape[args[0]] if args else owner.shape
    if name == "numel":
        total: Any = 1
        for size in owner.shape:
            total = mk("*", total, size)
        return total
    return Opaque(f"tensor.{name}")


def _reshape(owner: Tensor, shape: tuple[Any, ...]) -> tuple[Any, ...]:
    open_dims = [s for s in shape if isinstance(s, int) and s == -1]
    if not open_dims:
        return shape
    total: Any = 1
    for size in owner.shape:
        total = mk("*", total, size)
    for size in shape:
        if not (isinstance(size, int) and size == -1):
            total = mk("//", total, size)
    return tuple(total if isinstance(s, int) and s == -1 else s for s in shape)


def tensor_item(owner: Any, key: Any) -> Any:
    """tensor[key] for None, full slices and integers."""
    keys = key if isinstance(key, tuple) else (key,)
    shape: list[Any] = []
    rest = list(owner.shape)
    for part in keys:
        if part is None:
            shape.append(1)
        elif part is Ellipsis:
            take = len(rest) - sum(1 for k in keys[keys.index(Ellipsis) + 1 :] if k is not None)
            shape += rest[:take]
            rest = rest[take:]
        elif isinstance(part, slice) and part == slice(None) and rest:
            shape.append(rest.pop(0))
        elif isinstance(part, int) and rest:
            rest.pop(0)
        else:
            return Opaque("tensor item")
    return Tensor((*shape, *rest), owner.dtype)


def tensor_binop(a: Any, b: Any) -> Any:
    """Elementwise arithmetic with broadcasting."""
    if not isinstance(b, Tensor):
        return a
    if not isinstance(a, Tensor):
        return b
    rank = max(len(a.shape), len(b.shape))
    left = (1,) * (rank - len(a.shape)) + a.shape
    right = (1,) * (rank - len(b.shape)) + b.shape
    return Tensor(tuple(y if x == 1 else x for x, y in zip(left, right, strict=True)), a.dtype)


__all__ = ["INIT", "Raised"]
