"""Parts of the profiling run, and the constants that start-up logs were fitted by.

scripts/fit_vllm_budget.py writes data/budget.json and sets other constants in `using`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from kvproof.units import GIB

_DATA = Path(__file__).with_name("data") / "budget.json"
_others: list[dict[str, Any]] = []


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One part of the profiling run: its bytes and how they come about."""

    name: str
    value: int
    formula: str
    doubt: float
    """The part's uncertainty in bytes, one unit of the fitted interval."""


@cache
def _fitted() -> dict[str, Any]:
    raw: dict[str, Any] = msgspec.json.decode(_DATA.read_bytes())
    return raw


def constants() -> dict[str, Any]:
    """The fitted constants with their provenance, or those set by `using`."""
    return _others[-1] if _others else _fitted()


@contextmanager
def using(table: dict[str, Any]) -> Iterator[None]:
    """Budgets under other constants, which a fit tries."""
    _others.append(table)
    try:
        yield
    finally:
        _others.pop()


def part(name: str, gib: float, formula: str, doubt: float) -> Part:
    """A part of so many GiB."""
    return Part(name=name, value=round(gib * GIB), formula=formula, doubt=doubt * GIB)
