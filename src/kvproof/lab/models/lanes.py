"""What rows of a decode step need of vectors beyond attention's own operations."""

# mypy: disable-error-code=import-not-found

from __future__ import annotations

from typing import Any

from numba.core import types
from numba.extending import intrinsic

from kvproof.lab.attention import emit as e
from kvproof.lab.attention.emit import VEC, answer


@intrinsic  # type: ignore[untyped-decorator]
def vdiv(typing_context: Any, x: Any, y: Any) -> Any:
    """x / y by lane."""
    return answer(VEC, (VEC, VEC), lambda c, b, t, v: b.fdiv(*v))


@intrinsic  # type: ignore[untyped-decorator]
def put_sums(typing_context: Any, tile: Any, out: Any, index: Any, stride: Any) -> Any:
    """out[index + r * stride] = the sum of all lanes of tile[r]."""

    def emit(context: Any, b: Any, kinds: Any, values: Any) -> None:
        place = e.pointer(context, b, kinds[1], values[1], values[2])
        for vector in e.vectors_of(b, values[0]):
            b.store(e.reduce(b, vector, b.fadd), place)
            place = b.gep(place, [values[3]])

    return answer(types.void, (tile, out, types.int64, types.int64), emit)


@intrinsic  # type: ignore[untyped-decorator]
def apart(typing_context: Any) -> Any:
    """Said in a function, it is compiled once and called: copies in its callers cost seconds."""

    def emit(context: Any, b: Any, kinds: Any, values: Any) -> None:
        b.function.attributes.add("noinline")

    return answer(types.void, (), emit)
