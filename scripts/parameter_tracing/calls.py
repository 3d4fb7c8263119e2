"""Calls of interpreted functions."""

from __future__ import annotations

import ast
import inspect
import types
from typing import Any

from . import substitutes
from .expressions import E
from .syntax import (
    Env,
    function_node,
)
from .values import (
    InterpFn,
    Raised,
    Super,
    SymList,
    Unsupported,
)


class Calls:
    """Calls of interpreted functions."""

    def ex_Call(self, node: ast.Call, env: Env) -> Any:
        """f(...)."""
        if isinstance(node.func, ast.Name) and node.func.id == "super" and not node.args:
            return self._super(env)
        function = self.expr(node.func, env)
        args: list[Any] = []
        for arg in node.args:
            if isinstance(arg, ast.Starred):
                inner = self.expr(arg.value, env)
                if isinstance(inner, SymList) and inner.plain() is None:
                    args.append(inner)  # Sequential(*layers): the list stands for its elements
                    continue
                args += self.unpack(inner, 0) if not isinstance(inner, E) else [inner]
            else:
                args.append(self.expr(arg, env))
        kwargs: dict[str, Any] = {}
        for kw in node.keywords:
            value = self.expr(kw.value, env)
            if kw.arg is None:
                kwargs.update(value if isinstance(value, dict) else {})
            else:
                kwargs[kw.arg] = value
        return self.call(function, args, kwargs)

    def _super(self, env: Env) -> Super:
        scope: Env | None = env
        while scope is not None and scope.parent is not None:
            scope = scope.parent
        if scope is None:
            raise TypeError("super() outside a method")
        function = scope.function
        cell = function.__closure__[function.__code__.co_freevars.index("__class__")]
        first = next(iter(scope.names.values()))
        return Super(cell.cell_contents, first)

    def call(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Call anything."""
        return self.invocation.call(self, function, args, kwargs)

    def run(self, function: types.FunctionType, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Interpret a Python function."""
        other = substitutes.SUBSTITUTES.get(function.__qualname__)
        if other is not None:
            space = {
                **function.__globals__,
                "nn": other.__globals__["nn"],
                "torch": other.__globals__["torch"],
            }
            function = types.FunctionType(other.__code__, space, other.__name__)
        node = function_node(function)
        try:
            bound = inspect.signature(function).bind(*args, **kwargs)
        except TypeError as error:
            raise Raised(f"TypeError {function.__qualname__}: {error}") from error
        bound.apply_defaults()
        names = dict(bound.arguments)
        return self._body(node, Env(names, None, function), function.__qualname__)

    def _body(self, node: Any, env: Env, name: str) -> Any:
        self.depth += 1
        try:
            if self.depth > 60:
                raise Unsupported(f"recursion in {name}")
            if isinstance(node, ast.Lambda):
                return self.expr(node.body, env)
            done = self.block(node.body, env)
        except (Raised, Unsupported) as error:
            if not hasattr(error, "where"):
                error.where = []
            error.where.append(name)
            raise
        finally:
            self.depth -= 1
        return done.value if done is not None else None

    def run_nested(self, function: InterpFn, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Interpret a nested function or lambda."""
        spec = function.node.args
        names: dict[str, Any] = {}
        params = [a.arg for a in spec.posonlyargs + spec.args]
        for name, default in zip(reversed(params), reversed(spec.defaults), strict=False):
            names[name] = self.expr(default, function.env)
        for kwarg, default in zip(spec.kwonlyargs, spec.kw_defaults, strict=True):
            if default is not None:
                names[kwarg.arg] = self.expr(default, function.env)
        names.update(zip(params, args, strict=False))
        names.update(kwargs)
        return self._body(function.node, Env(names, function.env, function.env.function), "nested")

    def get_attr(self, owner: Any, name: str) -> Any:
        """owner.name."""
        return self.attributes.get_attr(self, owner, name)

    def length(self, value: Any) -> Any:
        """len()."""
        return self.indexing.length(self, value)
