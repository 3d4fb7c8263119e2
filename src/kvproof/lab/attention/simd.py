"""Vectors inside numba: 16 f32 lanes as a value, and tiles of them that stay in registers.

numba turns loops into vector code only when LLVM's vectoriser agrees; the decode kernels need
certain shapes (a tile of accumulators, one stored number read once for several queries). So this
module gives numba two types, `Vec` and `Tile`, and a handful of operations on them. LLVM splits
the 16 lanes into whatever the machine has (AVX-512: one register, AVX2: two, NEON: four).

Operations take the sizes they unroll as literal integers. `kind` says how stored numbers read:
F32, BF16 (uint16 arrays), FP8 (e4m3 in uint8), INT8 and INT4 (two numbers a byte).
"""

# mypy: disable-error-code=import-not-found

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic, models, register_model

WIDTH = 16
F32, BF16, FP8, INT8, INT4 = range(5)
STORED_BYTES = {F32: 4, BF16: 2, FP8: 1, INT8: 1, INT4: 1}
LINE = 64  # bytes of a cache line
KINDS = {"f32": F32, "bf16": BF16, "fp8_e4m3": FP8, "int8": INT8, "int4": INT4}

_I8, _I16, _I32, _F32 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.FloatType()
_VF = ir.VectorType(_F32, WIDTH)
_VI = ir.VectorType(_I32, WIDTH)


class VecType(types.Type):  # type: ignore[misc]
    """The numba type of one vector of WIDTH f32 lanes."""

    def __init__(self) -> None:
        super().__init__(name="kvproof_vec")


class TileType(types.Type):  # type: ignore[misc]
    """The numba type of `count` vectors that are kept together in registers."""

    def __init__(self, count: int) -> None:
        self.count = count
        super().__init__(name=f"kvproof_tile{count}")


VEC = VecType()


@register_model(VecType)
class _VecModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, fe_type: VecType) -> None:
        super().__init__(manager, fe_type, _VF)


@register_model(TileType)
class _TileModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, fe_type: TileType) -> None:
        super().__init__(manager, fe_type, ir.ArrayType(_VF, fe_type.count))


# -- building blocks: plain functions that emit LLVM instructions --------------------------------


def _call(b: Any, name: str, result: Any, *args: Any) -> Any:
    kind = ir.FunctionType(result, [a.type for a in args])
    return b.call(cgutils.get_or_insert_function(b.module, kind, name), list(args))


def _fma(b: Any, x: Any, y: Any, z: Any) -> Any:
    return _call(b, f"llvm.fma.v{WIDTH}f32", _VF, x, y, z)


def _splat(b: Any, scalar: Any) -> Any:
    kind = ir.VectorType(scalar.type, WIDTH)
    one = b.insert_element(ir.Constant(kind, ir.Undefined), scalar, _I32(0))
    zeros = ir.Constant(ir.VectorType(_I32, WIDTH), [0] * WIDTH)
    return b.shuffle_vector(one, ir.Constant(kind, ir.Undefined), zeros)


def _const(value: float) -> Any:
    return ir.Constant(_VF, [value] * WIDTH)


def _iconst(value: int) -> Any:
    return ir.Constant(_VI, [value] * WIDTH)


def _pointer(context: Any, b: Any, array_type: Any, array: Any, index: Any) -> Any:
    data = context.make_array(array_type)(context, b, array).data
    return b.gep(data, [index])


def _raw(b: Any, pointer: Any, element: Any) -> Any:
    kind = ir.VectorType(element, WIDTH)
    load = b.load(b.bitcast(pointer, kind.as_pointer()))
    load.align = 1
    return load


def _widen(b: Any, raw: Any, kind: int) -> Any:
    """f32 lanes of WIDTH stored numbers (one each, so not int4)."""
    if kind == F32:
        return raw
    if kind == BF16:
        return b.bitcast(b.shl(b.zext(raw, _VI), _iconst(16)), _VF)
    if kind == INT8:
        return b.sitofp(b.sext(raw, _VI), _VF)
    bits = b.zext(raw, _VI)  # FP8: exponent and mantissa moved up, then 2**120 mends the bias
    magnitude = b.shl(b.and_(bits, _iconst(0x7F)), _iconst(20))
    sign = b.shl(b.and_(bits, _iconst(0x80)), _iconst(24))
    return b.fmul(b.bitcast(b.or_(magnitude, sign), _VF), _const(2.0**120))


