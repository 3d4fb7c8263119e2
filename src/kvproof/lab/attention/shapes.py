"""What a decode kernel is compiled for, and the sizes it gets at run time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from numba import njit

from kvproof.lab.attention.emit import WIDTH
from kvproof.lab.attention.stored import BF16, F32, INT4, INT8, INTEGERS, STORED_BYTES
from kvproof.lab.pool.planes import SLICE, TILE, tile_of

STREAMS = 4  # places of memory that are asked for by turns, where there are several
# Bytes of keys, by places, that are read before their values are: those are asked for meanwhile.
# Both fit the first cache (32 KiB) where one place is asked for; four need longer runs: what
# it does not hold waits in the second.
PHASES = {1: 16384, STREAMS: 65536}
# Queries of a KV head up to which places take turns, by what is stored: where reading takes longer
# than the arithmetic.
SPREAD = {F32: 4, BF16: 4, INT8: 1}
CHUNKS = (32, 256)  # positions whose scores are held at a time: at least, at most
RUN = 64  # positions whose weights are rounded by the largest of them, for integers (`whole.py`)
STEP = 4  # stored rows (of keys), or positions (of values), that are taken at a time
LONG_STEP = 8  # of int8: of half as much the loop would be half of the instructions
LARGEST_WHOLE = 512  # positions, or numbers of a group: 512 * 127 * 32767 < 2**31


def _said(held: Any) -> str:
    function = getattr(held, "py_func", None)
    return repr(held) if function is None else f"{function.__module__}.{function.__qualname__}"


def _compiler(**options: bool) -> Callable[[Callable[..., Any]], Any]:
    """A decorator: numba's, of functions whose names tell what they close over.

    numba names machine code by the function's name, its arguments and how many functions the
    process had before. Kernels of two plans that two processes compiled can so bear one name, and
    where both are loaded (`disk.py`) the linker takes the first for both.
    """
    compiled = njit(nogil=True, error_model="numpy", **options)

    def named(function: Callable[..., Any]) -> Any:
        held = [cell.cell_contents for cell in function.__closure__ or ()]
        if held:
            told = ", ".join(map(_said, held)).encode()
            function.__qualname__ += f"_{hashlib.sha256(told).hexdigest()[:16]}"
        return compiled(function)

    return named


# Inner functions get no wrapper for Python: that would be half of what is compiled.
kernel = _compiler(no_cpython_wrapper=True, no_cfunc_wrapper=True)
inner = _compiler(forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)
entry = _compiler(no_cfunc_wrapper=True)


class Shape(NamedTuple):
    """Sizes the kernel gets at run time; `heads` are KV heads, `queries` query heads of each.

    `k_rows` and `v_rows` are stored elements of a position, `tile` positions that are stored
    together, `chunk` positions whose scores are held at a time, whole tiles.
    """

    blocks: int
    heads: int
    queries: int
    k_dim: int
    v_dim: int
    k_rows: int
    v_rows: int
    k_groups: int
    v_groups: int
    block_size: int
    tile: int
    chunk: int


class Plan(NamedTuple):
    """What is compiled: element types, and how many vectors the tiles have.

    rows x columns x sums vectors of scores (queries, positions, partial sums), value_rows x
    (value_columns stored vectors of a slice) x value_sums of outputs. `gathered`: blocks too small
    for a vector are copied together first. `streams`: places of memory asked for by turns.
    """

    k_kind: int
    v_kind: int
    rows: int
    columns: int
    sums: int
    value_rows: int
    value_columns: int
    value_sums: int
    gathered: bool
    streams: int


def step_of(kind: int) -> int:
    """Stored rows, or positions, of `kind` that are taken at a time."""
    return LONG_STEP if kind == INT8 else STEP


def pack_of(kind: int) -> int:
    """Numbers in a stored element."""
    return 2 if kind == INT4 else 1


def divisor(number: int, most: int) -> int:
    """The largest divisor of `number` that is at most `most`."""
    return next(d for d in range(max(1, most), 0, -1) if number % d == 0)


class Sizes(NamedTuple):
    """What a slot's planes say: blocks, positions a block, widths, groups, element types."""

    blocks: int
    heads: int
    block_size: int
    queries: int
    k_dim: int
    v_dim: int
    k_groups: int
    v_groups: int
    k_kind: int
    v_kind: int


@lru_cache(maxsize=256)
def plan_for(sizes: Sizes) -> tuple[Plan, Shape]:
    """What to compile, and the sizes.

    Tiles have 8 to 12 vectors: enough to hide the latency of a multiply-add, few enough for 16
    registers.
    """
    queries, k_kind, v_kind = sizes.queries, sizes.k_kind, sizes.v_kind
    tile = tile_of(sizes.block_size)
    gathered = tile % WIDTH != 0
    k_rows, v_rows = sizes.k_dim // pack_of(k_kind), sizes.v_dim // pack_of(v_kind)
    held = max(k_rows * STORED_BYTES[k_kind], v_rows * STORED_BYTES[v_kind])
    streams = streams_of(queries, k_kind, v_kind)
    most = RUN if v_kind in INTEGERS and streams == 1 else CHUNKS[1]
    chunk = min(most, max(CHUNKS[0], PHASES[streams] // held // TILE * TILE))
    shape = Shape(
        sizes.blocks, sizes.heads, queries, sizes.k_dim, sizes.v_dim, k_rows, v_rows,
        sizes.k_groups, sizes.v_groups, sizes.block_size, tile, chunk,
    )  # fmt: skip
    rows = divisor(queries, 5)
    columns = 1 if tile == WIDTH else TILE // WIDTH
    value_columns = 1 if v_kind == INT4 and rows > 2 else SLICE // WIDTH
    across = value_columns * pack_of(v_kind)
    plan = Plan(
        k_kind, v_kind, rows, columns, sums_of(rows * columns), rows, value_columns,
        sums_of(rows * across), gathered, streams,
    )  # fmt: skip
    return plan, shape


def streams_of(queries: int, k_kind: int, v_kind: int) -> int:
    """Places asked for by turns: several where reading takes longer than the arithmetic."""
    most = min(SPREAD.get(kind, 0) for kind in (k_kind, v_kind))
    return STREAMS if queries <= most else 1


def sums_of(vectors: int) -> int:
    """Partial sums side by side, a power of two: few vectors would wait for each other."""
    return min(4, int(2 ** ((12 // vectors).bit_length() - 1)))


def vectors_of_group(group: int, kind: int) -> bool:
    """Whether groups of `group` numbers are whole vectors as they are stored."""
    return group % (32 if kind == INT4 else 16) == 0


def sums_fit(group: int, kind: int) -> bool:
    """Whether the kernels' integer sums fit 32 bits."""
    return kind not in INTEGERS or group <= LARGEST_WHOLE
