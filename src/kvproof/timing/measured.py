"""Measured shares of the peak by GPU: data/efficiency.json, with its source."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec

from kvproof.timing.step import Efficiency

_BETWEEN = 12.0
"""Bits halfway from eight to sixteen."""


class _Row(msgspec.Struct, frozen=True):
    gpu: str
    attention: float
    attention_fp8: float
    weights: float
    weights_fp8: float
    compute: float
    compute_fp8: float


class _Table(msgspec.Struct, frozen=True):
    source: str
    rows: list[_Row]
    other: _Row


@cache
def _table() -> _Table:
    raw = (Path(__file__).parent / "data/efficiency.json").read_bytes()
    return msgspec.json.decode(raw, type=_Table)


def efficiency(gpu: str, *, kv_bits: float, weight_bits: float) -> Efficiency:
    """The shares measured on `gpu`'s family; the median of the others where it was not measured.

    Eight-bit caches and weights reach less of the peak than sixteen-bit ones. A model of eight
    bits keeps its embedding and its head in sixteen, so its weights are somewhat wider on average.
    """
    table = _table()
    row = next((r for r in table.rows if r.gpu in gpu.upper()), table.other)
    measured = (
        "measured on such GPUs"
        if row is not table.other
        else "not measured on this GPU: medians of others"
    )
    narrow_kv, narrow_weights = kv_bits <= 8, weight_bits < _BETWEEN
    return Efficiency(
        attention=row.attention_fp8 if narrow_kv else row.attention,
        weights=row.weights_fp8 if narrow_weights else row.weights,
        compute=row.compute_fp8 if narrow_weights else row.compute,
        source=f"{measured}; {table.source}",
    )
