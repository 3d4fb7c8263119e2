"""What a decode kernel is compiled for, and the sizes it gets at run time."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from numba import njit

from kvproof.lab.attention.emit import WIDTH
from kvproof.lab.attention.stored import F32, INT4, INTEGERS

CHUNK = 64  # positions whose scores are held at a time, when several queries share a KV head
LONG_CHUNK = 256  # with one query: fewer turns from keys to values and back
ROW = 16  # vectors of a row of values that one query sums at a time, so that memory is read in
# order; half of it for int4, whose nibbles need registers too
RUN = 16384  # bytes of values over which sums stay in registers
LARGEST_WHOLE = 512  # positions, or numbers of a group: 512 * 127 * 32767 < 2**31

# Inner functions get no wrapper for Python: that would be half of what is compiled.
kernel = njit(nogil=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
inner = njit(nogil=True, error_model="numpy", forceinline=True, no_cpython_wrapper=True,
             no_cfunc_wrapper=True)  # fmt: skip
entry = njit(nogil=True, error_model="numpy", no_cfunc_wrapper=True)


class Shape(NamedTuple):
    """Sizes the kernel gets at run time; `queries` is query heads per KV head.

    A piece is what is taken of one block at a time; a chunk is `pieces` of them, whose scores are
    held at a time: `chunk` positions, whole vectors.
    """

    blocks: int
    queries: int
    k_dim: int
    v_dim: int
    block_size: int
    k_groups: int
    v_groups: int
    piece: int
    pieces: int
    chunk: int


class Plan(NamedTuple):
    """What is compiled: element types, and how many vectors the tiles have.

    rows x columns x sums vectors of scores (queries, positions, partial sums), value_rows x
    value_vectors of outputs. `gathered`: blocks too small for a vector are copied together first.
    """

    k_kind: int
    v_kind: int
    rows: int
    columns: int
    sums: int
    key_rows: int
    value_rows: int
    value_vectors: int
    gathered: bool


def pack_of(kind: int) -> int:
    """Numbers in a stored element."""
    return 2 if kind == INT4 else 1


def pair_of(kind: int) -> int:
    """Stored rows of keys that lie side by side at a position."""
    return 1 if kind == F32 else 2


def divisor(number: int, most: int) -> int:
    """The largest divisor of `number` that is at most `most`."""
    return next(d for d in range(max(1, most), 0, -1) if number % d == 0)


class Sizes(NamedTuple):
    """What a slot's planes say: blocks, positions a block, widths, groups, element types."""

    blocks: int
    block_size: int
    queries: int
    k_dim: int
    v_dim: int
    k_groups: int
    v_groups: int
    k_kind: int
    v_kind: int


@lru_cache(maxsize=256)
def plan_for(sizes: Sizes) -> tuple[Plan, Shape, Shape]:
    """What to compile, the sizes, and those of a chunk that was gathered (the same if it is not).

    Tiles have 8 to 12 vectors: enough to hide the latency of a multiply-add, few enough for 16
    registers.
    """
    size, queries = sizes.block_size, sizes.queries
    gathered = size % WIDTH != 0
    most = CHUNK if queries > 1 else LONG_CHUNK
    piece = size if gathered else WIDTH * divisor(size // WIDTH, most // WIDTH)
    pieces = max(1, most // piece)
    chunk = -(-piece * pieces // WIDTH) * WIDTH
    shape = Shape(
        sizes.blocks, queries, sizes.k_dim, sizes.v_dim, size, sizes.k_groups, sizes.v_groups,
        piece, pieces, chunk,
    )  # fmt: skip
    near = shape
    if gathered:
        near = shape._replace(blocks=1, block_size=chunk, piece=chunk, pieces=1)
    rows = divisor(queries, 5)
    columns = 2 if near.piece % (2 * WIDTH) == 0 else 1
    sums = 2 ** ((12 // (rows * columns)).bit_length() - 1)
    vectors = sizes.v_dim // sizes.v_groups // WIDTH
    whole_row = queries == 1 and vectors <= (ROW // 2 if sizes.v_kind == INT4 else ROW)
    value_vectors = vectors if whole_row else 2 * divisor(vectors // 2, 4 // rows)
    plan = Plan(
        sizes.k_kind, sizes.v_kind, rows, columns, min(4, sums), 4, rows, value_vectors, gathered
    )
    return plan, shape, near


def vectors_of_group(group: int, kind: int) -> bool:
    """Whether groups of `group` numbers are whole vectors as they are stored."""
    return group % (32 if kind == INT4 else 16) == 0


def sums_fit(group: int, kind: int, block_size: int) -> bool:
    """Whether the kernels' integer sums fit 32 bits."""
    whole_blocks = block_size % WIDTH == 0 or block_size <= LARGEST_WHOLE
    return kind not in INTEGERS or (group <= LARGEST_WHOLE and whole_blocks)
