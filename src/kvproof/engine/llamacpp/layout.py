"""The buffers of a llama.cpp context, piece by piece: which layer's tensor takes how many bytes.

Source: llama-kv-cache.cpp, llama-kv-cache-iswa.cpp, -dsa.cpp, -msa.cpp, -dsv4.cpp,
llama-memory-recurrent.cpp, llama_model::create_memory (b11549).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from kvproof.engine.convolutions import before_current
from kvproof.engine.llamacpp.context import Context, expands_latents, pad
from kvproof.engine.llamacpp.facts import fact, facts_by_layer
from kvproof.kinds import (
    ChunkedSlot,
    CompressedSlot,
    ConvSlot,
    FullSlot,
    IndexerSlot,
    LatentSlot,
    RecurrentSlot,
    SharedSlot,
    SlidingSlot,
    Slot,
)
from kvproof.model.gguf_slots import WINDOWED
from kvproof.model.types import Model

_F32 = 4
_SLIDING_PAD = 256
_CSA, _HCA = 4, 128
_COMPRESSED_PAD = 256
# Convolutions whose inputs are all kept: a token shift, and a dilated one beside token numbers.
_WHOLE_SHIFT, _DILATED = "rwkv", "short_conv"
# Numbers of the last tokens: llama.cpp reads them from the cells of the attention's cache.
_TOKEN_NUMBERS = "token_ids"
_NO_SLOT = -1


class Piece(msgspec.Struct, frozen=True):
    """One tensor of the context: its buffer's name, its layer, its slot's index and its bytes."""

    buffer: str
    layer: int
    slot: int
    bytes: int
    formula: str


def pieces(model: Model, context: Context) -> tuple[Piece, ...]:
    """Every tensor that the context allocates for the cache."""
    layout = _Layout(model, context)
    own = [piece for index, slot in enumerate(model.slots) for piece in layout.of(index, slot)]
    return (*own, *_drafting(model, context))


def prediction_layers(model: Model) -> int:
    """Layers of the model that predict further tokens."""
    return fact(model, "nextn_predict_layers") or model.predicting_layers


def predicting_slots(model: Model) -> tuple[Slot, ...]:
    """What those layers keep: each what the last layer with plain keys and values keeps."""
    like = next((s for s in reversed(model.slots) if isinstance(s, FullSlot | LatentSlot)), None)
    return () if like is None else (like,) * prediction_layers(model)


def _drafting(model: Model, context: Context) -> Iterator[Piece]:
    """The cache of the layers that predict further tokens, in a context of their own."""
    if context.draft is None:
        return
    k, v = context.draft
    draft = msgspec.structs.replace(context, k=k, v=v, draft=None)
    for like in predicting_slots(model):
        for piece in _Layout(model, draft).of(_NO_SLOT, like):
            yield msgspec.structs.replace(piece, buffer=f"draft {piece.buffer}")


def stored_columns(model: Model) -> Callable[[ConvSlot], int]:
    """How many inputs of each of the model's convolutions are kept."""
    beside = {slot.layer for slot in model.slots
              if isinstance(slot, ConvSlot) and slot.mixer == _TOKEN_NUMBERS}  # fmt: skip

    def columns(slot: ConvSlot) -> int:
        if slot.mixer == _TOKEN_NUMBERS:
            return 0
        whole = slot.mixer == _WHOLE_SHIFT or (slot.mixer == _DILATED and slot.layer in beside)
        return slot.kernel if whole else before_current(slot)

    return columns


def reads_windows(context: Context) -> bool:
    """Whether llama.cpp follows the architecture's windows, and so masks those layers apart."""
    return context.arch is None or context.arch in WINDOWED or context.arch == "deepseek4"


def applies_windows(context: Context) -> bool:
    """Whether sliding layers get a cache of their own: by the build and the architecture."""
    return context.build.sliding_cache and reads_windows(context)


