"""Write the traced groups as a recipe file."""

from __future__ import annotations

from typing import Any

from . import roles
from .expressions import E


class Nodes:
    """The expression table of one file."""

    def __init__(self) -> None:
        self.rows: list[list[Any]] = []
        self.index: dict[Any, int] = {}
        self.done: dict[E, int] = {}

    def add(self, value: Any) -> int:
        """The number of an expression's node."""
        if isinstance(value, E):
            if value not in self.done:
                self.done[value] = self._add(value)
            return self.done[value]
        return self._add(value)

    def _add(self, value: Any) -> int:
        if not isinstance(value, E):
            value = list(value) if isinstance(value, tuple) else value
            return self._row(["k", value])
        if value.op in ("c", "has", "v", "root"):
            return self._row([value.op, *value.args])
        if value.op == "layer":
            return self._row(["layer", self.add(value.args[0]), *value.args[1:]])
        if value.op in ("sum", "list"):
            return self._row([value.op, value.args[0], *(self.add(a) for a in value.args[1:])])
        if value.op in ("not in",):
            return self._row(["not", self._row(["in", *(self.add(a) for a in value.args)])])
        if value.op in ("dict",):
            raise ValueError("a dict in an expression")
        return self._row([value.op, *(self.add(a) for a in value.args)])

    def _row(self, row: list[Any]) -> int:
        key = repr(row)
        if key not in self.index:
            self.index[key] = len(self.rows)
            self.rows.append(row)
        return self.index[key]


def write_class(
    nodes: Nodes, walk: Any, late: list[Any], bounds: list[Any], audio: bool
) -> dict[str, Any]:
    """One model class."""

    def opt(value: Any) -> int:
        return -1 if value is True or value is None or value is False else nodes.add(value)

    groups = []
    for g in walk.groups:
        if g.guard is False:
            continue
        role = roles.role(g.name, g.kind, len(g.shape), audio)
        flags = (1 if roles.linear(g) else 0) | (
            2 if g.fp32 or roles.strict(g.name, walk.strict) else 0
        )
        loops = [[v, nodes.add(n)] for v, n in g.loops]
        layer = -1 if g.layer is None else nodes.add(g.layer)
        tied = -1 if g.tied is False else nodes.add(g.tied)
        groups.append(
            [g.name, [nodes.add(s) for s in g.shape], opt(g.guard), loops, layer, role, flags, tied]
        )
    refs = [
        [
            r.name,
            r.kind,
            nodes.add(r.path),
            r.model_type,
            opt(r.guard),
            [[v, nodes.add(n)] for v, n in r.loops],
            roles.part(r.name) or "",
        ]
        for r in walk.refs
        if r.guard is not False
    ]
    out: dict[str, Any] = {"groups": groups}
    if refs:
        out["references"] = refs
    if late and refs:
        out["ties"] = [[nodes.add(c), p, t, s] for c, p, t, s in late]
    if bounds:
        unique = {}
        for expr, limit in bounds:
            if not (isinstance(expr, E) and expr.free):
                unique[nodes.add(expr)] = limit
        out["bounds"] = [[k, v] for k, v in unique.items()]
    return out
