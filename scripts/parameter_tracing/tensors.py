"""Tensors by their shapes: what creates them, their attributes, methods and items."""

from __future__ import annotations

from typing import Any

from .expressions import E, mk
from .values import (
    Bound,
    Choice,
    Opaque,
    Param,
    SymList,
    Tensor,
    Unsupported,
    unwrap,
)

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
