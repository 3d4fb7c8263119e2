"""Class defaults of transformers' config classes, read from the generated data files.

The rows come from scripts/class_defaults.py; a class is named by its model_type, or by its class
name where it has none of its own.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import msgspec


class SubRow(msgspec.Struct, frozen=True):
    """A nested config: its class, values set before the given ones, and how it is chosen."""

    class_: str | None = msgspec.field(name="class", default=None)
    init: dict[str, Any] = {}
    auto: bool = False
    optional: bool = False


class Row(msgspec.Struct, frozen=True):
    """What a config class says by itself: defaults, other names, nested configs, whole numbers."""

    defaults: dict[str, Any] = {}
    parent: str | None = None
    alias: dict[str, str] = {}
    subs: dict[str, SubRow] = {}
    ints: tuple[str, ...] = ()


class Base(msgspec.Struct, frozen=True):
    """Defaults of every class, and the generating model types with the class that generates."""

    transformers: str
    base: dict[str, Any]
    families: dict[str, dict[str, str]]


_FOLDER = Path(__file__).parent / "data" / "architectures" / "classes"


def _read(name: str) -> bytes:
    return (_FOLDER / f"{name}.json").read_bytes()


@cache
def base() -> Base:
    """Facts about all classes."""
    return msgspec.json.decode(_read("base"), type=Base)


@cache
def _shard(letter: str) -> dict[str, msgspec.Raw]:
    return msgspec.json.decode(_read(letter), type=dict[str, msgspec.Raw])


@cache
def class_row(name: str) -> Row | None:
    """The row of the class called `name`, None when transformers has no such class."""
    first = name[:1].lower()
    raw = _shard(first if "a" <= first <= "z" else "x").get(name)
    return None if raw is None else msgspec.json.decode(raw, type=Row)


def known_types() -> list[str]:
    """Every model type that generates text, for error messages."""
    return sorted({kind for table in base().families.values() for kind in table})
