"""What the kernels ask for ahead: all of it, and each part once."""

# numba reads the functions with arrays, not mypy.
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba")

from numba import njit

from kvproof.lab.attention.asking import asking
from kvproof.lab.attention.shapes import STREAMS, step_of
from kvproof.lab.attention.stored import ARRAYS, BF16, F32, INT8, STORED_BYTES
from kvproof.lab.attention.vectors import LINE, address
from kvproof.lab.pool.planes import TILE

pytestmark = pytest.mark.lab


def asked_for(
    streams: int, kind: int, reader: int, at: np.ndarray, count: int, rows: int
) -> list[int]:
    """The lines that are asked for of a chunk of `count` tiles of `rows` elements a position.

    They hold `kind`, and as much of `reader` is read meanwhile.
    """
    step = step_of(reader)
    places, ask_next, _ = asking(streams, kind, step)
    memory, line = np.zeros(LINE, ARRAYS[kind]), LINE // STORED_BYTES[kind]
    lines, elements = step * TILE // line, step * TILE

    @njit
    def walk(at, count, rows, memory, found):
        n, here = 0, address(memory, 0)
        for i in range(count):
            spots = places(at, 0, count, i, (TILE, rows), 0)
            for nth in range(rows // step):
                done = 0 if len(spots) > 1 else nth * elements
                for k in range(lines):
                    found[n] = spots[k % len(spots)] + done + k // len(spots) * line
                    n += 1
                spots = ask_next(here, spots, done)
        return n

    found = np.zeros(count * rows * lines, np.int64)
    return sorted(found[: walk(at, count, rows, memory, found)].tolist())


@pytest.mark.parametrize("streams", [1, STREAMS])
@pytest.mark.parametrize("count", [1, 3, 4, 7])
@pytest.mark.parametrize("reader", [F32, INT8])
@pytest.mark.parametrize("kind", [F32, BF16, INT8])
def test_every_line_of_a_chunk_is_asked_for_once(
    streams: int, kind: int, reader: int, count: int
) -> None:
    rows, line = 64, LINE // STORED_BYTES[kind]
    tiles = np.array([5, 2, 9, 3, 0, 7, 1])[:count]
    at = np.append(tiles, tiles[-1]) * TILE
    every = [t * TILE * rows + k for t in sorted(tiles) for k in range(0, TILE * rows, line)]
    assert asked_for(streams, kind, reader, at, count, rows) == every
