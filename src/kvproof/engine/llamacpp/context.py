"""A llama.cpp context: how many cells, streams and tokens a batch, from flags and model.

Source: llama_context's constructor and llama_init_from_model (llama-context.cpp, b11549).
"""

from __future__ import annotations

import msgspec

from kvproof.engine.llamacpp.builds import Build
from kvproof.engine.llamacpp.flags import Flags
from kvproof.errors import UsageError
from kvproof.kinds import FullSlot, LatentSlot, Slot
from kvproof.kinds.elements import ElementType
from kvproof.model.gguf_arch import architecture_of
from kvproof.model.types import Model

# Architectures that keep earlier states to roll back to (llm_arch_supports_rs_rollback).
_ROLLBACK = frozenset({
    "kimi-k3", "qwen35", "qwen35moe", "qwen4exp", "deepseek4", "glm5-next", "nemotron_h",
    "nemotron_h_moe", "lfm2", "lfm2moe", "bailingmoe3",
})  # fmt: skip


_EXPANDING = frozenset({"minicpm3", "plm"})


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """The context llama.cpp makes.

    `sequence_cells` cells in each of `streams` streams; `sequences` may run at once; a batch is
    computed `ubatch` tokens at a time; `planes` recurrent states a sequence.
    """

    arch: str | None
    build: Build
    cells: int
    sequence_cells: int
    streams: int
    sequences: int
    batch: int
    ubatch: int
    unified: bool
    flash: bool
    swa_full: bool
    k: ElementType
    v: ElementType
    planes: int
    outputs: int
    draft: tuple[ElementType, ElementType] | None = None


def expands_latents(model: Model, build: Build) -> bool:
    """Whether latent layers keep every head's keys and values instead of the latent.

    So do builds and architectures without a latent cache, and files without the MLA keys.
    """
    arch = architecture_of(model)
    if arch in _EXPANDING or not build.keeps_latents:
        return True
    from_file = "general.architecture" in model.config
    return from_file and f"{arch}.attention.key_length_mla" not in model.config


def pad(value: int, step: int) -> int:
    """`value` rounded up to a multiple of `step`."""
    return -(-value // step) * step


def context_of(model: Model, flags: Flags) -> Context:
    """The context of `model` under `flags`. Raises UsageError where llama.cpp refuses."""
    build, arch = flags.build, architecture_of(model)
    flash = _flash(flags, arch)
    _check_types(model, flags, arch, flash)
    sequences = flags.parallel or build.auto_slots
    chosen = flags.parallel is None and build.auto_slots > 1  # the server's own choice: one pool
    unified = chosen or bool(flags.kv_unified)
    asked = _asked_cells(model, flags, sequences, unified)
    batch = min(asked, flags.batch_size)
    ubatch = min(batch, flags.ubatch_size or flags.batch_size)
    cells, each, streams = _cells(build, asked, sequences, unified, flash)
    drafted = flags.draft_tokens
    rolled_back = drafted if flags.n_rs_seq is None else flags.n_rs_seq
    outputs = flags.n_outputs_max
    if outputs is None:
        # common_speculative_get_output_limits: one for the token, one for each that is drafted
        outputs = sequences * (1 + (flags.spec_draft_n_max if flags.spec_draft_model else drafted))
    return Context(
        arch=arch,
        build=build,
        cells=cells,
        sequence_cells=each,
        streams=streams,
        sequences=sequences,
        batch=batch,
        ubatch=ubatch,
        unified=unified,
        flash=flash,
        swa_full=flags.swa_full,
        k=flags.cache_type_k,
        v=flags.cache_type_v,
        planes=1 + (rolled_back if arch in _ROLLBACK else 0),
        outputs=min(ubatch, outputs or batch) if build.counts_outputs else ubatch,
        draft=(flags.spec_draft_type_k, flags.spec_draft_type_v) if flags.drafts_by_mtp else None,
    )


def _flash(flags: Flags, arch: str | None) -> bool:
    """Flash attention as it ends up: quantized values turn `auto` on, Grok has none."""
    if arch == "grok":
        return False
    return flags.flash_attn != "off"


def _asked_cells(model: Model, flags: Flags, sequences: int, unified: bool) -> int:
    if flags.ctx_size:
        return flags.ctx_size
    if flags.kv_unified_per_slot and unified:
        return flags.kv_unified_per_slot * sequences
    if model.context is None:
        raise UsageError(
            f"{model.name} does not say what context it was trained for", hint="give ctx_size"
        )
    return model.context


def _cells(
    build: Build, asked: int, sequences: int, unified: bool, flash: bool
) -> tuple[int, int, int]:
    """Cells in all, cells of one stream, streams."""
    step = build.padding(flash)
    cells = pad(asked, step)
    if unified or not build.multi_stream:
        return cells, cells, 1
    each = pad(cells // sequences, step)
    if each == 0:
        raise UsageError(
            f"a context of {asked} cells for {sequences} sequences is none", hint="raise ctx_size"
        )
    return each * sequences, each, sequences


def _check_types(model: Model, flags: Flags, arch: str | None, flash: bool) -> None:
    """Refuse the cache types that llama.cpp refuses, in its words."""
    k, v = flags.cache_type_k, flags.cache_type_v
    expanded = expands_latents(model, flags.build)
    latent = not expanded and any(isinstance(slot, LatentSlot) for slot in model.slots)
    if (latent or arch == "deepseek4") and k != v:
        raise UsageError(
            f"llama.cpp: model does not support different K ({k.name}) and V ({v.name}) "
            "cache types",
            hint="give the same type to cache_type_k and cache_type_v",
        )
    if v.block > 1 and not flash:
        raise UsageError(
            "llama.cpp: quantized V cache requires flash_attn to be enabled",
            hint="use flash_attn=on, or an unquantized cache_type_v",
        )
    if not flash:
        return
    for slot in model.slots:
        for letter, element, width in zip("KV", (k, v), _widths(slot, expanded), strict=True):
            if width % element.block:
                raise UsageError(
                    f"llama.cpp: {letter} cache type {element.name} with block size "
                    f"{element.block} does not divide a head of {width}",
                    hint="choose f16 or bf16",
                )


def _widths(slot: Slot, expanded: bool) -> tuple[int, int]:
    """Widths of one head's key and value."""
    if isinstance(slot, FullSlot):
        return slot.k_dim, slot.v_dim
    if isinstance(slot, LatentSlot) and expanded:
        return slot.nope_dim + slot.rope_dim, slot.value_dim
    if isinstance(slot, LatentSlot):
        return slot.latent_dim + slot.rope_dim, slot.latent_dim
    return 0, 0
