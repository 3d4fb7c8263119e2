"""Tiles inside numba: vectors that stay in registers while a loop runs, and their arithmetic.

Operations take the sizes they unroll as literal integers. Where a tile of f32 meets f32 scalars, a
tile of 32-bit sums (i32) meets pairs of 16-bit scalars.
"""

# mypy: disable-error-code=import-not-found

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from kvproof.lab.attention import emit as e
from kvproof.lab.attention.emit import VEC, WIDTH, TileType, answer, literal


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def tile_zero(typing_context: Any, count: Any) -> Any:
    """`count` f32 vectors of zeros."""
    tile = TileType(literal(count))
    zero = ir.Constant(ir.ArrayType(e.VF, tile.count), None)
    return answer(tile, (count,), lambda c, b, t, v: zero)


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def tile_zero_whole(typing_context: Any, count: Any) -> Any:
    """`count` vectors of 32-bit integer zeros."""
    tile = TileType(literal(count), "i32")
    zero = ir.Constant(ir.ArrayType(e.VI, tile.count), None)
    return answer(tile, (count,), lambda c, b, t, v: zero)


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def tile_dot(
    typing_context: Any, tile: Any, scalars: Any, index: Any, stride: Any, keys: Any, shape: Any
) -> Any:
    """tile[k % S, r, c] += scalars[index + r * stride, k] * keys[k, c] for all k, r and c.

    Keys of K slots and C vectors meet R queries; `shape` is 16 * R + C, and the tile holds S sums
    side by side, to be folded. With integers a scalar is a pair, two elements of the array.
    """
    rows, across = divmod(literal(shape), 16)
    slots, sums = keys.count // across, tile.count // (rows * across)
    wide = 2 if keys.lane == "i16" else 1

    def emit(context: Any, b: Any, kinds: Any, values: Any) -> Any:
        parts, out = e.vectors_of(b, values[4]), e.vectors_of(b, values[0])
        places = [e.pointer(context, b, kinds[1], values[1], values[2])]
        for _ in range(rows - 1):
            places.append(b.gep(places[-1], [values[3]]))
        for k in range(slots):
            for r, place in enumerate(places):
                scalar = e.scalar_at(b, e.shift(b, place, k * wide), parts[0])
                for c in range(across):
                    at = (k % sums * rows + r) * across + c
                    out[at] = e.multiply_add(b, out[at], scalar, parts[k * across + c])
        return e.tile_of(b, out)

    args = (tile, scalars, types.int64, types.int64, keys, shape)
    return answer(tile, args, emit)


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def tile_fma_outer(
    typing_context: Any, tile: Any, scalars: Any, index: Any, stride: Any, vectors: Any
) -> Any:
    """tile[r * N + j] += scalars[index + r * stride] * vectors[j] for all r and j.

    The tile holds R x N vectors, `vectors` N: a value's numbers, weighed for R queries.
    """
    width = vectors.count

    def emit(context: Any, b: Any, kinds: Any, values: Any) -> Any:
        parts, out = e.vectors_of(b, values[4]), e.vectors_of(b, values[0])
        place = e.pointer(context, b, kinds[1], values[1], values[2])
        for start in range(0, len(out), width):
            scalar = e.scalar_at(b, place, parts[0])
            for j, part in enumerate(parts):
                out[start + j] = e.multiply_add(b, out[start + j], scalar, part)
            place = b.gep(place, [values[3]])
        return e.tile_of(b, out)

    return answer(tile, (tile, scalars, types.int64, types.int64, vectors), emit)


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def tile_fold(typing_context: Any, tile: Any, rows: Any) -> Any:
    """Sum of the tile's groups of `rows` vectors: out[r] = tile[r] + tile[rows + r] + ..."""
    number = literal(rows)

    def emit(context: Any, b: Any, kinds: Any, values: Any) -> Any:
        parts = e.vectors_of(b, values[0])
        out = parts[:number]
        add = b.fadd if kinds[0].lane == "f32" else b.add
        for i, part in enumerate(parts[number:]):
            out[i % number] = add(out[i % number], part)
        return e.tile_of(b, out)

    return answer(TileType(number, tile.lane), (tile, rows), emit)


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def tile_add_scaled(
    typing_context: Any, total: Any, whole: Any, factors: Any, scalars: Any, index: Any, stride: Any
) -> Any:
    """total[r, c] + whole[r, c] * factors[c] * scalars[index + r * stride], as f32."""
    width = factors.count

    def emit(context: Any, b: Any, kinds: Any, values: Any) -> Any:
        out, parts = e.vectors_of(b, values[0]), e.vectors_of(b, values[1])
        by = e.vectors_of(b, values[2])
        place = e.pointer(context, b, kinds[3], values[3], values[4])
        for start in range(0, len(out), width):
            scalar = e.splat(b, b.load(place))
            for c in range(width):
                number = b.fmul(b.sitofp(parts[start + c], e.VF), by[c])
                out[start + c] = e.fma(b, number, scalar, out[start + c])
            place = b.gep(place, [values[5]])
        return e.tile_of(b, out)

    args = (total, whole, factors, scalars, types.int64, types.int64)
    return answer(total, args, emit)


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def tile_add_whole(
    typing_context: Any, total: Any, whole: Any, scalars: Any, index: Any, stride: Any, width: Any
) -> Any:
    """total[r * width + j] + whole[r * width + j] * scalars[index + r * stride], as f32."""
    across = literal(width)

    def emit(context: Any, b: Any, kinds: Any, values: Any) -> Any:
        out, parts = e.vectors_of(b, values[0]), e.vectors_of(b, values[1])
        place = e.pointer(context, b, kinds[2], values[2], values[3])
        for start in range(0, len(out), across):
            scalar = e.splat(b, b.load(place))
            for i in range(start, start + across):
                out[i] = e.fma(b, b.sitofp(parts[i], e.VF), scalar, out[i])
            place = b.gep(place, [values[4]])
        return e.tile_of(b, out)

    args = (total, whole, scalars, types.int64, types.int64, width)
    return answer(total, args, emit)


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def tile_add_each(
    typing_context: Any, tile: Any, scalars: Any, index: Any, stride: Any, width: Any
) -> Any:
    """tile[r * width + j] + scalars[index + r * stride], in all lanes."""
    across = literal(width)

    def emit(context: Any, b: Any, kinds: Any, values: Any) -> Any:
        place = e.pointer(context, b, kinds[1], values[1], values[2])
        out = e.vectors_of(b, values[0])
        for start in range(0, len(out), across):
            scalar = e.splat(b, b.load(place))
            for i in range(start, start + across):
                out[i] = b.fadd(out[i], scalar)
            place = b.gep(place, [values[3]])
        return e.tile_of(b, out)

    return answer(tile, (tile, scalars, types.int64, types.int64, width), emit)


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def tile_fma(typing_context: Any, total: Any, tile: Any, factor: Any) -> Any:
    """total[r] + tile[r] * factor, by lane: one vector met by R rows."""

    def emit(context: Any, b: Any, kinds: Any, values: Any) -> Any:
        pairs = zip(e.vectors_of(b, values[0]), e.vectors_of(b, values[1]), strict=True)
        return e.tile_of(b, [e.fma(b, part, values[2], sum_) for sum_, part in pairs])

    return answer(total, (total, tile, VEC), emit)


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def tile_exp(typing_context: Any, tile: Any, most: Any) -> Any:
    """e**(tile - most) by lane; `most` is a tile, or one vector for all."""

    def emit(context: Any, b: Any, kinds: Any, values: Any) -> Any:
        parts = e.vectors_of(b, values[0])
        by = [values[1]] * len(parts) if kinds[1] == VEC else e.vectors_of(b, values[1])
        return e.tile_of(
            b, e.exponential(b, [b.fsub(*pair) for pair in zip(parts, by, strict=True)])
        )

    return answer(tile, (tile, most), emit)


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def tile_scale_rows(typing_context: Any, tile: Any, scalars: Any, index: Any, width: Any) -> Any:
    """tile[r * width + j] * scalars[index + r]."""
    across = literal(width)

    def emit(context: Any, b: Any, kinds: Any, values: Any) -> Any:
        place = e.pointer(context, b, kinds[1], values[1], values[2])
        out = e.vectors_of(b, values[0])
        for start in range(0, len(out), across):
            scalar = e.splat(b, b.load(e.shift(b, place, start // across)))
            for i in range(start, start + across):
                out[i] = b.fmul(out[i], scalar)
        return e.tile_of(b, out)

    return answer(tile, (tile, scalars, types.int64, width), emit)


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def tile_times(typing_context: Any, x: Any, y: Any) -> Any:
    """x * y by lane."""

    def emit(context: Any, b: Any, kinds: Any, values: Any) -> Any:
        pairs = zip(e.vectors_of(b, values[0]), e.vectors_of(b, values[1]), strict=True)
        return e.tile_of(b, [b.fmul(*pair) for pair in pairs])

    return answer(x, (x, y), emit)


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def tile_larger(typing_context: Any, x: Any, y: Any) -> Any:
    """The larger by lane."""

    def emit(context: Any, b: Any, kinds: Any, values: Any) -> Any:
        pairs = zip(e.vectors_of(b, values[0]), e.vectors_of(b, values[1]), strict=True)
        return e.tile_of(b, [e.larger(b, *pair) for pair in pairs])

    return answer(x, (x, y), emit)


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def tile_top(typing_context: Any, tile: Any) -> Any:
    """The largest lane of all."""

    def emit(context: Any, b: Any, kinds: Any, values: Any) -> Any:
        first, *rest = e.vectors_of(b, values[0])
        for vector in rest:
            first = e.larger(b, first, vector)
        return e.reduce(b, first, lambda x, y: e.larger(b, x, y))

    return answer(types.float32, (tile,), emit)


def _rows_of(rows: int, width: int, element: Any, lanes: int) -> Any:
    """Emits the load of `rows` times `width` vectors of `lanes` elements; see `tile_load`."""

    def emit(context: Any, b: Any, kinds: Any, values: Any) -> Any:
        place = e.pointer(context, b, kinds[0], values[0], values[1])
        out = []
        for _ in range(rows):
            at = [e.shift(b, place, j * lanes) for j in range(width)]
            out += [e.raw(b, p, element, lanes) for p in at]
            place = b.gep(place, [values[2]])
        return e.tile_of(b, out)

    return emit


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def tile_load(
    typing_context: Any, array: Any, index: Any, stride: Any, rows: Any, width: Any
) -> Any:
    """rows x width vectors: row r starts at index + r * stride, its vectors lie side by side."""
    count, across = literal(rows), literal(width)
    emit = _rows_of(count, across, e.F32, WIDTH)
    args = (array, types.int64, types.int64, rows, width)
    return answer(TileType(count * across), args, emit)


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def tile_store(
    typing_context: Any, array: Any, index: Any, stride: Any, width: Any, tile: Any
) -> Any:
    """Write a tile back in the form that `tile_load` reads."""
    across = literal(width)

    def emit(context: Any, b: Any, kinds: Any, values: Any) -> None:
        place = e.pointer(context, b, kinds[0], values[0], values[1])
        vectors = e.vectors_of(b, values[4])
        for start in range(0, len(vectors), across):
            for j in range(across):
                e.put(b, vectors[start + j], e.shift(b, place, j * WIDTH))
            place = b.gep(place, [values[2]])

    return answer(types.void, (array, types.int64, types.int64, width, tile), emit)


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def tile_load_pairs(
    typing_context: Any, array: Any, index: Any, stride: Any, rows: Any, width: Any
) -> Any:
    """rows x width vectors of 16-bit pairs, from elements of 16 bits; see `tile_load`."""
    count, across = literal(rows), literal(width)
    emit = _rows_of(count, across, e.I16, 2 * WIDTH)
    args = (array, types.int64, types.int64, rows, width)
    return answer(TileType(count * across, "i16"), args, emit)


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def tile_store_pairs(typing_context: Any, array: Any, index: Any, tile: Any) -> Any:
    """Write a tile of 16-bit pairs as one run of 16-bit elements."""

    def emit(context: Any, b: Any, kinds: Any, values: Any) -> None:
        place = e.pointer(context, b, kinds[0], values[0], values[1])
        for j, vector in enumerate(e.vectors_of(b, values[2])):
            e.put(b, vector, e.shift(b, place, 2 * j * WIDTH))

    return answer(types.void, (array, types.int64, tile), emit)


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def tile_zip(typing_context: Any, tile: Any) -> Any:
    """Two vectors of 16-bit numbers, first with first: pairs of them, in their order."""

    def emit(context: Any, b: Any, kinds: Any, values: Any) -> Any:
        one, two = e.vectors_of(b, values[0])
        halves = []
        for start in (0, WIDTH):
            order = [i + n for i in range(start, start + WIDTH) for n in (0, 2 * WIDTH)]
            halves.append(
                b.shuffle_vector(one, two, ir.Constant(ir.VectorType(e.I32, 2 * WIDTH), order))
            )
        return e.tile_of(b, halves)

    return answer(tile, (tile,), emit)
