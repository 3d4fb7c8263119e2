"""The closed set of operations that parameter recipes may use."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from kvproof.errors import ModelError

MAX_LOOP = 65_536
"""Layers, experts or stages beyond this are not a model but a hostile or broken config."""
MAX_NUMBER = 10**15


def loop_length(count: Any) -> int:
    """A repeat count, refused when no real model has it."""
    whole = isinstance(count, int) or (isinstance(count, float) and count.is_integer())
    if isinstance(count, bool) or not whole:
        raise ModelError(
            f"a layer or expert count in the config is {str(count)[:60]!r}, not a whole number"
        )
    if count > MAX_LOOP:
        raise ModelError(
            f"the config asks for more than {MAX_LOOP:,} layers, experts or stages",
            hint="check the layer and expert counts of the config",
        )
    return max(0, int(count))


def _number(value: Any) -> Any:
    if not isinstance(value, (int, float)):
        raise ModelError(f"a number was expected in the config, not {str(value)[:60]!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ModelError("the config holds a number that is not finite where a size is computed")
    if abs(value) > MAX_NUMBER:
        raise ModelError("a size in the config is out of any real model's range")
    return value


def _arithmetic(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def run(a: Any, b: Any) -> Any:
        try:
            return function(_number(a), _number(b))
        except ZeroDivisionError:
            raise ModelError("a size in the config that others are divided by is zero") from None

    return run


def _power(a: Any, b: Any) -> Any:
    if abs(_number(b)) > 64:
        raise ModelError(f"an exponent of {b} in the config is out of any real model's range")
    return _arithmetic(operator.pow)(a, b)


def _ordered(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], bool]:
    return lambda a, b: bool(function(_number(a), _number(b)))


def _index(seq: Any, at: Any) -> Any:
    if isinstance(seq, Mapping):
        return seq.get(at, seq.get(str(at)))
    if not isinstance(seq, (list, tuple, str)) or not isinstance(at, int):
        raise ModelError("the config has a single value where a list, one entry a layer, is needed")
    if not -len(seq) <= at < len(seq):
        raise ModelError(
            f"a per-layer list of the config has {len(seq)} entries, entry {at} is needed"
        )
    return seq[at]


def _contains(item: Any, seq: Any) -> bool:
    return isinstance(seq, (list, tuple, str, Mapping)) and item in seq


def _same(a: Any, b: Any) -> bool:
    return a is b or (a == b and type(a) is type(b))


_KINDS: dict[str, Any] = {
    "int": int,
    "float": float,
    "bool": bool,
    "str": str,
    "list": (list, tuple),
    "tuple": (list, tuple),
    "dict": Mapping,
    "Iterable": (list, tuple, str, Mapping),
    "Sequence": (list, tuple, str),
}


def _length(value: Any) -> int:
    if not isinstance(value, (list, tuple, str, Mapping)):
        raise ModelError("the config has a single value where a list is needed")
    return len(value)


def _rounded(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda a: function(float(a) if isinstance(a, str) else _number(a))


def _slice(seq: Any, start: Any, stop: Any) -> Any:
    return list(seq[start:stop]) if isinstance(seq, (list, tuple, str)) else []


def _first(seq: Any, default: Any) -> Any:
    return next(iter(seq), default)


def _call(name: str, value: Any, *args: Any) -> Any:
    if name == "index" and isinstance(value, (list, tuple)):
        return list(value).index(args[0]) if args[0] in value else -1
    if name == "count" and isinstance(value, (list, tuple, str)):
        return value.count(args[0])
    if isinstance(value, str) and name in ("startswith", "endswith", "lower"):
        return getattr(value, name)(*args)
    raise ModelError(f"the config has a value of the wrong kind where {name} is needed")


def _get(owner: Any, key: Any, default: Any) -> Any:
    return owner.get(key, default) if isinstance(owner, Mapping) else default


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple, str)) else [value]


def _prime_factors(value: Any) -> list[int]:
    rest, out, by = int(_number(value)), [], 2
    while rest > 1 and by * by <= rest:
        while rest % by == 0:
            out.append(by)
            rest //= by
        by += 1
        if by > MAX_LOOP:
            raise ModelError("a size of the config has no small factors")
    return [*out, rest] if rest > 1 else out


def _hmlp_scales(temporal: Any, patch: Any, layers: Any, channels: Any) -> list[list[int]]:
    """Grid and width after each layer of inkling's patch encoder (its plan_out_scales)."""
    across, along = 1, 1
    scales = [[1, 1, 1, channels]]
    for factor in reversed(_prime_factors(patch)):
        across *= factor
        scales.append([1, across, across, math.ceil(across**2 * channels / 64) * 64])
    for factor in reversed(_prime_factors(temporal)):
        along *= factor
        scales.append([along, across, across, math.ceil(across**2 * channels * along / 64) * 64])
    full = math.log(patch * patch * temporal * channels)
    wanted = [full * step / loop_length(layers) for step in range(loop_length(layers) + 1)]
    have = [math.log(t * h * w) for t, h, w, _ in scales]
    if layers >= len(scales):
        picked = [min(range(len(have)), key=lambda s: abs(want - have[s])) for want in wanted]
    else:
        picked = _assign(wanted, have)
    picked[0], picked[-1] = 0, len(scales) - 1
    return [scales[p] for p in picked]


