"""States of fixed size (Mamba, gated delta nets, KDA, short convolutions): bytes on a rank.

Source: vLLM 0.32, model_executor/layers/mamba/mamba_utils.py and mamba_mixer2.py. vLLM keeps
one input less than a convolution is wide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from kvproof.engine.convolutions import before_current, keeping
from kvproof.engine.vllm.backend_types import DEFAULT_BLOCK
from kvproof.engine.vllm.draft import read_draft
from kvproof.engine.vllm.settings import Settings, has_states, is_inkling
from kvproof.kinds import F32, ConvSlot, RecurrentSlot, Slot, element_type
from kvproof.model.types import Model

_WIDTHS = {
    "float32": 4, "f32": 4, "float16": 2, "f16": 2, "bfloat16": 2, "bf16": 2, "float": 4,
}  # fmt: skip

_HALVES = ("f16", "bf16")


_KDA_HEAD = 128
_NGRAM = ("short_conv", "token_ids")
"""Mixers of Qwen3.8-Flash-Next's n-gram embedding, which stands beside a layer's own mixer."""


def state_sets(model: Model, slots: Sequence[Slot]) -> list[list[Slot]]:
    """The states of one layer that vLLM keeps as caches of their own."""
    if is_inkling(model):
        return []
    states: list[Slot] = [s for s in slots if isinstance(s, ConvSlot | RecurrentSlot)]
    if not model.model_type.startswith("qwen4_exp"):
        return [states] if states else []
    ngram = [s for s in states if _mixer(s) in _NGRAM]
    return [part for part in ([s for s in states if s not in ngram], ngram) if part]


def is_ngram(slots: Sequence[Slot]) -> bool:
    """Whether the states are an n-gram embedding's: whole on every rank."""
    return any(_mixer(slot) == "token_ids" for slot in slots)


def _mixer(slot: Slot) -> str:
    return slot.mixer if isinstance(slot, ConvSlot | RecurrentSlot) else ""


def state_bytes(model: Model, settings: Settings, slots: Sequence[Slot]) -> int:
    """Bytes of one layer's states on one tensor-parallel rank."""
    if is_ngram(slots):
        return _ngram_bytes(settings, slots)
    flags, dtype = settings.flags, settings.dtype
    conv, recurrent = conv_width(flags, dtype), recurrent_width(model, flags, dtype, slots)
    total = 0
    for slot in slots:
        if isinstance(slot, ConvSlot):
            rows = _columns(slot, settings.draft.tokens, whole=False)
            total += _channels(slot, settings.ranks) * rows * conv
        elif isinstance(slot, RecurrentSlot):
            total += slot.elements // settings.ranks * recurrent
    return total


def _ngram_bytes(settings: Settings, slots: Sequence[Slot]) -> int:
    """The dilated convolution's inputs; token ids are the scheduler's, not the cache's."""
    taps = [s for s in slots if isinstance(s, ConvSlot) and s.mixer == "short_conv"]
    width = conv_width(settings.flags, settings.dtype)
    drafted = settings.draft.tokens
    return sum(slot.channels * _columns(slot, drafted, whole=True) * width for slot in taps)


