"""Hugging Face transformers: what its cache classes keep of a model's slots.

The slots say what a design needs; here stands what transformers keeps of it. Measured by running
tiny models of every generating architecture (scripts/measure_transformers.py), transformers 5.24:

- a sliding layer keeps window - 1 tokens; right after the prefill they are a view of the whole
  prompt's tensor, after a decoded token of a tensor of window tokens (before 4.56, DynamicCache
  and StaticCache kept all tokens of every layer, as cache_utils.py of 4.55.4 has it);
- a static cache takes its length from the start, sliding layers at most the window;
- convolution states keep `kernel` columns, recurrent states are f32 where the model says so;
- latent attention keeps the latent from 5.15 on (sparse ones from 5.18), before that the
  expanded keys and values of every head;
- Falcon's new decoder repeats keys and values for every query head before caching them;
- states outside the cache's layers (MiniMax' linear cache, RecurrentGemma's modules) count in
  `bytes`; `allocated_bytes` adds up the layers of the cache.

A batch of different lengths is padded on the left to the longest one, as generate() does.
"""

from __future__ import annotations

from math import lcm
from typing import TYPE_CHECKING, Any

import msgspec

from kvproof.engine.base import Budget, Cache, CacheRequest, Capacity, Deployment
from kvproof.engine.hooks import Traits
from kvproof.engine.release import padded, release_number
from kvproof.errors import ModelError, UsageError
from kvproof.kinds import (
    F32,
    ChunkedSlot,
    CompressedSlot,
    ConvSlot,
    CrossSlot,
    ElementType,
    FullSlot,
    IndexerSlot,
    LatentSlot,
    RecurrentSlot,
    SharedSlot,
    SlidingSlot,
    Slot,
    element_type,
)
from kvproof.terms import Term

if TYPE_CHECKING:
    from kvproof.model.types import Model

TRAITS = Traits(static_caches=True)
NEWEST = (5, 24)
_WINDOWS_SINCE = (4, 56)
_LATENT_SINCE = (5, 15)
_SPARSE_LATENT_SINCE = (5, 18)
_SPARSE_LATE = frozenset({"deepseek_v32", "glm_moe_dsa"})
_SOURCE = "transformers cache_utils.py, measured with 5.24"
_FLAGS: dict[str, type] = {
    "dtype": str,
    "cache_implementation": str,
    "batch": int,
    "gpu_memory": int,
}
Bytes = tuple[int, int]


class _Ask(msgspec.Struct, frozen=True):
    """One question: lengths, element types and the rules that answer it."""

    prompt: int
    decoded: int
    static: int | None
    encoder: int | None
    k: ElementType
    v: ElementType
    model: ElementType
    expand_latent: bool
    cut_windows: bool
    repeat_heads: int
    windows: dict[int, int]
    padded: int

    @property
    def tokens(self) -> int:
        return self.prompt + self.decoded


def check_flags(deployment: Deployment) -> None:
    """Raise UsageError for flags that this engine does not have."""
    for name, value in deployment.flags.items():
        if name not in _FLAGS:
            known = ", ".join(_FLAGS)
            raise UsageError(f"transformers has no flag {name!r}", hint=f"known: {known}")
        if isinstance(value, bool) or not isinstance(value, _FLAGS[name]):
            raise UsageError(f"flag {name!r} is {value!r}", hint=f"want {_FLAGS[name].__name__}")


def cache(model: Model, request: CacheRequest, version: str | None) -> Cache:
    """Bytes of one padded batch of sequences in a dynamic or static cache."""
    batch = len(request.lengths)
    ask = _question(model, request, parse_version(version))
    _check_static(model, ask)
    pairs = [slot_bytes(slot, ask) if ask.tokens else (0, 0) for slot in model.slots]
    slots = tuple(batch * held for held, _ in pairs)
    outside = model.model_type in _OUTSIDE
    allocated = sum(
        own for slot, (_, own) in zip(model.slots, pairs, strict=True)
        if not (outside and isinstance(slot, (ConvSlot, RecurrentSlot)))
    )  # fmt: skip
    shared = sum(_one_row(slot, ask) for slot in model.slots if isinstance(slot, IndexerSlot))
    return Cache(
        bytes=sum(slots),
        allocated_bytes=batch * allocated - (batch - 1) * shared,
        slots=slots,
        layers=_by_layer(model, slots),
        terms=_terms(model, slots, ask, batch),
    )


