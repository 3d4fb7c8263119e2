"""PagedCache: the paged pool as a drop-in `transformers` Cache.

    cache = kvproof.lab.PagedCache(model.config, tokens=4096)
    model.generate(**inputs, past_key_values=cache)

The slots come from kvproof's own reading of the config, so what the planner says the model caches
is what the pool is built of; a model that hands over other shapes is an error, not a guess. Models
of full, sliding, chunked and latent attention run, recurrent ones, and mixtures of these. One-token
steps of SDPA attention read the blocks in place (`stored.py`), others gather.

Latents are always gathered: transformers expands all of them to keys and values at every step,
`latent_dim x heads x (nope_dim + value_dim)` multiply-adds a token, beside which copying
`latent_dim + rope_dim` numbers of it is nothing. Absorbing them is the model's to do, not the
cache's; the lab's own runner does.

    attention layer   entries in blocks               update() -> keys and values
    linear layer      states in the pool's state      the views conv_states[i], recurrent_states[i],
                      planes, one block a row         which the model reads and changes in place
    hybrid layer      both
    other layers      nothing: transformers' DummyLayer
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import torch
from transformers.cache_utils import Cache, DummyLayer, DynamicCache

from kvproof.engine.transformers import repeated_heads
from kvproof.errors import UsageError
from kvproof.kinds import (
    ChunkedSlot,
    ConvSlot,
    FullSlot,
    LatentSlot,
    RecurrentSlot,
    SharedSlot,
    SlidingSlot,
    Slot,
    Types,
)
from kvproof.lab import stored
from kvproof.lab.attention.view import View
from kvproof.lab.elements import cache_types
from kvproof.lab.paged_layers import HybridLayer, PagedLayer, StateLayer
from kvproof.lab.pool.blocks import PoolFullError
from kvproof.lab.pool.pool import PagedPool
from kvproof.lab.pool.slots import is_state
from kvproof.lab.pool.swap import HostCopy, swap_in, swap_out
from kvproof.lab.pool.tables import Sequence

_NAMES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f32"}


def slots_of(config: Any) -> tuple[Slot, ...]:
    """The slots of a transformers config, as kvproof reads them. UsageError for other kinds."""
    from kvproof.api import load_model

    model = load_model(json.loads(config.to_json_string()))
    for slot in model.slots:
        if not isinstance(slot, FullSlot | LatentSlot | ConvSlot | RecurrentSlot | SharedSlot):
            raise UsageError(
                f"PagedCache does not run {slot.kind} slots",
                hint="leave past_key_values out: transformers' own cache runs them",
            )
    heads = repeated_heads(model)
    return tuple(_kept(slot, heads) for slot in model.slots if not isinstance(slot, SharedSlot))


def _kept(slot: Slot, heads: int) -> Slot:
    """What transformers keeps of a slot: `heads` unless 0, and of a chunk a window.

    A mask says what a query sees of a chunk.
    """
    if heads and isinstance(slot, FullSlot):
        return msgspec.structs.replace(slot, kv_heads=heads)
    if not isinstance(slot, ChunkedSlot):
        return slot
    return SlidingSlot(layer=slot.layer, window=slot.chunk, kv_heads=slot.kv_heads,
                       k_dim=slot.k_dim, v_dim=slot.v_dim)  # fmt: skip


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
        self._away: list[HostCopy] = []  # the rows while they are swapped out
        self.length = 0
        self.view: View | None = None
        stored.register()
        super().__init__(layers=self._layers_of(config))

    def _layers_of(self, config: Any) -> list[Any]:
        """A door to the pool for each layer of transformers' own cache."""
        theirs = DynamicCache(config=config).layers
        if not any(is_state(slot) for slot in self.slots) and len(theirs) == len(self.slots):
            return [PagedLayer(self, i) for i in range(len(self.slots))]
        held: dict[int, list[int]] = {}
        for i, slot in enumerate(self.slots):
            held.setdefault(slot.layer, []).append(i)
        count = max(len(theirs), max(held) + 1)
        return [self._layer(held.get(i, [])) for i in range(count)]

    def _layer(self, slots: list[int]) -> Any:
        states = [i for i in slots if is_state(self.slots[i])]
        entries = [i for i in slots if i not in states]
        if len(entries) > 1:
            raise UsageError("PagedCache runs one attention slot a layer")
        if entries and states:
            return HybridLayer(self, entries[0], states)
        if states:
            return StateLayer(self, states)
        return PagedLayer(self, entries[0]) if entries else DummyLayer()

    def open(self, batch: int, dtype: torch.dtype) -> PagedPool:
        """The pool, made for `batch` rows at the first use."""
        if self.pool is None:
            self._make_pool(batch, dtype)
        self.check_here()
        if self.pool is None or batch != len(self.sequences):
            raise UsageError(f"a batch of {batch} in a cache of {len(self.sequences)}")
        return self.pool

    def begin(self, keys: torch.Tensor) -> None:
        """Reserve entries for a forward pass of `keys` [batch, heads, new, dim].

        PoolFullError when a row would grow beyond the pool.
        """
        batch, _, count, _ = keys.shape
        pool = self.open(batch, keys.dtype)
        for sequence in self.sequences:
            pool.settle(sequence)
            if not pool.can_append(sequence, count):
                raise PoolFullError(
                    f"a cache of {self.tokens} tokens a row has no room for position "
                    f"{self.length + count - 1}",
                    hint="give PagedCache tokens= for the longest sequence",
                )
            pool.append(sequence, count)
        self.length += count
        self.view = View(pool, self.sequences, [count] * batch)

    def check_here(self) -> None:
        """UsageError while the rows are swapped out."""
        if self._away:
            raise UsageError("the cache is swapped out", hint="call swap_in first")

    def _make_pool(self, batch: int, dtype: torch.dtype) -> None:
        name = _NAMES.get(dtype, "f32")
        blocks = batch * -(-self.tokens // self.block_size)
        types = self.types or cache_types(name, model=name)
        with torch.inference_mode(mode=False):  # tensors that passes outside of it may write too
            self.pool = PagedPool.with_states(
                self.slots, types, blocks=blocks, states=batch, block_size=self.block_size
            )
        self.sequences = [self._open() for _ in range(batch)]

    def _open(self) -> Sequence:
        """A new sequence that holds its state blocks already."""
        if self.pool is None:
            raise UsageError("the cache was not begun")
        sequence, _ = self.pool.open()
        self.pool.append(sequence, 0)
        return sequence

    def state(self, slot: int) -> torch.Tensor:
        """The states of all rows in a slot, [batch, *shape]: a view of the pool's own plane."""
        if self.pool is None:
            raise UsageError("the cache was not begun")
        return self.pool.states(self.sequences, slot)

    def choose(self, rows: list[int]) -> None:
        """Make row i of the batch what row `rows[i]` was; blocks are shared, not copied."""
        self.check_here()
        if self.pool is None:
            return
        self.sequences = self.pool.rearrange(self.sequences, rows)
        self._bind()

    def _bind(self) -> None:
        for layer in self.layers:
            if isinstance(layer, StateLayer):
                layer.bind()

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
        self.check_here()
        if self.pool is None or count == 0:
            return
        for sequence in self.sequences:
            self.pool.shorten(sequence, count)
        self.length -= count
        for layer in self.layers:
            layer.length = self.length

    def swap_out(self) -> int:
        """Copy all that the rows hold to host memory and release their blocks; bytes copied.

        Until `swap_in` the cache takes no pass (UsageError). Of a cache that was not begun, or is
        swapped out already, nothing is copied.
        """
        if self.pool is None or self._away:
            return 0
        self._away = [swap_out(self.pool, sequence) for sequence in self.sequences]
        self.sequences = []
        return sum(copy.bytes for copy in self._away)

    def swap_in(self) -> None:
        """Bring back what `swap_out` copied, into whatever blocks are free."""
        if self.pool is None or not self._away:
            return
        rows = [swap_in(self.pool, copy) for copy in self._away]
        # states have to lie side by side again
        self.sequences, self._away = self.pool.rearrange(rows, range(len(rows))), []
        self._bind()

    def reset(self) -> None:
        """Release all blocks; the pool and its memory stay."""
        if self.pool is None:
            return
        rows = len(self.sequences) or len(self._away)
        for sequence in reversed(self.sequences):
            self.pool.close(sequence)
        self.sequences, self._away = [self._open() for _ in range(rows)], []
        self.length = 0
        for layer in self.layers:
            layer.length = 0
            if isinstance(layer, StateLayer):
                layer.bind()
                layer.clear()
