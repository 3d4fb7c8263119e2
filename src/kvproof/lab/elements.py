"""Element types of the lab's caches: the project's own, and integers with one scale per group."""

from __future__ import annotations

import re

from kvproof.errors import UsageError
from kvproof.kinds import ELEMENT_TYPES, ElementType, Types, element_type

_GROUPED = re.compile(r"(int8|int4)(?:[:_]g?(\d+))?$")
DEFAULT_GROUP = 64
_STORED = "use f32, bf16, fp8, int8 or int4"


def grouped(name: str, group: int = DEFAULT_GROUP) -> ElementType:
    """`int8` or `int4` in groups of `group` numbers along a head, four bytes of scale each.

    int8 is symmetric with an f32 scale; int4 keeps a bf16 scale and a bf16 minimum (asymmetric,
    as in KIVI, Liu et al. 2024, though by token for keys too).
    """
    if name not in ("int8", "int4"):
        raise UsageError(f"no grouped type {name!r}", hint="use int8 or int4")
    if group < 2 or group % 2:
        raise UsageError(f"a group of {group} numbers", hint="use an even group: 32, 64, 128")
    payload = group if name == "int8" else group // 2
    source = "kvproof.lab: four bytes of scale per group"
    return ElementType(f"{name}_g{group}", group, payload + 4, source)


def lab_type(name: str) -> ElementType:
    """The element type of `f32`, `bf16`, `fp8`, `int8`, `int4`, `int8:32`, `int4_g128`.

    Raises UsageError for a type that the lab's pool does not store.
    """
    match = _GROUPED.match(name.strip().lower())
    if match:
        return grouped(match[1], int(match[2] or DEFAULT_GROUP))
    try:
        found = element_type(name)
    except UsageError:
        raise UsageError(f"unknown element type {name[:40]!r}", hint=_STORED) from None
    if found.name not in ("f32", "bf16", "fp8_e4m3"):
        raise UsageError(f"the lab does not store {found.name}", hint=_STORED)
    return found


def family(element: ElementType) -> str:
    """The storage family of a lab type: f32, bf16, fp8_e4m3, int8 or int4."""
    return element.name.partition("_g")[0]


def cache_types(k: str = "f32", v: str | None = None, model: str = "f32") -> Types:
    """Types of a cache from their names; values follow the keys when `v` is None."""
    return Types(lab_type(k), lab_type(v or k), ELEMENT_TYPES[element_type(model).name])
