"""Guards against configs that are broken or hostile: bounded size, plain values, small counts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isfinite
from typing import Any

from kvproof.errors import ModelError

MAX_LAYERS = 10_000
_MAX_NODES = 1_000_000
_MAX_DEPTH = 24
_MAX_SIZE = 10**9
_SIZE = re.compile(
    r"(^|_)(size|dim|dims|heads?|rank|kernel|groups?|state|expand|experts?|embd|conv|channels|width"
    r"|inner|model|kv|length)$"
)
ROTARY = ("rope_parameters", "rope_scaling")
"""The names of a config's rotary section."""
_ROTARY_NUMBERS = ("original_max_position_embeddings", "partial_rotary_factor", "rope_theta")
"""A factor that makes no sense stretches nothing (overrides.factor_of)."""
_LAYERS = re.compile(r"(^|_)(layers?|blocks|depth)$")


def check_plain(value: Any) -> None:
    """Raise ModelError when a parsed config is too deep, too large or holds odd values."""
    stack: list[tuple[Any, int]] = [(value, 0)]
    nodes = 0
    while stack:
        node, depth = stack.pop()
        nodes += 1
        if depth > _MAX_DEPTH or nodes > _MAX_NODES:
            what = "nested too deeply" if depth > _MAX_DEPTH else "too large"
            raise ModelError(f"the config is {what}", hint="give a model's own config.json")
        if isinstance(node, Mapping):
            for key in node:
                if not isinstance(key, str):
                    raise ModelError(f"the config has a key that is no string: {str(key)[:40]!r}")
            stack.extend((child, depth + 1) for child in node.values())
        elif isinstance(node, (list, tuple)):
            stack.extend((child, depth + 1) for child in node)
        elif not (node is None or isinstance(node, (str, int, float, bool))):
            raise ModelError(f"the config holds a {type(node).__name__}, which JSON has not")


def plain_copy(value: Any) -> Any:
    """A copy of a checked config, so that rules never change what the caller holds."""
    if isinstance(value, Mapping):
        return {key: plain_copy(child) for key, child in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_copy(child) for child in value]
    return value


def shown(value: Any) -> str:
    """A short form of any value for an error message."""
    if isinstance(value, int) and abs(value) >= 10**18:
        return "a huge number"
    return repr(value)[:40] if not isinstance(value, str) else repr(value[:40])


def bad_value(key: str, value: Any, want: str, where: str = "") -> ModelError:
    """The error for a config key that holds what it can't."""
    prefix = f"{where}: " if where else ""
    return ModelError(f"{prefix}config key {key!r} is {shown(value)}", hint=f"want {want}")


def check_sizes(config: Mapping[str, Any], where: str) -> None:
    """Raise ModelError for the first field whose name says a size and that holds no whole number.

    Sizes may be lists, one for each layer, or missing.
    """
    for key, value in config.items():
        if isinstance(value, str | float) and (_SIZE.search(key) or _LAYERS.search(key)):
            check_count(key, value, where)


def check_count(key: str, value: Any, where: str) -> None:
    """Raise ModelError when a whole-number field holds anything but a sane whole number."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise bad_value(key, value, "a whole number", where)
    low = -100 if _SIZE.search(key) or _LAYERS.search(key) else -_MAX_SIZE
    high = MAX_LAYERS if _LAYERS.search(key) and not key.startswith("max_") else _MAX_SIZE
    if not low <= value <= high:
        raise bad_value(key, value, f"a whole number of {low:,} to {high:,}", where)


def check_rotary(config: Mapping[str, Any], where: str) -> None:
    """Raise ModelError when the rotary section is no object or holds what is no number."""
    _check_numbers(config, ("partial_rotary_factor", "original_max_position_embeddings"), where)
    for key in ROTARY:
        given = config.get(key)
        if given is None:
            continue
        if not isinstance(given, Mapping):
            raise bad_value(key, given, "an object", where)
        for part in (given, *given.values()):
            if isinstance(part, Mapping):
                _check_rotary_part(part, where)


def _check_rotary_part(part: Mapping[str, Any], where: str) -> None:
    for key in ("rope_type", "type"):
        if not isinstance(part.get(key, ""), str):
            raise bad_value(key, part[key], "the name of a scaling", where)
    _check_numbers(part, _ROTARY_NUMBERS, where)


def _check_numbers(part: Mapping[str, Any], keys: tuple[str, ...], where: str) -> None:
    for key in keys:
        value = part.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
            raise bad_value(key, value, "a number", where)


def need(config: Mapping[str, Any], key: str, *, where: str, low: int = 1) -> int:
    """The whole number under `key`; ModelError when it is missing, no number or below `low`."""
    value = config.get(key)
    if value is None:
        raise ModelError(
            f"{where}: the config lacks {key!r}", hint="add it, or give the complete config.json"
        )
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= _MAX_SIZE:
        raise bad_value(key, value, f"a whole number of {low} or more", where)
    return value


def need_list(config: Mapping[str, Any], key: str, length: int, *, where: str) -> list[Any]:
    """The list of `length` entries under `key`; ModelError when it is not that."""
    value = config.get(key)
    if not isinstance(value, list) or len(value) != length:
        size = f"a list of {len(value)}" if isinstance(value, list) else shown(value)
        raise ModelError(
            f"{where}: config key {key!r} is {size}, but the model has {length} layers",
            hint="give the complete config.json",
        )
    return value
