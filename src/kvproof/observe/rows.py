"""Rows: how one line format is written down, and how it becomes a regular expression.

A row is data: a literal that lines of this format hold (lower case; tested first, so a line
costs a substring search per row), a pattern, the versions that print it and the module that
does. In a pattern `{name:kind}` stands for a printed value:

    size     a number with its unit (GiB, GB, MiB, ...), all binary as these engines count
    gib mib  a number in that unit whose name is not printed
    mb       a number of millions of bytes, as Metal counts
    bytes    a whole number of bytes without a unit
    int      a whole number, thousands separated or not
    num      a number
    word     characters up to a space, comma, quote or bracket
    ver      a version number
    text     up to 200 characters, as few as the rest allows

Names: `flag.NAME` is a flag; `version`, `model`, `gpu`, `worker`, `device`, `dtype` describe the
log or its line; all others are figures. Patterns are searched without regard to case, and every
repetition in them is bounded, so that no line takes more than linear time.
"""

from __future__ import annotations

import re
from functools import cache

import msgspec

_WHOLE = r"(?:\d{1,3}(?:,\d{3}){1,5}|\d{1,15})"
_PLAIN = r"(?!\d[\d.,]{0,40}e[+-]?\d)"
"""Not before a number with an exponent: its digits alone would be another number."""
_NUMBER = rf"-?(?<![\d.,]){_PLAIN}{_WHOLE}(?:\.\d{{1,12}})?"
_UNIT = r"(?:[KMGT]iB|[KMGT]B|[KMGT]|bytes|B)"
_KINDS = {
    "size": rf"({_NUMBER} ?{_UNIT})\b",
    "gib": rf"({_NUMBER})",
    "mib": rf"({_NUMBER})",
    "mb": rf"({_NUMBER})",
    "int": rf"{_PLAIN}({_WHOLE})(?!\d)(?!\.\d)",
    "bytes": rf"{_PLAIN}({_WHOLE})(?!\d)(?!\.\d)",
    "num": rf"({_NUMBER})",
    "word": r"([^\s,'\"()\[\]{}]{1,200})",
    "text": r"(.{1,200}?)",
    "ver": r"v?(\d{1,9}(?:\.\w{1,40}){1,6}(?:[+-][\w.]{1,40})?)",
}
_PLACEHOLDER = re.compile(r"\{([a-z_.]+):([a-z]+)\}")
_SIZE = re.compile(rf"({_NUMBER}) ?({_UNIT})$", re.IGNORECASE)
_FACTORS = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


class Row(msgspec.Struct, frozen=True):
    """One line format: literal, pattern, versions that print it, module that prints it."""

    literal: str
    pattern: str
    versions: str
    source: str


class Compiled(msgspec.Struct, frozen=True):
    """A row ready to be searched for: `slots` are (name, kind) of the groups in order."""

    engine: str
    row: Row
    literal: bytes
    regex: re.Pattern[str]
    slots: tuple[tuple[str, str], ...]


@cache
def compiled(engine: str, row: Row) -> Compiled:
    """The row's pattern with its placeholders filled in."""
    slots = tuple((m[1], m[2]) for m in _PLACEHOLDER.finditer(row.pattern))
    regex = _PLACEHOLDER.sub(lambda m: _KINDS[m[2]], row.pattern)
    return Compiled(engine, row, row.literal.encode(), re.compile(regex, re.IGNORECASE), slots)


def number(text: str) -> int | float:
    """The number printed as `text`, separators left out."""
    plain = text.replace(",", "")
    return float(plain) if "." in plain else int(plain)


def decimals(text: str) -> int:
    """Digits printed after the point."""
    return len(text.partition(".")[2])


def size(text: str, kind: str, digits: int) -> tuple[int, float]:
    """Bytes and step of a printed size; `digits` the decimals that the engine rounds to."""
    figures, factor = text, {"gib": 2**30, "mib": 2**20, "mb": 10**6}.get(kind, 1)
    if kind == "size":
        match = _SIZE.match(text)
        figures = match[1] if match else "0"
        unit = match[2].lower() if match else ""
        factor = 1 if unit == "bytes" else _FACTORS[unit.rstrip("b").rstrip("i") or "b"]
    if factor == 1:
        return round(number(figures)), 1
    places = max(decimals(figures), digits) if factor >= 2**30 else decimals(figures)
    return round(number(figures) * factor), factor / 10**places
