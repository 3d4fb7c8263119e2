"""A kernel's job: one array of addresses and sizes, made once a step and slot.

Each argument of a compiled function is taken apart by code that a call of two milliseconds has
driven out of the caches; eleven arrays and two named tuples took as long as a small layer.
"""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# ruff: noqa: ANN001, ANN201

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any, NamedTuple

import numpy as np

from kvproof.lab.attention.shapes import Shape, kernel

Array = np.ndarray[Any, Any]
TABLES, ITEMS, COUNT, WIDEST, SIZES = range(5)  # addresses of tables and items, how many, how wide
ITEM = 6  # numbers of an item: sequence, head, first and end block, first and end position


class Job(NamedTuple):
    """The numbers a kernel reads, and the arrays that their addresses need alive.

    `numbers`: TABLES, ITEMS, COUNT, WIDEST, then `sizes` and the addresses of the stored arrays.
    """

    numbers: Array
    arrays: tuple[Array, ...]


def job(tables: Array, items: Array, sizes: Seq[int], stored: Seq[Array]) -> Job:
    """The job of `items` over stored arrays whose blocks `tables` lists."""
    numbers = [tables.ctypes.data, items.ctypes.data, len(items), tables.shape[1], *sizes]
    numbers += [array.ctypes.data for array in stored]
    return Job(np.array(numbers, np.int64), (tables, items, *stored))


@kernel
def shape_of(job):
    """The Shape that a job holds."""
    n = SIZES
    return Shape(
        job[n], job[n + 1], job[n + 2], job[n + 3], job[n + 4], job[n + 5], job[n + 6], job[n + 7],
        job[n + 8], job[n + 9], job[n + 10], job[n + 11],
    )  # fmt: skip
