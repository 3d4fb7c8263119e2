"""The layers of a PagedCache: transformers' cache interface on one side, the pool on the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from transformers.cache_utils import CacheLayerMixin, LinearAttentionLayer

from kvproof.errors import UsageError
from kvproof.kinds import ConvSlot, LatentSlot
from kvproof.lab.attention.paged import can_decode
from kvproof.lab.attention.view import View
from kvproof.lab.pool.planes import Plane
from kvproof.lab.stored import Stored

if TYPE_CHECKING:
    from kvproof.lab.paged_cache import PagedCache


class PagedLayer(CacheLayerMixin):  # type: ignore[misc]
    """One attention layer's door to the shared pool."""

    supports_early_init = False
    is_croppable: bool
    length: int

    def __init__(self, cache: PagedCache, index: int) -> None:
        super().__init__()
        self._cache, self._index, self.length = cache, index, 0
        slot = cache.slots[index]
        self.latent = slot if isinstance(slot, LatentSlot) else None
        self.window: int | None = getattr(slot, "window", None)
        self.is_sliding = self.window is not None
        # blocks that slid out are released by the next pass: the last one can be taken back whole
        self.is_croppable = True
        if self.window is not None:
            self.sliding_window = self.window

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing: the cache makes its pool for all layers at once."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the new entries [batch, heads, new, dim]; all entries a query may see come back."""
        cache, count = self._cache, key_states.shape[-2]
        if self.length + count > cache.length:
            cache.begin(key_states)
        self.length += count
        vectors = [key_states, value_states]
        if self.latent is not None:
            vectors = [torch.cat(vectors, -1)]
        flat = [v.transpose(1, 2).flatten(0, 1) for v in vectors]
        view = cache.view
        if view is None:
            raise UsageError("the cache was not begun")
        self._check(view, flat)
        view.write(self._index, *flat)
        return self._all(view, count, key_states.dtype)

    def _check(self, view: View, flat: list[torch.Tensor]) -> None:
        _, planes = view.planes(self._index)
        for plane, x in zip(planes, flat, strict=True):
            if x.shape[1:] != (plane.heads, plane.dim):
                raise UsageError(
                    f"layer {self._index} caches {tuple(x.shape[1:])} numbers a token, "
                    f"the plan says {(plane.heads, plane.dim)}"
                )

    def _all(self, view: View, count: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of all visible entries: in place for a decode step, else gathered."""
        _, planes = view.planes(self._index)
        if self.latent is not None:
            width = [self.latent.latent_dim, self.latent.rope_dim]
            k, v = self._gather(view, planes[0], count, dtype).split(width, -1)
            return k, v
        if not can_decode(view, self._index):
            k, v = (self._gather(view, plane, count, dtype) for plane in planes)
            return k, v
        keys, values = (self._stored(view, plane, count, dtype) for plane in planes)
        return keys, values

    def _stored(self, view: View, plane: Plane, count: int, dtype: torch.dtype) -> Stored:
        group, _ = view.planes(self._index)
        first, last = self._span(group.sources[0], count)
        shape = (len(view.sequences), plane.heads, last - first, plane.dim)

        def gather() -> torch.Tensor:
            return self._gather(view, plane, count, dtype)

        return Stored.of(view, self._index, shape, dtype, gather)

    def _span(self, table: Any, count: int) -> tuple[int, int]:
        """The first and the end entry of a table that the last `count` queries may see."""
        first = 0 if self.window is None else max(0, table.entries - count - self.window + 1)
        return first, table.entries

    def _gather(self, view: View, plane: Plane, count: int, dtype: torch.dtype) -> torch.Tensor:
        """[batch, heads, entries, dim] of one plane."""
        group, _ = view.planes(self._index)
        rows = []
        for table in group.sources:
            blocks = torch.tensor(table.blocks, dtype=torch.long)
            rows.append(plane.read(blocks, slice(*self._span(table, count))))
        return torch.stack(rows).transpose(1, 2).to(dtype)

    def get_seq_length(self) -> int:
        """Tokens seen so far."""
        return self.length

    def get_max_length(self) -> int:
        """The window, or -1: a paged cache has no length of its own."""
        return -1 if self.window is None else self.window

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """How many keys `update` will return for the next pass, and the position of the first."""
        held = self.length if self.window is None else min(self.length, self.window - 1)
        return held + query_length, self.length - held


class StateLayer(LinearAttentionLayer):  # type: ignore[misc]
    """One recurrent layer's door: transformers' own layer, its states views of the pool's planes.

    What transformers copies into `conv_states[i]` and `recurrent_states[i]`, and what its models
    change there in place, are bytes of the pool.
    """

    is_compileable: bool = False
    is_croppable: bool = False
    length: int

    def __init__(self, cache: PagedCache, slots: list[int]) -> None:
        self._states = cache
        self._convs = [i for i in slots if isinstance(cache.slots[i], ConvSlot)]
        self._recurrents = [i for i in slots if i not in self._convs]
        count = max(len(self._convs), len(self._recurrents))
        LinearAttentionLayer.__init__(self, number_of_states=count)
        self.length = 0

    def lazy_initialization(
        self,
        conv_states: torch.Tensor | None = None,
        recurrent_states: torch.Tensor | None = None,
        state_idx: int = 0,
        conv_kernel_size: int | None = None,
    ) -> None:
        """Meet the pool: its views become the layer's states. UsageError for other shapes."""
        if conv_states is not None:
            kernel = conv_states.shape[-1] if conv_kernel_size is None else conv_kernel_size
            shape = (*conv_states.shape[:-1], kernel)
            view = self._view(self._convs, state_idx, conv_states, shape)
            self.dtype, self.device = conv_states.dtype, conv_states.device
            self.conv_kernel_size[state_idx], self.conv_states[state_idx] = kernel, view
            self.is_conv_states_initialized[state_idx] = True
        if recurrent_states is not None:
            view = self._view(
                self._recurrents, state_idx, recurrent_states, tuple(recurrent_states.shape)
            )
            self.recurrent_states[state_idx] = view
            self.is_recurrent_states_initialized[state_idx] = True

    def _view(
        self, slots: list[int], index: int, given: torch.Tensor, shape: tuple[int, ...]
    ) -> torch.Tensor:
        if index >= len(slots):
            raise UsageError(f"the model keeps a state {tuple(given.shape)} that the plan lacks")
        self._states.open(len(given), given.dtype)
        view = self._states.state(slots[index])
        if tuple(view.shape) != shape or view.dtype != given.dtype:
            raise UsageError(
                f"the model keeps a state of {shape} in {given.dtype}, the plan says "
                f"{tuple(view.shape)} in {view.dtype}"
            )
        return view

    def update_conv_state(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """As transformers does it, on rows that are here."""
        self._states.check_here()
        made: torch.Tensor = super().update_conv_state(*args, **kwargs)
        return made

    def update_recurrent_state(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """As transformers does it, on rows that are here."""
        self._states.check_here()
        made: torch.Tensor = super().update_recurrent_state(*args, **kwargs)
        return made

    def bind(self) -> None:
        """Look anew where the rows' states lie, after rows were rearranged."""
        for index, known in self.is_conv_states_initialized.items():
            if known:
                self.conv_states[index] = self._states.state(self._convs[index])
        for index, known in self.is_recurrent_states_initialized.items():
            if known:
                self.recurrent_states[index] = self._states.state(self._recurrents[index])

    def clear(self) -> None:
        """Zero the states and forget that there were any."""
        LinearAttentionLayer.reset(self)

    def activate_past_recording(self) -> None:
        """Refused: states in the pool have one size."""
        raise UsageError("PagedCache keeps no past states", hint="decode without a draft model")


class HybridLayer(StateLayer, PagedLayer):
    """A layer with attention and states side by side (Falcon-H1)."""

    def __init__(self, cache: PagedCache, entries: int, states: list[int]) -> None:
        PagedLayer.__init__(self, cache, entries)
        StateLayer.__init__(self, cache, states)
        self.is_croppable = False

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        """Only states are met one by one."""
        if not args:
            StateLayer.lazy_initialization(self, **kwargs)

    def get_max_length(self) -> int:
        """That of the attention."""
        return PagedLayer.get_max_length(self)
