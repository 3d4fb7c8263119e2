"""Decode attention over latents (MLA, absorbed): every query head reads the same one vector.

With 32 or more heads on one stored vector there are more multiply-adds than bytes, so these kernels
turn the roles around: 8 query heads a vector, a chunk of latents widened once into a small buffer,
and both products run from it. Keys are the whole latent with its rotary part, values its first
numbers; nothing is expanded. Absorption: DeepSeek-V2, 2024.
"""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# ruff: noqa: ANN001, ANN201, ANN202

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from kvproof.lab.attention import latent_floats, latent_whole
from kvproof.lab.attention.crew import begin, end, take
from kvproof.lab.attention.disk import kept
from kvproof.lab.attention.job import COUNT, ITEM, ITEMS, SIZES, TABLES, WIDEST
from kvproof.lab.attention.latent_parts import VALUES, LatentShape
from kvproof.lab.attention.merge import NOTHING, Found, merge, same_head
from kvproof.lab.attention.shapes import entry, kernel
from kvproof.lab.attention.stored import ARRAYS, INTEGERS, SCALES
from kvproof.lab.attention.vectors import address, pointer_to

STORED = SIZES + len(LatentShape._fields)  # where a job holds the addresses of latents and scales


@kernel
def latent_shape(job):
    """The LatentShape that a job holds."""
    n = SIZES
    return LatentShape(job[n], job[n + 1], job[n + 2], job[n + 3], job[n + 4], job[n + 5])


@lru_cache(maxsize=8)
def latent_kernels(kind: int) -> Any:
    """run(job, q, out, scale, marks, me, number): a thread's part of a step's items (`job.py`).

    `q` [sequences, heads, width] and `out` [sequences, heads, v_dim] are addresses of f32.
    """
    way = latent_whole if kind in INTEGERS else latent_floats
    own, carve, turn, item = way.own, way.carve, way.turn, way.item_kernel(kind)
    d_type, s_type = ARRAYS[kind], SCALES.get(kind, np.float32)

    @entry
    def run(job, q, out, scale, marks, me, number):
        ticket, shape, n = begin(marks, me), latent_shape(job), job[COUNT]
        owned = own(shape)
        room = carve(owned, shape)
        data, scales = pointer_to(job[STORED], d_type), pointer_to(job[STORED + 1], s_type)
        tables, items = pointer_to(job[TABLES], np.int32), pointer_to(job[ITEMS], np.int64)
        heads, size = shape.heads, shape.heads * shape.v_dim
        parts, given = pointer_to(marks[2], np.float32), pointer_to(q, np.float32)
        tops = address(parts, n * size)
        found = Found(parts, tops, address(tops, n * heads))
        i, part = take(marks, number), -1
        while i < n:
            of = address(items, ITEM * i)
            s = of[0]
            for j in range(i * heads, (i + 1) * heads):
                found.tops[j] = NOTHING
            if not same_head(items, i, part):
                part = i
                turn(address(given, s * shape.kept * shape.width), np.float32(scale), shape, room)
                for j in range(i * size, (i + 1) * size):
                    parts[j] = np.float32(0)
                for j in range(i * heads, (i + 1) * heads):
                    found.tops[j], found.sums[j] = np.float32(-1e30), np.float32(0)
            item(
                room, data, scales, address(tables, s * job[WIDEST]), of[4], of[5], shape,
                address(parts, part * size), address(found.tops, part * heads),
                address(found.sums, part * heads),
            )  # fmt: skip
            i = take(marks, number)
        end(marks, me, number, ticket)
        if me == 0:
            sizes = heads, shape.kept, shape.v_dim, VALUES
            merge(items, n, 1, found, sizes, False, pointer_to(out, np.float32))
        # Their last use: what the pointers point to lives until here.
        return len(owned[0]) + len(owned[1]) + len(owned[2])

    return kept(run, kind)
