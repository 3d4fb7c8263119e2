"""Vectors inside numba: WIDTH f32 lanes as one value, and what can be done with it.

numba turns loops into vector code only when LLVM's vectoriser agrees; the kernels need certain
shapes, so they say their vectors themselves.
"""

# mypy: disable-error-code=import-not-found

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from kvproof.lab.attention.emit import (
    F32,
    I8,
    I16,
    I32,
    I64,
    VEC,
    VF,
    VI,
    WIDTH,
    answer,
    call,
    exponential,
    fma,
    larger,
    literal,
    pointer,
    put,
    raw,
    reduce,
    select_lanes,
)
from kvproof.lab.attention.emit import splat as splat_lanes

LINE = 64  # bytes of a cache line


@intrinsic  # type: ignore[untyped-decorator]
def address(typing_context: Any, array: Any, index: Any) -> Any:
    """A pointer to element `index` of an array (or pointer), which has to outlive it.

    Kernels pass pointers to each other: arrays count references, atomically, in every call.
    """
    return answer(
        types.CPointer(array.dtype),
        (array, types.int64),
        lambda c, b, t, v: pointer(c, b, t[0], *v),
    )


@intrinsic  # type: ignore[untyped-decorator]
def pointer_to(typing_context: Any, number: Any, dtype: Any) -> Any:
    """A pointer to elements of a numpy type from the address `number` on."""
    kind = types.CPointer(dtype.dtype)

    def emit(context: Any, b: Any, kinds: Any, values: Any) -> Any:
        return b.inttoptr(values[0], context.get_value_type(kind))

    return answer(kind, (types.int64, dtype), emit)


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def splat(typing_context: Any, x: Any) -> Any:
    """All lanes x (an f32)."""
    return answer(VEC, (types.float32,), lambda c, b, t, v: splat_lanes(b, v[0]))


@intrinsic  # type: ignore[untyped-decorator]
def vadd(typing_context: Any, x: Any, y: Any) -> Any:
    """x + y by lane."""
    return answer(VEC, (VEC, VEC), lambda c, b, t, v: b.fadd(*v))


@intrinsic  # type: ignore[untyped-decorator]
def vmul(typing_context: Any, x: Any, y: Any) -> Any:
    """x * y by lane."""
    return answer(VEC, (VEC, VEC), lambda c, b, t, v: b.fmul(*v))


@intrinsic  # type: ignore[untyped-decorator]
def vfma(typing_context: Any, x: Any, y: Any, z: Any) -> Any:
    """x * y + z by lane, rounded once."""
    return answer(VEC, (VEC, VEC, VEC), lambda c, b, t, v: fma(b, *v))


@intrinsic  # type: ignore[untyped-decorator]
def vmax(typing_context: Any, x: Any, y: Any) -> Any:
    """The larger by lane."""
    return answer(VEC, (VEC, VEC), lambda c, b, t, v: larger(b, *v))


@intrinsic  # type: ignore[untyped-decorator]
def vexp(typing_context: Any, x: Any) -> Any:
    """e**x by lane, relative error below 3e-7; lanes below -87 give about 1e-38, not 0.

    See `emit.exponential`.
    """
    return answer(VEC, (VEC,), lambda c, b, t, v: exponential(b, [v[0]])[0])


def _lanes_intrinsic(other: float) -> Any:
    @intrinsic  # type: ignore[untyped-decorator]
    def lanes(typing_context: Any, x: Any, low: Any, high: Any) -> Any:
        return answer(
            VEC,
            (VEC, types.int64, types.int64),
            lambda c, b, t, v: select_lanes(b, v[0], v[1], v[2], other),
        )

    return lanes


lanes_or_never = _lanes_intrinsic(float("-inf"))
lanes_or_zero = _lanes_intrinsic(0.0)


