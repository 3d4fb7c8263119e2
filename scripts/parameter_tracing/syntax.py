"""Scopes, source look-up and what the syntax tree says about a block."""

from __future__ import annotations

import ast
import functools
import types
from typing import Any

from . import values as V
from .values import (
    Unsupported,
)

BINOPS = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.FloorDiv: "//",
    ast.Div: "/",
    ast.Mod: "%",
    ast.Pow: "**",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.BitXor: "^",
    ast.LShift: "<<",
    ast.RShift: ">>",
}
COMPARES = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.In: "in",
    ast.NotIn: "not in",
    ast.Is: "is",
    ast.IsNot: "is not",
}
JUMPS = (ast.Return, ast.Continue, ast.Break)


class Env:
    """Local variables of one call, with the enclosing scopes behind them."""

    def __init__(self, names: dict[str, Any], parent: Env | None, function: Any) -> None:
        self.names, self.parent, self.function = V.Store(names), parent, function


@functools.cache
def module_index(path: str) -> dict[int, ast.AST]:
    """Every function of a source file by its first line."""
    with open(path, encoding="utf-8") as handle:
        tree = ast.parse(handle.read())
    index: dict[int, ast.AST] = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            index[first] = node
        elif isinstance(node, ast.Lambda):
            index.setdefault(node.lineno, node)
    return index


def function_node(function: types.FunctionType) -> Any:
    """The syntax tree of a Python function."""
    code = function.__code__
    node = module_index(code.co_filename).get(code.co_firstlineno)
    if node is None:
        raise Unsupported(f"no source for {function!r}")
    return node


def has_jump(stmts: list[ast.stmt]) -> bool:
    """Whether running these statements may leave the block early."""
    for stmt in stmts:
        if isinstance(stmt, JUMPS):
            return True
        if isinstance(stmt, (ast.FunctionDef, ast.ClassDef)):
            continue
        if isinstance(stmt, (ast.For, ast.While)):
            if any(isinstance(n, ast.Return) for n in ast.walk(stmt)):
                return True
            continue
        inner: list[ast.stmt] = []
        for name in ("body", "orelse", "finalbody"):
            inner += getattr(stmt, name, [])
        for handler in getattr(stmt, "handlers", []):
            inner += handler.body
        if has_jump(inner):
            return True
    return False


def assigned_names(node: ast.AST) -> set[str]:
    """Local names a loop body assigns."""
    return {
        n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }


def assigned_attrs(body: list[ast.stmt]) -> set[str]:
    """Attributes of self a loop body assigns."""
    out = set()
    for stmt in body:
        for n in ast.walk(stmt):
            if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store):
                if isinstance(n.value, ast.Name) and n.value.id == "self":
                    out.add(n.attr)
    return out


def env_function(env: Env) -> Any:
    """The real function a scope belongs to."""
    return env.function


def env_globals(env: Env) -> dict[str, Any]:
    """The module globals of a scope."""
    return env.function.__globals__ if env.function is not None else {}


def _as_load(node: ast.expr) -> ast.expr:
    clone = ast.parse(ast.unparse(node), mode="eval").body
    return clone
