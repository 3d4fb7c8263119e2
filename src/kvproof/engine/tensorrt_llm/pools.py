"""What a token and a sequence take on one GPU, and the pools they are kept in.

One pool of blocks holds all attention layers, unless max_attention_window gives layers different
windows: then every window has a pool of its own. The PyTorch backend gives each the same share of
the memory (resource_manager.py, calculate_max_num_blocks_for_vswa; TRTLLM_WINDOW_SIZE_SHARES asks
for others), the compiled engine each the same blocks, "as assuming all layers as full attention"
(kvCacheManager.cpp). Heads are split over ranks and rounded up; latent attention keeps one vector
(SELFKONLY) on every rank; attention data parallelism keeps all heads on each.
"""

from __future__ import annotations

import msgspec

from kvproof.engine.convolutions import before_current
from kvproof.engine.tensorrt_llm.flags import Flags
from kvproof.errors import UsageError
from kvproof.kinds import (
    CompressedSlot,
    ConvSlot,
    CrossSlot,
    FullSlot,
    IndexerSlot,
    LatentSlot,
    RecurrentSlot,
    SlidingSlot,
    Slot,
)
from kvproof.kinds.elements import ElementType, element_type
from kvproof.model.types import Model

_KV_NAMES = {"fp8": "fp8_e4m3", "nvfp4": "nvfp4", "int8": "int8", "float16": "f16",
             "bfloat16": "bf16", "half": "f16", "float32": "f32"}  # fmt: skip
_CROSS_SHARE, _PARTS = 0.5, 10_000
_STATE_WIDTHS = {"float32": 4, "f32": 4, "float16": 2, "f16": 2, "bfloat16": 2, "bf16": 2}


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """The blocks of all layers that keep the same number of positions."""

    window: int
    layers: int
    cell: int
    """Bytes of one token over the layers."""
    weight: int
    """Its part of the memory, against the other pools' weights."""
    fixed: int | None = None
    """Tokens of an encoder that every sequence holds here, whatever its length."""

    def held(self, context: int) -> int:
        """Tokens of a sequence of `context` tokens in the pool."""
        return min(context, self.window) if self.fixed is None else self.fixed


def kv_type(model: Model, flags: Flags) -> ElementType:
    """The cache's type: as asked, else the checkpoint's own, else the model's."""
    asked = str(flags.get("kv_cache_dtype", "auto")).split()[0]
    if asked == "auto":
        own = model.quantization.kv_dtype if model.quantization is not None else None
        asked = own or model.dtype
    return element_type(_KV_NAMES.get(asked, asked))


