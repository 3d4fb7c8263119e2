"""Stored numbers as vectors: how each element type is read and widened.

`kind` says how stored numbers read: F32, BF16 (uint16 arrays), FP8 (e4m3 in uint8), INT8 and INT4
(two numbers a byte, the even one low). Plain types become f32 lanes; int8 and int4 become pairs of
16-bit integers, one pair a 32-bit lane, for products that are exact.
"""

# mypy: disable-error-code=import-not-found

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from kvproof.lab.attention import emit as e
from kvproof.lab.attention.emit import VEC, WIDTH, TileType, answer, literal

F32, BF16, FP8, INT8, INT4 = range(5)
KINDS = {"f32": F32, "bf16": BF16, "fp8_e4m3": FP8, "int8": INT8, "int4": INT4}
STORED_BYTES = {F32: 4, BF16: 2, FP8: 1, INT8: 1, INT4: 1}
INTEGERS = (INT8, INT4)
_STORED = {F32: e.F32, BF16: e.I16, FP8: e.I8, INT8: e.I8, INT4: e.I8}
_HIGH_HALF = -65536  # the upper 16 bits of 32


def _fp8(b: Any, bits: Any) -> Any:
    """f32 of lanes with an e4m3's sign in bits 27 to 31 and its other bits from 20 on."""
    whole = b.bitcast(b.and_(bits, e.iconst(-0x78100000)), e.VF)
    return b.fmul(whole, e.fconst(2.0**120))  # what the exponents' biases differ by


def _widen(b: Any, place: Any, kind: int) -> list[Any]:
    """WIDTH stored elements as f32: one vector, for int4 two (low and high halves of the bytes)."""
    raw = e.raw(b, place, _STORED[kind])
    if kind == F32:
        return [raw]
    if kind == BF16:
        return [b.bitcast(b.shl(b.zext(raw, e.VI), e.iconst(16)), e.VF)]
    if kind == FP8:
        return [_fp8(b, b.shl(b.sext(raw, e.VI), e.iconst(20)))]
    if kind == INT8:
        return [b.sitofp(b.sext(raw, e.VI), e.VF)]
    bits = b.zext(raw, e.VI)
    low, high = b.and_(bits, e.iconst(15)), b.lshr(bits, e.iconst(4))
    return [b.sitofp(low, e.VF), b.sitofp(high, e.VF)]


def _halves(b: Any, place: Any) -> list[Any]:
    """2 * WIDTH bf16 numbers: the even ones, the odd ones."""
    raw = e.raw(b, place, e.I32)
    whole = b.shl(raw, e.iconst(16)), b.and_(raw, e.iconst(_HIGH_HALF))
    return [b.bitcast(v, e.VF) for v in whole]


def _words(b: Any, raw: Any, kind: int) -> list[Any]:
    """2 * WIDTH bytes as 16-bit integers; int4: those of the low halves, those of the high."""
    if kind == INT8:
        return [b.sext(raw, e.VW)]
    bits = b.zext(raw, e.VW)
    fifteen, four = (ir.Constant(e.VW, [n] * 2 * WIDTH) for n in (15, 4))
    return [b.and_(bits, fifteen), b.lshr(bits, four)]


def _pair_of_rows(b: Any, place: Any, kind: int) -> list[Any]:
    """A pair of numbers (int4: of bytes) at each of WIDTH positions: a vector for each product."""
    if kind in INTEGERS:
        return _words(b, e.raw(b, place, e.I8, 2 * WIDTH), kind)
    if kind == BF16:
        return _halves(b, place)
    bits = b.sext(e.raw(b, place, e.I16), e.VI)
    low = b.ashr(b.shl(bits, e.iconst(24)), e.iconst(4))
    return [_fp8(b, low), _fp8(b, b.shl(bits, e.iconst(12)))]


def lane_of(kind: int) -> str:
    """What the numbers are multiplied as."""
    return "i16" if kind in INTEGERS else "f32"


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def stored(typing_context: Any, array: Any, index: Any, stride: Any, count: Any, kind: Any) -> Any:
    """`count` f32 vectors of stored numbers, `stride` elements apart, from `index` on.

    int4 gives two vectors for each stored one, so `count` is even and half as many are read.
    """
    number, how = literal(count), literal(kind)

    def emit(context: Any, b: Any, kinds: Any, values: Any) -> Any:
        place = e.pointer(context, b, kinds[0], values[0], values[1])
        out: list[Any] = []
        while len(out) < number:
            out += _widen(b, place, how)
            place = b.gep(place, [values[2]])
        return e.tile_of(b, out)

    args = (array, types.int64, types.int64, count, kind)
    return answer(TileType(number), args, emit)


