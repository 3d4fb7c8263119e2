"""The block size: by backend, and for hybrids grown until an attention page holds a state.

Source: vLLM 0.32, platforms/interface.py (update_block_size_for_backend,
_align_hybrid_block_size); before 0.18 platforms/cuda.py and model_executor/models/config.py.
"""

from __future__ import annotations

import math

import msgspec

from kvproof.engine.vllm.architectures import is_m3
from kvproof.engine.vllm.backend_table import ROWS
from kvproof.engine.vllm.backend_types import DEFAULT_BLOCK, Attention, Backend
from kvproof.engine.vllm.backends import (
    FLASHMLA_SPARSE_DSV4,
    INDEXER,
    M3_SPARSE,
    block_by_name,
    check_pair,
    check_shared_out,
    check_triton,
    check_two_widths,
    choose,
    common_block,
    stored_latent_dtype,
)
from kvproof.engine.vllm.compressed import compressed_block, is_v4
from kvproof.engine.vllm.flags import asked_backend
from kvproof.engine.vllm.layers import Blocks, Picked, draft_kv_dtype, heads_on, picked_by
from kvproof.engine.vllm.pooled import pooled_backends
from kvproof.engine.vllm.rows import check_picked, check_scales, element_bytes, is_whole, pair_row
from kvproof.engine.vllm.settings import (
    SKIPPED,
    Settings,
    has_states,
    is_diffusion,
    is_inkling,
    is_sparse,
    keeps_latent,
    reads_pictures,
)
from kvproof.engine.vllm.states import block_alone, state_bytes, state_sets
from kvproof.errors import UsageError
from kvproof.kinds import ConvSlot, FullSlot, LatentSlot, RecurrentSlot, SlidingSlot, Slot
from kvproof.model.types import Model

_LATENT_WIDTH, _PICKED = 576, 2048
_HOPPER, _FLASH_4 = 9, (9, 10, 11)
"""The first numbers of the compute capabilities that FlashAttention 4 has kernels for."""
_GEMMA_4 = ("gemma4", "diffusion_gemma")
_CPU_BLOCK = 128
_CPU_LATENT_BLOCK = 16
_LATENT_HYBRID = 128
_OLD_LATENT_HYBRID = 64
_CHUNK = 256
_SHARED_OUT = (0, 32, 0)
"""The release in which FlashMLA's refusal of shared caches in 16 bits was read."""


def settle_blocks(model: Model, settings: Settings) -> Blocks:
    """The block size of attention layers, the backend, and the page states are padded to."""
    blocks = msgspec.structs.replace(
        _settle(model, settings),
        draft_backend=_draft_backend(model, settings),
        others=_other_backends(model, settings),
    )
    return _in_two_types(model, settings, blocks) if settings.flags.get(SKIPPED) else blocks