def _nibbles(b: Any, raw: Any) -> tuple[Any, Any]:
    """f32 lanes of the low and the high halves of WIDTH bytes."""
    bits = b.zext(raw, _VI)
    low = b.and_(bits, _iconst(15))
    return b.uitofp(low, _VF), b.uitofp(b.lshr(bits, _iconst(4)), _VF)


_STORED = {F32: _F32, BF16: _I16, FP8: _I8, INT8: _I8, INT4: _I8}


def _load(b: Any, pointer: Any, kind: int) -> list[Any]:
    """One vector of stored numbers, or two for int4 (low halves, high halves)."""
    raw = _raw(b, pointer, _STORED[kind])
    return list(_nibbles(b, raw)) if kind == INT4 else [_widen(b, raw, kind)]


def _tile_of(b: Any, vectors: list[Any]) -> Any:
    out = ir.Constant(ir.ArrayType(_VF, len(vectors)), ir.Undefined)
    for i, vector in enumerate(vectors):
        out = b.insert_value(out, vector, i)
    return out


def _vectors(b: Any, tile: Any) -> list[Any]:
    return [b.extract_value(tile, i) for i in range(tile.type.count)]


def _emit(result: Any, args: tuple[Any, ...], emit: Callable[..., Any]) -> Any:
    """A numba intrinsic's answer: its signature and code that gets (context, builder, values)."""

    def codegen(context: Any, b: Any, signature: Any, values: Any) -> Any:
        out = emit(context, b, signature.args, values)
        return context.get_dummy_value() if out is None else out

    return result(*args), codegen


def _literal(value: Any) -> int:
    number: int = value.literal_value
    return number


# -- vectors ------------------------------------------------------------------------------------


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def splat(typing_context: Any, x: Any) -> Any:
    """All lanes x (an f32)."""
    return _emit(VEC, (types.float32,), lambda c, b, t, v: _splat(b, v[0]))


@intrinsic  # type: ignore[untyped-decorator]
def vadd(typing_context: Any, x: Any, y: Any) -> Any:
    """x + y by lane."""
    return _emit(VEC, (VEC, VEC), lambda c, b, t, v: b.fadd(*v))


@intrinsic  # type: ignore[untyped-decorator]
def vsub(typing_context: Any, x: Any, y: Any) -> Any:
    """x - y by lane."""
    return _emit(VEC, (VEC, VEC), lambda c, b, t, v: b.fsub(*v))


@intrinsic  # type: ignore[untyped-decorator]
def vmul(typing_context: Any, x: Any, y: Any) -> Any:
    """x * y by lane."""
    return _emit(VEC, (VEC, VEC), lambda c, b, t, v: b.fmul(*v))


@intrinsic  # type: ignore[untyped-decorator]
def vfma(typing_context: Any, x: Any, y: Any, z: Any) -> Any:
    """x * y + z by lane, rounded once."""
    return _emit(VEC, (VEC, VEC, VEC), lambda c, b, t, v: _fma(b, *v))


@intrinsic  # type: ignore[untyped-decorator]
def vmax(typing_context: Any, x: Any, y: Any) -> Any:
    """The larger by lane."""
    return _emit(VEC, (VEC, VEC), lambda c, b, t, v: b.select(b.fcmp_ordered(">", *v), v[0], v[1]))


@intrinsic  # type: ignore[untyped-decorator]
def vexp(typing_context: Any, x: Any) -> Any:
    """e**x by lane, relative error below 3e-7; lanes below -87 give about 1e-38, not 0.

    2**n * e**r with r in [-ln2/2, ln2/2] and a polynomial of degree 6 for e**r.
    """

    def emit(context: Any, b: Any, kinds: Any, values: Any) -> Any:
        x = b.select(b.fcmp_ordered(">", values[0], _const(-87.0)), values[0], _const(-87.0))
        scaled = b.fmul(x, _const(1.4426950408889634))
        n = _call(b, f"llvm.rint.v{WIDTH}f32", _VF, scaled)
        r = _fma(b, n, _const(-0.693359375), x)
        r = _fma(b, n, _const(2.12194440e-4), r)
        y = _const(1 / 720)
        for factor in (1 / 120, 1 / 24, 1 / 6, 0.5, 1.0, 1.0):
            y = _fma(b, y, r, _const(factor))
        power = b.shl(b.add(b.fptosi(n, _VI), _iconst(127)), _iconst(23))
        return b.fmul(y, b.bitcast(power, _VF))

    return _emit(VEC, (VEC,), emit)


