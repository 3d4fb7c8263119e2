"""Merging what items of one head found, as in flash-decoding (Dao et al., 2023)."""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# ruff: noqa: ANN001, ANN201, ANN202

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kvproof.lab.attention.emit import WIDTH
from kvproof.lab.attention.job import ITEM
from kvproof.lab.attention.scores import exp_of
from kvproof.lab.attention.shapes import kernel
from kvproof.lab.attention.vectors import splat, vfma, vload, vmul, vstore

NOTHING = np.float32(-np.inf)  # the maximum of an item that added to another's sums


class Found(NamedTuple):
    """Pointers to what items have found: weighted values, maxima and sums of weights."""

    parts: Any
    tops: Any
    sums: Any


@kernel
def same_head(items, i, j):
    """Whether item i is of the sequence and KV head of item j, which is -1 for none."""
    one, two = ITEM * i, ITEM * j
    return j >= 0 and items[one] == items[two] and items[one + 1] == items[two + 1]


@kernel
def _scaled(parts, place, queries, v_dim, width, factor):
    """A query's numbers in a part, times `factor`, in place."""
    by = splat(factor)
    for start in range(0, v_dim, width):
        for d in range(place + start * queries, place + start * queries + width, WIDTH):
            vstore(parts, d, vmul(vload(parts, d), by))


@kernel
def _added(parts, place, other, queries, v_dim, width, factor):
    """Add another part's numbers of the query, times `factor`."""
    by, away = splat(factor), other - place
    for start in range(0, v_dim, width):
        for d in range(place + start * queries, place + start * queries + width, WIDTH):
            vstore(parts, d, vfma(vload(parts, d + away), by, vload(parts, d)))


@kernel
def _put(parts, place, queries, v_dim, width, pairs, out, at):
    """out[at + d] = the query's numbers in their own order."""
    for start in range(0, v_dim, width):
        source = place + start * queries
        if pairs:
            half = width // 2
            for d in range(half):
                out[at + start + 2 * d] = parts[source + d]
                out[at + start + 2 * d + 1] = parts[source + half + d]
        else:
            for d in range(0, width, WIDTH):
                vstore(out, at + start + d, vload(parts, source + d))


@kernel
def merge(items, count, heads, found, sizes, pairs, out):
    """Merge the `count` items of each sequence and KV head into out [sequence, head, kept, v_dim].

    Items of a head lie side by side. `sizes` are queries, kept, v_dim, width: parts are [item,
    v_dim / width, query, width], changed in place; the first `kept` queries are real. The first
    item of a head has sums, a later one may have added to another's. `pairs`:
    int4's, of each `width` numbers the even ones before the odd ones.
    """
    (queries, kept, v_dim, width), (parts, tops, sums) = sizes, found
    size = queries * v_dim
    i = 0
    while i < count:
        j = i + 1
        while j < count and same_head(items, i, j):
            j += 1
        row = (items[ITEM * i] * heads + items[ITEM * i + 1]) * kept
        for r in range(kept):
            top, total = tops[i * queries + r], np.float32(0)
            for k in range(i + 1, j):
                top = max(top, tops[k * queries + r])
            for k in range(i, j):
                if tops[k * queries + r] != NOTHING:
                    total += sums[k * queries + r] * exp_of(tops[k * queries + r] - top)
            place = i * size + r * width
            factor = exp_of(tops[i * queries + r] - top) / total
            _scaled(parts, place, queries, v_dim, width, factor)
            for k in range(i + 1, j):
                if tops[k * queries + r] != NOTHING:
                    factor = exp_of(tops[k * queries + r] - top) / total
                    _added(parts, place, k * size + r * width, queries, v_dim, width, factor)
            _put(parts, place, queries, v_dim, width, pairs, out, (row + r) * v_dim)
        i = j