def slot_bytes(slot: Slot, flags: Flags, dtype: ElementType) -> int:
    """Bytes that a token adds in one slot on one GPU."""
    if isinstance(slot, FullSlot | CrossSlot):
        heads = -(-slot.kv_heads // flags.attention_tp)
        return dtype.bytes(heads * slot.k_dim) + dtype.bytes(heads * slot.v_dim)
    if isinstance(slot, LatentSlot):
        return dtype.bytes(slot.latent_dim + slot.rope_dim)
    if isinstance(slot, IndexerSlot):
        return slot.dim + slot.dim // 128 * 4
    return 0


def state_bytes(model: Model, slot: Slot, flags: Flags) -> int:
    """Bytes that a sequence keeps in one slot on one GPU, whatever its length.

    The recurrent state's type is mamba_ssm_cache_dtype of the flags, else of the config, else the
    model's own (_torch/pyexecutor/config_utils.py).
    """
    if isinstance(slot, ConvSlot):
        return slot.channels // flags.attention_tp * before_current(slot) * 2
    if isinstance(slot, RecurrentSlot):
        return slot.elements // flags.attention_tp * _STATE_WIDTHS.get(_state_name(model, flags), 4)
    return 0


def _state_name(model: Model, flags: Flags) -> str:
    asked = str(flags.get("mamba_ssm_cache_dtype", "auto"))
    named = model.text_config.get("mamba_ssm_cache_dtype") or model.dtype
    return str(named) if asked == "auto" else asked


def typed_states(model: Model, flags: Flags) -> Model:
    """The model with its states' elements as wide as `state_bytes` counts them."""
    wide = _STATE_WIDTHS.get(_state_name(model, flags), 4) == 4
    element = element_type("f32" if wide else "bf16")
    slots = tuple(
        msgspec.structs.replace(
            slot, element=element if isinstance(slot, RecurrentSlot) else element_type("bf16")
        )
        if isinstance(slot, RecurrentSlot | ConvSlot) and slot.mixer != "token_ids"
        else slot
        for slot in model.slots
    )
    return msgspec.structs.replace(model, slots=slots)


def windowed(model: Model, flags: Flags, length: int) -> Model:
    """The model whose layers keep, and read, no more than max_attention_window gives each."""
    if not flags.get("max_attention_window"):
        return model
    layers = dict.fromkeys(slot.layer for slot in model.slots if isinstance(slot, FullSlot))
    windows = dict(zip(layers, _windows(flags, len(layers), length), strict=True))

    def kept(slot: Slot) -> Slot:
        if not isinstance(slot, FullSlot) or windows[slot.layer] >= length:
            return slot
        window = windows[slot.layer]
        if isinstance(slot, SlidingSlot):
            return msgspec.structs.replace(slot, window=min(window, slot.window))
        return SlidingSlot(
            layer=slot.layer,
            kv_heads=slot.kv_heads,
            k_dim=slot.k_dim,
            v_dim=slot.v_dim,
            prefix=slot.prefix,
            window=window,
        )

    return msgspec.structs.replace(model, slots=tuple(kept(slot) for slot in model.slots))


def pools(model: Model, flags: Flags, length: int) -> tuple[Pool, ...]:
    """The pools of the stage that `flags` are for, widest window first."""
    if any(isinstance(slot, CompressedSlot) for slot in model.slots):
        raise UsageError(
            f"TensorRT-LLM's pools for the compressed attention of {model.name} are not known",
            hint="use engine vllm",
        )
    dtype, part = kv_type(model, flags), flags.layers
    rows: dict[int, int] = {}
    crossing = [
        s for s in model.slots if isinstance(s, CrossSlot) and (not part or s.layer in part)
    ]
    for slot in model.slots:
        if isinstance(slot, CrossSlot):
            continue
        held = part is None or slot.layer in part
        size = slot_bytes(slot, flags, dtype) if held else 0
        if size:
            rows[slot.layer] = rows.get(slot.layer, 0) + size
    windows = _windows(flags, len(rows), length)
    cells: dict[int, list[int]] = {}
    for window, size in zip(windows, rows.values(), strict=True):
        cells.setdefault(window, []).append(size)
    same_blocks = flags.compiled or flags.before(1, 1)
    own = tuple(
        Pool(window=w, layers=len(c), cell=sum(c), weight=sum(c) if same_blocks else 1)
        for w, c in sorted(cells.items(), reverse=True)
    )
    _check_manager(model, flags, len(own))
    return _beside_encoder(flags, own, crossing, dtype) if crossing else own


def _check_manager(model: Model, flags: Flags, windows: int) -> None:
    """Refuse what KVCacheManagerV2 divides anew while it runs.

    Source: tensorrt_llm/runtime/kv_cache_manager_v2/_storage/_config.py: windows whose layers take
    alike share a pool, the others' parts follow typical lengths.
    """
    states = any(isinstance(slot, ConvSlot | RecurrentSlot) for slot in model.slots)
    if flags.second_manager and (windows > 1 or states):
        raise UsageError(
            "KVCacheManagerV2 moves memory between the pools of several windows or states while "
            "it runs: their sizes are not known beforehand",
            hint="leave use_kv_cache_manager_v2 out",
        )


def _beside_encoder(
    flags: Flags, own: tuple[Pool, ...], crossing: list[CrossSlot], dtype: ElementType
) -> tuple[Pool, ...]:
    """The pools and one of the encoder's keys and values, cross_kv_cache_fraction of the memory.

    Source: llmapi/llm_args.py (KvCacheConfig); 0.5 is what run.py takes where none is given.
    """
    share = float(flags.get("cross_kv_cache_fraction") or _CROSS_SHARE)
    if not 0 < share < 1:
        raise UsageError(f"cross_kv_cache_fraction is {share:g}", hint="give a share below 1")
    whole = sum(pool.weight for pool in own)
    tokens = max(s.default_tokens or 0 for s in crossing) or int(flags.get("max_input_len") or 0)
    encoder = Pool(
        window=tokens,
        layers=len(crossing),
        cell=sum(slot_bytes(slot, flags, dtype) for slot in crossing),
        weight=round(whole * _PARTS * share),
        fixed=tokens,
    )
    rest = round(_PARTS * (1 - share))
    return (*(msgspec.structs.replace(p, weight=p.weight * rest) for p in own), encoder)


def _windows(flags: Flags, layers: int, length: int) -> list[int]:
    """The positions that each layer keeps: max_attention_window repeats over the layers."""
    sizes = flags.get("max_attention_window") or [length]
    return [min(length, sizes[i % len(sizes)]) for i in range(layers)]
