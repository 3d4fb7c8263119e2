"""LLVM instructions that vectors and tiles are made of: plain functions over an IR builder.

A vector has WIDTH lanes of 32 bits: one AVX2 register, two of NEON. A wider one would be split, and
tiles that fit 16 registers would spill.
"""

# mypy: disable-error-code=import-not-found

from __future__ import annotations

import platform
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from llvmlite import binding, ir
from numba.core import cgutils, types
from numba.extending import models, register_model

WIDTH = 8

I8, I16, I32, I64, F32 = (*(ir.IntType(n) for n in (8, 16, 32, 64)), ir.FloatType())
VF, VI = ir.VectorType(F32, WIDTH), ir.VectorType(I32, WIDTH)
VW = ir.VectorType(I16, 2 * WIDTH)  # pairs of 16-bit numbers, one pair a lane
LANES = {"f32": VF, "i32": VI, "i16": VW}


class VecType(types.Type):  # type: ignore[misc]
    """The numba type of one vector of WIDTH f32 lanes."""

    def __init__(self) -> None:
        super().__init__(name="kvproof_vec")


class TileType(types.Type):  # type: ignore[misc]
    """The numba type of `count` vectors that are kept in registers; `lane` is a key of LANES."""

    def __init__(self, count: int, lane: str = "f32") -> None:
        self.count, self.lane = count, lane
        super().__init__(name=f"kvproof_tile{count}_{lane}")


VEC = VecType()


@register_model(VecType)
class _VecModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, fe_type: VecType) -> None:
        super().__init__(manager, fe_type, VF)


@register_model(TileType)
class _TileModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, fe_type: TileType) -> None:
        super().__init__(manager, fe_type, ir.ArrayType(LANES[fe_type.lane], fe_type.count))


def answer(result: Any, args: tuple[Any, ...], emit: Callable[..., Any]) -> Any:
    """A numba intrinsic's answer: its signature and code that gets (context, builder, values)."""

    def codegen(context: Any, b: Any, signature: Any, values: Any) -> Any:
        out = emit(context, b, signature.args, values)
        return context.get_dummy_value() if out is None else out

    return result(*args), codegen


def literal(value: Any) -> int:
    """The integer that a literal argument stands for."""
    number: int = value.literal_value
    return number


def call(b: Any, name: str, result: Any, *args: Any) -> Any:
    """Call one of LLVM's own functions."""
    kind = ir.FunctionType(result, [a.type for a in args])
    return b.call(cgutils.get_or_insert_function(b.module, kind, name), list(args))


def fma(b: Any, x: Any, y: Any, z: Any) -> Any:
    """x * y + z by lane, rounded once."""
    return call(b, f"llvm.fma.v{WIDTH}f32", VF, x, y, z)


def splat(b: Any, scalar: Any) -> Any:
    """All lanes the scalar."""
    kind = ir.VectorType(scalar.type, WIDTH)
    undefined = ir.Constant(kind, ir.Undefined)
    one = b.insert_element(undefined, scalar, I32(0))
    return b.shuffle_vector(one, undefined, ir.Constant(VI, [0] * WIDTH))


def fconst(value: float) -> Any:
    """All f32 lanes a constant."""
    return ir.Constant(VF, [value] * WIDTH)


def iconst(value: int) -> Any:
    """All 32-bit lanes a constant."""
    return ir.Constant(VI, [value] * WIDTH)


_MAGIC = 1.5 * 2**23 + 127  # what is added is rounded, to be the exponent of 2**n in the low bits


def exponential(b: Any, vectors: list[Any]) -> list[Any]:
    """e**x by lane of each vector, relative error below 3e-7; below -87 about 1e-38, not 0.

    2**n * e**r with r in [-ln2/2, ln2/2] and a polynomial of degree 6 for e**r, its halves side by
    side (Estrin), and the vectors too: a chain of multiply-adds waits for itself.
    """

    def each(of: Callable[..., Any], *parts: list[Any]) -> list[Any]:
        return [of(*part) for part in zip(*parts, strict=True)]

    def term(low: float, high: float) -> list[Any]:
        return each(lambda r: fma(b, r, fconst(high), fconst(low)), r)

    x = [larger(b, v, fconst(-87.0)) for v in vectors]
    magic, minus = fconst(_MAGIC), fconst(-_MAGIC)
    rounded = each(lambda x: fma(b, x, fconst(1.4426950408889634), magic), x)
    n = each(lambda t: b.fadd(t, minus), rounded)
    r = each(lambda n, x: fma(b, n, fconst(-0.693359375), x), n, x)
    r = each(lambda n, r: fma(b, n, fconst(2.12194440e-4), r), n, r)
    square = each(lambda r: b.fmul(r, r), r)
    y = each(lambda s, t: fma(b, s, fconst(1 / 720), t), square, term(1 / 24, 1 / 120))
    y = each(lambda s, y, t: fma(b, s, y, t), square, y, term(0.5, 1 / 6))
    y = each(lambda s, y, t: fma(b, s, y, t), square, y, term(1.0, 1.0))
    power = each(lambda t: b.shl(b.bitcast(t, VI), iconst(23)), rounded)
    return each(lambda y, power: b.fmul(y, b.bitcast(power, VF)), y, power)


