"""Expressions."""

from __future__ import annotations

import ast
import builtins
from typing import Any

from . import tensors
from . import values as V
from .expressions import E, concrete, conj, freeze, mk, negate
from .syntax import (
    BINOPS,
    COMPARES,
    Env,
    env_function,
    env_globals,
)
from .values import (
    Carried,
    Choice,
    Elem,
    InterpFn,
    LoopCarried,
    Obj,
    Opaque,
    Raised,
    SymList,
    SymRange,
    Unsupported,
    merge,
)


class Operators:
    """Expressions."""

    def expr(self, node: ast.expr, env: Env) -> Any:
        """The value of an expression."""
        return getattr(self, "ex_" + type(node).__name__, self._unknown)(node, env)

    def _unknown(self, node: ast.expr, env: Env) -> Any:
        raise Unsupported(f"expression {type(node).__name__}")

    def ex_Constant(self, node: ast.Constant, env: Env) -> Any:
        """A literal."""
        return node.value

    def ex_Name(self, node: ast.Name, env: Env) -> Any:
        """A name, inside out."""
        scope: Env | None = env
        while scope is not None:
            if node.id in scope.names:
                found = scope.names[node.id]
                if isinstance(found, Carried):
                    raise LoopCarried(found.name)
                return self.narrow(found) if self.facts else found
            scope = scope.parent
        function = env_function(env)
        if function is not None and node.id in function.__code__.co_freevars:
            return function.__closure__[function.__code__.co_freevars.index(node.id)].cell_contents
        space = env_globals(env)
        if node.id in space:
            return space[node.id]
        if hasattr(builtins, node.id):
            return getattr(builtins, node.id)
        raise Raised(f"NameError {node.id}")

    def ex_Attribute(self, node: ast.Attribute, env: Env) -> Any:
        """owner.attr."""
        owner = self.expr(node.value, env)
        try:
            return self.get_attr(owner, node.attr)
        except Raised:
            if hasattr(owner, "overlay") and not node.attr.startswith("_"):
                return E("c", *owner.path, node.attr)  # a key that only published configs carry
            raise

    def ex_BinOp(self, node: ast.BinOp, env: Env) -> Any:
        """left op right."""
        return self.binop(
            BINOPS.get(type(node.op), "@"), self.expr(node.left, env), self.expr(node.right, env)
        )

    def binop(self, op: str, a: Any, b: Any) -> Any:
        """Arithmetic on anything."""
        for value in (a, b):
            if isinstance(value, Carried):
                raise LoopCarried(value.name)
        if isinstance(a, Choice):
            return merge(a.cond, self.binop(op, a.yes, b), self.binop(op, a.no, b))
        if isinstance(b, Choice):
            return merge(b.cond, self.binop(op, a, b.yes), self.binop(op, a, b.no))
        if isinstance(a, V.Tensor) or isinstance(b, V.Tensor):
            return tensors.tensor_binop(a, b)
        if isinstance(a, Opaque) or isinstance(b, Opaque):
            return Opaque("arithmetic")
        if isinstance(a, (SymList, list)) or isinstance(b, (SymList, list)):
            return self._list_binop(op, a, b)
        if op == "+" and self.is_list(a) and self.is_list(b):
            return mk("concat", a, b)
        if op == "*" and self.is_list(a) and isinstance(b, int):
            size = mk("len", a)
            return SymRange(mk("*", size, b), lambda i: mk("idx", a, mk("%", i, size)))
        if op == "%" and isinstance(a, str):
            return Opaque("format") if not concrete(b) else a % b
        if op == "|" and (isinstance(a, (dict, set, type))):
            return a | b
        try:
            return mk(op, a, b)
        except (TypeError, ZeroDivisionError) as error:
            raise Raised(f"{type(error).__name__} {op}") from error

    def _list_binop(self, op: str, a: Any, b: Any) -> Any:
        if op == "+":
            out = SymList()
            self.extend(out, a)
            self.extend(out, b)
            return out
        if op == "*":
            items, count = (a, b) if isinstance(a, (SymList, list)) else (b, a)
            values = V.unwrap(items) if isinstance(items, SymList) else items
            if isinstance(count, int):
                return SymList(list(values) * count)
            if isinstance(values, list) and len(values) == 1:
                out = SymList()
                self.extend(out, SymRange(count, lambda i: values[0]))
                return out
        return Opaque("list arithmetic")

    def ex_UnaryOp(self, node: ast.UnaryOp, env: Env) -> Any:
        """not, -, +."""
        value = self.expr(node.operand, env)
        if isinstance(node.op, ast.Not):
            return negate(self.truth(value))
        if isinstance(value, (Opaque, V.Tensor)):
            return value
        if isinstance(node.op, ast.USub):
            return mk("neg", value)
        return value

    def ex_BoolOp(self, node: ast.BoolOp, env: Env) -> Any:
        """and / or, with Python's value semantics."""
        return self._bool(isinstance(node.op, ast.And), node.values, env)

    def _bool(self, is_and: bool, nodes: list[ast.expr], env: Env) -> Any:
        value = self.expr(nodes[0], env)
        if len(nodes) == 1:
            return value
        if isinstance(value, Opaque):
            return value
        cond = self.truth(value)

        def rest() -> Any:
            return self._bool(is_and, nodes[1:], env)

        if not isinstance(cond, E):
            return rest() if bool(cond) == is_and else value
        if is_and:
            return self.fork(cond, rest, lambda: value)
        return self.fork(cond, lambda: value, rest)

    def ex_Compare(self, node: ast.Compare, env: Env) -> Any:
        """a < b < c."""
        left = self.expr(node.left, env)
        result: Any = True
        for op, right_node in zip(node.ops, node.comparators, strict=True):
            right = self.expr(right_node, env)
            result = conj(result, self.compare(COMPARES[type(op)], left, right))
            left = right
        return result

    def compare(self, op: str, a: Any, b: Any) -> Any:
        """One comparison of anything."""
        for value in (a, b):
            if isinstance(value, Carried):
                raise LoopCarried(value.name)
        if op in ("is not",):
            return negate(self.compare("is", a, b))
        if op == "not in":
            return negate(self.compare("in", a, b))
        if isinstance(a, Choice):
            return merge(a.cond, self.compare(op, a.yes, b), self.compare(op, a.no, b))
        if isinstance(b, Choice):
            return merge(b.cond, self.compare(op, a, b.yes), self.compare(op, a, b.no))
        if isinstance(a, (Opaque, V.Tensor)) or isinstance(b, (Opaque, V.Tensor)):
            if op == "is" and (a is None or b is None):
                return False
            return Opaque("comparison")
        if op == "in":
            return self._contains(a, b)
        if not (V.scalar(a) and V.scalar(b)):
            if op in ("is", "=="):
                return a is b
            if op == "!=":
                return a is not b
            raise Unsupported(f"comparison {op}")
        try:
            return mk(op, V.unwrap(a), V.unwrap(b))
        except TypeError as error:
            raise Raised(f"TypeError {op}") from error

    def _contains(self, a: Any, b: Any) -> Any:
        if isinstance(b, Obj):
            return a in b.attrs
        if isinstance(b, SymList):
            plain = V.unwrap(b)
            if isinstance(plain, list):
                b = plain
            else:
                return mk("in", a, self.indexing.list_expr(self, b))
        if isinstance(b, SymRange):
            return mk("in", a, self.indexing.list_expr(self, b))
        if isinstance(b, dict):
            b = list(b)
        if concrete(a) and not isinstance(b, E):
            return a in b
        return mk("in", a, freeze(b))

    def ex_IfExp(self, node: ast.IfExp, env: Env) -> Any:
        """a if cond else b."""
        cond = self.truth(self.expr(node.test, env))
        return self.fork(
            cond, lambda: self.expr(node.body, env), lambda: self.expr(node.orelse, env)
        )

    def ex_NamedExpr(self, node: ast.NamedExpr, env: Env) -> Any:
        """(name := value)."""
        value = self.expr(node.value, env)
        self.assign(node.target, value, env)
        return value

    def ex_Tuple(self, node: ast.Tuple, env: Env) -> Any:
        """(a, b)."""
        out = SymList()
        for elt in node.elts:
            self._element(out, elt, env)
        plain = out.plain()
        return tuple(plain) if plain is not None else out

    def ex_List(self, node: ast.List, env: Env) -> Any:
        """[a, b]."""
        out = SymList()
        for elt in node.elts:
            self._element(out, elt, env)
        return out

    def _element(self, out: SymList, elt: ast.expr, env: Env) -> None:
        if isinstance(elt, ast.Starred):
            self.extend(out, self.expr(elt.value, env))
        else:
            self.write(out.box, "items", (*out.items, Elem(self.expr(elt, env))))

    def ex_Set(self, node: ast.Set, env: Env) -> Any:
        """{a, b}."""
        return {self.expr(e, env) for e in node.elts}

    def ex_Dict(self, node: ast.Dict, env: Env) -> Any:
        """{k: v}."""
        out: dict[Any, Any] = V.Store()
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                extra = self.expr(value, env)
                out.update(extra if isinstance(extra, dict) else {})
            else:
                out[self.expr(key, env)] = self.expr(value, env)
        return out

    def ex_JoinedStr(self, node: ast.JoinedStr, env: Env) -> Any:
        """f"...": concrete, or a template."""
        parts: list[Any] = []
        for part in node.values:
            if isinstance(part, ast.Constant):
                parts.append(part.value)
            else:
                parts.append(self.expr(part.value, env))
        if all(isinstance(p, (str, int, float, bool)) or p is None for p in parts):
            return "".join(str(p) for p in parts)
        if all(V.scalar(p) for p in parts):
            return E("fstr", *parts)
        return Opaque("text")

    def ex_Lambda(self, node: ast.Lambda, env: Env) -> Any:
        """A small function."""
        return InterpFn(node, env)

    def ex_Starred(self, node: ast.Starred, env: Env) -> Any:
        """*args outside a call."""
        return self.expr(node.value, env)

    def ex_Slice(self, node: ast.Slice, env: Env) -> Any:
        """a:b:c."""
        parts = [self.expr(p, env) if p else None for p in (node.lower, node.upper, node.step)]
        return slice(*parts)

    def ex_Subscript(self, node: ast.Subscript, env: Env) -> Any:
        """owner[key]."""
        return self.indexing.get_item(self, self.expr(node.value, env), self.expr(node.slice, env))

    def ex_ListComp(self, node: Any, env: Env) -> Any:
        """[x for ...]."""
        out = SymList()
        scope = Env({}, env, env.function)

        def level(depth: int) -> None:
            if depth == len(node.generators):
                value = self.expr(node.elt, scope)
                self.write(out.box, "items", (*out.items, Elem(value)))
                return
            gen = node.generators[depth]

            def body(value: Any) -> None:
                self.assign(gen.target, value, scope)
                cond: Any = True
                for test in gen.ifs:
                    cond = conj(cond, self.truth(self.expr(test, scope)))
                self.fork(cond, lambda: level(depth + 1), lambda: None)

            self.iterate(self.expr(gen.iter, scope), body)

        level(0)
        return out

    ex_GeneratorExp = ex_ListComp

    def ex_SetComp(self, node: Any, env: Env) -> Any:
        """{x for ...}."""
        out = self.ex_ListComp(node, env)
        plain = V.unwrap(out)
        return set(plain) if isinstance(plain, list) and concrete(plain) else out

    def ex_DictComp(self, node: ast.DictComp, env: Env) -> Any:
        """{k: v for ...}."""
        pair = ast.Tuple([node.key, node.value], ast.Load())
        fake = ast.ListComp(pair, node.generators)
        pairs = self.ex_ListComp(ast.copy_location(fake, node), env)
        plain = pairs.plain()
        if plain is None:
            return Opaque("dict")
        return dict(plain)
