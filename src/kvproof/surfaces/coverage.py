"""kvproof models --coverage: each architecture, its kinds of slot, and how it was verified."""

from __future__ import annotations

from pathlib import Path

import msgspec

from kvproof import model as model_room


class _Row(msgspec.Struct, frozen=True):
    kinds: tuple[str, ...]
    records: int
    caches_equal: int
    parameters_equal: int
    recipe: bool


class _Coverage(msgspec.Struct, frozen=True):
    transformers: str
    types: dict[str, _Row]


def coverage_rows(words: tuple[str, ...] = ()) -> list[list[str]]:
    """Architecture, kinds, and verification, narrowed down by `words`."""
    raw = (Path(model_room.__path__[0]) / "data/coverage.json").read_bytes()
    data = msgspec.json.decode(raw, type=_Coverage)
    rows = [
        [name, " + ".join(row.kinds) or "-", _verified(row, data.transformers)]
        for name, row in data.types.items()
    ]
    return [row for row in rows if all(w.lower() in " ".join(row).lower() for w in words)]


def _verified(row: _Row, version: str) -> str:
    if not row.records:
        return "rules of its class, not run alone" + ("" if row.recipe else "; weights unknown")
    cache = f"{row.caches_equal} of {row.records} measured caches equal"
    parameters = f"{row.parameters_equal} of {row.records} parameter counts"
    return f"{cache}, {parameters} (transformers {version})"
