"""Stored numbers as vectors: how each element type is read and widened.

`kind` says how stored numbers read: F32, BF16 (uint16 arrays), FP8 (e4m3 in uint8), INT8 and INT4
(two numbers a byte, the even one low). Plain types become f32 lanes; int8 and int4 become pairs of
16-bit integers, one pair a 32-bit lane, for products that are exact.
"""

# mypy: disable-error-code=import-not-found

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from kvproof.lab.attention import emit as e
from kvproof.lab.attention.emit import VEC, WIDTH, TileType, answer, literal

F32, BF16, FP8, INT8, INT4 = range(5)
KINDS = {"f32": F32, "bf16": BF16, "fp8_e4m3": FP8, "int8": INT8, "int4": INT4}
STORED_BYTES = {F32: 4, BF16: 2, FP8: 1, INT8: 1, INT4: 1}
INTEGERS = (INT8, INT4)
ARRAYS = {F32: np.float32, BF16: np.uint16, FP8: np.uint8, INT8: np.int8, INT4: np.uint8}
SCALES = {INT4: np.int32}  # of arrays of scales; others have f32
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


def _nibbles(b: Any, place: Any) -> list[Any]:
    """Four bytes at each of WIDTH places as pairs: the low halves of bytes 0 and 2, their high
    halves, the low halves of 1 and 3, their high halves."""
    raw = e.raw(b, place, e.I16, 2 * WIDTH)
    fifteen = ir.Constant(e.VW, [15] * 2 * WIDTH)
    moved = [b.lshr(raw, ir.Constant(e.VW, [n] * 2 * WIDTH)) for n in (4, 8, 12)]
    return [b.and_(raw, fifteen), b.and_(moved[0], fifteen), b.and_(moved[1], fifteen), moved[2]]


def _rows_of(b: Any, place: Any, kind: int) -> list[Any]:
    """`pair_of(kind)` stored rows at each of WIDTH positions: a vector for each product."""
    if kind == F32:
        return [e.raw(b, place, e.F32)]
    if kind == INT8:
        return [b.sext(e.raw(b, place, e.I8, 2 * WIDTH), e.VW)]
    if kind == INT4:
        return _nibbles(b, place)
    if kind == BF16:
        return _halves(b, place)
    bits = b.sext(e.raw(b, place, e.I16), e.VI)
    low = b.ashr(b.shl(bits, e.iconst(24)), e.iconst(4))
    return [_fp8(b, low), _fp8(b, b.shl(bits, e.iconst(12)))]


def pair_of(kind: int) -> int:
    """Rows of keys, or positions of values, that lie side by side in a tile of whole vectors."""
    return {F32: 1, INT4: 4}.get(kind, 2)


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


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def stored_rows(
    typing_context: Any, array: Any, index: Any, block: Any, rows: Any, columns: Any, kind: Any
) -> Any:
    """`rows` rows of `columns` * WIDTH stored elements from `index` on.

    Rows of keys (elements: positions) or positions of values (elements: of a slice), those of a
    pair side by side, the next `block` pairs on. Vector [slot * columns + c]; a slot is what meets
    one scalar (integers: one pair of them). int4's slots of low and high halves alternate.
    """
    number, across, how = literal(rows), literal(columns), literal(kind)
    pack = pair_of(how)
    count = number * across if how in (F32, BF16, FP8, INT4) else number // 2 * across

    def emit(context: Any, b: Any, kinds: Any, values: Any) -> Any:
        place = e.pointer(context, b, kinds[0], values[0], values[1])
        jump = b.mul(values[2], e.I64(pack))
        out: list[Any] = []
        for _ in range(0, number, pack):
            slots = []
            for c in range(across):
                at = e.shift(b, place, c * WIDTH * pack)
                slots.append(_rows_of(b, at, how))
            out += [slot[i] for i in range(len(slots[0])) for slot in slots]
            place = b.gep(place, [jump])
        return e.tile_of(b, out)

    args = (array, types.int64, types.int64, rows, columns, kind)
    return answer(TileType(count, lane_of(how)), args, emit)


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def stored_whole(typing_context: Any, array: Any, index: Any, kind: Any) -> Any:
    """2 * WIDTH neighbouring numbers of int8 or int4 as 16-bit integers, in their order."""
    how = literal(kind)

    def emit(context: Any, b: Any, kinds: Any, values: Any) -> Any:
        place = e.pointer(context, b, kinds[0], values[0], values[1])
        if how == INT8:
            return e.tile_of(b, [b.sext(e.raw(b, place, e.I8, 2 * WIDTH), e.VW)])
        bits = b.zext(e.raw(b, place, e.I8), e.VI)
        high = b.and_(b.shl(bits, e.iconst(12)), e.iconst(15 << 16))
        return e.tile_of(b, [b.bitcast(b.or_(b.and_(bits, e.iconst(15)), high), e.VW)])

    return answer(TileType(1, "i16"), (array, types.int64, kind), emit)


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
