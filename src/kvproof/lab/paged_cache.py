"""PagedCache: the paged pool as a drop-in `transformers` Cache.

    cache = kvproof.lab.PagedCache(model.config, tokens=4096)
    model.generate(**inputs, past_key_values=cache)

The slots come from kvproof's own reading of the config, so what the planner says the model caches
is what the pool is built of; a model that hands over other shapes is an error, not a guess. Models
of full, sliding and latent attention run; those with recurrent states do not.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from kvproof.errors import UsageError
from kvproof.kinds import FullSlot, LatentSlot, Slot, Types
from kvproof.lab.attention.view import View
from kvproof.lab.elements import cache_types
from kvproof.lab.pool.pool import PagedPool
from kvproof.lab.pool.tables import Sequence

_NAMES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f32"}


def slots_of(config: Any) -> tuple[Slot, ...]:
    """The slots of a transformers config, as kvproof reads them. UsageError for other kinds."""
    from kvproof.api import load_model

    slots = load_model(json.loads(config.to_json_string())).slots
    for slot in slots:
        if not isinstance(slot, FullSlot | LatentSlot) or slot.kind == "chunked":
            raise UsageError(f"PagedCache does not run {slot.kind} slots")
    return slots


class PagedCache(Cache):  # type: ignore[misc]
    """A transformers Cache over a paged pool of `tokens` tokens for each row of the batch.

    `types` are the pool's element types, by default the model's own. The pool is made at the
    first use, when batch and type are known; `pool` is None before.
    """

    def __init__(
        self,
        config: Any,
        *,
        tokens: int = 4096,
        block_size: int = 16,
        types: Types | None = None,
    ) -> None:
        self.tokens, self.block_size, self.types = tokens, block_size, types
        self.slots = slots_of(config)
        self.pool: PagedPool | None = None
        self.sequences: list[Sequence] = []
        self.length = 0
        self.view: View | None = None
        super().__init__(layers=[PagedLayer(self, i) for i in range(len(self.slots))])

    def begin(self, keys: torch.Tensor) -> None:
        """Reserve entries for a forward pass of `keys` [batch, heads, new, dim]."""
        batch, _, count, _ = keys.shape
        if self.pool is None:
            self._make_pool(batch, keys.dtype)
        pool = self.pool
        if pool is None or batch != len(self.sequences):
            raise UsageError(f"a batch of {batch} in a cache of {len(self.sequences)}")
        for sequence in self.sequences:
            pool.settle(sequence)
            pool.append(sequence, count)
        self.length += count
        self.view = View(pool, self.sequences, [count] * batch)

    def _make_pool(self, batch: int, dtype: torch.dtype) -> None:
        name = _NAMES.get(dtype, "f32")
        blocks = batch * -(-self.tokens // self.block_size)
        types = self.types or cache_types(name, model=name)
        self.pool = PagedPool(self.slots, types, blocks=blocks, block_size=self.block_size)
        self.sequences = [self.pool.open()[0] for _ in range(batch)]

    def choose(self, rows: list[int]) -> None:
        """Make row i of the batch what row `rows[i]` was; blocks are shared, not copied."""
        if self.pool is None:
            return
        chosen = [self.pool.fork(self.sequences[i]) for i in rows]
        for sequence in self.sequences:
            self.pool.close(sequence)
        self.sequences = chosen

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Follow the beams: each row continues the row that `beam_idx` names."""
        self.choose(beam_idx.tolist())

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each row `repeats` times, sharing its blocks."""
        self.choose([i for i in range(len(self.sequences)) for _ in range(repeats)])

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Only these rows; the others' blocks are released."""
        rows = torch.arange(len(self.sequences))[indices]
        self.choose(rows.tolist())

    def crop(self, tokens_to_remove: int) -> None:
        """Take back the last tokens of every row (a negative count, as transformers asks)."""
        count = -tokens_to_remove
        if count < 0:
            raise UsageError("crop takes a negative count", hint="crop(-3) removes three tokens")
        if self.pool is None or count == 0:
            return
        for sequence in self.sequences:
            self.pool.shorten(sequence, count)
        self.length -= count
        for layer in self.layers:
            layer.length = self.length

    def reset(self) -> None:
        """Release all blocks; the pool and its memory stay."""
        if self.pool is None:
            return
        for sequence in self.sequences:
            self.pool.close(sequence)
        self.sequences = [self.pool.open()[0] for _ in self.sequences]
        self.length = 0
        for layer in self.layers:
            layer.length = 0


class PagedLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer's door to the shared pool."""

    supports_early_init = False

    def __init__(self, cache: PagedCache, index: int) -> None:
        super().__init__()
        self._cache, self._index, self.length = cache, index, 0
        slot = cache.slots[index]
        self.latent = slot if isinstance(slot, LatentSlot) else None
        self.window: int | None = getattr(slot, "window", None)
        self.is_sliding = self.window is not None
        self.is_croppable = not self.is_sliding
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
        out = self._read(view, count, key_states.dtype)
        if self.latent is not None:
            width = [self.latent.latent_dim, self.latent.rope_dim]
            k, v = out[0].split(width, -1)
            return k, v
        return out[0], out[1]

    def _check(self, view: View, flat: list[torch.Tensor]) -> None:
        _, planes = view.planes(self._index)
        for plane, x in zip(planes, flat, strict=True):
            if x.shape[1:] != (plane.heads, plane.dim):
                raise UsageError(
                    f"layer {self._index} caches {tuple(x.shape[1:])} numbers a token, "
                    f"the plan says {(plane.heads, plane.dim)}"
                )

    def _read(self, view: View, count: int, dtype: torch.dtype) -> list[torch.Tensor]:
        group, planes = view.planes(self._index)
        rows = []
        for table in group.sources:
            first = 0 if self.window is None else max(0, table.entries - count - self.window + 1)
            blocks = torch.tensor(table.blocks, dtype=torch.long)
            rows.append([p.read(blocks, slice(first, table.entries)) for p in planes])
        return [_stack([row[i] for row in rows], dtype) for i in range(len(planes))]

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


def _stack(rows: list[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    """[batch, heads, entries, dim] from rows of [entries, heads, dim]."""
    return torch.stack(rows).transpose(1, 2).to(dtype)
