"""What Python's own functions mean on symbolic values."""

from __future__ import annotations

import collections
import copy
import math
import types
from typing import Any

import numpy as np
import torch
from torch import nn

from . import configs
from .attributes import get_attr
from .configs import Cfg
from .expressions import E, concrete, conj, freeze, mk
from .indexing import length, list_expr
from .invocation import _native, call
from .values import (
    MISSING,
    Carried,
    Choice,
    Elem,
    Guarded,
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