def _channels(slot: ConvSlot, ranks: int) -> int:
    """Channels on one rank; groups that can't be split are replicated with their heads."""
    channels = slot.channels
    if slot.groups and slot.groups % ranks:
        channels += (ranks - slot.groups) * (slot.group_channels // slot.groups)
    return channels // ranks


def kept_in_types(model: Model, flags: Mapping[str, Any]) -> Model:
    """The model, in the type that it runs in, with every state as large as vLLM keeps it."""
    if not has_states(model):
        return model
    dtype, drafted = model.dtype, read_draft(model, flags).tokens
    ngrams = {slot.layer for slot in model.slots if _mixer(slot) == _NGRAM[1]}
    slots = tuple(_kept(model, flags, dtype, slot) for slot in model.slots)
    kept = msgspec.structs.replace(model, slots=slots)
    return keeping(kept, lambda slot: _columns(slot, drafted, whole=slot.layer in ngrams))


def _columns(slot: ConvSlot, drafted: int, *, whole: bool) -> int:
    """Inputs of a convolution that are kept; an n-gram embedding's (`whole`) are kept all."""
    if slot.mixer in _NGRAM and whole:
        return slot.kernel + (drafted if slot.mixer == _NGRAM[0] else 0)
    return before_current(slot) + (0 if _is(slot.mixer, "mamba1") else drafted)


def _kept(model: Model, flags: Mapping[str, Any], dtype: str, slot: Slot) -> Slot:
    if isinstance(slot, RecurrentSlot):
        width = recurrent_width(model, flags, dtype, [slot])
    elif isinstance(slot, ConvSlot) and slot.mixer != "token_ids":
        width = conv_width(flags, dtype)
    else:
        return slot
    named = {4: F32, 2: element_type(dtype if dtype in _HALVES else "bf16")}
    return msgspec.structs.replace(slot, element=named[width])


def conv_width(flags: Mapping[str, Any], dtype: str) -> int:
    """Bytes of an element of a convolution's state where activations are of `dtype`."""
    asked = str(flags.get("mamba_cache_dtype", "auto"))
    return _WIDTHS.get(dtype if asked == "auto" else asked, 2)


def recurrent_width(
    model: Model, flags: Mapping[str, Any], dtype: str, slots: Sequence[Slot]
) -> int:
    """Bytes of an element of a recurrent state: as asked, as the config says, else as the model.

    Nemotron-H and Qwen3.5 name the type in their configs; KDA keeps f32.
    """
    asked = str(flags.get("mamba_ssm_cache_dtype", "auto"))
    if asked != "auto":
        return _WIDTHS.get(asked, 4)
    if any(_is(s.mixer, "kda") for s in slots if isinstance(s, RecurrentSlot)):
        return 4
    named = _config_dtype(model)
    return _WIDTHS.get(named, 4) if named else conv_width(flags, dtype)


def _config_dtype(model: Model) -> str | None:
    config = model.text_config
    if "NemotronH" in model.architecture or model.model_type.startswith("nemotron_h"):
        return str(config.get("mamba_ssm_cache_dtype") or "float32")
    if model.model_type.startswith(("qwen3_5", "qwen4_exp")) or "Qwen3_5" in model.architecture:
        named = config.get("mamba_ssm_dtype")
        return str(named) if named else None
    return None


def block_alone(settings: Settings) -> int:
    """Tokens of a state's block on ranks without attention, which no backend's blocks change.

    Source: vLLM 0.32, model_executor/models/config.py (MambaModelConfig).
    """
    if settings.state_mode == "none":
        return settings.max_model_len
    asked: int | None = settings.flags.get("mamba_block_size")
    return asked or settings.block_size or DEFAULT_BLOCK


def checkpoint_blocks(model: Model, settings: Settings, slots: Sequence[Slot]) -> int:
    """One more block where a prefill's checkpoint is kept: Mamba 2, and FlashKDA."""
    if not settings.rules.checkpoint_blocks:
        return 0
    mixers = [s.mixer for s in slots if isinstance(s, RecurrentSlot)]
    if any(_is(m, "mamba2") for m in mixers):
        return 1
    return int(any(_is(m, "kda") for m in mixers) and _flash_kda(model, settings))


def _flash_kda(model: Model, settings: Settings) -> bool:
    """Whether FlashKDA runs the prefill: from Hopper on, in bf16, with a bounded gate.

    Source: vLLM 0.32, models/kimi_k3/nvidia/kda.py and models/glm5next/common/kda.py.
    """
    own = model.text_config.get("linear_attn_config")
    bounded = isinstance(own, Mapping) and own.get("gate_lower_bound") is not None
    wide = isinstance(own, Mapping) and own.get("head_dim") == _KDA_HEAD
    on = settings.platform == "cuda" and settings.capability[0] in (9, 10, 12)
    return on and bounded and wide and settings.dtype == "bf16"


def _is(mixer: str, design: str) -> bool:
    name = mixer.lower().replace("-", "").replace("_", "")
    aliases = {"mamba1": ("mamba1", "mamba"), "mamba2": ("mamba2",), "kda": ("kda",)}
    return name in aliases[design] or (design == "kda" and "kimidelta" in name)
