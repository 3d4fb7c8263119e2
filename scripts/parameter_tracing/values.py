"""The values the abstract interpreter handles besides plain Python objects and expressions."""

from __future__ import annotations

import itertools
from typing import Any

from .expressions import E, choose, concrete, freeze


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING = _Missing()


class Raised(Exception):
    """The interpreted code raised."""

    def __init__(self, value: Any) -> None:
        super().__init__(repr(value))
        self.value = value


class Unsupported(Exception):
    """The interpreter does not know this construct."""


class LoopCarried(Exception):
    """A loop body reads what the previous iteration wrote."""


class Opaque:
    """A value nothing depends on (a tensor's content, a logger, a cache of functions)."""

    def __init__(self, why: str = "") -> None:
        self.why = why

    def __repr__(self) -> str:
        return f"<opaque {self.why}>"


class Carried:
    """Poison: the variable's value belongs to the previous iteration."""

    def __init__(self, name: Any) -> None:
        self.name = name


_births = itertools.count(1)


class Store(dict[Any, Any]):
    """Mutable state; knows when it was made, so that a branch logs only older state."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.born = next(_births)


class Done:
    """How a block ended: returned, continued, broke off, or ran out ("end")."""

    def __init__(self, *kinds: str, value: Any = None) -> None:
        self.kinds, self.value = kinds, value


class Choice:
    """A value that is not a scalar and depends on a condition."""

    def __init__(self, cond: E, yes: Any, no: Any) -> None:
        self.cond, self.yes, self.no = cond, yes, no

    def __repr__(self) -> str:
        return f"<choice {self.cond} {self.yes} {self.no}>"


class LoopValue:
    """An attribute set under a symbolic name once an iteration."""

    def __init__(self, var: int, count: Any, value: Any) -> None:
        self.var, self.count, self.value = var, count, value


class Obj:
    """An instance of an interpreted class."""

    def __init__(self, cls: type, loops: tuple[tuple[int, Any], ...]) -> None:
        self.cls, self.attrs, self.loops = cls, Store(), loops

    def __repr__(self) -> str:
        return f"<{self.cls.__name__}>"


class Tensor:
    """A tensor of known shape."""

    def __init__(self, shape: tuple[Any, ...], dtype: Any = None) -> None:
        self.shape, self.dtype = tuple(shape), dtype


class Param:
    """An nn.Parameter: shape, declared type, and the loops it was created in."""

    def __init__(
        self, shape: tuple[Any, ...], dtype: Any, loops: tuple[tuple[int, Any], ...]
    ) -> None:
        self.shape, self.dtype, self.loops = tuple(shape), dtype, loops


class Elem:
    """One element of a list."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Guarded:
    """Elements that are there only under a condition."""

    def __init__(self, cond: Any, segs: tuple[Any, ...]) -> None:
        self.cond, self.segs = cond, segs


class Loop:
    """Elements repeated count times, the counter running."""

    def __init__(self, var: int, count: Any, segs: tuple[Any, ...]) -> None:
        self.var, self.count, self.segs = var, count, segs


class SymList:
    """A list whose length may be symbolic."""

    def __init__(self, values: Any = ()) -> None:
        self.box = Store(items=tuple(Elem(v) for v in values))

    @property
    def items(self) -> tuple[Any, ...]:
        return self.box["items"]

    def plain(self) -> list[Any] | None:
        """The elements, when their number is known."""
        if all(isinstance(s, Elem) for s in self.items):
            return [s.value for s in self.items]
        return None

    def __repr__(self) -> str:
        return f"<list {len(self.items)}>"


class InterpFn:
    """A nested function or lambda."""

    def __init__(self, node: Any, env: Any) -> None:
        self.node, self.env = node, env


class Bound:
    """A method and its receiver."""

    def __init__(self, receiver: Any, function: Any) -> None:
        self.receiver, self.function = receiver, function


class Super:
    """super(): attribute look-up that starts after one class."""

    def __init__(self, after: type, receiver: Any) -> None:
        self.after, self.receiver = after, receiver


class AutoRef:
    """A model that another file's recipe describes, picked by its config's model_type."""

    def __init__(self, kind: str, config: Any, loops: tuple[Any, ...]) -> None:
        self.kind, self.config, self.loops = kind, config, loops


class SymRange:
    """A sequence of symbolic length: element i is item(i)."""

    def __init__(self, count: Any, item: Any) -> None:
        self.count, self.item = count, item


def scalar(value: Any) -> bool:
    """Whether a value can live inside an expression."""
    if isinstance(value, E) or value is None or isinstance(value, (int, float, str, bool)):
        return True
    if isinstance(value, (tuple, list)):
        return all(scalar(v) for v in value)
    if isinstance(value, SymList):
        items = value.plain()
        return items is not None and all(scalar(v) for v in items)
    return False


def unwrap(value: Any) -> Any:
    """A SymList of known length as a plain list, also inside tuples."""
    if isinstance(value, SymList):
        items = value.plain()
        return value if items is None else [unwrap(v) for v in items]
    if isinstance(value, tuple) and type(value) is tuple:
        return tuple(unwrap(v) for v in value)
    return value


def merge(cond: Any, a: Any, b: Any) -> Any:
    """The value that is a where cond holds and b elsewhere."""
    if a is b or not isinstance(cond, E):
        return a if a is b or cond else b
    if isinstance(a, Done) and isinstance(b, Done):
        kinds = tuple(sorted({*a.kinds, *b.kinds}))
        return Done(*kinds, value=merge(cond, a.value, b.value))
    if isinstance(a, (Opaque, Carried)) and isinstance(b, (Opaque, Carried)):
        return a
    if b is MISSING and scalar(a):
        return a  # only a valid program's reads matter, and those come after the assignment
    if a is MISSING and scalar(b):
        return b
    if type(a) is tuple and type(b) is tuple and len(a) == len(b) and not (scalar(a) and scalar(b)):
        return tuple(merge(cond, x, y) for x, y in zip(a, b, strict=True))
    if scalar(a) and scalar(b):
        a, b = unwrap(a), unwrap(b)
        if not isinstance(a, E) and not isinstance(b, E) and concrete(a) and concrete(b):
            try:
                if type(a) is type(b) and a == b:
                    return a
            except Exception:
                pass
        return choose(cond, freeze(a), freeze(b))
    return Choice(cond, a, b)


def merge_items(cond: E, a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
    """Two versions of a list's segments, joined under guards after what they share."""
    same = 0
    while same < min(len(a), len(b)) and a[same] is b[same]:
        same += 1
    if len(a) == len(b) == same:
        return a
    tail = 0
    while tail < min(len(a), len(b)) - same and a[-1 - tail] is b[-1 - tail]:
        tail += 1
    shared = a[len(a) - tail :]
    rest_a, rest_b = a[same : len(a) - tail], b[same : len(b) - tail]
    if len(rest_a) == len(rest_b) and all(isinstance(s, Elem) for s in rest_a + rest_b):
        joined = tuple(
            Elem(merge(cond, x.value, y.value)) for x, y in zip(rest_a, rest_b, strict=True)
        )
        return a[:same] + joined + shared
    out = a[:same]
    if rest_a:
        out += (Guarded(cond, rest_a),)
    if rest_b:
        from .expressions import negate

        out += (Guarded(negate(cond), rest_b),)
    return out + shared