# States that live in modules or beside the cache's layers.
_OUTSIDE = frozenset({"minimax", "recurrent_gemma"})


def _check_static(model: Model, ask: _Ask) -> None:
    """Raise UsageError for a static cache that the class refuses or the tokens overflow."""
    if ask.static is None:
        return
    if _text_type(model) in _NEVER_STATIC:
        kind = _text_type(model)
        raise UsageError(f"transformers has no static cache for {kind}", hint="leave it out")
    grows = any(type(slot) in (FullSlot, LatentSlot, IndexerSlot) for slot in model.slots)
    if grows and ask.tokens > ask.static:
        raise UsageError(
            f"{ask.tokens:,} tokens overflow a static cache of {ask.static:,}",
            hint="give a longer static_length",
        )


# Classes that refuse a StaticCache.
_NEVER_STATIC = frozenset({"deepseek_v4", "minimax", "reformer", "rwkv", "xlnet", "xlstm"})


def budget(model: Model, deployment: Deployment) -> Budget:
    """transformers has no pool to budget: its cache grows with the sequences."""
    raise UsageError(
        "transformers grows its cache as it goes, so there is no budget for it",
        hint="ask kvproof cache, or plan with engine vllm",
    )


def capacity(model: Model, deployment: Deployment, kv_bytes: int) -> Capacity:
    """transformers has no block pool."""
    raise UsageError(
        "transformers has no block pool, so it has no capacity figure",
        hint="ask kvproof cache, or plan with engine vllm",
    )


def parse_version(text: str | None) -> tuple[int, int]:
    """Major and minor of a version; the newest known when none is given."""
    if text is None:
        return NEWEST
    number = release_number(text)
    if number is None:
        raise UsageError(f"can't read the version {text[:40]!r}", hint="write transformers@5.24")
    return padded(number)[:2]


def repeated_heads(model: Model) -> int:
    """KV heads that are cached where more are than have weights; 0 where none is repeated."""
    if _text_type(model) == "falcon" and model.text_config.get("new_decoder_architecture"):
        return model.attention_heads
    return 0


def _question(model: Model, request: CacheRequest, version: tuple[int, int]) -> _Ask:
    own = element_type(request.dtype or model.dtype)
    since = _SPARSE_LATENT_SINCE if _text_type(model) in _SPARSE_LATE else _LATENT_SINCE
    prompt = max(request.lengths, default=0)
    return _Ask(
        prompt=prompt,
        decoded=request.decode_steps,
        static=request.static_length,
        encoder=request.encoder_tokens,
        k=element_type(request.k_dtype) if request.k_dtype else own,
        v=element_type(request.v_dtype) if request.v_dtype else own,
        model=own,
        expand_latent=version < since,
        cut_windows=version >= _WINDOWS_SINCE,
        repeat_heads=repeated_heads(model),
        padded=_padded_prompt(model, prompt),
        windows={s.layer: s.window for s in model.slots if isinstance(s, SlidingSlot)},
    )


def _chunk(model: Model, key: str) -> int:
    value = model.text_config.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ModelError(f"the config's {key} is {str(value)[:40]}", hint="want a whole number")
    return value


