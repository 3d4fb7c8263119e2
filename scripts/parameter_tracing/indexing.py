"""What length, indexing and slicing mean on each kind of value."""

from __future__ import annotations

import collections
import types
from typing import Any

from torch import nn
from transformers.activations import ACT2CLS, ACT2FN

from . import tensors
from .configs import Cfg, LayerCfg
from .expressions import E, concrete, conj, freeze, mk
from .values import (
    Carried,
    Choice,
    Elem,
    Guarded,
    Loop,
    LoopCarried,
    Obj,
    Opaque,
    Param,
    Raised,
    SymList,
    SymRange,
    Tensor,
    Unsupported,
    merge,
    scalar,
    unwrap,
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
    if isinstance(owner, SymRange):
        return _range_item(owner, key)
    if isinstance(owner, SymList):
        return _list_item(interp, owner, key)
    if isinstance(owner, E):
        return _expr_item(owner, key)
    if isinstance(owner, (Tensor, Param)):
        return tensors.tensor_item(owner, key)
    if isinstance(owner, dict) and isinstance(key, tuple) and not concrete(key):
        return _tuple_item(owner, key)
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


def _range_item(owner: SymRange, key: Any) -> Any:
    if not isinstance(key, slice):
        from_end = isinstance(key, int) and key < 0
        return owner.item(mk("+", owner.count, key) if from_end else key)
    if key.start in (None, 0) and key.step is None:
        return SymRange(owner.count if key.stop is None else key.stop, owner.item)
    return Opaque("slice of a range")


def _expr_item(owner: E, key: Any) -> Any:
    if not isinstance(key, slice):
        return mk("idx", owner, key)
    if key.step in (None, 1):
        return mk("slice", owner, key.start, key.stop)
    return mk("reversed", owner) if key == slice(None, None, -1) else Opaque("strided slice")


def _tuple_item(owner: dict[Any, Any], key: tuple[Any, ...]) -> Any:
    """A table of tuples: the first whose parts all equal the key's."""
    value = list(owner.items())[-1][1]
    for name, candidate in reversed(list(owner.items())[:-1]):
        cond: Any = True
        for part, want in zip(key, name, strict=True):
            cond = conj(cond, mk("==", mk("bool", part) if isinstance(want, bool) else part, want))
        value = merge(cond, candidate, value)
    return value


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
    from .invocation import construct

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
