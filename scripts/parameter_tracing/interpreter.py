"""Abstract interpretation of model constructors: both sides of every branch, loops once with a symbolic counter."""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

from . import substitutes
from . import values as V
from .expressions import E, concrete, conj, freeze, mk, negate, substitute
from .values import (
    MISSING,
    Bound,
    Carried,
    Choice,
    Done,
    Elem,
    Guarded,
    InterpFn,
    Loop,
    LoopCarried,
    LoopValue,
    Obj,
    Opaque,
)
from .values import Raised, Super, SymList, SymRange, Unsupported, merge, merge_items

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


class Interpreter:
    """Runs constructors over symbolic configs."""

    def __init__(self, evaluate: Callable[[Any], Any]) -> None:
        from . import builtins_table

        self.evaluate = (
            evaluate  # value of an expression at the default config, to bound unrolled loops
        )
        self.log: list[dict[Any, Any]] = []
        self.facts: list[tuple[E, bool]] = []
        self.loops: tuple[tuple[int, Any], ...] = ()
        self.next_var = 0
        self.depth = 0
        self.bounds: list[tuple[Any, int]] = []
        self.notes: list[str] = []
        self.table = builtins_table

    # ---- store -------------------------------------------------------------------------------------------------
    def write(self, container: dict[Any, Any], key: Any, value: Any) -> None:
        """Set, remembering the old value for the branch in progress."""
        if self.log and self.log[-1].born > getattr(container, "born", 0):
            self.log[-1].setdefault(
                (id(container), key), (container, key, container.get(key, MISSING))
            )
        container[key] = value

    def _undo(self, log: dict[Any, Any]) -> dict[Any, Any]:
        new = {}
        for ident, (container, key, old) in log.items():
            new[ident] = container.get(key, MISSING)
            if old is MISSING:
                container.pop(key, None)
            else:
                container[key] = old
        return new

    def known(self, cond: E) -> bool | None:
        """The truth of a condition that the path already decides."""
        flip = True
        while cond.op in ("not", "bool"):
            flip ^= cond.op == "not"
            inner = cond.args[0]
            if not isinstance(inner, E):
                return bool(inner) == flip
            cond = inner
        for fact, truth in reversed(self.facts):
            if fact is cond:
                return truth == flip
            if truth and fact.op == "==" and cond.op == "==" and fact.args[0] is cond.args[0]:
                if (
                    concrete(fact.args[1])
                    and concrete(cond.args[1])
                    and fact.args[1] != cond.args[1]
                ):
                    return not flip
            if (
                fact.op == "is"
                and fact.args[1] is None
                and not truth is False
                and cond is fact.args[0]
            ):
                return not flip
        return None

    def assume(self, cond: E, truth: bool) -> int:
        """Push what a branch knows; returns how many facts were there."""
        size = len(self.facts)
        while cond.op in ("not", "bool"):
            truth ^= cond.op == "not"
            cond = cond.args[0]
        self.facts.append((cond, truth))
        if cond.op == "and" and truth or cond.op == "or" and not truth:
            for arg in cond.args:
                if isinstance(arg, E):
                    self.assume(arg, truth)
        return size

    def fork(self, cond: Any, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
        """Run both sides and join what they wrote and returned."""
        if isinstance(cond, E):
            decided = self.known(cond)
            if decided is not None:
                cond = decided
        if not isinstance(cond, E):
            return yes() if cond else no()
        a, log_a, new_a = self._side(cond, True, yes)
        b, log_b, new_b = self._side(cond, False, no)
        if isinstance(a, Raised) and isinstance(b, Raised):
            raise a
        if isinstance(a, Raised) or isinstance(b, Raised):
            log, new, result = (log_b, new_b, b) if isinstance(a, Raised) else (log_a, new_a, a)
            for ident, (container, key, _) in log.items():
                self._put(container, key, new[ident])
            return result
        for ident, (container, key, old) in (log_a | log_b).items():
            left = new_a.get(ident, old)
            right = new_b.get(ident, old)
            if key == "items" and isinstance(left, tuple) and isinstance(right, tuple):
                self._put(container, key, merge_items(cond, left, right))
            else:
                self._put(container, key, merge(cond, left, right))
        return merge(cond, a, b)

    def _put(self, container: dict[Any, Any], key: Any, value: Any) -> None:
        if value is not MISSING:
            self.write(container, key, value)

    def _side(self, cond: E, truth: bool, run: Callable[[], Any]) -> Any:
        size = self.assume(cond, truth)
        self.log.append(V.Store())
        try:
            try:
                result = run()
            except Raised as error:
                result = error
        finally:
            del self.facts[size:]
            log = self.log.pop()
            new = self._undo(log)
        return result, log, new

    # ---- truth -------------------------------------------------------------------------------------------------
    def truth(self, value: Any) -> Any:
        """True, False or a condition."""
        if isinstance(value, E):
            known = self.known(value)
            return value if known is None else known
        if isinstance(value, Choice):
            a, b = self.truth(value.yes), self.truth(value.no)
            return merge(value.cond, a, b)
        if isinstance(value, SymList):
            if any(isinstance(s, Elem) for s in value.items):
                return True
            return False if not value.items else mk(">", self.length(value), 0)
        if isinstance(value, (Obj, V.Tensor, V.Param, V.AutoRef, InterpFn, Bound)):
            return True
        if hasattr(value, "path"):
            return True
        if isinstance(value, Opaque):
            return False  # availability of kernels and the like; the numeric check finds where this is wrong
        if isinstance(value, SymRange):
            return mk(">", value.count, 0)
        if isinstance(value, Carried):
            raise LoopCarried(value.name)
        return bool(value)

    # ---- statements --------------------------------------------------------------------------------------------
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

    # ---- loops -------------------------------------------------------------------------------------------------
    def do_For(self, stmt: ast.For, env: Env) -> Any:
        """for target in iterable."""
        carried = (assigned_names(ast.Module(stmt.body, [])) - assigned_names(stmt.target)) & set(
            env.names
        )
        attrs = assigned_attrs(stmt.body)

        def body(value: Any) -> Any:
            self.assign(stmt.target, value, env)
            return self.block(stmt.body, env)

        receiver = env.names.get("self")
        poison = [(env.names, n) for n in carried]
        if isinstance(receiver, Obj):
            poison += [
                (receiver.attrs, a)
                for a in attrs
                if a in receiver.attrs and a != "_tied_weights_keys"
            ]
        return self.iterate(self.expr(stmt.iter, env), body, poison)

    def iterate(
        self, iterable: Any, body: Callable[[Any], Any], poison: list[Any] | None = None
    ) -> Any:
        """Run body for each element; symbolic stretches once."""
        for piece in self.pieces(iterable):
            if isinstance(piece, Elem):
                done = body(piece.value)
                if done is not None and "ret" in done.kinds:
                    return done
                if done is not None and "brk" in done.kinds:
                    return None
            elif isinstance(piece, Guarded):
                segs = SymList()
                segs.box["items"] = piece.segs
                done = self.fork(
                    piece.cond, lambda s=segs: self.iterate(s, body, poison), lambda: None
                )
                if done is not None:
                    raise Unsupported("jump out of a guarded stretch")
            else:
                self.stretch(piece, body, poison or [])
        return None

    def stretch(self, piece: SymRange, body: Callable[[Any], Any], poison: list[Any]) -> None:
        """A stretch of symbolic length: once with a counter, or unrolled when iterations depend on each other."""
        if not poison or not self._needs_unroll(piece, body, poison):
            try:
                return self._once(piece, body, [])
            except LoopCarried:
                pass
        self._unroll(piece, body)

    def _needs_unroll(self, piece: SymRange, body: Callable[[Any], Any], poison: list[Any]) -> bool:
        self.log.append(V.Store())
        mark = (self.next_var, len(self.bounds), self.loops, len(self.facts))
        try:
            for container, key in poison:
                self.write(container, key, Carried(key))
            self._run_body(piece, body)
            return False
        except LoopCarried:
            return True
        finally:
            self._undo(self.log.pop())
            self.next_var, size, self.loops, facts = mark[0], mark[1], mark[2], mark[3]
            del self.bounds[size:]
            del self.facts[facts:]

    def _run_body(self, piece: SymRange, body: Callable[[Any], Any]) -> int:
        var = self.next_var
        self.next_var += 1
        saved = self.loops
        self.loops = (*saved, (var, piece.count))
        try:
            done = body(piece.item(E("v", var)))
        finally:
            self.loops = saved
        if done is not None and set(done.kinds) != {"cont"}:
            raise LoopCarried("jump")
        return var

    def _once(self, piece: SymRange, body: Callable[[Any], Any], poison: list[Any]) -> None:
        self.log.append(V.Store())
        try:
            var = self._run_body(piece, body)
        except BaseException:
            self._undo(self.log.pop())
            raise
        log = self.log.pop()
        new = self._undo(log)
        for ident, (container, key, old) in log.items():
            self._loop_write(container, key, old, new[ident], (var, piece.count))

    def _loop_write(
        self, container: Any, key: Any, old: Any, new: Any, loop: tuple[int, Any]
    ) -> None:
        if new is MISSING:
            return
        var, count = loop
        if key == "items" and isinstance(new, tuple):
            before = old if isinstance(old, tuple) else ()
            if new[: len(before)] == before:
                self.write(container, key, (*before, Loop(var, count, new[len(before) :])))
                return
            raise LoopCarried("list")
        if isinstance(key, E) and var in key.free:
            self.write(container, key, LoopValue(var, count, new))
            return
        last = mk("-", count, 1)
        self.write(container, key, substitute(new, var, last) if isinstance(new, E) else new)

    def _unroll(self, piece: SymRange, body: Callable[[Any], Any]) -> None:
        count = piece.count
        limit = count if isinstance(count, int) else self._limit(count)
        if limit > 200:
            raise Unsupported(f"unrolling {limit} iterations")
        if isinstance(count, E):
            self.bounds.append((count, limit))
        for k in range(limit):
            cond = mk("<", k, count)
            done = self.fork(cond, lambda i=k: body(piece.item(i)), lambda: None)
            if done is not None and set(done.kinds) != {"cont"}:
                raise Unsupported("jump out of an unrolled loop")

    def _limit(self, count: Any) -> int:
        try:
            return max(int(self.evaluate(count)) + 2, 10)
        except Exception:  # the default config has no such value
            return 32

    def is_list(self, value: Any) -> bool:
        """Whether a value is a list of scalars."""
        if isinstance(value, (tuple, list)):
            return True
        if not isinstance(value, E):
            return False
        if value.op in ("tuple", "list", "concat", "slice", "sorted", "set"):
            return True
        try:
            return value.op == "c" and isinstance(self.evaluate(value), (list, tuple))
        except Exception:  # a key without a default
            return False

    def pieces(self, iterable: Any) -> list[Any]:
        """An iterable as elements, guarded stretches and symbolic ranges."""
        if isinstance(iterable, SymRange):
            if isinstance(iterable.count, int):
                return [Elem(iterable.item(i)) for i in range(iterable.count)]
            return [iterable]
        if isinstance(iterable, SymList):
            return [self._piece(s) for s in iterable.items]
        if isinstance(iterable, Obj):
            return self.pieces(self.table.module_items(self, iterable))
        if isinstance(iterable, E):
            if iterable.op == "tuple":
                return [Elem(a) for a in iterable.args]
            return [SymRange(mk("len", iterable), lambda i: mk("idx", iterable, i))]
        if isinstance(iterable, Choice):
            return [
                Guarded(iterable.cond, self.segments(iterable.yes)),
                Guarded(negate(iterable.cond), self.segments(iterable.no)),
            ]
        if isinstance(iterable, V.Tensor):
            return self.pieces(SymRange(iterable.shape[0], lambda i: Opaque("element")))
        if isinstance(iterable, Opaque):
            raise Unsupported(f"loop over {iterable!r}")
        if isinstance(iterable, Carried):
            raise LoopCarried(iterable.name)
        return [Elem(v) for v in iterable]

    def _piece(self, seg: Any) -> Any:
        if isinstance(seg, Loop):
            if len(seg.segs) != 1 or not isinstance(seg.segs[0], Elem):
                raise Unsupported("loop over a list with uneven stretches")
            return SymRange(seg.count, lambda i, s=seg: self.rebind(s.segs[0].value, s.var, i))
        return seg

    def rebind(self, value: Any, var: int, by: Any) -> Any:
        """An element of a looped list, its counter replaced (objects are shared as they are)."""
        if isinstance(value, tuple) and type(value) is tuple:
            return tuple(self.rebind(v, var, by) for v in value)
        return substitute(value, var, by) if isinstance(value, E) else value

    # ---- assignment --------------------------------------------------------------------------------------------
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
                try:
                    owner.overlay[key] = self.get_attr(owner, name)
                except Raised:
                    pass
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

    # ---- expressions -------------------------------------------------------------------------------------------
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
            return self.table.torch_table.tensor_binop(a, b)
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
        if op == "|" and (isinstance(a, (dict, set)) or isinstance(a, type)):
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
            value = value if is_and else value
            return value
        cond = self.truth(value)

        def rest() -> Any:
            return self._bool(is_and, nodes[1:], env)

        if not isinstance(cond, E):
            return rest() if bool(cond) == is_and else value
        if is_and:
            return self.fork(cond, rest, lambda: value if value is not cond else value)
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
                return mk("in", a, self.table.list_expr(self, b))
        if isinstance(b, SymRange):
            return mk("in", a, self.table.list_expr(self, b))
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
        return self.table.get_item(self, self.expr(node.value, env), self.expr(node.slice, env))

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

    # ---- calls -------------------------------------------------------------------------------------------------
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
        assert scope is not None
        function = scope.function
        cell = function.__closure__[function.__code__.co_freevars.index("__class__")]
        first = next(iter(scope.names.values()))
        return Super(cell.cell_contents, first)

    def call(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Call anything."""
        return self.table.call(self, function, args, kwargs)

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
        return self.table.get_attr(self, owner, name)

    def length(self, value: Any) -> Any:
        """len()."""
        return self.table.length(self, value)


def env_function(env: Env) -> Any:
    """The real function a scope belongs to."""
    return env.function


def env_globals(env: Env) -> dict[str, Any]:
    """The module globals of a scope."""
    return env.function.__globals__ if env.function is not None else {}


def _as_load(node: ast.expr) -> ast.expr:
    clone = ast.parse(ast.unparse(node), mode="eval").body
    return clone