def pointer(context: Any, b: Any, array_type: Any, array: Any, index: Any) -> Any:
    """Where element `index` of a flat array, or from a pointer on, lies."""
    if isinstance(array_type, types.CPointer):
        return b.gep(array, [index])
    return b.gep(context.make_array(array_type)(context, b, array).data, [index])


def shift(b: Any, place: Any, elements: int) -> Any:
    """A pointer moved by a constant number of elements."""
    return b.gep(place, [I64(elements)])


def raw(b: Any, place: Any, element: Any, count: int = WIDTH) -> Any:
    """`count` elements from `place` on, whatever its alignment."""
    kind = ir.VectorType(element, count)
    load = b.load(b.bitcast(place, kind.as_pointer()))
    load.align = 1
    return load


def put(b: Any, vector: Any, place: Any) -> None:
    """Write a vector, whatever the alignment."""
    b.store(vector, b.bitcast(place, vector.type.as_pointer())).align = 1


def select_lanes(b: Any, vector: Any, low: Any, high: Any, other: float) -> Any:
    """The vector where low <= lane < high (i64), a constant elsewhere."""
    lane = ir.Constant(VI, list(range(WIDTH)))
    low, high = (splat(b, b.trunc(v, I32)) for v in (low, high))
    inside = b.and_(b.icmp_signed(">=", lane, low), b.icmp_signed("<", lane, high))
    return b.select(inside, vector, fconst(other))


@lru_cache(maxsize=1)
def _has_pmaddwd() -> bool:
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    return x86 and bool(binding.get_host_cpu_features().get("avx2"))


def pair_products(b: Any, x: Any, y: Any) -> Any:
    """32-bit lanes x[2i] * y[2i] + x[2i + 1] * y[2i + 1] of two vectors of 16-bit pairs."""
    if _has_pmaddwd():
        return call(b, "llvm.x86.avx2.pmadd.wd", VI, x, y)
    wide = ir.VectorType(I32, 2 * WIDTH)
    product = b.mul(b.sext(x, wide), b.sext(y, wide))
    halves = [
        b.shuffle_vector(product, product, ir.Constant(VI, list(range(i, 2 * WIDTH, 2))))
        for i in (0, 1)
    ]
    return b.add(*halves)


def multiply_add(b: Any, total: Any, scalar: Any, vector: Any) -> Any:
    """total + scalar * vector: f32, or 16-bit pairs summed in 32 bits."""
    if vector.type == VF:
        return fma(b, splat(b, scalar), vector, total)
    return b.add(total, pair_products(b, b.bitcast(splat(b, scalar), VW), vector))


def scalar_at(b: Any, place: Any, vector: Any) -> Any:
    """The scalar that meets `vector`: an f32, or a pair of 16-bit numbers as one i32."""
    if vector.type == VF:
        return b.load(place)
    load = b.load(b.bitcast(place, I32.as_pointer()))
    load.align = 2
    return load


def tile_of(b: Any, vectors: list[Any]) -> Any:
    """Vectors as one tile."""
    out = ir.Constant(ir.ArrayType(vectors[0].type, len(vectors)), ir.Undefined)
    for i, vector in enumerate(vectors):
        out = b.insert_value(out, vector, i)
    return out


def vectors_of(b: Any, tile: Any) -> list[Any]:
    """The vectors of a tile."""
    return [b.extract_value(tile, i) for i in range(tile.type.count)]


def reduce(b: Any, vector: Any, join: Callable[[Any, Any], Any]) -> Any:
    """One scalar: all lanes joined."""
    step = WIDTH // 2
    while step:
        lanes = ir.Constant(VI, [(i + step) % WIDTH for i in range(WIDTH)])
        vector = join(vector, b.shuffle_vector(vector, vector, lanes))
        step //= 2
    return b.extract_element(vector, I32(0))


def larger(b: Any, x: Any, y: Any) -> Any:
    """The larger by lane."""
    return b.select(b.fcmp_ordered(">", x, y), x, y)
