"""What the kernels ask for ahead: all of it, and each part once."""

# numba reads the functions with arrays, not mypy.
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba")

from numba import njit

from kvproof.lab.attention.asking import ASKED, asking
from kvproof.lab.attention.shapes import STEP, STREAMS
from kvproof.lab.attention.stored import F32
from kvproof.lab.attention.vectors import address
from kvproof.lab.pool.planes import TILE

pytestmark = pytest.mark.lab


def asked_for(streams: int, at: np.ndarray, count: int, rows: int) -> list[int]:
    """Where a chunk of `count` tiles of `rows` elements a position is asked for."""
    places, ask_next = asking(streams, F32)
    memory = np.zeros(ASKED, np.float32)

    @njit
    def walk(at, count, rows, memory, found):
        n, here = 0, address(memory, 0)
        for i in range(count):
            spots = places(at, 0, count, i, (TILE, rows), 0)
            for step in range(rows // STEP):
                done = 0 if len(spots) > 1 else step * ASKED
                found[n] = spots[0] + done
                n += 1
                spots = ask_next(here, spots, done)
        return n

    found = np.zeros(count * rows, np.int64)
    return sorted(found[: walk(at, count, rows, memory, found)].tolist())


@pytest.mark.parametrize("streams", [1, STREAMS])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
def test_all_of_a_chunk_is_asked_for_once(streams: int, count: int) -> None:
    rows = 64
    tiles = np.array([5, 2, 9, 3, 0, 7, 1])[:count]
    at = np.append(tiles, tiles[-1]) * TILE
    every = [t * TILE * rows + k * ASKED for t in sorted(tiles) for k in range(rows // STEP)]
    assert asked_for(streams, at, count, rows) == every
