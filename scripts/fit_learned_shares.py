"""Measure which part of each term's doubt belongs to GPU and host, for `kvproof check --learn`.

    python scripts/fit_learned_shares.py [--write]

Products of what two starts on one GPU take beyond their estimates, in units of their intervals,
are explained by the doubts that they have in common: non-negative least squares, every pair of
models and eras weighing the same, starts beyond their interval cut to it. Constants of vLLM's
budget are fitted without the GPU. How firmly the shares are drawn to none is chosen by leaving one
of the GPUs out after the other, so a GPU that is scored has no part in it. --write replaces
src/kvproof/observe/data/shares.json.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from kvproof.observe.shared import MECHANISMS, Seen, Shares, common, mechanism, same_deployment

_DATA = Path(__file__).parents[1] / "src/kvproof/observe/data/shares.json"
RIDGES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""How firmly shares may be drawn to none: as much as so many pairs of the same term."""
_ROUNDS, _SETTLED = 500, 1e-9
_Row = tuple[list[float], float]


def shares_of(gpus: Iterable[list[Seen]], provenance: str = "") -> Shares:
    """The shares that the starts of some GPUs give."""
    rows = [own for starts in gpus if (own := _rows(starts))]
    found = _fitted([row for own in rows for row in own], _ridge(rows))
    values = dict(zip(MECHANISMS, (round(value, 3) for value in found), strict=True))
    return Shares(**values, provenance=provenance)


def ridge_of(gpus: Iterable[list[Seen]]) -> float:
    """The ridge that `shares_of` takes for these GPUs."""
    return _ridge([own for starts in gpus if (own := _rows(starts))])


def _ridge(rows: list[list[_Row]]) -> float:
    """The ridge under which each GPU's products are met best by what the others give.

    Every GPU weighs the same. The largest of all where there is nothing to choose by.
    """
    if len(rows) < 2:
        return RIDGES[-1]
    missed = dict.fromkeys(RIDGES, 0.0)
    for own in rows:
        rest = [row for other in rows if other is not own for row in other]
        for ridge in RIDGES:
            found = _fitted(rest, ridge)
            missed[ridge] += statistics.mean((y - _given(x, found)) ** 2 for x, y in own)
    return min(RIDGES, key=lambda ridge: (missed[ridge], -ridge))


def _given(doubts: list[float], found: list[float]) -> float:
    return sum(doubt * share for doubt, share in zip(doubts, found, strict=True))


def _fitted(rows: list[_Row], ridge: float) -> list[float]:
    """Non-negative least squares, by one share after the other."""
    size = len(MECHANISMS)
    left = [[sum(x[i] * x[j] for x, _ in rows) for j in range(size)] for i in range(size)]
    right = [sum(x[i] * y for x, y in rows) for i in range(size)]
    found = [0.0] * size
    for _ in range(_ROUNDS):
        before = list(found)
        for i in range(size):
            others = sum(left[i][j] * found[j] for j in range(size) if j != i)
            found[i] = min(1.0, max(0.0, (right[i] - others) / (left[i][i] + ridge)))
        if all(abs(a - b) < _SETTLED for a, b in zip(before, found, strict=True)):
            break
    return found


def _rows(starts: list[Seen]) -> list[_Row]:
    """Common doubts and products of the pairs of one GPU: means for each pair of models."""
    pairs: dict[tuple[object, ...], list[_Row]] = defaultdict(list)
    for i, a in enumerate(starts):
        for b in starts[:i]:
            if not same_deployment(a, b) and a.half and b.half:
                key = (*sorted((a.model, b.model)), a.era == b.era)
                pairs[key].append(_pair(a, b))
    return [
        ([statistics.mean(column) for column in zip(*(x for x, _ in rows), strict=True)],
         statistics.mean(y for _, y in rows))
        for rows in pairs.values()
    ]  # fmt: skip


def _pair(a: Seen, b: Seen) -> _Row:
    doubts = dict.fromkeys(MECHANISMS, 0.0)
    for name in a.total.terms:
        key = mechanism(name)
        if key is not None and name in b.total.terms and common(a, b, name):
            doubts[key] += a.doubts[name] * b.doubts[name] / (a.half * b.half)
    product = _cut(a.total.more / a.half) * _cut(b.total.more / b.half)
    return [doubts[name] for name in MECHANISMS], product


def _cut(value: float) -> float:
    return max(-1.0, min(1.0, value))


def main(arguments: list[str]) -> None:
    from accuracy_learned import seen_by_gpu

    by_gpu = seen_by_gpu()
    count = sum(map(len, by_gpu.values()))
    found = shares_of(
        by_gpu.values(),
        f"scripts/fit_learned_shares.py on {count} deployments on {len(by_gpu)} GPUs, drawn to "
        f"none by {ridge_of(by_gpu.values()):g} pairs",
    )
    text = json.dumps(
        {name: getattr(found, name) for name in (*MECHANISMS, "provenance")}, indent=1
    )
    print(text)
    if "--write" in arguments:
        _DATA.write_text(text + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