@intrinsic  # type: ignore[untyped-decorator]
def by_two(typing_context: Any, x: Any) -> Any:
    """Lanes 0, 2, 1, 3 of each four."""
    order = [i // 4 * 4 + i % 2 * 2 + i % 4 // 2 for i in range(WIDTH)]
    mask = ir.Constant(VI, order)
    return answer(VEC, (VEC,), lambda c, b, t, v: b.shuffle_vector(v[0], v[0], mask))


@intrinsic  # type: ignore[untyped-decorator]
def vsum(typing_context: Any, x: Any) -> Any:
    """The sum of all lanes."""
    return answer(types.float32, (VEC,), lambda c, b, t, v: reduce(b, v[0], b.fadd))


@intrinsic  # type: ignore[untyped-decorator]
def vtop(typing_context: Any, x: Any) -> Any:
    """The largest lane."""
    return answer(
        types.float32, (VEC,), lambda c, b, t, v: reduce(b, v[0], lambda x, y: larger(b, x, y))
    )


@intrinsic  # type: ignore[untyped-decorator]
def vload(typing_context: Any, array: Any, index: Any) -> Any:
    """WIDTH f32 numbers of `array` from `index` on."""
    return answer(
        VEC, (array, types.int64), lambda c, b, t, v: raw(b, pointer(c, b, t[0], *v), F32)
    )


@intrinsic  # type: ignore[untyped-decorator]
def vstore(typing_context: Any, array: Any, index: Any, x: Any) -> Any:
    """Write WIDTH f32 numbers to `array` from `index` on."""
    return answer(
        types.void,
        (array, types.int64, VEC),
        lambda c, b, t, v: put(b, v[2], pointer(c, b, t[0], v[0], v[1])),
    )


@intrinsic  # type: ignore[untyped-decorator]
def vstore16(typing_context: Any, array: Any, index: Any, x: Any) -> Any:
    """Write WIDTH numbers, rounded to 16-bit integers (they must be in range)."""

    def emit(context: Any, b: Any, kinds: Any, values: Any) -> None:
        whole = call(b, f"llvm.rint.v{WIDTH}f32", VF, values[2])
        short = b.trunc(b.fptosi(whole, VI), ir.VectorType(I16, WIDTH))
        put(b, short, pointer(context, b, kinds[0], values[0], values[1]))

    return answer(types.void, (array, types.int64, VEC), emit)


@intrinsic  # type: ignore[untyped-decorator]
def vstore_pairs(typing_context: Any, array: Any, index: Any, low: Any, high: Any) -> Any:
    """Write WIDTH pairs of two vectors' numbers, rounded to 16-bit integers, to 32-bit elements."""

    def emit(context: Any, b: Any, kinds: Any, values: Any) -> None:
        whole = [
            b.fptosi(call(b, f"llvm.rint.v{WIDTH}f32", VF, v), VI) for v in (values[2], values[3])
        ]
        low = b.and_(whole[0], ir.Constant(VI, [0xFFFF] * WIDTH))
        pairs = b.or_(low, b.shl(whole[1], ir.Constant(VI, [16] * WIDTH)))
        put(b, pairs, pointer(context, b, kinds[0], values[0], values[1]))

    return answer(types.void, (array, types.int64, VEC, VEC), emit)


@intrinsic  # type: ignore[untyped-decorator]
def as_float(typing_context: Any, bits: Any) -> Any:
    """The f32 whose bits are those of a uint32."""
    return answer(types.float32, (types.uint32,), lambda c, b, t, v: b.bitcast(v[0], F32))


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def prefetch(
    typing_context: Any, array: Any, index: Any, stride: Any, count: Any, every: Any
) -> Any:
    """Ask for the cache lines of `count` rows, `stride` elements apart; never faults.

    Every `every`-th row is asked for: rows of half a line need only every second one.
    """
    rows, step = literal(count), literal(every)

    def emit(context: Any, b: Any, kinds: Any, values: Any) -> None:
        place = pointer(context, b, kinds[0], values[0], values[1])
        byte = I8.as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, I32, I32, I32])
        ask = cgutils.get_or_insert_function(b.module, kind, "llvm.prefetch.p0")
        jump = b.mul(values[2], I64(step))
        for _ in range(0, rows, step):
            b.call(ask, [b.bitcast(place, byte), I32(0), I32(3), I32(1)])
            place = b.gep(place, [jump])

    return answer(types.void, (array, types.int64, types.int64, count, every), emit)
