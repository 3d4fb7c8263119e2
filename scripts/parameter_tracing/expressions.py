"""Symbolic expressions over config keys and loop counters, simplified as they are built."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, ClassVar

Scalar = (int, float, str, bool, type(None), tuple)


class Symbolic(Exception):
    """A symbolic value reached native code that needs a concrete one."""


class E:
    """One expression node; args are nodes or plain constants."""

    __slots__ = ("_free", "_hash", "args", "op")
    _table: ClassVar[dict[Any, E]] = {}

    def __new__(cls, op: str, *args: Any) -> E:
        key = (op, tuple((type(a).__name__, a) if not isinstance(a, E) else a for a in args))
        found = cls._table.get(key)
        if found is None:
            found = object.__new__(cls)
            found.op, found.args, found._hash, found._free = op, args, hash(key), None
            cls._table[key] = found
        return found

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other

    def __bool__(self) -> bool:
        raise Symbolic(f"truth of {self!r}")

    def __int__(self) -> int:
        raise Symbolic(f"int of {self!r}")

    __index__ = __int__

    def __repr__(self) -> str:
        return f"({self.op} {' '.join(map(repr, self.args))})"

    def __deepcopy__(self, memo: Any) -> E:
        return self

    @property
    def free(self) -> frozenset[int]:
        """The loop counters this expression depends on."""
        if self._free is None:
            if self.op == "v":
                self._free = frozenset((self.args[0],))
            else:
                inner = frozenset().union(*(a.free for a in self.args if isinstance(a, E)))
                self._free = (
                    inner - {self.args[0]} if self.op in ("sum", "any", "all", "list") else inner
                )
        return self._free


def _iter_op(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    return lambda *args: function(*args)


NATIVE: dict[str, Callable[..., Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "/": operator.truediv,
    "%": operator.mod,
    "**": operator.pow,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "in": lambda a, b: a in b,
    "not in": lambda a, b: a not in b,
    "is": lambda a, b: a is b or (a == b and type(a) is type(b)),
    "not": operator.not_,
    "neg": operator.neg,
    "int": int,
    "float": float,
    "round": round,
    "ceil": math.ceil,
    "floor": math.floor,
    "sqrt": math.sqrt,
    "log": math.log,
    "log2": math.log2,
    "abs": abs,
    "max": max,
    "min": min,
    "len": len,
    "str": str,
    "idx": operator.getitem,
    "bool": bool,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "<<": operator.lshift,
    ">>": operator.rshift,
    "prod": lambda a: math.prod(a),
    "total": lambda a: sum(a),
    "sorted": lambda a: tuple(sorted(a)),
    "set": lambda a: tuple(dict.fromkeys(a)),
    "concat": lambda *a: tuple(x for part in a for x in part),
}


def concrete(value: Any) -> bool:
    """Whether a value holds no expression."""
    if isinstance(value, E):
        return False
    if isinstance(value, (tuple, list)):
        return all(concrete(v) for v in value)
    return True


def freeze(value: Any) -> Any:
    """Lists become tuples, so that constants hash; tuples with expressions become nodes."""
    if isinstance(value, (list, tuple)):
        items = tuple(freeze(v) for v in value)
        return items if concrete(items) else E("tuple", *items)
    if isinstance(value, (set, frozenset)):
        return tuple(sorted(value, key=repr))
    if isinstance(value, dict):
        return E("dict", *(freeze(x) for kv in value.items() for x in kv))
    return value


def mk(op: str, *args: Any) -> Any:
    """Build one operation; fold it where every input is known."""
    args = tuple(freeze(a) for a in args)
    if all(concrete(a) for a in args) and op in NATIVE:
        return NATIVE[op](*args)
    return _simplify(op, args)


def _simplify(op: str, args: tuple[Any, ...]) -> Any:
    if op == "not" and isinstance(args[0], E) and args[0].op == "not":
        return mk("bool", args[0].args[0])
    if op == "is" and args[1] is None and isinstance(args[0], E):
        if args[0].op == "if":
            return choose(
                args[0].args[0], mk("is", args[0].args[1], None), mk("is", args[0].args[2], None)
            )
        if args[0].op in ("call", "+", "-", "*", "//", "len", "int"):
            return False
    if op == "if":
        return choose(*args)
    if op in ("+", "-") and args[1] == 0 and args[1] is not False:
        return args[0]
    if op == "+" and args[0] == 0 and args[0] is not False:
        return args[1]
    if op in ("*", "//") and args[1] == 1 and args[1] is not True:
        return args[0]
    if op == "*" and args[0] == 1 and args[0] is not True:
        return args[1]
    if op == "int" and isinstance(args[0], E) and args[0].op in ("int", "//", "len"):
        return args[0]
    if (
        op == "bool"
        and isinstance(args[0], E)
        and args[0].op in ("not", "==", "!=", "<", ">", "in", "is", "bool")
    ):
        return args[0]
    if op == "len" and isinstance(args[0], E) and args[0].op == "tuple":
        return len(args[0].args)
    if (
        op == "idx"
        and isinstance(args[0], E)
        and args[0].op == "tuple"
        and isinstance(args[1], int)
    ):
        return args[0].args[args[1]]
    return E(op, *args)


def choose(cond: Any, a: Any, b: Any) -> Any:
    """a if cond else b."""
    a, b = freeze(a), freeze(b)
    if not isinstance(cond, E):
        return a if cond else b
    if a is b or (concrete(a) and concrete(b) and a == b and type(a) is type(b)):
        return a
    if a is True and b is False:
        return mk("bool", cond)
    if a is False and b is True:
        return mk("not", cond)
    if cond.op == "not":
        return choose(cond.args[0], b, a)
    if cond.op == "bool":
        cond = cond.args[0]
    return E("if", cond, a, b)


def conj(a: Any, b: Any) -> Any:
    """Both conditions."""
    if a is True:
        return b
    if b is True:
        return a
    return mk("and", a, b) if isinstance(a, E) or isinstance(b, E) else (a and b)


def negate(a: Any) -> Any:
    """The opposite condition."""
    return mk("not", a)


def substitute(value: Any, var: int, by: Any, done: dict[E, Any] | None = None) -> Any:
    """Replace one loop counter in an expression."""
    if not isinstance(value, E) or var not in value.free:
        return value
    if value.op == "v":
        return by
    done = {} if done is None else done
    if value not in done:
        done[value] = mk(value.op, *(substitute(a, var, by, done) for a in value.args))
    return done[value]
