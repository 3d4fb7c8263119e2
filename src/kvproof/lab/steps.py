"""Steps: how one forward pass meets each kind of cache. All answer the runner's `attend`.

Uncached      nothing is kept: the whole sequence goes through the model every time
Contiguous    one growing tensor per layer; every step copies it (torch.cat)
Static        one tensor of the longest length per layer, reserved at once
PagedStep     blocks of a PagedPool, any number of sequences at once
GatheredStep  the same without compiled kernels
"""

from __future__ import annotations

import torch

from kvproof.errors import UsageError
from kvproof.kinds import ELEMENT_TYPES
from kvproof.lab.attention import View, attend
from kvproof.lab.attention.dense import attend as plain_attend
from kvproof.lab.attention.dense import attend_dense
from kvproof.lab.models.body import Body
from kvproof.lab.pool.planes import storage_bytes

_DTYPES = {torch.float32: "f32", torch.bfloat16: "bf16"}


def mask_of(entries: int, count: int, window: int | None) -> torch.Tensor | None:
    """What the last `count` of `entries` positions see."""
    if count == 1 and (window is None or entries <= window):
        return None
    query = torch.arange(entries - count, entries)[:, None]
    key = torch.arange(entries)[None]
    seen = key <= query
    return seen if window is None else seen & (key > query - window)


def _attend_whole(
    layer: int, q: torch.Tensor, vectors: tuple[torch.Tensor, ...], body: Body
) -> torch.Tensor:
    """Attention of the last queries over whole keys and values of one sequence."""
    window = body.windows[layer] if body.windows else None
    k = vectors[0]
    v = vectors[1] if len(vectors) == 2 else k[..., : body.value_dim]
    mask = mask_of(len(k), len(q), window)
    return plain_attend(q, k.float(), v.float(), mask, body.scale)


class Uncached:
    """Keeps nothing: every pass holds the whole sequence."""

    def attend(
        self, layer: int, q: torch.Tensor, vectors: tuple[torch.Tensor, ...], body: Body
    ) -> torch.Tensor:
        """Attention within the pass."""
        return _attend_whole(layer, q, vectors, body)


class Contiguous:
    """One growing tensor per layer and vector; holds all positions whatever the window."""

    def __init__(self) -> None:
        self.layers: dict[int, list[torch.Tensor]] = {}

    def attend(
        self, layer: int, q: torch.Tensor, vectors: tuple[torch.Tensor, ...], body: Body
    ) -> torch.Tensor:
        """Append by copying, then attend."""
        old = self.layers.get(layer)
        new = list(vectors)
        if old is not None:
            new = [torch.cat(pair) for pair in zip(old, vectors, strict=True)]
        self.layers[layer] = new
        return _attend_whole(layer, q, tuple(new), body)

    @property
    def allocated_bytes(self) -> int:
        """Bytes behind all tensors."""
        return storage_bytes([t for vectors in self.layers.values() for t in vectors])


class Static:
    """Tensors of `length` positions for every layer, reserved at the first use."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.layers: dict[int, list[torch.Tensor]] = {}
        self.used: dict[int, int] = {}

    def attend(
        self, layer: int, q: torch.Tensor, vectors: tuple[torch.Tensor, ...], body: Body
    ) -> torch.Tensor:
        """Write behind what is used, then attend over it. UsageError when it is full."""
        start = self.used.get(layer, 0)
        end = start + len(q)
        if end > self.length:
            raise UsageError(f"a static cache of {self.length} positions is full")
        if layer not in self.layers:
            self.layers[layer] = [v.new_zeros((self.length, *v.shape[1:])) for v in vectors]
        for tensor, new in zip(self.layers[layer], vectors, strict=True):
            tensor[start:end] = new
        self.used[layer] = end
        return _attend_whole(layer, q, tuple(t[:end] for t in self.layers[layer]), body)

    @property
    def allocated_bytes(self) -> int:
        """Bytes behind all tensors."""
        return storage_bytes([t for vectors in self.layers.values() for t in vectors])


class PagedStep:
    """A pass over a view of a paged pool; slot i of the pool is layer i."""

    def __init__(self, view: View) -> None:
        self.view = view

    def attend(
        self, layer: int, q: torch.Tensor, vectors: tuple[torch.Tensor, ...], body: Body
    ) -> torch.Tensor:
        """Write into the blocks, then read them in place."""
        self.view.write(layer, *vectors)
        return attend(self.view, layer, q, scale=body.scale, v_dim=body.value_dim)


class GatheredStep(PagedStep):
    """A pass that copies the entries out of the blocks and leaves attention to torch."""

    def attend(
        self, layer: int, q: torch.Tensor, vectors: tuple[torch.Tensor, ...], body: Body
    ) -> torch.Tensor:
        """Write into the blocks, then gather them."""
        self.view.write(layer, *vectors)
        return attend_dense(self.view, layer, q, scale=body.scale, v_dim=body.value_dim)


def type_name(dtype: torch.dtype) -> str:
    """This project's name of a torch type that weights can have."""
    return ELEMENT_TYPES[_DTYPES[dtype]].name