@intrinsic  # type: ignore[untyped-decorator]
def vlanes(typing_context: Any, x: Any, low: Any, high: Any) -> Any:
    """x where low <= lane < high, -inf elsewhere."""

    def emit(context: Any, b: Any, kinds: Any, values: Any) -> Any:
        lane = ir.Constant(_VI, list(range(WIDTH)))
        low, high = (_splat(b, b.trunc(v, _I32)) for v in values[1:])
        inside = b.and_(b.icmp_signed(">=", lane, low), b.icmp_signed("<", lane, high))
        return b.select(inside, values[0], _const(float("-inf")))

    return _emit(VEC, (VEC, types.int64, types.int64), emit)


def _reduce(name: str) -> Callable[..., Any]:
    def emit(context: Any, b: Any, kinds: Any, values: Any) -> Any:
        half = values[0]
        for step in (8, 4, 2, 1):
            lanes = ir.Constant(_VI, [(i + step) % WIDTH for i in range(WIDTH)])
            other = b.shuffle_vector(half, half, lanes)
            if name == "add":
                half = b.fadd(half, other)
            else:
                half = b.select(b.fcmp_ordered(">", half, other), half, other)
        return b.extract_element(half, _I32(0))

    return emit


@intrinsic  # type: ignore[untyped-decorator]
def vsum(typing_context: Any, x: Any) -> Any:
    """The sum of all lanes."""
    return _emit(types.float32, (VEC,), _reduce("add"))


@intrinsic  # type: ignore[untyped-decorator]
def vtop(typing_context: Any, x: Any) -> Any:
    """The largest lane."""
    return _emit(types.float32, (VEC,), _reduce("max"))


@intrinsic  # type: ignore[untyped-decorator]
def vload(typing_context: Any, array: Any, index: Any) -> Any:
    """WIDTH f32 numbers of `array` from `index` on."""

    def emit(context: Any, b: Any, kinds: Any, values: Any) -> Any:
        return _raw(b, _pointer(context, b, kinds[0], *values), _F32)

    return _emit(VEC, (array, types.int64), emit)


@intrinsic  # type: ignore[untyped-decorator]
def vstore(typing_context: Any, array: Any, index: Any, x: Any) -> Any:
    """Write WIDTH f32 numbers to `array` from `index` on."""

    def emit(context: Any, b: Any, kinds: Any, values: Any) -> None:
        pointer = _pointer(context, b, kinds[0], values[0], values[1])
        b.store(values[2], b.bitcast(pointer, _VF.as_pointer())).align = 4

    return _emit(types.void, (array, types.int64, VEC), emit)


@intrinsic  # type: ignore[untyped-decorator]
def pair_low(typing_context: Any, array: Any, index: Any) -> Any:
    """A tile of one vector: the low bf16 (int4's minimum) of WIDTH int32 pairs."""

    def emit(context: Any, b: Any, kinds: Any, values: Any) -> Any:
        raw = _raw(b, _pointer(context, b, kinds[0], *values), _I32)
        return _tile_of(b, [b.bitcast(b.shl(raw, _iconst(16)), _VF)])

    return _emit(TileType(1), (array, types.int64), emit)


@intrinsic  # type: ignore[untyped-decorator]
def pair_high(typing_context: Any, array: Any, index: Any) -> Any:
    """f32 lanes of the high bf16 (int4's scale) of WIDTH int32 pairs."""

    def emit(context: Any, b: Any, kinds: Any, values: Any) -> Any:
        raw = _raw(b, _pointer(context, b, kinds[0], *values), _I32)
        return b.bitcast(b.and_(raw, _iconst(-65536)), _VF)

    return _emit(VEC, (array, types.int64), emit)


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def prefetch(
    typing_context: Any, array: Any, index: Any, stride: Any, count: Any, every: Any
) -> Any:
    """Ask for the cache lines of `count` rows, `stride` elements apart; never faults.

    Every `every`-th row is asked for: rows of half a line need only every second one.
    """
    rows, step = _literal(count), _literal(every)

    def emit(context: Any, b: Any, kinds: Any, values: Any) -> None:
        pointer = _pointer(context, b, kinds[0], values[0], values[1])
        byte = _I8.as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, _I32, _I32, _I32])
        call = cgutils.get_or_insert_function(b.module, kind, "llvm.prefetch.p0")
        jump = b.mul(values[2], ir.Constant(ir.IntType(64), step))
        for _ in range(0, rows, step):
            b.call(call, [b.bitcast(pointer, byte), _I32(0), _I32(3), _I32(1)])
            pointer = b.gep(pointer, [jump])

    return _emit(types.void, (array, types.int64, types.int64, count, every), emit)