def _padded_prompt(model: Model, prompt: int) -> int:
    """Rows computed for a prompt: Reformer pads those longer than a chunk to whole chunks."""
    if _text_type(model) != "reformer":
        return prompt
    names = {"lsh": "lsh_attn_chunk_length", "local": "local_attn_chunk_length"}
    chunks = [_chunk(model, names[kind]) for kind in set(model.text_config["attn_layers"])]
    step = lcm(*chunks)
    return -(-prompt // step) * step if prompt > min(chunks) else prompt


def _text_type(model: Model) -> str:
    return str(model.text_config.get("model_type", model.model_type))


def slot_bytes(slot: Slot, ask: _Ask) -> Bytes:
    """Logical and allocated bytes of one slot for one sequence."""
    for kind, rule in _RULES:
        if isinstance(slot, kind):
            sizes: Bytes = rule(slot, ask)
            return sizes
    raise UsageError(f"transformers keeps no {slot.kind} slot", hint="use engine formula")


def _rows(ask: _Ask, k: int, v: int, held: int, allocated: int) -> Bytes:
    """Bytes of `held` rows with `k` key and `v` value numbers each, and of `allocated` rows."""
    return (
        ask.k.bytes(held * k) + ask.v.bytes(held * v),
        ask.k.bytes(allocated * k) + ask.v.bytes(allocated * v),
    )


def _window_rows(window: int, ask: _Ask) -> tuple[int, int]:
    """Rows that a sliding layer shows, and rows of the tensor behind them."""
    if not ask.cut_windows:
        rows = ask.tokens if ask.static is None else ask.static
        return rows, rows
    if ask.static is not None:
        rows = min(window, ask.static)
        return rows, rows
    held = min(ask.tokens, window - 1) if window > 1 else ask.tokens
    behind = ask.prompt if ask.decoded == 0 else min(ask.tokens, window)
    return held, max(behind, held)


def _full(slot: FullSlot, ask: _Ask) -> Bytes:
    heads = ask.repeat_heads or slot.kv_heads
    if ask.static is not None:
        return _rows(ask, heads * slot.k_dim, heads * slot.v_dim, ask.static, ask.static)
    behind = ask.tokens if ask.decoded else ask.padded
    held = ask.tokens + slot.prefix
    return _rows(ask, heads * slot.k_dim, heads * slot.v_dim, held, behind + slot.prefix)


def _sliding(slot: SlidingSlot, ask: _Ask) -> Bytes:
    k, v = slot.kv_heads * slot.k_dim, slot.kv_heads * slot.v_dim
    if slot.after_prompt:
        return _reference(slot, ask, k, v)
    held, behind = _window_rows(slot.window, ask)
    return _rows(ask, k, v, held, behind)


def _reference(slot: SlidingSlot, ask: _Ask, k: int, v: int) -> Bytes:
    """The prompt, and a window of decoded tokens beside it, in one buffer when static."""
    if ask.static is not None:
        window = min(slot.window, ask.static)
        rows = min(ask.static - window, ask.prompt) + window
        return _rows(ask, k, v, rows, rows)
    held = ask.prompt + min(ask.decoded, slot.window - 1)
    return _rows(ask, k, v, held, ask.prompt + min(ask.decoded, slot.window))


def _chunked(slot: ChunkedSlot, ask: _Ask) -> Bytes:
    held, behind = _window_rows(slot.chunk, ask)
    return _rows(ask, slot.kv_heads * slot.k_dim, slot.kv_heads * slot.v_dim, held, behind)


def _latent(slot: LatentSlot, ask: _Ask) -> Bytes:
    k, v = slot.latent_dim, slot.rope_dim
    if ask.expand_latent:
        k, v = slot.heads * (slot.nope_dim + slot.rope_dim), slot.heads * slot.value_dim
    rows = ask.tokens if ask.static is None else ask.static
    held, behind = (rows, rows) if slot.window is None else _window_rows(slot.window, ask)
    return _rows(ask, k, v, held, behind)


def _indexer(slot: IndexerSlot, ask: _Ask) -> Bytes:
    rows = (ask.tokens if ask.static is None else ask.static) * (ask.prompt > slot.after)
    keys = (slot.element or ask.model).bytes(rows * slot.dim)
    # Position ids grow with the tokens in a static cache too.
    extra = ask.tokens * slot.extra_bytes
    behind = 0 if ask.decoded else ask.padded - ask.prompt
    unseen = (slot.element or ask.model).bytes(behind * slot.dim) * (ask.prompt > slot.after)
    return keys + extra, keys + unseen + (extra if ask.decoded else _one_row(slot, ask))


def _one_row(slot: IndexerSlot, ask: _Ask) -> int:
    """Bytes of the position ids that a whole batch shares: one row, expanded to three of every
    sequence until the first decoded token copies them.
    """
    return 0 if ask.decoded else ask.tokens * slot.extra_bytes // 3


def _conv(slot: ConvSlot, ask: _Ask) -> Bytes:
    size = (slot.element or ask.model).bytes(slot.channels * slot.kernel)
    return size, size


def _recurrent(slot: RecurrentSlot, ask: _Ask) -> Bytes:
    size = (slot.element or ask.model).bytes(slot.elements)
    return size, size


def _cross(slot: CrossSlot, ask: _Ask) -> Bytes:
    rows = slot.default_tokens if ask.encoder is None else ask.encoder
    if rows is None and slot.source == "encoder":
        raise UsageError(
            "the model attends to an encoder whose length is not given",
            hint="give encoder_tokens=",
        )
    rows = rows or 0
    if ask.static is not None:  # a static cross cache takes its layers' windows too
        rows = min(rows, ask.windows.get(slot.layer, rows))
    return _rows(ask, slot.kv_heads * slot.k_dim, slot.kv_heads * slot.v_dim, rows, rows)


def _nothing(slot: SharedSlot, ask: _Ask) -> Bytes:
    return 0, 0


def _compressed(slot: CompressedSlot, ask: _Ask) -> Bytes:
    """DeepSeek-V4: one window tensor (keys are values), entries, and inputs not yet compressed.

    After the prefill the left-over inputs are views of the whole prompt's projections.
    """
    held, behind = _window_rows(slot.window, ask)
    out = [ask.k.bytes(held * slot.dim), ask.k.bytes(behind * slot.dim)]
    entries, left = divmod(ask.tokens, slot.ratio)
    rows = ask.prompt if left and ask.decoded == 0 else left
    for width in (slot.dim, slot.index_dim):
        inputs = 2 * width * (2 if slot.overlap else 1)  # values and gates, two series
        out[0] += ask.model.bytes(left * inputs)
        out[1] += ask.model.bytes(rows * inputs)
        kept = ask.model.bytes(entries * width)
        if slot.overlap and entries:
            kept += ask.model.bytes(slot.ratio * width) + F32.bytes(slot.ratio * width)
        out = [size + kept for size in out]
    return out[0], out[1]


_RULES: tuple[tuple[type[Slot], Any], ...] = (
    (SlidingSlot, _sliding),
    (ChunkedSlot, _chunked),
    (FullSlot, _full),
    (LatentSlot, _latent),
    (IndexerSlot, _indexer),
    (ConvSlot, _conv),
    (RecurrentSlot, _recurrent),
    (CrossSlot, _cross),
    (SharedSlot, _nothing),
    (CompressedSlot, _compressed),
)


def _by_layer(model: Model, slots: tuple[int, ...]) -> tuple[int, ...]:
    count = max([model.layers, *(slot.layer + 1 for slot in model.slots)])
    out = [0] * count
    for slot, size in zip(model.slots, slots, strict=True):
        out[slot.layer] += size
    return tuple(out)


def _terms(model: Model, slots: tuple[int, ...], ask: _Ask, batch: int) -> tuple[Term, ...]:
    """One term per kind of slot; they add up to the logical bytes."""
    groups: dict[str, list[int]] = {}
    for slot, size in zip(model.slots, slots, strict=True):
        groups.setdefault(slot.kind, []).append(size)
    where = f"{batch} x {ask.tokens:,} tokens" if ask.static is None else f"static {ask.static:,}"
    return tuple(
        Term(
            name=f"{kind} cache",
            value=sum(sizes),
            unit="B",
            formula=f"{len(sizes)} slots, {where}: {sum(sizes):,} B",
            source=_SOURCE,
        )
        for kind, sizes in groups.items()
    )
