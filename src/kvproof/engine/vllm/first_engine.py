"""The batch of the first engine (V0) where none is given: the whole length, or chunks.

Source: engine/arg_utils.py (create_engine_config, _set_default_args_v0) and config.py
(SchedulerConfig) of 0.4.3, 0.5.0, 0.5.3, 0.5.5, 0.6.0 ... 0.6.6, 0.7.0, 0.7.3, 0.8.0, 0.8.5
and 0.9.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvproof.engine.vllm.draft import read_draft
from kvproof.engine.vllm.versions import Version
from kvproof.kinds import ConvSlot, LatentSlot, RecurrentSlot
from kvproof.model.types import Model

_LONG, _LEAST = 32768, 2048
_LONG_IN_CHUNKS, _WITH_PREFIXES = (0, 5, 3), (0, 6, 1)
"""Since when long models are served in chunks, and since when beside prefix caching."""
_PICTURES_WHOLE, _STATES, _LARGER = (0, 6, 2), (0, 6, 3), (0, 6, 5)
"""Since when models of pictures aren't, since when models with states are, and the larger chunk."""
_NOT_ROCM, _LATENTS_WHOLE = (0, 6, 5), (0, 8, 0)
_PICTURES = ((_STATES, 5120), ((0, 6, 0), 4096))
"""Least tokens of a batch of a model with towers, by the first release."""
_TOWERS = ("vision_config", "audio_config", "visual", "img_processor", "mm_vision_tower")
_INTERLEAVED = ("gemma2", "gemma3_text", "cohere2")


def first_batch(
    model: Model, flags: Mapping[str, Any], release: Version, platform: str, length: int
) -> int:
    """max_num_batched_tokens of a V0 start that gives none."""
    whole = max(length, _LEAST)
    if _chunked(model, flags, release, platform, length):
        steps = (flags.get("num_scheduler_steps") or 1) > 1 and release >= _STATES
        tokens = whole if steps else _LEAST if release >= _LARGER else 512
    else:
        tokens = whole
    if not _has_towers(model):
        return tokens
    return max([tokens, *(least for since, least in _PICTURES if release >= since)])


def _chunked(
    model: Model, flags: Mapping[str, Any], release: Version, platform: str, length: int
) -> bool:
    asked: bool | None = flags.get("enable_chunked_prefill")
    if asked is not None:
        return asked
    if length <= _LONG or release < _LONG_IN_CHUNKS or platform not in ("cuda", "rocm"):
        return False
    if platform == "rocm" and release >= _NOT_ROCM:
        return False
    if _windowed(model, flags) or flags.get("enable_lora") or read_draft(model, flags).method:
        return False
    if release < _WITH_PREFIXES and flags.get("enable_prefix_caching"):
        return False
    return not _kept_whole(model, release)


def _kept_whole(model: Model, release: Version) -> bool:
    """Whether the release serves models of this kind in one piece however long."""
    if _has_towers(model):
        return release >= _PICTURES_WHOLE
    if any(isinstance(slot, (RecurrentSlot, ConvSlot)) for slot in model.slots):
        return release < _STATES
    return release >= _LATENTS_WHOLE and any(isinstance(s, LatentSlot) for s in model.slots)


def _windowed(model: Model, flags: Mapping[str, Any]) -> bool:
    """Whether the whole model has a window, however long (get_sliding_window)."""
    if flags.get("disable_sliding_window"):
        return False
    config = model.text_config
    if config.get("use_sliding_window") is False or config.get("model_type") in _INTERLEAVED:
        return False
    return isinstance(config.get("sliding_window"), int)


def _has_towers(model: Model) -> bool:
    return any(key in model.config for key in _TOWERS)
