"""Evaluates the expressions of parameter recipes over one config, without `eval`.

A recipe keeps its expressions as a table of nodes, each a list of an operation and its arguments;
an argument is the number of another node, a constant is a node of its own (`["k", value]`), a
config key is `["c", "text_config", "hidden_size"]`. Loop counters are `["v", n]`. Nodes are
numbered inside out, so one pass finds what depends on what.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kvproof.errors import ModelError
from kvproof.model.recipe_operations import OPERATIONS, loop_length

_MISSING = object()

Node = Sequence[Any]
Aliases = Callable[[str], Mapping[str, str]]


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
        self.nodes = nodes
        self.config: Mapping[str, Any] = config
        self._aliases = aliases
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
            other = self._other_name(value, name)
            if other is None:
                return _MISSING
            value = value[other]
        return value

    def _other_name(self, config: Mapping[str, Any], name: Any) -> str | None:
        """Another spelling of a key that the config has."""
        aliases = self._aliases(str(config.get("model_type", "")))
        stored = aliases.get(name, name)
        same = [stored, *(alias for alias, target in aliases.items() if target == stored)]
        return next((other for other in same if other in config), None)

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
