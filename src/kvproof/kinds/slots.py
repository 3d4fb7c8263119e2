"""The kinds of slot: what one layer keeps, as frozen values that count their own bytes.

A slot states facts of the model (heads, widths, windows), never an engine's layout. Two
questions are answered here for every kind:

- `entry_bytes(types)`: bytes added by one held position (0 for states of fixed size);
- `bytes(tokens, types)`: bytes held for a sequence of `tokens` positions.

`tokens` is an int or a numpy integer array of any shape; the result has the same form. The
positions a slot keeps are `held(tokens)`: engines that keep one more or less say so themselves.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import msgspec

from kvproof.kinds.elements import F32, ElementType

if TYPE_CHECKING:
    import numpy as np

    Tokens = TypeVar("Tokens", int, "np.ndarray[Any, Any]")
else:
    Tokens = TypeVar("Tokens")

Kind = Literal[
    "full", "sliding", "chunked", "latent", "indexer", "compressed",
    "conv", "recurrent", "cross", "shared",
]  # fmt: skip


class Types(msgspec.Struct, frozen=True):
    """Element types of one cache: keys, values, and states that follow the model's own type."""

    k: ElementType
    v: ElementType
    model: ElementType


def at_most(tokens: Tokens, limit: int) -> Tokens:
    """min(tokens, limit), for one count or for a numpy array of counts."""
    if isinstance(tokens, int):
        return min(tokens, limit)
    import numpy as np

    fewer: Tokens = np.minimum(tokens, limit)
    return fewer


