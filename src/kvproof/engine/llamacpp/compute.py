"""The compute buffer and the output buffer.

The compute buffer holds what one batch's graph needs at once. Where the graph of an architecture
is known, llama.cpp's allocator is run on it, and the figure is exact for a CPU of that build.
Elsewhere it is estimated: the attention masks, a few rows of the hidden size, and the largest of
the graph's phases (experts, attention, recurrent layers, logits), as measured on b11549.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from kvproof.engine.llamacpp.builds import BUILDS
from kvproof.engine.llamacpp.context import Context, expands_latents
from kvproof.engine.llamacpp.facts import fact
from kvproof.engine.llamacpp.graph import graph_bytes
from kvproof.engine.llamacpp.graph.schedule import Where
from kvproof.engine.llamacpp.layout import applies_windows, sliding_cells
from kvproof.engine.llamacpp.overrides import HOST
from kvproof.kinds import (
    ChunkedSlot,
    CompressedSlot,
    ConvSlot,
    FullSlot,
    IndexerSlot,
    LatentSlot,
    RecurrentSlot,
    SlidingSlot,
    Slot,
)
from kvproof.model.types import Model
from kvproof.terms import Term

_F32 = 4
_ROWS = 5
_STREAMED_ROWS = 16  # four residual streams
_SOURCE = "measured on llama.cpp b11549 (CPU); GPU backends differ"
_GRAPH_SOURCE = (
    "llama.cpp b11549, src/models, llama-graph.cpp and ggml-alloc.c; GPU backends differ"
)
# What the program said over what the law says, for 354 answers of b11549 whose graphs are known
# too: all but two (a tenth, a quarter of the real buffer) lie within.
_LAW = (0.76, 2.0)
# The same for the graph, in the field's logs of GPUs and older builds: seven at 1.00 (three of them
# split between devices), two of Vulkan at 1.08 and 1.09 whose states can be rolled back.
_ELSEWHERE = (0.99, 1.10)
# Feed-forward layers without a gate keep one wide row instead of three.
_UNGATED = frozenset({"starcoder2", "starcoder", "gpt2", "gptneox", "gptj", "phi2", "falcon",
                      "bloom", "mpt", "nemotron", "codeshell", "jais2"})  # fmt: skip


class Widths(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers a token needs in each phase."""

    hidden: int
    feed_forward: int
    experts: int
    attention: int
    vocabulary: int
    mixer: int

    @property
    def phase(self) -> int:
        """The widest phase but the logits."""
        return max(self.feed_forward, self.experts, self.mixer)


def compute_term(model: Model, context: Context) -> Term:
    """The compute buffer of a CPU that computes all layers.

    Exact for the newest builds where the graph is known.
    """
    size = graph_bytes(model, context)
    if size is not None:
        return _graph_term(size, context, _graph_bounds(model, context))
    return _law_term(model, context)


def device_compute_term(
    model: Model, context: Context, where: Where, device: int, sizes: Mapping[int, int] | None
) -> Term:
    """The compute buffer of a GPU, or of the host beside GPUs; `sizes`: the graph's, if known."""
    if sizes is not None:
        part = "the part here of a " if where.several else ""
        return _graph_term(sizes[device], context, _ELSEWHERE, part)
    if device == HOST and HOST not in where.layers:
        return _inputs_term(model, context)
    if device != where.output:  # only the device with the output computes logits
        context = msgspec.structs.replace(context, outputs=0)
    return _law_term(model, context)


def _inputs_term(model: Model, context: Context) -> Term:
    """Inputs of a batch in pinned host memory, where all layers are on GPUs."""
    mask, rows = mask_bytes(model, context), 2 * model.hidden_size * context.ubatch * _F32
    value = mask + rows
    return Term(
        name="compute buffer",
        value=value,
        unit="B",
        formula=f"masks {mask:,} B + {context.ubatch} tokens x 2 x {model.hidden_size} x {_F32} B",
        source="estimate: inputs of a batch in pinned host memory",
        low=mask // 2,
        high=2 * value,
    )


def _law_term(model: Model, context: Context) -> Term:
    """What was measured to be near the buffer of a graph that is not known."""
    widths, mask = widths_of(model, context), mask_bytes(model, context)
    phases = _phases(model, context, widths, mask)
    name = max(phases, key=lambda phase: phases[phase][0])
    size, detail = phases[name]
    value = mask + size
    low, high = _LAW
    return Term(
        name="compute buffer",
        value=value,
        unit="B",
        formula=f"masks {mask:,} B + {name} {detail} = {value:,} B",
        source=_SOURCE,
        low=int(value * low),
        high=int(value * high),
    )