def sliding_cells(context: Context, window: int, *, unified: bool) -> int:
    """Cells of one stream of the sliding layers: their windows and one batch in flight."""
    if context.swa_full:
        return context.sequence_cells
    windows = window * (context.sequences if unified else 1) + context.ubatch
    step = max(
        _SLIDING_PAD if context.build.pad_sequence else 1, context.build.padding(context.flash)
    )
    if context.build.pad_sequence:
        return pad(min(context.sequence_cells, windows), step)
    return min(context.sequence_cells, pad(windows, step))


def compressed_cells(context: Context, ratio: int) -> int:
    """Cells of one sequence for entries that stand for `ratio` tokens each."""
    return pad(max(1, -(-context.sequence_cells // ratio)), _COMPRESSED_PAD)


class _Layout:
    def __init__(self, model: Model, context: Context) -> None:
        self.context = context
        self.windowed = applies_windows(context)
        self.expanded = expands_latents(model, context.build)
        full = [slot for slot in model.slots if isinstance(slot, FullSlot)]
        self.widest_v = max((slot.kv_heads * slot.v_dim for slot in full), default=0)
        self.indexer_v = max((slot.v_dim for slot in full), default=0)
        self.columns = stored_columns(model)
        self.pools = context.arch == "qwen4exp" and _pools_keys(model)

    def of(self, index: int, slot: Slot) -> Iterator[Piece]:
        """The pieces of one slot."""
        if isinstance(slot, CompressedSlot) or self.context.arch == "deepseek4":
            yield from self._deepseek4(index, slot)
        elif isinstance(slot, FullSlot):
            yield from self._full(index, slot)
        elif isinstance(slot, LatentSlot):
            yield from self._latent(index, slot)
        elif isinstance(slot, IndexerSlot):
            yield from self._indexer(index, slot)
        elif isinstance(slot, ConvSlot):
            if self.columns(slot):
                yield self._conv(index, slot)
        elif isinstance(slot, SharedSlot) and self.context.arch == "deci":
            if not self.context.flash:  # values of all layers are as wide as the widest's
                cells = self.context.sequence_cells
                yield self._rows("V cache", index, slot.layer, "v", self.widest_v, cells)
        elif isinstance(slot, RecurrentSlot):
            yield self._state(index, slot.layer, "recurrent state S", slot.elements)

    def _place(self, slot: Slot) -> tuple[int, str]:
        """Cells of one stream for a slot, and what its buffer's name ends in."""
        window = _window(slot)
        if not window or not self.windowed:
            return self.context.sequence_cells, ""
        cells = sliding_cells(self.context, window, unified=self.context.unified)
        return cells, " (sliding window)"

    def _full(self, index: int, slot: FullSlot) -> Iterator[Piece]:
        """Keys and values; without flash attention values are as wide as the widest layer's."""
        cells, tail = self._place(slot)
        width = slot.kv_heads * slot.v_dim
        if not self.context.flash:
            width = self.widest_v
        yield self._rows(
            f"K cache{tail}", index, slot.layer, "k", slot.kv_heads * slot.k_dim, cells
        )
        if slot.v_dim:
            yield self._rows(f"V cache{tail}", index, slot.layer, "v", width, cells)

    def _latent(self, index: int, slot: LatentSlot) -> Iterator[Piece]:
        """The latent as a key without a value, or every head's own where it is expanded."""
        cells, tail = self._place(slot)
        if self.expanded:
            keys, values = slot.heads * (slot.nope_dim + slot.rope_dim), slot.heads * slot.value_dim
            yield self._rows(f"K cache{tail}", index, slot.layer, "k", keys, cells)
            yield self._rows(f"V cache{tail}", index, slot.layer, "v", values, cells)
            return
        width = slot.latent_dim + slot.rope_dim
        yield self._rows(f"K cache{tail}", index, slot.layer, "k", width, cells)

    def _indexer(self, index: int, slot: IndexerSlot) -> Iterator[Piece]:
        """Keys of the indexer; where the main cache has values, an indexer's values too."""
        cells, width = self.context.sequence_cells, slot.dim
        if self.context.arch == "glm5-next":  # key, gate and pooled value, each as wide as the key
            width = 3 * ((width - 1) // 2)
        if self.pools:  # key and pooled key
            width *= 2
        yield self._rows("indexer K cache", index, slot.layer, "k", width, cells)
        if self.context.arch == "minimax-m3":
            yield self._rows("indexer V cache", index, slot.layer, "v", self.indexer_v, cells)

    def _rows(
        self, buffer: str, index: int, layer: int, which: str, width: int, cells: int,
        streams: int | None = None,
    ) -> Piece:  # fmt: skip
        """`cells` rows of `width` numbers in each stream."""
        element = self.context.k if which == "k" else self.context.v
        streams = self.context.streams if streams is None else streams
        row = element.bytes(width)
        formula = f"{cells:,} cells x {row:,} B ({width} x {element.name})"
        if streams > 1:
            formula += f" x {streams} streams"
        return Piece(buffer, layer, index, row * cells * streams, formula)

    def _conv(self, index: int, slot: ConvSlot) -> Piece:
        elements = slot.channels * self.columns(slot)
        return self._state(index, slot.layer, "recurrent state R", elements)

    def _state(self, index: int, layer: int, buffer: str, elements: int) -> Piece:
        rows = self.context.sequences * self.context.planes
        formula = f"{elements:,} x {_F32} B x {rows} sequences' states"
        return Piece(buffer, layer, index, elements * _F32 * rows, formula)

    def _deepseek4(self, index: int, slot: Slot) -> Iterator[Piece]:
        """A raw window in every layer, compressed entries and the compressor's state in most."""
        dim = slot.dim if isinstance(slot, CompressedSlot) else _raw_width(slot)
        if not dim:
            return
        streams = self.context.sequences
        cells = sliding_cells(self.context, _window(slot), unified=False)
        name = "K cache (sliding window)"
        yield self._rows(name, index, slot.layer, "k", dim, cells, streams)
        if isinstance(slot, CompressedSlot):
            yield from self._compressed(index, slot, streams)

    def _compressed(self, index: int, slot: CompressedSlot, streams: int) -> Iterator[Piece]:
        cells = compressed_cells(self.context, slot.ratio)
        layer = slot.layer
        name = f"compressed K cache (1:{slot.ratio})"
        yield self._rows(name, index, layer, "k", slot.dim, cells, streams)
        double = 2 if slot.ratio == _CSA else 1
        rows = slot.ratio * double
        yield self._compressor(index, layer, rows, double * slot.dim)
        if slot.index_dim:
            yield self._rows("indexer K cache", index, layer, "k", slot.index_dim, cells, streams)
            yield self._compressor(index, layer, rows, double * slot.index_dim)

    def _compressor(self, index: int, layer: int, rows: int, width: int) -> Piece:
        planes = self.context.sequences * self.context.planes
        formula = f"2 x {rows} rows x {width} x {_F32} B x {planes} sequences' states"
        return Piece("compressor state", layer, index, 2 * rows * width * _F32 * planes, formula)


def _window(slot: Slot) -> int:
    if isinstance(slot, SlidingSlot | CompressedSlot):
        return slot.window
    if isinstance(slot, ChunkedSlot):
        return slot.chunk
    return slot.window or 0 if isinstance(slot, LatentSlot) else 0


def _pools_keys(model: Model) -> bool:
    """Whether a file of Qwen4-exp ranks pooled keys, as its converter decides it."""
    kinds = model.text_config.get("layer_types")
    listed = not isinstance(kinds, list) or "full_attention" in kinds
    ratios = facts_by_layer(model, "attention.compress_ratios", "indexer_compress_ratio")
    return listed and any(ratios)


def _raw_width(slot: Slot) -> int:
    if isinstance(slot, LatentSlot):
        return slot.latent_dim + slot.rope_dim
    return slot.kv_heads * slot.k_dim if isinstance(slot, FullSlot) else 0