def _in_two_types(model: Model, settings: Settings, blocks: Blocks) -> Blocks:
    """Grow the block until a quantized page holds one of the layers that are not quantized.

    Source: vLLM 0.32, platforms/interface.py (_align_heterogeneous_kv_block_size,
    _check_aligned_block_size).
    """
    slot = _first(model)
    if slot is None or is_v4(model):
        return blocks
    first = _first_backend(model, settings, blocks.backend, slot)
    check_pair(first, settings.kv_dtype)
    whole = msgspec.structs.replace(settings, kv_dtype="auto")
    row, wide = (_widest_row(model, each, first) for each in (settings, whole))
    if wide <= row:
        return blocks
    step = max(first.smallest, blocks.size)
    needed = max(wide * first.smallest, blocks.state_page or 0)
    size = max(blocks.size, step * -(-needed // (step * row)))
    every = _all_backends(model, settings, attention_of(model, settings), blocks.backend)
    for backend in every if size != blocks.size else ():
        if not backend.takes(size):
            raise UsageError(
                f"{backend.name} does not take blocks of {size} tokens, which layers of two types "
                "need",
                hint=f"leave {SKIPPED} out",
            )
    page = size * row
    state = blocks.state_page if blocks.state_page is None else page
    return msgspec.structs.replace(blocks, size=size, shared_page=page, state_page=state)


def _first_backend(
    model: Model, settings: Settings, backend: Backend, slot: FullSlot | LatentSlot
) -> Backend:
    """The backend of the first cache that is made: a sparse model's indexer comes first.

    `backend` is that of layers like the widest.
    """
    if settings.platform == "cuda" and attention_of(model, settings).sparse:
        return next(iter(pooled_backends(model, settings)), INDEXER)
    key = picked_by(slot, skipped=is_whole(model, settings, slot.layer, slot))
    return _other_backends(model, settings).get(key, backend)


def _widest_row(model: Model, settings: Settings, backend: Backend) -> int:
    """Bytes of a token in a layer of the config's KV heads, else of the most, and of the widest
    keys; a latent is one head with keys and values of its width."""
    pairs = [slot for slot in model.slots if isinstance(slot, FullSlot)]
    if not pairs:
        return 2 * _token_bytes(model, settings, backend)
    counts, named = {slot.kv_heads for slot in pairs}, model.number("num_key_value_heads")
    heads = heads_on(named if named in counts else max(counts), settings.ranks)
    width = max(slot.k_dim for slot in pairs)
    return pair_row(heads, width, width, settings, packed=backend.packs(settings.kv_dtype))


def _first(model: Model) -> FullSlot | LatentSlot | None:
    """The first layer's slot that an attention backend reads."""
    return next((s for s in model.slots if isinstance(s, FullSlot | LatentSlot)), None)


def _settle(model: Model, settings: Settings) -> Blocks:
    attention = attention_of(model, settings)
    backend = _backend(model, settings, attention)
    size = _plain_block(model, settings, attention, backend)
    if not has_states(model) or not settings.rules.v1:
        return Blocks(size=size, backend=backend, state_size=settings.max_model_len)
    if _widest(model) is None:
        return Blocks(size=size, backend=backend, state_size=block_alone(settings))
    return _hybrid(model, settings, backend, size)


def _backend(model: Model, settings: Settings, attention: Attention) -> Backend:
    if is_v4(model):
        return FLASHMLA_SPARSE_DSV4
    if _widest(model) is None:
        mixers = {slot.mixer for slot in model.slots if isinstance(slot, RecurrentSlot)}
        return Backend(name=f"{next(iter(mixers), 'none').upper()}_ATTN", sizes=(16,))
    attention = attention if _chooses(settings) else _any_block(attention)
    backend = _with_sinks(model, attention, choose(attention))
    if attention.diffusion and attention.forced == "FLASHINFER":
        raise UsageError(
            "vLLM's FLASHINFER does not draw a block of tokens both ways (DiffusionGemma)",
            hint="set attention_backend=FLASH_ATTN or TRITON_ATTN",
        )
    check_picked(model, settings)
    if attention.own is None:
        check_scales(model, attention.kv_dtype, settings)
    if settings.rules.null_reserved:
        check_triton(backend, attention)
        check_two_widths(backend, attention)
    if settings.rules.version >= _SHARED_OUT:
        check_shared_out(backend, attention)
    return backend


def _with_sinks(model: Model, attention: Attention, backend: Backend) -> Backend:
    """HY-V4's latents have sinks, which of the sparse backends its own FlashMLA alone reads.

    Source: vLLM 0.32, models/hy_v4/nvidia/attention.py (_resolve_sink_backend).
    """
    sinks = model.model_type.startswith("hy_v4") and model.text_config.get("learnable_sink", True)
    flash = ROWS["FLASHMLA_SPARSE"]
    taken = sinks and flash.takes(msgspec.structs.replace(attention, context_ranks=1))
    return flash.backend if taken else backend


def _other_backends(model: Model, settings: Settings) -> dict[Picked, Backend]:
    """The backends of layers of other widths or types: each layer picks its own (attention.py)."""
    first = _widest(model)
    if first is None or not settings.rules.null_reserved or is_v4(model):
        return {}
    slots = [s for s in model.slots if isinstance(s, FullSlot | LatentSlot)]
    found = {picked_by(s, skipped=is_whole(model, settings, s.layer, s)): s for s in slots}
    found.pop(picked_by(first, skipped=False), None)
    attention, out = attention_of(model, settings), {}
    for key, slot in sorted(found.items(), key=lambda item: item[0]):
        one = msgspec.structs.replace(attention, kv_dtype="auto") if key[2] else attention
        if isinstance(slot, FullSlot):
            one = msgspec.structs.replace(
                one, head_dim=slot.k_dim, value_dim=slot.v_dim, checked_dim=attention.head_dim
            )
        out[key] = _with_sinks(model, one, choose(one))
    return out


def _chooses(settings: Settings) -> bool:
    """Whether a block size that was asked for bears on the choice of the backend."""
    return settings.rules.block_by_backend and settings.platform == "cuda"


def _any_block(attention: Attention) -> Attention:
    return msgspec.structs.replace(attention, block_size=None)


def attention_of(model: Model, settings: Settings) -> Attention:
    """What the choice of the attention backend depends on."""
    slot = _widest(model)
    latent = isinstance(slot, LatentSlot) and keeps_latent(model, settings)
    kv_heads = slot.kv_heads if isinstance(slot, FullSlot) else 1
    widths = (
        {"nope_dim": slot.nope_dim, "rope_dim": slot.rope_dim, "latent_dim": slot.latent_dim}
        if isinstance(slot, LatentSlot)
        else {}
    )
    return Attention(
        capability=settings.capability,
        platform=settings.platform,
        release=settings.rules.version,
        latent=latent,
        sparse=latent and is_sparse(model),
        head_dim=_head_dim(slot, latent=latent),
        value_dim=_value_dim(slot, latent=latent),
        picked=int(model.number("index_topk") or _PICKED),
        query_heads=model.attention_heads // settings.ranks,
        kv_heads=heads_on(kv_heads, settings.ranks),
        kv_dtype=_kept_by_any(model, settings),
        kv_asked=str(settings.flags.get("kv_cache_dtype", "auto")) != "auto",
        dtype=settings.dtype if settings.rules.null_reserved else "bf16",
        sinks=model.model_type.startswith("gpt_oss"),
        capped=bool(model.text_config.get("attn_logit_softcapping")),
        pictures=settings.rules.picture_backends and reads_pictures(model, settings.flags),
        both_ways=is_diffusion(model),
        diffusion=is_diffusion(model),
        flash_4=_asks_for_flash_4(model, settings),
        block_size=settings.block_size,
        context_ranks=settings.context_ranks,
        forced=_asked_backend(model, settings),
        own=_own_backend(model),
        **widths,
    )


def _kept_by_any(model: Model, settings: Settings) -> str:
    """The cache's type, unless every layer is one of those that keep the model's own."""
    slots = [s for s in model.slots if isinstance(s, FullSlot | LatentSlot)]
    whole = bool(slots) and all(is_whole(model, settings, s.layer, s) for s in slots)
    return "auto" if whole else settings.kv_dtype


def _asked_backend(model: Model, settings: Settings) -> str | None:
    """The backend that the user names, or else Gemma 4 where FlashAttention 4 is missing: it
    mixes heads of two widths. Source: vLLM 0.32, model_executor/models/config.py (Gemma4Config).
    """
    asked = asked_backend(settings.flags)
    if asked is None and _mixes_widths(model) and settings.capability[0] not in _FLASH_4:
        return "TRITON_ATTN"
    return asked


def _asks_for_flash_4(model: Model, settings: Settings) -> bool:
    """Whether Gemma 4 has FlashAttention 4 for every layer: where it is, but fp8 on Hopper."""
    asked = asked_backend(settings.flags) in (None, "FLASH_ATTN")
    fp8 = settings.capability[0] == _HOPPER and settings.kv_dtype.startswith("fp8")
    return asked and _mixes_widths(model) and settings.capability[0] in _FLASH_4 and not fp8


def _mixes_widths(model: Model) -> bool:
    widths = {slot.k_dim for slot in model.slots if isinstance(slot, FullSlot)}
    return model.model_type.startswith(_GEMMA_4) and len(widths) > 1


def _own_backend(model: Model) -> str | None:
    """Models whose own kernels take FlashAttention's blocks, whatever is asked for."""
    own = is_inkling(model) or model.model_type.startswith("qwen4_exp")
    return "FLASH_ATTN" if own else None


def _head_dim(slot: Slot | None, *, latent: bool) -> int:
    if isinstance(slot, FullSlot):
        return slot.k_dim
    if isinstance(slot, LatentSlot):
        return (slot.latent_dim if latent else slot.nope_dim) + slot.rope_dim
    return _LATENT_WIDTH


def _value_dim(slot: Slot | None, *, latent: bool) -> int | None:
    if isinstance(slot, FullSlot):
        return slot.v_dim
    return slot.value_dim if latent and isinstance(slot, LatentSlot) else None


def _widest(model: Model) -> Slot | None:
    """The slot that speaks for the model: full attention before windows, latent before both."""
    latent = [s for s in model.slots if isinstance(s, LatentSlot)]
    full = [s for s in model.slots if isinstance(s, FullSlot) and not isinstance(s, SlidingSlot)]
    pairs = [s for s in model.slots if isinstance(s, FullSlot)]
    return next(iter([*latent, *full, *pairs]), None)


def _plain_block(model: Model, settings: Settings, attention: Attention, backend: Backend) -> int:
    if is_v4(model):
        return compressed_block(settings)
    if not settings.rules.block_by_backend:
        return block_by_name(attention)
    if settings.platform == "cpu":
        return _cpu_block(settings, latent=attention.latent)
    if settings.block_size is not None:
        return settings.block_size
    return common_block(_all_backends(model, settings, attention, backend))


def _cpu_block(settings: Settings, *, latent: bool) -> int:
    """The block on a CPU: the kernel of latents takes 16 tokens whatever is asked for.

    A draft model's settings are checked after the target's, and change the block for both.
    Source: vLLM 0.32, platforms/cpu.py (check_and_update_config).
    """
    asked, draft = settings.block_size, settings.draft
    size = _CPU_LATENT_BLOCK if latent else asked or _CPU_BLOCK
    if draft.method == "draft_model" and draft.model is not None:
        if any(isinstance(slot, LatentSlot) for slot in draft.model.slots):
            return _CPU_LATENT_BLOCK
        return size if asked else _CPU_BLOCK
    return size


def _draft_backend(model: Model, settings: Settings) -> Backend | None:
    """The backend of a draft's layers; None where it is the target's.

    What FlashInfer takes depends on the target's heads; MiniMax-M3's modules are sparse layers,
    which bring their own whatever is asked for. Source: vLLM 0.32,
    v1/attention/backends/flashinfer.py (get_supported_kernel_block_sizes),
    models/minimax_m3/nvidia/mtp.py (force_sparse_attn).
    """
    draft, own = settings.draft.model or model, settings.draft
    chosen = settings.rules.null_reserved and settings.platform == "cuda"
    asked = own.model is not None or own.kv_dtype is not None or own.backend is not None
    asked = asked or (bool(own.method) and draft_kv_dtype(model, settings) != settings.kv_dtype)
    if not (asked and chosen) or _widest(draft) is None or is_v4(model):
        return None
    typed = msgspec.structs.replace(settings, kv_dtype=draft_kv_dtype(model, settings))
    if own.method == "mtp" and is_m3(model):
        check_picked(model, typed)
        return M3_SPARSE
    target = attention_of(model, settings)
    heads = {"query_heads": target.query_heads, "kv_heads": target.kv_heads}
    attention = msgspec.structs.replace(attention_of(draft, typed), **heads)
    attention = msgspec.structs.replace(attention, forced=own.backend or attention.forced)
    if own.kv_dtype is not None:  # the copied settings take the default block for an asked one
        block = settings.block_size or DEFAULT_BLOCK
        attention = msgspec.structs.replace(attention, block_size=block)
    backend = choose(attention)
    check_triton(backend, attention)
    if own.method == "mtp" or own.model is not None:
        check_scales(draft, attention.kv_dtype, settings)
    return backend


def _all_backends(
    model: Model, settings: Settings, attention: Attention, backend: Backend
) -> list[Backend]:
    """The attention's backend and those of the caches beside it."""
    drafted = _draft_backend(model, settings)
    out = [backend] if drafted is None else [backend, drafted]
    others = _other_backends(model, settings).values()
    out += [other for other in others if other.name not in {b.name for b in out}]
    if attention.sparse and settings.platform == "cuda":
        out += pooled_backends(model, settings) or [INDEXER]
    if is_m3(model):
        out.append(M3_SPARSE)
    return out


def _hybrid(model: Model, settings: Settings, backend: Backend, size: int) -> Blocks:
    """Grow the block until its attention page holds a state; states are padded to that page.

    A token takes what the backend of the first attention layer makes of it.
    """
    slot, state = _first(model), _state_page(model, settings)
    first = backend if slot is None else _first_backend(model, settings, backend, slot)
    keeps = backend if isinstance(_widest(model), LatentSlot) else first
    token, step = _token_bytes(model, settings, keeps), _alignment(model, settings, first, size)
    if settings.state_mode == "all":
        step = math.lcm(_mamba_chunk(model, settings), step)
    grown = step * -(-state // (step * token))
    if settings.rules.null_reserved:
        every = _all_backends(model, settings, attention_of(model, settings), backend)
        unit = math.lcm(*(b.smallest for b in every))
        grown = unit * -(-grown // unit)
    block = max(size, grown)
    page = block * token
    state_size = block if settings.state_mode != "none" else settings.max_model_len
    return Blocks(size=block, backend=backend, state_size=state_size, state_page=max(page, state))


def _alignment(model: Model, settings: Settings, backend: Backend, size: int) -> int:
    latent = any(isinstance(slot, LatentSlot) for slot in model.slots)
    if settings.rules.block_by_backend:
        step = max(backend.smallest, size)
        return max(step, _LATENT_HYBRID) if latent else step
    if latent:
        return _OLD_LATENT_HYBRID
    wide = any(isinstance(s, FullSlot) and s.k_dim == 256 for s in model.slots)
    return 32 if settings.capability[0] == 10 and wide else 16


def _token_bytes(model: Model, settings: Settings, backend: Backend) -> int:
    """Bytes of one token in one attention layer, a sparse backend's own packing left out.

    A backend that packs what nobody asked for makes that the setting (mla_attention.py).
    """
    slot = _widest(model)
    if isinstance(slot, LatentSlot):
        stored = stored_latent_dtype(backend, settings.kv_dtype)
        kept = msgspec.structs.replace(settings, kv_dtype=stored)
        return (slot.latent_dim + slot.rope_dim) * element_bytes(kept)
    if not isinstance(slot, FullSlot):
        return 1
    heads, packed = heads_on(slot.kv_heads, settings.ranks), backend.packs(settings.kv_dtype)
    return pair_row(heads, slot.k_dim, slot.v_dim, settings, packed=packed)


def _state_page(model: Model, settings: Settings) -> int:
    by_layer: dict[int, list[Slot]] = {}
    for slot in model.slots:
        if isinstance(slot, ConvSlot | RecurrentSlot):
            by_layer.setdefault(slot.layer, []).append(slot)
    sets = [part for slots in by_layer.values() for part in state_sets(model, slots)]
    return max(state_bytes(model, settings, part) for part in sets)


def _mamba_chunk(model: Model, settings: Settings) -> int:
    """Tokens of a chunk of the scan, the unit of states kept for every block."""
    asked = settings.flags.get("mamba_block_size")
    if asked:
        return int(asked)
    config = model.text_config
    named = config.get("mamba_chunk_size") or config.get("chunk_size")
    return int(named) if named else _CHUNK