def _assign(wanted: list[float], have: list[float]) -> list[int]:
    """The cheapest choice of distinct rising entries: both lists rise, so no crossing pays."""
    best: list[tuple[float, list[int]]] = [(0.0, [])]
    for row, want in enumerate(wanted):
        found: list[tuple[float, list[int]]] = []
        for column in range(row, len(have) - (len(wanted) - row - 1)):
            cost, path = min(best[: column - row + 1], key=lambda b: b[0])
            found.append((cost + abs(want - have[column]), [*path, column]))
        best = found
    return min(best, key=lambda b: b[0])[1]


@functools.lru_cache(maxsize=4096)
def _next_prime(after: int) -> int:
    value = after + 1
    while value < 2 or any(value % by == 0 for by in range(2, math.isqrt(value) + 1)):
        value += 1
    return value


def _nth_prime(start: Any, count: Any) -> int:
    """The count-th prime after start (qwen4_exp sizes its n-gram tables by them)."""
    prime = int(_number(start))
    if prime > 10**9 or not 0 <= count <= 4096:
        raise ModelError("the n-gram tables of the config are out of any real model's range")
    for _ in range(int(count)):
        prime = _next_prime(prime)
    return prime


TIMM_ENCODERS = {"mobilenetv5_300m_enc": 294_284_096}
"""Parameters of vision encoders that transformers takes from timm; about 294 million, not measured
here (timm is not installed where recipes are checked), so gemma3n with vision is an estimate."""


def _timm(name: Any) -> int:
    if name not in TIMM_ENCODERS:
        raise ModelError(
            f"the vision encoder {str(name)[:60]!r} is timm's; its size is not known to kvproof",
            hint=f"known are {', '.join(TIMM_ENCODERS)}",
        )
    return TIMM_ENCODERS[name]


OPERATIONS: dict[str, Callable[..., Any]] = {
    "+": _arithmetic(operator.add),
    "-": _arithmetic(operator.sub),
    "*": _arithmetic(operator.mul),
    "//": _arithmetic(operator.floordiv),
    "/": _arithmetic(operator.truediv),
    "%": _arithmetic(operator.mod),
    "**": _power,
    "==": operator.eq,
    "!=": operator.ne,
    "<": _ordered(operator.lt),
    "<=": _ordered(operator.le),
    ">": _ordered(operator.gt),
    ">=": _ordered(operator.ge),
    "in": _contains,
    "is": _same,
    "not": operator.not_,
    "bool": bool,
    "neg": lambda a: -_number(a),
    "int": _rounded(int),
    "float": _rounded(float),
    "round": _rounded(round),
    "ceil": _rounded(math.ceil),
    "floor": _rounded(math.floor),
    "sqrt": _rounded(math.sqrt),
    "log2": _rounded(math.log2),
    "abs": _rounded(abs),
    "max": lambda *a: max(_number(x) for x in a),
    "min": lambda *a: min(_number(x) for x in a),
    "maxof": lambda a: max((_number(x) for x in _listed(a)), default=0),
    "minof": lambda a: min((_number(x) for x in _listed(a)), default=0),
    "total": lambda a: sum(_number(x) for x in _listed(a)),
    "prod": lambda a: math.prod(_number(x) for x in _listed(a)),
    "anyof": lambda a: any(_listed(a)),
    "allof": lambda a: all(_listed(a)),
    "len": _length,
    "str": str,
    "idx": _index,
    "slice": _slice,
    "first": _first,
    "call": _call,
    "get": _get,
    "attr": lambda owner, name: _get(owner, name, None),
    "tuple": lambda *a: list(a),
    "concat": lambda *a: [x for part in a for x in part],
    "set": lambda a: list(dict.fromkeys(_listed(a))),
    "sorted": lambda a: sorted(_listed(a)),
    "isa": lambda value, *kinds: any(isinstance(value, _KINDS.get(k, ())) for k in kinds),
    "dictvalues": lambda a: list(a.values()) if isinstance(a, Mapping) else [],
    "dictkeys": lambda a: list(a) if isinstance(a, Mapping) else [],
    "split": lambda text, sep: text.split(sep) if isinstance(text, str) else [],
    "reversed": lambda a: _listed(a)[::-1],
    "nth_prime": _nth_prime,
    "timm": _timm,
    "hmlp_scales": _hmlp_scales,
}