class Slot(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor group of a model that holds cached state of one kind.

    `layer` is the index of the decoder layer it belongs to.
    """

    kind: ClassVar[Kind]
    layer: int

    def entry_bytes(self, types: Types) -> int:
        """Bytes that one held position adds."""
        return 0

    def fixed_bytes(self, types: Types) -> int:
        """Bytes held from the first token on, whatever the length."""
        return 0

    def held(self, tokens: Tokens) -> Tokens:
        """How many positions are kept of a sequence of `tokens`."""
        return tokens

    def bytes(self, tokens: Tokens, types: Types) -> Tokens:
        """Bytes held for a sequence of `tokens` positions."""
        return self.held(tokens) * self.entry_bytes(types) + self.fixed_bytes(types)


class FullSlot(Slot, frozen=True, kw_only=True):
    """Keys and values of every position: `kv_heads` heads, `k_dim` and `v_dim` wide.

    `prefix` positions of learned prompt stand before the text (CPM-Ant).
    """

    kind: ClassVar[Kind] = "full"
    kv_heads: int
    k_dim: int
    v_dim: int
    prefix: int = 0

    def entry_bytes(self, types: Types) -> int:
        return types.k.bytes(self.kv_heads * self.k_dim) + types.v.bytes(self.kv_heads * self.v_dim)

    def held(self, tokens: Tokens) -> Tokens:
        return tokens + self.prefix


class SlidingSlot(FullSlot, frozen=True, kw_only=True):
    """Keys and values of the last `window` positions.

    `after_prompt`: the window is of decoded tokens, and the whole prompt is kept beside it.
    """

    kind: ClassVar[Kind] = "sliding"
    window: int
    after_prompt: bool = False

    def held(self, tokens: Tokens) -> Tokens:
        return at_most(tokens, self.window)


class ChunkedSlot(FullSlot, frozen=True, kw_only=True):
    """Keys and values of the current chunk: attention sees only its own `chunk` positions."""

    kind: ClassVar[Kind] = "chunked"
    chunk: int

    def held(self, tokens: Tokens) -> Tokens:
        return at_most(tokens, self.chunk)


class LatentSlot(Slot, frozen=True, kw_only=True):
    """Multi-head latent attention: one compressed vector and one rotary key, shared by all heads.

    `heads`, `nope_dim` and `value_dim` are the expanded widths, which engines that do not keep
    the latent store instead. Source: DeepSeek-V2, 2024.
    """

    kind: ClassVar[Kind] = "latent"
    latent_dim: int
    rope_dim: int
    heads: int
    nope_dim: int
    value_dim: int
    window: int | None = None

    def entry_bytes(self, types: Types) -> int:
        return types.k.bytes(self.latent_dim + self.rope_dim)

    def held(self, tokens: Tokens) -> Tokens:
        return tokens if self.window is None else at_most(tokens, self.window)


class IndexerSlot(Slot, frozen=True, kw_only=True):
    """Keys of a sparse-attention indexer: `dim` numbers a position, in a type of their own.

    `element` is None when they follow the model's type; `extra_bytes` counts what else a
    position keeps (position ids). Sequences of up to `after` tokens keep nothing (Reformer's
    hash buckets).
    """

    kind: ClassVar[Kind] = "indexer"
    dim: int
    element: ElementType | None = None
    extra_bytes: int = 0
    after: int = 0

    def entry_bytes(self, types: Types) -> int:
        return (self.element or types.model).bytes(self.dim) + self.extra_bytes

    def held(self, tokens: Tokens) -> Tokens:
        kept: Tokens = tokens * (tokens > self.after)
        return kept


class ConvSlot(Slot, frozen=True, kw_only=True):
    """The last inputs of a short convolution: `channels` x `kernel` numbers.

    `mixer` names the layer's design; `group_channels` of the channels are shared by `groups`
    groups (Mamba 2's B and C), which matters to tensor parallelism only. `element` is None when
    the state follows the model's type. `kept`: inputs that an engine stores where it is not
    `kernel` of them.
    """

    kind: ClassVar[Kind] = "conv"
    channels: int
    kernel: int
    mixer: str
    groups: int = 0
    group_channels: int = 0
    element: ElementType | None = None
    kept: int | None = None

    @property
    def columns(self) -> int:
        """Inputs of each channel that are stored."""
        return self.kernel if self.kept is None else self.kept

    def fixed_bytes(self, types: Types) -> int:
        return (self.element or types.model).bytes(self.channels * self.columns)


class RecurrentSlot(Slot, frozen=True, kw_only=True):
    """A state of fixed `shape` that summarises all earlier positions (SSM, linear attention).

    `heads` is the axis that tensor parallelism splits; `element` is None when the state follows
    the model's type (most models keep it in f32).
    """

    kind: ClassVar[Kind] = "recurrent"
    shape: tuple[int, ...]
    mixer: str
    heads: int
    element: ElementType | None = F32

    @property
    def elements(self) -> int:
        """Numbers in the state."""
        out = 1
        for size in self.shape:
            out *= size
        return out

    def fixed_bytes(self, types: Types) -> int:
        return (self.element or types.model).bytes(self.elements)


class CrossSlot(Slot, frozen=True, kw_only=True):
    """Keys and values of what an encoder or an image produced: constant while decoding.

    `held` counts source positions, not decoded tokens; `source` is "encoder" or "image".
    `default_tokens` is the source length that the model fixes (Whisper: 1,500), else None.
    """

    kind: ClassVar[Kind] = "cross"
    kv_heads: int
    k_dim: int
    v_dim: int
    source: Literal["encoder", "image"] = "encoder"
    default_tokens: int | None = None

    def entry_bytes(self, types: Types) -> int:
        return types.k.bytes(self.kv_heads * self.k_dim) + types.v.bytes(self.kv_heads * self.v_dim)


class SharedSlot(Slot, frozen=True, kw_only=True):
    """Keeps nothing: the layer reads the cache of layer `source_layer` (None: no cache at all)."""

    kind: ClassVar[Kind] = "shared"
    source_layer: int | None = None


class CompressedSlot(Slot, frozen=True, kw_only=True):
    """Compressed attention (DeepSeek-V4): a window of raw entries and one entry per `ratio` tokens.

    `dim` numbers an entry (keys and values are one vector); `index_dim` more when an indexer
    ranks the compressed entries (0: none). `overlap`: each compressed entry also mixes the
    previous group, so its last raw entries are kept. Source: DeepSeek-V4 model card and
    transformers' DeepseekV4 modeling.
    """

    kind: ClassVar[Kind] = "compressed"
    window: int
    ratio: int
    dim: int
    index_dim: int = 0
    overlap: bool = False

    def entry_bytes(self, types: Types) -> int:
        return types.k.bytes(self.dim)

    def bytes(self, tokens: Tokens, types: Types) -> Tokens:
        raw = at_most(tokens, self.window) * types.k.bytes(self.dim)
        entry = types.k.bytes(self.dim) + types.model.bytes(self.index_dim)
        held: Tokens = raw + tokens // self.ratio * entry
        return held


def sequence_bytes(slots: Iterable[Slot], tokens: Tokens, types: Types) -> Tokens:
    """Bytes that all `slots` hold for a sequence of `tokens`, an int or a numpy array of lengths.

    Layers that keep the same are counted once and multiplied, so an array costs one pass per
    distinct slot.
    """
    counts: dict[Slot, int] = {}
    for slot in slots:
        key = msgspec.structs.replace(slot, layer=0)
        counts[key] = counts.get(key, 0) + 1
    total: Any = tokens * 0
    for slot, count in counts.items():
        total = total + count * slot.bytes(tokens, types)
    out: Tokens = total
    return out
