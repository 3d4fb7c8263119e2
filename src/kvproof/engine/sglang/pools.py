"""SGLang's pools: bytes of a token in each, and of a request's state, on one GPU.

Source: sglang/srt/model_executor/pool_configurator.py (0.5.11 on; model_runner.py and
model_runner_kv_cache_mixin.py before), mem_cache/memory_pool.py, configs/mamba_utils.py.
Differences to vLLM: a model whose sliding layers SGLang does not list keeps all positions of every
layer; layers that share another's cache still have one allocated; heads are split by whole
division. What sizing counts for a token is not always what is then allocated (`charged`).
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from kvproof.engine.base import Deployment
from kvproof.engine.convolutions import before_current
from kvproof.engine.sglang.backend import (
    attention_backend,
    is_compressed,
    is_sparse,
    kv_type,
    page_size,
    raw_rows,
)
from kvproof.engine.sglang.compressed import Compressed, compressed_pools, compressed_slot_bytes
from kvproof.engine.sglang.drafts import BLOCK_DRAFTS, draft_flags, draft_layers, own_draft
from kvproof.engine.sglang.flags import Flags
from kvproof.engine.sglang.four_bits import Extra, of_heads, of_latents, scales
from kvproof.engine.sglang.windows import request_window_tokens, running_requests
from kvproof.errors import UsageError
from kvproof.kinds import (
    ChunkedSlot,
    ConvSlot,
    CrossSlot,
    FullSlot,
    IndexerSlot,
    LatentSlot,
    RecurrentSlot,
    SharedSlot,
    SlidingSlot,
    Slot,
)
from kvproof.kinds.elements import ElementType, element_type
from kvproof.model.types import Model

_STATE_WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2}
_INDEXER_BLOCK = 128
_COUNTED_TWICE = ("MiMoV2FlashForCausalLM",)
_CROSS = ("MllamaForConditionalGeneration", "WhisperForConditionalGeneration")
"""Models with cross-attention that SGLang serves. Source: 0.5.23, models/mllama.py, whisper.py and
configs/model_config.py (num_attention_layers)."""


class Pools(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes a token on one GPU: of full layers and, where there are two pools, of sliding ones.

    `state` bytes of one request's states. `window` of the sliding pool; None: one pool.
    `charged`: bytes a token that sizing counts beyond `cell` (negative: it forgets some), `draft`
    those of them that a draft's own pool takes, `unprinted` those of scales that the line with the
    pools' size leaves out. `pinned`: sliding tokens where they follow the requests. `compressed`:
    DeepSeek-V4's pools in place of all these.
    """

    full: int
    full_layers: int
    sliding: int = 0
    sliding_layers: int = 0
    window: int | None = None
    ratio: float = 1.0
    state: int = 0
    state_layers: int = 0
    page: int = 1
    context_ranks: int = 1
    """Ranks that a request's tokens are dealt out to, one row each on one of them."""
    dtype: str = "bf16"
    charged: int = 0
    draft: int = 0
    unprinted: int = 0
    pinned: int = 0
    compressed: Compressed | None = None
    encoder: int = 0
    """Tokens of the pool that a request's image or sound takes beside its context."""

    @property
    def span(self) -> int:
        """Tokens that a page holds, on one rank or dealt out over several."""
        return self.page * self.context_ranks

    @property
    def cell(self) -> float:
        """Bytes of one token of the total: the sliding pool has `ratio` as many."""
        if self.compressed is not None:
            return self.compressed.token
        return self.full + (0 if self.pinned else self.ratio * self.sliding)

    def sized(self, available: int) -> int:
        """Tokens in whole pages that `available` bytes give when the pool is sized."""
        if self.compressed is not None:
            return self.compressed.tokens(available)
        counted = self.cell + self.charged
        rest = available - self.pinned * self.sliding
        return max(0, int(rest // counted)) // self.page * self.page if counted > 0 else 0

    def tokens(self, size: int) -> int:
        """Tokens of allocated pools of `size` bytes; one page is the place of padding."""
        if self.compressed is not None:
            return self.compressed.tokens(size)
        if self.cell <= 0:
            return 0
        rest = size - (self.pinned + self.page if self.pinned else 0) * self.sliding
        return max(0, int(rest // self.cell) // self.page * self.page - self.page)

    def bytes(self, tokens: int) -> int:
        """Bytes allocated for `tokens` and the padding page, as K and V are printed."""
        if self.compressed is not None:
            return self.compressed.bytes(tokens)
        pinned = (self.pinned + self.page) * self.sliding if self.pinned else 0
        return round((tokens + self.page) * self.cell) + pinned

    def sliding_tokens(self, tokens: int) -> int:
        """Tokens of the sliding pool beside `tokens` of the full one."""
        if self.compressed is not None:
            return self.compressed.pinned or int(tokens * self.compressed.ratio)
        if not self.window:
            return 0
        return self.pinned or int(tokens * self.ratio) // self.page * self.page


def make_pools(model: Model, deployment: Deployment, flags: Flags) -> Pools:
    """The pools of `model` on one GPU of the stage that `flags` are for."""
    page = page_size(model, deployment, flags)
    _check_cross(model)
    _check_dealt_out(model, flags)
    if is_compressed(model):
        return _compressed(model, flags, page)
    dtype = kv_type(model, deployment, flags)
    two = _two_pools(model, deployment, flags)
    slots = list(_stage(model, flags))
    sliding = [s for s in slots if two and isinstance(s, SlidingSlot | ChunkedSlot)]
    full = [s for s in slots if s not in sliding]
    state = [s for s in slots if isinstance(s, ConvSlot | RecurrentSlot)]
    windows = [s.window if isinstance(s, SlidingSlot) else s.chunk
               for s in sliding if isinstance(s, SlidingSlot | ChunkedSlot)]  # fmt: skip
    window = max(windows, default=None)
    cell = sum(_cell(model, deployment, flags, s, dtype) for s in full)
    cell += _encoder_rows(model, slots) * _row(slots, flags, dtype)
    layers = len({s.layer for s in full if not isinstance(s, ConvSlot | RecurrentSlot)})
    counted, draft = _draft_cells(model, deployment, flags, cell, layers)
    packed = _four_bits(deployment, flags, full, dtype)
    plain = cell - (sum(_own_scales(s, flags) for s in full) if dtype.name == "fp4" else 0)
    cell, counted = plain + packed.printed, counted + packed.counted - packed.printed
    ratio = flags.get("swa_full_tokens_ratio", 0.8) if windows else 1.0
    own = sum(_cell(model, deployment, flags, s, dtype) for s in sliding)
    if flags.rules.swa_twice and model.architecture in _COUNTED_TWICE:
        counted += _twice(cell, own, (layers, len(sliding)), ratio)
    return Pools(
        full=cell,
        full_layers=layers,
        sliding=own,
        sliding_layers=len(sliding),
        window=window,
        ratio=ratio,
        state=sum(_state(model, flags, s) for s in state),
        state_layers=len({s.layer for s in state}),
        page=page,
        context_ranks=flags.context_ranks,
        dtype=dtype.name,
        charged=counted - _uncounted(model, deployment, flags, slots, dtype),
        draft=draft,
        unprinted=packed.held - packed.printed,
        pinned=_pinned(flags, window, page),
        encoder=_encoder_tokens(model),
    )


def _twice(full: int, sliding: int, layers: tuple[int, int], ratio: float) -> int:
    """Bytes that sizing counts beyond a token's own where every layer counts as a full one.

    The tokens found so are then shared out as if all layers were alike.
    Source: 0.5.8, model_runner_kv_cache_mixin.py (get_cell_size_per_token,
    set_num_tokens_hybrid_swa).
    """
    plain, windowed = layers
    if not plain or not windowed:
        return 0
    every = full // plain * (plain + windowed) + sliding
    alike = (plain + ratio * windowed) / (plain + windowed)
    return round(every * alike - (full + ratio * sliding))


def _check_cross(model: Model) -> None:
    if model.architecture in _CROSS or not any(isinstance(s, CrossSlot) for s in model.slots):
        return
    raise UsageError(
        f"SGLang serves no {model.architecture or 'model with cross-attention'}: of the models "
        f"with cross-attention {' and '.join(_CROSS)} alone",
        hint="use engine vllm or transformers",
    )


def _check_dealt_out(model: Model, flags: Flags) -> None:
    """Tokens that are dealt out over ranks are computed for plain latents: a rank keeps the rows of
    its own tokens. Indexers, drafts, windows and heads have rules of their own in every release.
    """
    plain = all(isinstance(s, LatentSlot) and s.window is None for s in model.slots)
    if flags.context_ranks == 1 or (plain and not flags.drafts):
        return
    raise UsageError(
        "SGLang's dcp_size is computed for models of plain latents without a draft alone",
        hint="leave it out, or plan with vLLM's decode_context_parallel_size",
    )


def _encoder_tokens(model: Model) -> int:
    """What an encoder made of an image or of sound lies in the same pool as text, before it.

    Source: 0.5.23, models/mllama.py and whisper.py (pad_input_ids: max_source_positions).
    """
    return max((s.default_tokens or 0 for s in model.slots if isinstance(s, CrossSlot)), default=0)


def _encoder_rows(model: Model, slots: list[Slot]) -> int:
    """Whisper's encoder layers, whose numbers the pool counts though they keep nothing."""
    if model.architecture != _CROSS[1] or not slots:
        return 0
    return int(model.config.get("encoder_layers") or 0)


def _row(slots: list[Slot], flags: Flags, dtype: ElementType) -> int:
    """Bytes a token of one layer of plain heads."""
    plain = next((s for s in slots if isinstance(s, FullSlot | CrossSlot)), None)
    return 0 if plain is None else _heads(plain, flags, dtype)


def _heads(slot: FullSlot | CrossSlot, flags: Flags, dtype: ElementType) -> int:
    elements = _numbers(slot, flags)
    return dtype.bytes(elements) + (scales(elements) if dtype.name == "fp4" else 0)


def _numbers(slot: FullSlot | CrossSlot, flags: Flags) -> int:
    """Numbers a token of one layer's heads on one GPU."""
    return max(1, slot.kv_heads // flags.attention_tp) * (slot.k_dim + slot.v_dim)


def _own_scales(slot: Slot, flags: Flags) -> int:
    """Bytes a token of a slot's own scales in FP4."""
    if isinstance(slot, LatentSlot):
        return scales(slot.latent_dim + slot.rope_dim)
    return scales(_numbers(slot, flags)) if isinstance(slot, FullSlot | CrossSlot) else 0


def _four_bits(
    deployment: Deployment, flags: Flags, slots: list[Slot], dtype: ElementType
) -> Extra:
    """What FP4 takes beside the packed numbers of the slots."""
    if dtype.name != "fp4":
        return Extra()
    latents = [s.latent_dim + s.rope_dim for s in slots if isinstance(s, LatentSlot)]
    if latents:
        return of_latents(latents)
    heads = [_numbers(s, flags) for s in slots if isinstance(s, FullSlot | CrossSlot)]
    return of_heads(deployment, flags, heads)


def _draft_cells(
    model: Model, deployment: Deployment, flags: Flags, cell: int, layers: int
) -> tuple[int, int]:
    """Bytes a token of the draft's pool: as sizing counts them, and as they are allocated.

    Sizing gives an EAGLE head or a standalone draft the target's bytes a layer; a DFLASH draft
    those of its own config.
    """
    count = draft_layers(model, flags)
    assumed = count * cell // layers if layers else 0
    own = own_draft(flags)
    if own is None:
        return assumed, assumed
    kind = kv_type(own, deployment, draft_flags(flags))
    held = sum(_cell(own, deployment, flags, slot, kind) for slot in own.slots)
    return (held if flags.algorithm in BLOCK_DRAFTS else assumed), held


def _compressed(model: Model, flags: Flags, page: int) -> Pools:
    pools = compressed_pools(model, flags, flags.layers or range(model.layers))
    return Pools(
        full=round(pools.token),
        full_layers=pools.layers,
        sliding_layers=pools.layers,
        window=pools.window,
        ratio=pools.ratio,
        page=page,
        dtype="fp8_e4m3",
        pinned=pools.pinned,
        compressed=pools,
    )


def _uncounted(
    model: Model, deployment: Deployment, flags: Flags, slots: list[Slot], dtype: ElementType
) -> int:
    """Bytes a token of FP8 rows' scales that sizing before 0.5.19 leaves out."""
    if flags.rules.scaled_rows_counted or not is_sparse(model):
        return 0
    latents = [s for s in slots if isinstance(s, LatentSlot)]
    return sum(
        _cell(model, deployment, flags, s, dtype) - dtype.bytes(s.latent_dim + s.rope_dim)
        for s in latents
    )


def _pinned(flags: Flags, window: int | None, page: int) -> int:
    """Sliding tokens by max_running_requests: without prefix caching, 0.5.22 on."""
    running = running_requests(flags)
    if window is None or running is None or not flags.rules.swa_by_requests:
        return 0
    if not flags.get("disable_radix_cache") or flags.chunked_prefill_size <= 0:
        return 0
    return request_window_tokens(flags, window, page, running)


def slot_bytes(model: Model, deployment: Deployment, flags: Flags, slot: Slot, tokens: int) -> int:
    """Bytes that one slot holds of a sequence of `tokens`, windows kept to their size."""
    if isinstance(slot, ConvSlot | RecurrentSlot):
        return _state(model, flags, slot)
    if is_compressed(model):
        return compressed_slot_bytes(model, slot, tokens)
    kept = (slot.default_tokens or 0) if isinstance(slot, CrossSlot) else tokens
    if _two_pools(model, deployment, flags) and isinstance(slot, SlidingSlot | ChunkedSlot):
        kept = slot.held(tokens)
    own = slot if not isinstance(slot, SharedSlot) else next(
        (s for s in _stage(model, flags) if s.layer == slot.layer), slot
    )  # fmt: skip
    return kept * _cell(model, deployment, flags, own, kv_type(model, deployment, flags))


def _stage(model: Model, flags: Flags) -> Iterator[Slot]:
    """The slots of the stage; shared layers with their own full geometry."""
    by_layer = {s.layer: s for s in model.slots if isinstance(s, FullSlot)}
    for slot in model.slots:
        if flags.layers is not None and slot.layer not in flags.layers:
            continue
        if isinstance(slot, SharedSlot):
            source = by_layer.get(slot.source_layer) if slot.source_layer is not None else None
            if source is not None:
                yield msgspec.structs.replace(source, layer=slot.layer)
        else:
            yield slot


def _two_pools(model: Model, deployment: Deployment, flags: Flags) -> bool:
    if flags.get("disable_hybrid_swa_memory") or model.architecture not in flags.rules.swa_archs:
        return False
    if flags.rules.swa_plain and model.architecture == "GptOssForCausalLM":
        backend = attention_backend(model, deployment, flags)
        return backend != "trtllm_mha" and flags.algorithm == "NONE"
    return True


def scaled_latent(slot: LatentSlot) -> int:
    """Bytes of a sparse latent in FP8: f32 scales of 128 numbers, the rotary key in 16 bits."""
    return slot.latent_dim + slot.latent_dim // 128 * 4 + slot.rope_dim * 2


def _cell(
    model: Model, deployment: Deployment, flags: Flags, slot: Slot, dtype: ElementType
) -> int:
    """Bytes a token of one slot on one GPU."""
    if isinstance(slot, FullSlot | CrossSlot):
        return _heads(slot, flags, dtype)
    if isinstance(slot, LatentSlot):
        width = slot.latent_dim + slot.rope_dim
        scaled = is_sparse(model) and dtype.name == "fp8_e4m3"
        if scaled and not raw_rows(model, deployment, flags):
            return scaled_latent(slot)
        return dtype.bytes(width) + (scales(width) if dtype.name == "fp4" else 0)
    if isinstance(slot, IndexerSlot):
        row = slot.dim + slot.dim // _INDEXER_BLOCK * 4
        if flags.rules.shared_indexer:
            return row
        layers = {s.layer for s in model.slots if isinstance(s, LatentSlot)}
        owners = sum(isinstance(s, IndexerSlot) for s in model.slots)
        return row * len(layers) // owners
    return 0


def typed_states(model: Model, flags: Flags) -> Model:
    """The model with its recurrent states' elements as wide as `_state` counts them."""
    element = element_type("f32" if _state_width(model, flags) == 4 else "bf16")
    slots = tuple(
        msgspec.structs.replace(slot, element=element) if isinstance(slot, RecurrentSlot) else slot
        for slot in model.slots
    )
    return msgspec.structs.replace(model, slots=slots)


def _state_width(model: Model, flags: Flags) -> int:
    named = flags.get("mamba_ssm_dtype") or model.text_config.get("mamba_ssm_dtype")
    return _STATE_WIDTHS.get(str(named), 4)


def _state(model: Model, flags: Flags, slot: Slot) -> int:
    """Bytes of one request's state in one slot on one GPU."""
    if isinstance(slot, ConvSlot):
        channels = slot.channels
        if slot.groups and slot.groups % flags.attention_tp:
            width = slot.group_channels // slot.groups
            channels += (flags.attention_tp - slot.groups) * width
        return channels // flags.attention_tp * before_current(slot) * 2
    if isinstance(slot, RecurrentSlot):
        return slot.elements // flags.attention_tp * _state_width(model, flags)
    return 0