def _graph_bounds(model: Model, context: Context) -> tuple[float, float] | None:
    """Shares of the graph's figure between which the buffer lies; None where it is exact."""
    return None if context.build == BUILDS[-1] else _ELSEWHERE


def _graph_term(
    value: int, context: Context, bounds: tuple[float, float] | None, part: str = ""
) -> Term:
    tokens, outputs = context.ubatch, context.outputs
    low, high = bounds or (None, None)
    return Term(
        name="compute buffer",
        value=value,
        unit="B",
        formula=f"{part}graph of {tokens} tokens with {outputs} outputs, at most {value:,} B",
        source=_GRAPH_SOURCE,
        low=None if low is None else int(value * low),
        high=None if high is None else int(value * high),
    )


def _phases(
    model: Model, context: Context, widths: Widths, mask: int
) -> dict[str, tuple[int, str]]:
    """Bytes of each phase of the graph, and how they come about; the largest counts."""
    count = _STREAMED_ROWS if context.arch == "deepseek4" else _ROWS
    batch = context.ubatch
    rows, casts = count * widths.hidden * batch * _F32, _cast_bytes(model, context)
    logits = _F32 * context.outputs * widths.vocabulary
    row_text = f"{batch} tokens x 4 B x ({count} x {widths.hidden}"
    phases = {
        "feed-forward": (rows + widths.phase * batch * _F32, f"{row_text} + {widths.phase})"),
        "attention": (
            widths.attention * batch * _F32, f"{batch} tokens x 4 B x {widths.attention:,}"
        ),
        "f16 copies of keys and values": (rows + casts, f"{row_text}) + {casts:,} B"),
    }  # fmt: skip
    # Logits go where the masks were, when they fit there.
    if logits > mask:
        text = f"{row_text}) + {context.outputs} x {widths.vocabulary:,} x 4 B"
        phases["logits"] = (rows + logits, text)
    return phases


def output_term(model: Model, context: Context) -> Term:
    """The buffer that logits are handed out in, on the host."""
    value = context.sequences * model.vocab_size * _F32
    return Term(
        name="output buffer",
        value=value,
        unit="B",
        formula=f"{context.sequences} sequences x {model.vocab_size:,} logits x {_F32} B",
        source="llama_context::output_reserve (llama-context.cpp, b11549)",
    )


def mask_bytes(model: Model, context: Context) -> int:
    """The masks of the batch: one per cache, f16 with flash attention and f32 without."""
    size = 2 if context.flash else _F32
    return sum(cells * size * context.ubatch for cells in _mask_cells(model, context))


def _mask_cells(model: Model, context: Context) -> list[int]:
    """Cells of one stream of each cache: the main one, the sliding one, the indexer's."""
    if context.arch == "deepseek4":
        windows = {slot.window for slot in model.slots if isinstance(slot, CompressedSlot)}
        return [sliding_cells(context, window, unified=False) for window in windows]
    found: dict[str, int] = {}
    windowed = applies_windows(context)
    for slot in model.slots:
        if windowed and isinstance(slot, SlidingSlot | ChunkedSlot):
            window = slot.window if isinstance(slot, SlidingSlot) else slot.chunk
            found["sliding"] = sliding_cells(context, window, unified=context.unified)
        elif isinstance(slot, FullSlot | LatentSlot | IndexerSlot):
            kind = "indexer" if isinstance(slot, IndexerSlot) else "main"
            found[kind] = context.sequence_cells
    return list(found.values())


def widths_of(model: Model, context: Context) -> Widths:
    """Numbers a token needs in each phase of the graph."""
    hidden = model.hidden_size
    wide = fact(model, "feed_forward_length", "intermediate_size", "ffn_hidden_size", "n_inner")
    gate = 1 if context.arch in _UNGATED else 3
    return Widths(
        hidden=hidden,
        feed_forward=gate * wide,
        experts=_experts(model, hidden, wide),
        attention=_attention(model, context),
        vocabulary=model.vocab_size,
        mixer=_mixer(model, context),
    )


def _experts(model: Model, hidden: int, wide: int) -> int:
    """Gate, up and product of every chosen expert; their outputs too when these fit nowhere."""
    if not model.experts:
        return 0
    width = fact(model, "expert_feed_forward_length", "moe_intermediate_size") or wide
    outputs = hidden if hidden > 2 * width else 0
    return model.experts_per_token * (3 * width + outputs)


