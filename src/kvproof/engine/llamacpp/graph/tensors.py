"""A compute graph as ggml sees it: tensors, views of tensors, and the order they are computed in.

Only what decides memory is kept: sizes, layouts, who reads whom. Weights and caches live in
buffers of their own, so they do not appear. Source: ggml.c (ggml_visit_parents_graph), b11549.
"""

from __future__ import annotations

from collections.abc import Iterable

Layout = tuple[int, ...]
_F32 = 4


class Tensor:
    """One tensor: `shape` of four dimensions, `strides` in bytes, what it is computed from.

    `base` is the tensor whose memory a view shows. `outside`: memory that the graph does not own
    (a cache). `layer`: which one it belongs to, -1 before the first. `weight`: elements of the
    weight it reads, of experts with `expert`; `looks_up`: rows of a table; `normed`: a norm,
    `scales`: the weight of one. `device`: where it is computed; `waits`: it only keeps a source.
    `blank`: a leaf that the graph fills itself, where it is read; inputs are the host's. `unread`:
    an input that no node reads; `beside_cache`: attention's result, on the host where caches are
    kept there.
    """

    __slots__ = (
        "base", "beside_cache", "blank", "children", "device", "expert", "held", "kept", "layer",
        "looks_up", "normed", "outside", "place", "reuses", "scales", "seen", "shape", "size",
        "sources", "strides", "unread", "views", "waits", "weight",
    )  # fmt: skip

    def __init__(
        self, shape: Layout, strides: Layout, sources: tuple[Tensor, ...], *, size: int
    ) -> None:
        self.shape, self.strides, self.sources, self.size = shape, strides, sources, size
        self.base: Tensor | None = None
        self.reuses = self.outside = self.seen = self.kept = False
        self.children = self.views = self.place = self.weight = 0
        self.held = self.expert = self.looks_up = self.normed = self.scales = self.waits = False
        self.blank = self.unread = self.beside_cache = False
        self.device: int | None = None
        self.layer = -1

    @property
    def shown(self) -> int:
        """Bytes from the first element to the end of the last."""
        return self.strides[0] + sum(
            (count - 1) * stride for count, stride in zip(self.shape, self.strides, strict=True)
        )


def strides_of(shape: Layout, element: int) -> Layout:
    """Strides of a tensor without gaps."""
    first = element * shape[0]
    second = first * shape[1]
    return element, first, second, second * shape[2]


def _four(shape: Iterable[int]) -> Layout:
    dims = tuple(shape)
    return dims + (1,) * (4 - len(dims))


class Graph:
    """Tensors in the order in which they are computed; inputs and constants apart."""

    def __init__(self) -> None:
        self.nodes: list[Tensor] = []
        self.leaves: list[Tensor] = []
        self.layer = -1

    def input(self, *shape: int, element: int = _F32) -> Tensor:
        """A tensor that is filled before the graph runs."""
        return self.new(shape, (), element=element)

    def blank(self, *shape: int, element: int = _F32) -> Tensor:
        """A tensor that a step of the graph fills."""
        made = self.new(shape, (), element=element)
        made.blank = True
        return made

    def new(
        self, shape: Iterable[int], sources: Iterable[Tensor], *, element: int = _F32,
        reuses: bool = False,
    ) -> Tensor:  # fmt: skip
        """A tensor of its own; with `reuses` it may take the memory of a source."""
        dims = _four(shape)
        size = dims[0] * dims[1] * dims[2] * dims[3] * element
        made = Tensor(dims, strides_of(dims, element), tuple(sources), size=size)
        made.reuses, made.layer = reuses, self.layer
        return made

    def outside(self, *shape: int, element: int = _F32) -> Tensor:
        """Memory that another buffer holds, such as a layer's cache."""
        made = self.new(shape, (), element=element)
        made.outside = made.seen = True
        return made

    def view(
        self, source: Tensor, *shape: int, strides: Layout | None = None,
        more: Iterable[Tensor] = (),
    ) -> Tensor:  # fmt: skip
        """A window into another tensor's memory."""
        dims = _four(shape)
        element = source.strides[0]
        made = Tensor(dims, strides or strides_of(dims, element), (source, *more), size=0)
        made.base, made.layer = source.base or source, self.layer
        return made

    def like(self, source: Tensor, *more: Tensor, reuses: bool = True) -> Tensor:
        """An element-wise result: as large as its first source."""
        return self.new(source.shape, (source, *more), reuses=reuses)

    def expand(self, tensor: Tensor) -> None:
        """Compute `tensor` next, its sources first, each tensor once."""
        stack = [(tensor, False)]
        while stack:
            current, ready = stack.pop()
            if ready:
                target = self.nodes if current.sources else self.leaves
                target.append(current)
            elif not current.seen:
                current.seen = True
                stack.append((current, True))
                stack.extend((source, False) for source in reversed(current.sources))