def key_slots(rows: int, kind: int) -> int:
    """How many products a position takes for `rows` stored rows of keys."""
    return rows if kind in (F32, BF16, FP8, INT4) else rows // 2


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def stored_keys(
    typing_context: Any, array: Any, index: Any, block: Any, rows: Any, columns: Any, kind: Any
) -> Any:
    """Keys of `columns` * WIDTH positions: `rows` (even) stored rows of a block from `index` on.

    Vector [slot * columns + c]; a slot is what meets one scalar of the query (integers: one pair).
    """
    number, across, how = literal(rows), literal(columns), literal(kind)
    count = key_slots(number, how) * across
    pack = 1 if how == F32 else 2

    def emit(context: Any, b: Any, kinds: Any, values: Any) -> Any:
        place = e.pointer(context, b, kinds[0], values[0], values[1])
        jump = b.mul(values[2], e.I64(pack))
        out: list[Any] = []
        for _ in range(0, number, pack):
            slots = []
            for c in range(across):
                at = e.shift(b, place, c * WIDTH * pack)
                slots.append([e.raw(b, at, e.F32)] if how == F32 else _pair_of_rows(b, at, how))
            out += [slot[i] for i in range(len(slots[0])) for slot in slots]
            place = b.gep(place, [jump])
        return e.tile_of(b, out)

    args = (array, types.int64, types.int64, rows, columns, kind)
    return answer(TileType(count, lane_of(how)), args, emit)


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def stored_values(
    typing_context: Any, array: Any, index: Any, line: Any, count: Any, kind: Any
) -> Any:
    """`count` vectors of one position's values from `index` on.

    Integers come as pairs with the next position's, `line` elements on. bf16 and int4 give of each
    2 * WIDTH numbers the even ones, then the odd ones.
    """
    number, how = literal(count), literal(kind)
    width = WIDTH if how in (F32, FP8, INT4) else 2 * WIDTH  # elements of a step
    turns = [i // 2 + (i % 2) * width for i in range(2 * width)]

    def two_rows(b: Any, place: Any, other: Any) -> list[Any]:
        first, second = (e.raw(b, p, e.I8, width) for p in (place, other))
        out = []
        for start in range(0, 2 * width, 2 * WIDTH):
            mask = ir.Constant(ir.VectorType(e.I32, 2 * WIDTH), turns[start : start + 2 * WIDTH])
            out += _words(b, b.shuffle_vector(first, second, mask), how)
        return out

    def emit(context: Any, b: Any, kinds: Any, values: Any) -> Any:
        place = e.pointer(context, b, kinds[0], values[0], values[1])
        out: list[Any] = []
        while len(out) < number:
            if how in INTEGERS:
                out += two_rows(b, place, b.gep(place, [values[2]]))
            else:
                out += _halves(b, place) if how == BF16 else _widen(b, place, how)
            place = e.shift(b, place, width)
        return e.tile_of(b, out)

    args = (array, types.int64, types.int64, count, kind)
    return answer(TileType(number, lane_of(how)), args, emit)


def _scale(b: Any, place: Any, kind: int) -> Any:
    """int8: an f32 each; int4: the upper bf16 of each 32 bits."""
    if kind == INT8:
        return e.raw(b, place, e.F32)
    return b.bitcast(b.and_(e.raw(b, place, e.I32), e.iconst(_HIGH_HALF)), e.VF)


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def stored_scales(typing_context: Any, array: Any, index: Any, count: Any, kind: Any) -> Any:
    """`count` vectors of scales of neighbouring positions."""
    number, how = literal(count), literal(kind)

    def emit(context: Any, b: Any, kinds: Any, values: Any) -> Any:
        place = e.pointer(context, b, kinds[0], values[0], values[1])
        return e.tile_of(b, [_scale(b, e.shift(b, place, i * WIDTH), how) for i in range(number)])

    return answer(TileType(number), (array, types.int64, count, kind), emit)


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def stored_minima(typing_context: Any, array: Any, index: Any, count: Any) -> Any:
    """`count` vectors of int4's minima: the lower bf16 of each 32 bits."""
    number = literal(count)

    def emit(context: Any, b: Any, kinds: Any, values: Any) -> Any:
        place = e.pointer(context, b, kinds[0], values[0], values[1])
        raws = [e.raw(b, e.shift(b, place, i * WIDTH), e.I32) for i in range(number)]
        return e.tile_of(b, [b.bitcast(b.shl(r, e.iconst(16)), e.VF) for r in raws])

    return answer(TileType(number), (array, types.int64, count), emit)


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def first_vector(typing_context: Any, tile: Any) -> Any:
    """The first vector of a tile."""
    return answer(VEC, (tile,), lambda c, b, t, v: b.extract_value(v[0], 0))
