"""Statements and assignments."""

from __future__ import annotations

import ast
import contextlib
from typing import Any

from .expressions import E, mk
from .syntax import (
    BINOPS,
    Env,
    _as_load,
    env_globals,
    has_jump,
)
from .values import (
    MISSING,
    Choice,
    Done,
    Elem,
    InterpFn,
    Loop,
    Obj,
    Opaque,
    Raised,
    SymList,
    SymRange,
    Unsupported,
    merge,
)


class Statements:
    """Statements and assignments."""

    def block(self, stmts: list[ast.stmt], env: Env) -> Any:
        """Run statements; how they ended early, or None."""
        for index, stmt in enumerate(stmts):
            if isinstance(stmt, ast.If):
                cond = self.truth(self.expr(stmt.test, env))
                if (
                    isinstance(cond, E)
                    and self.known(cond) is None
                    and (has_jump(stmt.body) or has_jump(stmt.orelse))
                ):
                    rest = stmts[index + 1 :]
                    done = self.fork(
                        cond,
                        lambda s=stmt, r=rest: self.block(s.body + r, env) or Done("end"),
                        lambda s=stmt, r=rest: self.block(s.orelse + r, env) or Done("end"),
                    )
                    return self._completion(done)
                done = self.fork(
                    cond,
                    lambda s=stmt: self.block(s.body, env),
                    lambda s=stmt: self.block(s.orelse, env),
                )
            else:
                done = self.statement(stmt, env)
            if done is not None:
                return done
        return None

    def _completion(self, done: Done) -> Any:
        kinds = set(done.kinds)
        if kinds == {"end"}:
            return None
        if kinds <= {"ret", "end"}:
            return Done("ret", value=done.value)
        if kinds <= {"cont", "end"}:
            return None
        if len(kinds) == 1:
            return done
        raise Unsupported(f"mixed jumps {kinds}")

    def statement(self, stmt: ast.stmt, env: Env) -> Any:
        """One statement other than if."""
        method = getattr(self, "do_" + type(stmt).__name__, None)
        if method is None:
            raise Unsupported(f"statement {type(stmt).__name__}")
        return method(stmt, env)

    def do_Pass(self, stmt: Any, env: Env) -> None:
        """Nothing."""

    do_Import = do_Global = do_Nonlocal = do_ClassDef = do_Assert = do_Pass

    def do_ImportFrom(self, stmt: ast.ImportFrom, env: Env) -> None:
        """Local imports of library names."""
        import importlib

        package = env_globals(env).get("__package__")
        module = importlib.import_module(
            "." * stmt.level + (stmt.module or ""), package if stmt.level else None
        )
        for alias in stmt.names:
            self.write(env.names, alias.asname or alias.name, getattr(module, alias.name))

    def do_Expr(self, stmt: ast.Expr, env: Env) -> None:
        """A call for its effect."""
        if not isinstance(stmt.value, ast.Constant):
            self.expr(stmt.value, env)

    def do_Return(self, stmt: ast.Return, env: Env) -> Any:
        """Leave the function."""
        return Done("ret", value=self.expr(stmt.value, env) if stmt.value else None)

    def do_Continue(self, stmt: Any, env: Env) -> Any:
        """Next iteration."""
        return Done("cont")

    def do_Break(self, stmt: Any, env: Env) -> Any:
        """Leave the loop."""
        return Done("brk")

    def do_Raise(self, stmt: ast.Raise, env: Env) -> None:
        """A path that a valid config never takes."""
        name = ast.unparse(stmt.exc) if stmt.exc else "re-raise"
        raise Raised(name[:100])

    def do_Delete(self, stmt: ast.Delete, env: Env) -> None:
        """del self.x, del x."""
        for target in stmt.targets:
            if isinstance(target, ast.Attribute):
                owner = self.expr(target.value, env)
                if isinstance(owner, Obj):
                    self.write(owner.attrs, target.attr, None)

    def do_FunctionDef(self, stmt: ast.FunctionDef, env: Env) -> None:
        """A nested function."""
        self.write(env.names, stmt.name, InterpFn(stmt, env))

    def do_With(self, stmt: ast.With, env: Env) -> Any:
        """Contexts don't matter to shapes."""
        for item in stmt.items:
            if item.optional_vars is not None:
                self.assign(item.optional_vars, Opaque("context"), env)
        return self.block(stmt.body, env)

    def do_Try(self, stmt: ast.Try, env: Env) -> Any:
        """The first path that does not raise."""
        try:
            done = self.block(stmt.body, env)
        except Raised:
            for handler in stmt.handlers:
                if handler.name:
                    self.write(env.names, handler.name, Opaque("error"))
                return self.block(handler.body, env)
            return None
        return done or self.block(stmt.orelse, env) or self.block(stmt.finalbody, env)

    def do_Assign(self, stmt: ast.Assign, env: Env) -> None:
        """targets = value."""
        value = self.expr(stmt.value, env)
        for target in stmt.targets:
            self.assign(target, value, env)

    def do_AnnAssign(self, stmt: ast.AnnAssign, env: Env) -> None:
        """target: type = value."""
        if stmt.value is not None:
            self.assign(stmt.target, self.expr(stmt.value, env), env)

    def do_AugAssign(self, stmt: ast.AugAssign, env: Env) -> None:
        """target op= value."""
        load = ast.copy_location(_as_load(stmt.target), stmt.target)
        current = self.expr(load, env)
        extra = self.expr(stmt.value, env)
        if isinstance(current, SymList) and isinstance(stmt.op, ast.Add):
            self.extend(current, extra)
            return
        self.assign(stmt.target, self.binop(BINOPS.get(type(stmt.op), "?"), current, extra), env)

    def do_While(self, stmt: ast.While, env: Env) -> Any:
        """Unrolled."""
        for _ in range(64):
            cond = self.truth(self.expr(stmt.test, env))
            if isinstance(cond, E):
                raise Unsupported("while on a symbolic condition")
            if not cond:
                return None
            done = self.block(stmt.body, env)
            if done is not None and "ret" in done.kinds:
                return done
            if done is not None and "brk" in done.kinds:
                return None
        raise Unsupported("long while")

    def assign(self, target: ast.expr, value: Any, env: Env) -> None:
        """Bind a target."""
        if isinstance(target, ast.Name):
            self.write(env.names, target.id, value)
        elif isinstance(target, ast.Attribute):
            self.set_attr(self.expr(target.value, env), target.attr, value)
        elif isinstance(target, ast.Subscript):
            self.set_item(self.expr(target.value, env), self.expr(target.slice, env), value)
        elif isinstance(target, (ast.Tuple, ast.List)):
            for part, item in zip(target.elts, self.unpack(value, len(target.elts)), strict=False):
                self.assign(part.value if isinstance(part, ast.Starred) else part, item, env)
        else:
            raise Unsupported(f"assignment to {type(target).__name__}")

    def unpack(self, value: Any, size: int) -> list[Any]:
        """The elements of a value assigned to several names."""
        if isinstance(value, E) and value.op != "tuple":
            return [mk("idx", value, i) for i in range(size)]
        if isinstance(value, Opaque):
            return [value] * size
        if isinstance(value, Choice):
            a, b = self.unpack(value.yes, size), self.unpack(value.no, size)
            return [merge(value.cond, x, y) for x, y in zip(a, b, strict=True)]
        out = []
        for piece in self.pieces(value):
            if not isinstance(piece, Elem):
                raise Unsupported("unpacking a list of symbolic length")
            out.append(piece.value)
        return out

    def set_attr(self, owner: Any, name: Any, value: Any) -> None:
        """owner.name = value."""
        if isinstance(owner, Obj):
            if name == "_tied_weights_keys" and self.loops:
                return
            self.write(owner.attrs, name, value)
        elif hasattr(owner, "overlay"):
            key = owner.alias(name)
            if key not in owner.overlay:
                with contextlib.suppress(Raised):
                    owner.overlay[key] = self.get_attr(owner, name)
            self.write(owner.overlay, key, value)
        elif isinstance(owner, Choice):
            self.fork(
                owner.cond,
                lambda: self.set_attr(owner.yes, name, value),
                lambda: self.set_attr(owner.no, name, value),
            )

    def set_item(self, owner: Any, key: Any, value: Any) -> None:
        """owner[key] = value."""
        if isinstance(owner, Obj):
            items = owner.attrs.get("_items")
            if items is not None and isinstance(key, int):
                self.set_item(items, key, value)
            else:
                self.write(owner.attrs, key, value)
        elif isinstance(owner, SymList):
            segs = list(owner.items)
            if isinstance(key, int) and all(isinstance(s, Elem) for s in segs):
                segs[key] = Elem(value)
                self.write(owner.box, "items", tuple(segs))
            else:
                raise Unsupported("item assignment in a symbolic list")
        elif isinstance(owner, dict):
            self.write(owner, key, value)

    def extend(self, target: SymList, values: Any) -> None:
        """Append every element."""
        self.write(target.box, "items", target.items + self.segments(values))

    def segments(self, values: Any) -> tuple[Any, ...]:
        """An iterable as list segments."""
        if isinstance(values, SymList):
            return values.items
        out: tuple[Any, ...] = ()
        for piece in self.pieces(values) if values is not None and values is not MISSING else ():
            if isinstance(piece, SymRange):
                var = self.next_var
                self.next_var += 1
                piece = Loop(var, piece.count, (Elem(piece.item(E("v", var))),))
            out += (piece,)
        return out

    def narrow(self, value: Any) -> Any:
        """A conditional value, where the path decides the condition."""
        while isinstance(value, Choice):
            known = self.known(value.cond)
            if known is None:
                return value
            value = value.yes if known else value.no
        while isinstance(value, E) and value.op == "if" and isinstance(value.args[0], E):
            known = self.known(value.args[0])
            if known is None:
                return value
            value = value.args[1] if known else value.args[2]
        return value
