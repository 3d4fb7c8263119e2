"""What branches write, and how both sides are joined."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import values as V
from .expressions import E, concrete, mk
from .values import (
    MISSING,
    Bound,
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
    merge,
    merge_items,
)


class Branches:
    """What branches write, and how both sides are joined."""

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
                and truth is not False
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
        if (cond.op == "and" and truth) or (cond.op == "or" and not truth):
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
            # Availability of kernels and the like; the numeric check finds where this is wrong.
            return False
        if isinstance(value, SymRange):
            return mk(">", value.count, 0)
        if isinstance(value, Carried):
            raise LoopCarried(value.name)
        return bool(value)
