"""Evaluates the expressions of parameter recipes over one config: a small, closed set of operations, no `eval`.

A recipe keeps its expressions as a table of nodes, each a list of an operation and its arguments; an argument is the
number of another node, a constant is a node of its own (`["k", value]`), a config key is `["c", "text_config",
"hidden_size"]`. Loop counters are `["v", n]`. Nodes are numbered inside out, so one pass finds what depends on what.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kvproof.errors import ModelError

MAX_LOOP = 65_536
"""Layers, experts or stages beyond this are not a model but a hostile or broken config."""
MAX_NUMBER = 10**15
_MISSING = object()

Node = Sequence[Any]
Aliases = Callable[[str], Mapping[str, str]]


def _number(value: Any) -> Any:
    if not isinstance(value, (int, float)):
        raise ModelError(f"a number was expected in the config, not {str(value)[:60]!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ModelError("the config holds a number that is not finite where a size is computed")
    if abs(value) > MAX_NUMBER:
        raise ModelError(f"a size of {float(value):.3g} in the config is out of any real model's range")
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
        raise ModelError(f"a per-layer list of the config has {len(seq)} entries, entry {at} is needed")
    return seq[at]


def _contains(item: Any, seq: Any) -> bool:
    return isinstance(seq, (list, tuple, str, Mapping)) and item in seq


def _same(a: Any, b: Any) -> bool:
    return a is b or (a == b and type(a) is type(b))


_KINDS = {
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
    """Grid and width after each layer of inkling's hierarchical patch encoder (its plan_out_scales)."""
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
"""Parameters of vision encoders that transformers takes from timm."""


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


def _conjunction(run: Evaluator, node: Node) -> Any:
    left = run(node[1])
    return run(node[2]) if left else left


def _disjunction(run: Evaluator, node: Node) -> Any:
    left = run(node[1])
    return left if left else run(node[2])


def _conditional(run: Evaluator, node: Node) -> Any:
    return run(node[2]) if run(node[1]) else run(node[3])


def _config_key(run: Evaluator, node: Node) -> Any:
    return run.lookup(node[1:])


def _has_key(run: Evaluator, node: Node) -> bool:
    return run.find(node[1:]) is not _MISSING


def _layer_key(run: Evaluator, node: Node) -> Any:
    """config.per_layer_config[i].key: the layer's own value, else the model's."""
    *path, name = node[2:]
    overrides = run.find([*path, "per_layer_config"])
    if isinstance(overrides, Mapping):
        layer = run(node[1])
        for key, own in overrides.items():
            if str(key).isdecimal() and int(key) == layer and isinstance(own, Mapping):
                return own.get(name, run.find(node[2:])) if name in own else run.lookup(node[2:])
    return run.lookup(node[2:])


def _summed(run: Evaluator, node: Node) -> int:
    return sum(run.each(node[1], run(node[2]), node[3]))


def _comprehension(run: Evaluator, node: Node) -> list[Any]:
    keep = run.each(node[1], run(node[2]), node[4])
    values = run.each(node[1], run(node[2]), node[3])
    return [v for v, k in zip(values, keep, strict=True) if k]


SPECIAL: dict[str, Callable[[Evaluator, Node], Any]] = {
    "k": lambda run, node: node[1],
    "v": lambda run, node: run.counters[node[1]],
    "c": _config_key,
    "root": lambda run, node: run.config,
    "has": _has_key,
    "layer": _layer_key,
    "and": _conjunction,
    "or": _disjunction,
    "if": _conditional,
    "sum": _summed,
    "list": _comprehension,
}
_BINDS = ("sum", "list")
_NO_NODES = ("k", "v", "c", "root", "has")


def node_arguments(node: Node) -> tuple[int, ...]:
    """The numbers of the nodes that a node reads."""
    op = node[0]
    if op in _NO_NODES:
        return ()
    if op == "layer":
        return (node[1],)
    if op in _BINDS:
        return tuple(node[2:])
    return tuple(node[1:])


def free_counters(nodes: Sequence[Node]) -> list[frozenset[int]]:
    """For each node, the loop counters it depends on."""
    free: list[frozenset[int]] = []
    none: frozenset[int] = frozenset()
    for node in nodes:
        found = frozenset((node[1],)) if node[0] == "v" else none
        for arg in node_arguments(node):
            if free[arg]:
                found = found | free[arg]
        free.append(found - {node[1]} if node[0] in _BINDS else found)
    return free


class Evaluator:
    """The expressions of one recipe over one config; remembers what does not depend on a loop."""

    def __init__(self, nodes: Sequence[Node], config: Mapping[str, Any], aliases: Aliases) -> None:
        self.nodes, self.config, self._aliases = nodes, config, aliases
        self.free = free_counters(nodes)
        self.counters: dict[int, int] = {}
        self._fixed: dict[int, Any] = {}
        self._moving: dict[int, Any] = {}

    def __call__(self, number: int) -> Any:
        """The value of a node."""
        store = self._moving if self.free[number] else self._fixed
        if number in store:
            return store[number]
        node = self.nodes[number]
        special = SPECIAL.get(node[0])
        if special is not None:
            value = special(self, node)
        else:
            value = OPERATIONS[node[0]](*[self(arg) for arg in node[1:]])
        store[number] = value
        return value

    def count(self, counter: int, number: int) -> None:
        """Set a loop counter."""
        self.counters[counter] = number
        self._moving.clear()

    def each(self, counter: int, count: Any, number: int) -> list[Any]:
        """A node's value for each turn of a loop."""
        before = self.counters.get(counter)
        out = []
        for turn in range(loop_length(count)):
            self.count(counter, turn)
            out.append(self(number))
        if before is not None:
            self.count(counter, before)
        return out

    def find(self, path: Sequence[Any]) -> Any:
        """The config's value at a path, by any of its names."""
        value: Any = self.config
        for name in path:
            if not isinstance(value, Mapping):
                return _MISSING
            if name in value:
                value = value[name]
                continue
            other = self._aliases(str(value.get("model_type", ""))).get(name)
            if other is None or other not in value:
                return _MISSING
            value = value[other]
        return value

    def lookup(self, path: Sequence[Any]) -> Any:
        """The config's value at a path; its absence is an error that names the key."""
        value = self.find(path)
        if value is _MISSING:
            where = ".".join(map(str, path))
            raise ModelError(
                f"the config has no {where!r}, which the model's parameters depend on",
                hint="give the complete config.json of the model",
            )
        return value


def loop_length(count: Any) -> int:
    """A repeat count, refused when no real model has it."""
    if isinstance(count, bool) or not isinstance(count, (int, float)) or count != int(count):
        raise ModelError(f"a layer or expert count in the config is {str(count)[:60]!r}, not a whole number")
    if count > MAX_LOOP:
        raise ModelError(
            f"the config asks for {int(count):,} layers, experts or stages; kvproof reads up to {MAX_LOOP:,}",
            hint="check the layer and expert counts of the config",
        )
    return max(0, int(count))
