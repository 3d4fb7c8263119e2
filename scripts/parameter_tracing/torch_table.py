"""The parameters that torch's modules make."""

from __future__ import annotations

from typing import Any

from torch import nn

from .expressions import E, conj, freeze, mk
from .values import (
    Choice,
    Opaque,
    Param,
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
    batch_norm(interp, obj, num_channels, affine=affine)


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
    from .invocation import construct

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