def _attention(model: Model, context: Context) -> int:
    """Queries, keys and values, and without flash attention a score for every head and cell."""
    heads, cells = model.attention_heads, context.sequence_cells
    if context.arch == "deepseek4":
        cells = sum(_mask_cells(model, context)) + cells // 4
    elif not any(_keeps_all(slot) for slot in model.slots):
        cells = max(_mask_cells(model, context), default=0)
    scores = 0 if context.flash else heads * cells
    latents = [slot for slot in model.slots if isinstance(slot, LatentSlot)]
    if latents and not expands_latents(model, context.build):
        slot = latents[0]
        row = slot.latent_dim + slot.rope_dim
        own = heads * (slot.nope_dim + slot.rope_dim + 2 * row)
        return _ROWS * model.hidden_size + own + scores + _indexer(model, context, heads * row)
    if context.flash:
        return 0
    query, key = _query_and_key(model, heads)
    return scores + 3 * (model.hidden_size + query) + 2 * key if query else 0


def _cast_bytes(model: Model, context: Context) -> int:
    """Flash attention reads f32 keys and values through an f16 copy of a layer's cells."""
    if not context.flash:
        return 0
    cells = context.sequence_cells * context.streams
    sizes = [(slot.kv_heads * slot.k_dim, slot.kv_heads * slot.v_dim)
             for slot in model.slots if isinstance(slot, FullSlot)]  # fmt: skip
    sizes += [(slot.heads * (slot.nope_dim + slot.rope_dim), slot.heads * slot.value_dim)
              for slot in model.slots if isinstance(slot, LatentSlot)
              and expands_latents(model, context.build)]  # fmt: skip
    key, value = max(sizes, default=(0, 0))
    wide = key * (context.k.name == "f32") + value * (context.v.name == "f32")
    return 2 * cells * wide


def _query_and_key(model: Model, heads: int) -> tuple[int, int]:
    """Numbers of a token's queries and keys in the widest layer that keeps every head's."""
    widths = [(heads * slot.k_dim, slot.kv_heads * slot.k_dim)
              for slot in model.slots if isinstance(slot, FullSlot)]  # fmt: skip
    widths += [(slot.heads * (slot.nope_dim + slot.rope_dim),) * 2
               for slot in model.slots if isinstance(slot, LatentSlot)]  # fmt: skip
    return max(widths, default=(0, 0))


def _keeps_all(slot: Slot) -> bool:
    """Whether a slot's layer attends to every position."""
    if isinstance(slot, SlidingSlot | ChunkedSlot):
        return False
    return isinstance(slot, FullSlot) or (isinstance(slot, LatentSlot) and slot.window is None)


def _indexer(model: Model, context: Context, row: int) -> int:
    """Queries of the indexer, its scores and choice beside the attention's own."""
    slots = [slot for slot in model.slots if isinstance(slot, IndexerSlot)]
    if not slots:
        return 0
    heads = fact(model, "attention.indexer.head_count", "index_n_heads")
    chosen = fact(model, "attention.indexer.top_k", "index_topk")
    cells = context.sequence_cells
    own = row + 6 * heads * slots[0].dim + chosen
    return own + min(2 * max(cells - 2 * chosen, 0), cells)


def _mixer(model: Model, context: Context) -> int:
    """The widest recurrent layer: its projections, and copies of the sequences' states."""
    inputs = {slot.layer: slot.channels for slot in model.slots if isinstance(slot, ConvSlot)}
    widest = 0
    for slot in model.slots:
        if isinstance(slot, RecurrentSlot):
            states = slot.elements * context.sequences // context.ubatch
            shared = inputs.get(slot.layer, 0)
            widest = max(widest, _mixer_width(slot, shared, states, model.hidden_size))
    return widest


def _mixer_width(slot: RecurrentSlot, inputs: int, states: int, hidden: int) -> int:
    """Numbers of a token in one recurrent layer, by its design; `states` counted per token."""
    if slot.mixer == "mamba1":
        return 5 * slot.shape[0] + states * 6 // 5
    if slot.mixer == "mamba2":
        inner = slot.shape[0] * slot.shape[1]
        projected = inner + inputs + slot.heads
        return max(3 * projected, 2 * projected + states * 9 // 4)
    if slot.mixer == "gdn":
        inner = slot.shape[0] * slot.shape[2]
        return 3 * inner + 2 * (inputs - inner) + 2 * states
    if slot.mixer == "rwkv":
        return 15 * hidden + states * 23 // 10
    return 2 * states
