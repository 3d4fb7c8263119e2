"""Bytes, tokens, rates and seconds: read what people write, show what people read.

Sizes are whole bytes everywhere else; only this module knows units. `GB` is 1e9 bytes,
`GiB` is 2**30. Token counts written with `k` count in 1,024s (`32k` is 32,768), as context
lengths are named.
"""

from __future__ import annotations

import re
from math import inf

from kvproof.errors import UsageError

GB = 10**9
KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40

_BYTE_UNITS = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_TOKEN_UNITS = {"": 1, "k": 2**10, "m": 2**20}
_RATE_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "p": 10**15}
_LARGEST = 2**60
_NUMBER = re.compile(r"\s*([0-9][0-9_,]*(?:\.[0-9]+)?(?:[eE][+]?[0-9]{1,2})?)\s*([A-Za-z/]*)\s*$")


def _split(text: str, what: str) -> tuple[int | float, str]:
    """The number (an int where it is written as one) and the unit of `text`."""
    match = _NUMBER.match(text) if len(text) <= 64 else None
    if not match:
        raise UsageError(f"can't read {what} {text[:40]!r}", hint="write a number with a unit")
    digits = match[1].replace("_", "").replace(",", "")
    number = int(digits) if digits.isdigit() else float(digits)
    if number > _LARGEST:
        raise UsageError(f"{what} of {text[:40]!r} is beyond reason", hint="write a smaller one")
    return number, match[2]


def _whole(value: float, what: str) -> int:
    """A number that is given as one, 0 or more."""
    try:
        whole = int(value)
    except (TypeError, ValueError, OverflowError):
        whole = -1
    if whole < 0:
        raise UsageError(f"can't read {what} {str(value)[:40]!r}", hint="give a number, 0 or more")
    return whole


def parse_bytes(text: str | int | float) -> int:
    """Whole bytes of `80GiB`, `80 GB`, `512MiB`, `1e9` or a plain number.

    A bare `g`/`m`/`k` is binary, as in Kubernetes' `Gi` and most engines' flags.
    """
    if not isinstance(text, str):
        return _whole(text, "a size")
    number, unit = _split(text, "a size")
    key = unit.lower()
    key = key + "b" if key in ("ki", "mi", "gi", "ti") else key
    if key not in _BYTE_UNITS:
        raise UsageError(f"unknown size unit {unit!r} in {text!r}", hint="use B, MB, GB, MiB, GiB")
    return round(number * _BYTE_UNITS[key])


def parse_tokens(text: str | int) -> int:
    """Whole tokens of `32k` (32,768), `1M` (1,048,576) or a plain number."""
    if not isinstance(text, str):
        return text if isinstance(text, int) else _whole(text, "a token count")
    number, unit = _split(text, "a token count")
    if unit.lower() not in _TOKEN_UNITS:
        raise UsageError(f"unknown token unit {unit!r} in {text!r}", hint="use 32k, 1M or a number")
    return round(number * _TOKEN_UNITS[unit.lower()])


def parse_token_list(text: str) -> tuple[int, ...]:
    """Tokens of a comma list whose parts are counts or doubling ranges: `4k,8k` or `4k..32k`."""
    out: list[int] = []
    for part in text.split(","):
        low, dots, high = part.partition("..")
        if not low.strip() or (dots and not high.strip()):
            raise UsageError(
                f"a length is missing in {text[:40]!r}", hint="write 4k,8k or 4k..128k"
            )
        if not dots:
            out.append(_positive(parse_tokens(part), part))
            continue
        start, stop = parse_tokens(low), parse_tokens(high)
        if not 0 < start <= stop:
            raise UsageError(f"the range {part!r} does not rise", hint="write it as 4k..128k")
        while start <= stop:
            out.append(start)
            start *= 2
    return tuple(out)


def _positive(tokens: int, text: str) -> int:
    if tokens < 1:
        raise UsageError(f"{text!r} is no length", hint="give at least one token")
    return tokens


def parse_rate(text: str | float) -> float:
    """Units a second of `3.35TB/s`, `989TFLOP/s`, `989TFLOPS` or a number (decimal prefixes)."""
    if not isinstance(text, str):
        return _moving(float(text) if isinstance(text, int | float) else 0.0)
    number, unit = _split(text, "a rate")
    key = unit.lower().removesuffix("/s")
    for tail in ("flops", "flop", "b"):
        if key.endswith(tail):
            key = key[: -len(tail)]
            break
    if key not in _RATE_UNITS:
        raise UsageError(f"unknown rate unit {unit!r} in {text!r}", hint="use TB/s or TFLOP/s")
    return _moving(number * _RATE_UNITS[key])


def _moving(rate: float) -> float:
    if not 0 < rate < inf:
        raise UsageError(f"a rate is {rate:g}", hint="give one above 0, e.g. 3.35TB/s")
    return rate


def show_bytes(value: float, *, digits: int = 2) -> str:
    """`value` bytes in the largest binary unit that keeps it above one: `16.00 GiB`."""
    for unit, name in ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(value) >= unit:
            return f"{value / unit:.{digits}f} {name}"
    return f"{value:.0f} B"


def show_gb(value: float, *, digits: int = 2) -> str:
    """`value` bytes in units of 1e9: `17.18 GB`."""
    return f"{value / GB:.{digits}f} GB"


def show_count(value: float) -> str:
    """A parameter or token count in the short form people use: `8.03B`, `671B`, `135M`."""
    for unit, name in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if abs(value) >= unit:
            scaled = value / unit
            return f"{scaled:.2f}{name}" if scaled < 100 else f"{scaled:.0f}{name}"
    return f"{value:.0f}"


def show_context(tokens: int) -> str:
    """`32k` for 32,768 and the full number for counts that are no multiple of 1,024."""
    if tokens >= 2**20 and tokens % 2**20 == 0:
        return f"{tokens // 2**20}M"
    if tokens >= 1024 and tokens % 1024 == 0:
        return f"{tokens // 1024}k"
    return f"{tokens:,}"


def show_seconds(value: float) -> str:
    """A duration in the unit that people use for it: `9.9 ms`, `1.25 s`."""
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value >= unit:
            return f"{value / unit:.3g} {name}"
    return f"{value / 1e-9:.3g} ns"
