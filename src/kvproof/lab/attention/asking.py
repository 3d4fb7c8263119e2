"""Asking for memory before it is read, at one place or at several by turns.

A processor reads ahead within a page, of each page that it sees read: four places, pages apart,
come faster than one, and a line of each by turns faster than several of one. Turns cost a few
instructions a step: where arithmetic takes as long as reading, one place is asked for.
"""

# numba reads these functions, not mypy: their arguments are flat arrays and sizes.
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# ruff: noqa: ANN001, ANN202

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from kvproof.lab.attention.shapes import STREAMS, inner
from kvproof.lab.attention.stored import STORED_BYTES
from kvproof.lab.attention.vectors import LINE, prefetch
from kvproof.lab.pool.planes import TILE

HANDFUL = 20  # lines: a processor waits for some 24 at a time and drops what is asked for beyond


class Asking(NamedTuple):
    """How memory is asked for. `spots` are places in it.

    places(at, first, count, i, stored, done): the spots where the i-th of as many shares of `count`
    tiles begins, tiles `stored` as (positions, elements of each); `done` elements of the share are
    past. next(memory, spots, done): asks for a step's elements; the spots after it.

    some(upcoming, at, nth, stored): asks for the nth handful of lines, counted from the first share
    on, of `upcoming` (memory, from, to), tiles of `at`. For arithmetic that reads nothing: softmax
    would leave memory idle. What is asked for again later is there by then.
    """

    places: Any
    next: Any
    some: Any


def _by_turns(lines: int, line: int) -> Any:
    """Asking's `next` at STREAMS places, of so many lines: the same, or the next, line of each."""

    @inner
    def of_all(memory, spots, done):
        a, b, c, d = spots
        for spot in (a, b, c, d):
            prefetch(memory, spot, line, 1, 1)
        return a + line, b + line, c + line, d + line

    @inner
    def of_two(memory, spots, done):
        a, b, c, d = spots
        for spot in (a, b):
            prefetch(memory, spot, line, 1, 1)
        return c, d, a + line, b + line

    @inner
    def of_one(memory, spots, done):
        a, b, c, d = spots
        prefetch(memory, a, line, 1, 1)
        return b, c, d, a + line

    @inner
    def of_all_twice(memory, spots, done):
        return of_all(memory, of_all(memory, spots, done), done)

    return {1: of_one, 2: of_two, STREAMS: of_all, 2 * STREAMS: of_all_twice}[lines]


def _handful(places: Any, each: int, line: int) -> Any:
    """Asking's `some`: `each` lines of every place."""

    @inner
    def some(upcoming, at, nth, stored):
        memory, first, end = upcoming
        if first < end:
            for spot in places(at, first, end - first, 0, stored, 0):
                for i in range(each):
                    prefetch(memory, spot + (nth * each + i) * line, line, 1, 1)

    return some


@lru_cache(maxsize=16)
def asking(streams: int, kind: int, step: int) -> Asking:
    """Of memory that holds elements of `kind`, at 1 place or STREAMS places.

    A step is `step` rows of TILE elements.
    """
    lines, line = STORED_BYTES[kind] * step * TILE // LINE, LINE // STORED_BYTES[kind]

    @inner
    def a_tile(at, first, count, i, stored, done):
        return (at[first + i] * stored[1],)

    @inner
    def on(memory, spots, done):
        prefetch(memory, spots[0] + done, line, lines, 1)
        return spots

    @inner
    def place(at, first, quarter, stored, done):
        (tile, part), (positions, rows) = divmod(quarter, STREAMS), stored
        return at[first + tile] * rows + part * (positions * rows // STREAMS) + done // STREAMS

    @inner
    def quarters(at, first, count, i, stored, done):
        return (
            place(at, first, i, stored, done),
            place(at, first, count + i, stored, done),
            place(at, first, 2 * count + i, stored, done),
            place(at, first, 3 * count + i, stored, done),
        )

    if streams == 1:
        return Asking(a_tile, on, _handful(a_tile, HANDFUL, line))
    some = _handful(quarters, HANDFUL // STREAMS, line)
    return Asking(quarters, _by_turns(lines, line), some)
