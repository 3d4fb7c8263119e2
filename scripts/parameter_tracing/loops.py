"""Loops: once with a symbolic counter, or unrolled."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from . import values as V
from .expressions import E, mk, negate, substitute
from .syntax import (
    Env,
    assigned_attrs,
    assigned_names,
)
from .values import (
    MISSING,
    Carried,
    Choice,
    Elem,
    Guarded,
    Loop,
    LoopCarried,
    LoopValue,
    Obj,
    Opaque,
    SymList,
    SymRange,
    Unsupported,
)


class Loops:
    """Loops: once with a symbolic counter, or unrolled."""

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
        """A stretch of symbolic length: once with a counter, or unrolled where passes depend."""
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
            return self.pieces(self.indexing.module_items(self, iterable))
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