# -- tiles --------------------------------------------------------------------------------------


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def tile_zero(typing_context: Any, count: Any) -> Any:
    """`count` vectors of zeros."""
    tile = TileType(_literal(count))
    zero = ir.Constant(ir.ArrayType(_VF, tile.count), None)
    return _emit(tile, (count,), lambda c, b, t, v: zero)


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def stored(typing_context: Any, array: Any, index: Any, stride: Any, count: Any, kind: Any) -> Any:
    """`count` vectors of stored numbers, `stride` elements apart, from `index` on.

    int4 gives two vectors for each stored vector, so `count` is even and half as many are read.
    """
    number, how = _literal(count), _literal(kind)

    def emit(context: Any, b: Any, kinds: Any, values: Any) -> Any:
        pointer = _pointer(context, b, kinds[0], values[0], values[1])
        out: list[Any] = []
        while len(out) < number:
            out += _load(b, pointer, how)
            pointer = b.gep(pointer, [values[2]])
        return _tile_of(b, out)

    args = (array, types.int64, types.int64, count, kind)
    return _emit(TileType(number), args, emit)


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def tile_fma_each(
    typing_context: Any, tile: Any, scalars: Any, index: Any, stride: Any, vectors: Any
) -> Any:
    """tile[u * R + r] += scalars[index + r * stride + u] * vectors[u] for all r and u.

    The tile holds R x U vectors, `vectors` U: keys of U numbers of a head, for R queries.
    """
    rows = tile.count // vectors.count

    def emit(context: Any, b: Any, kinds: Any, values: Any) -> Any:
        parts = _vectors(b, values[4])
        out = _vectors(b, values[0])
        base = _pointer(context, b, kinds[1], values[1], values[2])
        for r in range(rows):
            for u, part in enumerate(parts):
                scalar = b.load(b.gep(base, [ir.Constant(ir.IntType(64), u)]))
                out[u * rows + r] = _fma(b, _splat(b, scalar), part, out[u * rows + r])
            base = b.gep(base, [values[3]])
        return _tile_of(b, out)

    return _emit(tile, (tile, scalars, types.int64, types.int64, vectors), emit)


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def tile_fma_outer(
    typing_context: Any, tile: Any, scalars: Any, index: Any, stride: Any, vectors: Any
) -> Any:
    """tile[r * N + j] += scalars[index + r * stride] * vectors[j] for all r and j.

    The tile holds R x N vectors, `vectors` N: a value's numbers, weighed for R queries.
    """
    width = vectors.count

    def emit(context: Any, b: Any, kinds: Any, values: Any) -> Any:
        parts = _vectors(b, values[4])
        out = _vectors(b, values[0])
        base = _pointer(context, b, kinds[1], values[1], values[2])
        for start in range(0, len(out), width):
            scalar = _splat(b, b.load(base))
            for j, part in enumerate(parts):
                out[start + j] = _fma(b, scalar, part, out[start + j])
            base = b.gep(base, [values[3]])
        return _tile_of(b, out)

    return _emit(tile, (tile, scalars, types.int64, types.int64, vectors), emit)


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def tile_fold(typing_context: Any, tile: Any, rows: Any) -> Any:
    """Sum of the tile's groups of `rows` vectors: out[r] = tile[r] + tile[rows + r] + ..."""
    number = _literal(rows)

    def emit(context: Any, b: Any, kinds: Any, values: Any) -> Any:
        parts = _vectors(b, values[0])
        out = parts[:number]
        for i, part in enumerate(parts[number:]):
            out[i % number] = b.fadd(out[i % number], part)
        return _tile_of(b, out)

    return _emit(TileType(number), (tile, rows), emit)


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def tile_scale_add(typing_context: Any, total: Any, tile: Any, factor: Any) -> Any:
    """total[r] + tile[r] * factor, by lane."""

    def emit(context: Any, b: Any, kinds: Any, values: Any) -> Any:
        pairs = zip(_vectors(b, values[0]), _vectors(b, values[1]), strict=True)
        return _tile_of(b, [_fma(b, part, values[2], sum_) for sum_, part in pairs])

    return _emit(total, (total, tile, VEC), emit)


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def tile_load(
    typing_context: Any, array: Any, index: Any, stride: Any, rows: Any, width: Any
) -> Any:
    """rows x width vectors: row r starts at index + r * stride, its vectors lie side by side."""
    count, across = _literal(rows), _literal(width)

    def emit(context: Any, b: Any, kinds: Any, values: Any) -> Any:
        base = _pointer(context, b, kinds[0], values[0], values[1])
        out = []
        for _ in range(count):
            for j in range(across):
                offset = ir.Constant(ir.IntType(64), j * WIDTH)
                out.append(_raw(b, b.gep(base, [offset]), _F32))
            base = b.gep(base, [values[2]])
        return _tile_of(b, out)

    args = (array, types.int64, types.int64, rows, width)
    return _emit(TileType(count * across), args, emit)


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def tile_store(
    typing_context: Any, array: Any, index: Any, stride: Any, width: Any, tile: Any
) -> Any:
    """Write a tile back in the form that `tile_load` reads."""
    across = _literal(width)

    def emit(context: Any, b: Any, kinds: Any, values: Any) -> None:
        base = _pointer(context, b, kinds[0], values[0], values[1])
        vectors = _vectors(b, values[4])
        for start in range(0, len(vectors), across):
            for j in range(across):
                place = b.gep(base, [ir.Constant(ir.IntType(64), j * WIDTH)])
                b.store(vectors[start + j], b.bitcast(place, _VF.as_pointer())).align = 4
            base = b.gep(base, [values[2]])

    return _emit(types.void, (array, types.int64, types.int64, width, tile), emit)


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def tile_first(typing_context: Any, tile: Any) -> Any:
    """The first vector of the tile."""
    return _emit(VEC, (tile,), lambda c, b, t, v: b.extract_value(v[0], 0))


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def tile_add_each(typing_context: Any, tile: Any, scalars: Any, index: Any, width: Any) -> Any:
    """tile[r * width + j] + scalars[index + r], in all lanes."""
    across = _literal(width)

    def emit(context: Any, b: Any, kinds: Any, values: Any) -> Any:
        base = _pointer(context, b, kinds[1], values[1], values[2])
        out = _vectors(b, values[0])
        for r in range(len(out) // across):
            scalar = _splat(b, b.load(b.gep(base, [ir.Constant(ir.IntType(64), r)])))
            for j in range(across):
                out[r * across + j] = b.fadd(out[r * across + j], scalar)
        return _tile_of(b, out)

    return _emit(tile, (tile, scalars, types.int64, width), emit)


@intrinsic  # type: ignore[untyped-decorator]
def as_float(typing_context: Any, bits: Any) -> Any:
    """The f32 whose bits are those of a uint32."""
    return _emit(types.float32, (types.uint32,), lambda c, b, t, v: b.bitcast(v[0], _F32))


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def tile_scale(typing_context: Any, tile: Any, factor: Any, low: Any) -> Any:
    """tile * factor + low, both in all lanes."""

    def emit(context: Any, b: Any, kinds: Any, values: Any) -> Any:
        factor, low = _splat(b, values[1]), _splat(b, values[2])
        return _tile_of(b, [_fma(b, v, factor, low) for v in _vectors(b, values[0])])

    return _emit(tile, (tile, types.float32, types.float32), emit)


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def tile_fma_rows(typing_context: Any, tile: Any, vectors: Any, x: Any) -> Any:
    """tile[r] + vectors[r] * x, by lane: one vector of the input met by R rows of a matrix."""

    def emit(context: Any, b: Any, kinds: Any, values: Any) -> Any:
        pairs = zip(_vectors(b, values[0]), _vectors(b, values[1]), strict=True)
        return _tile_of(b, [_fma(b, v, values[2], sum_) for sum_, v in pairs])

    return _emit(tile, (tile, vectors, VEC), emit)


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def tile_sums(typing_context: Any, out: Any, index: Any, tile: Any) -> Any:
    """out[index + r] = sum of all lanes of tile[r]."""
    total = _reduce("add")

    def emit(context: Any, b: Any, kinds: Any, values: Any) -> None:
        base = _pointer(context, b, kinds[0], values[0], values[1])
        for r, vector in enumerate(_vectors(b, values[2])):
            place = b.gep(base, [ir.Constant(ir.IntType(64), r)])
            b.store(total(context, b, kinds, [vector]), place)

    return _emit(types.void, (out, types.int64, tile), emit)
