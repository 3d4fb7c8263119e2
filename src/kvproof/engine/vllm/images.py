"""The profiled image: what an encoder's own run takes, and what of it outlives that run.

The inputs and the embeddings of the largest image are held while the decoder is profiled, so they
add to its peak. Source: vLLM 0.28, v1/worker/gpu_model_runner.py (profile_run).
"""

from __future__ import annotations

from typing import Any

from kvproof.engine.vllm.settings import Settings
from kvproof.engine.vllm.towers import closed, profiles_towers
from kvproof.model.types import Model

_PROFILED = ("qwen2_", "qwen2_5_", "qwen3_", "qwen4_")
"""Families whose encoder is profiled with the largest image that their processor lets through."""
_COLOURS, _FRAMES, _F32, _BF16 = 3, 2, 4, 2


def image_bytes(model: Model, settings: Settings) -> int:
    """Peak of the encoder's own run over one largest image, which ends before the decoder's.

    Two inner states (before and after the activation, shared out over the ranks) and three hidden
    ones of every patch.
    """
    found = _largest(model, settings)
    if found is None:
        return 0
    vision, pixels = found
    patch, hidden, inner = (
        vision.get(key) for key in ("patch_size", "hidden_size", "intermediate_size")
    )
    if not (isinstance(patch, int) and patch > 0 and isinstance(hidden, int)):
        return 0
    inner = inner if isinstance(inner, int) else 4 * hidden
    return pixels // patch**2 * (2 * inner // settings.ranks + 3 * hidden) * _BF16


def held_bytes(model: Model, settings: Settings) -> int:
    """The image's pixels in f32 and its embeddings, one more for every deep layer fed with them."""
    found = _largest(model, settings)
    if found is None or not settings.rules.v1:
        return 0
    vision, pixels = found
    patch, merge = vision.get("patch_size"), vision.get("spatial_merge_size") or 2
    if not (isinstance(patch, int) and patch > 0 and isinstance(merge, int) and merge > 0):
        return 0
    deep = vision.get("deepstack_visual_indexes")
    copies = 1 + (len(deep) if isinstance(deep, list) else 0)
    tokens = pixels // (patch * merge) ** 2
    inputs = pixels * _COLOURS * _FRAMES * _F32
    return inputs + tokens * model.hidden_size * copies * _BF16


def _largest(model: Model, settings: Settings) -> tuple[dict[str, Any], int] | None:
    """The vision tower's config and the pixels of its largest image; None without either."""
    vision = model.config.get("vision_config")
    if not isinstance(vision, dict) or closed(model, settings.flags, "vision"):
        return None
    if not profiles_towers(model, settings.flags):
        return None
    if not str(model.config.get("model_type", "")).startswith(_PROFILED):
        return None
    from kvproof.model.multimodal import most_pixels

    pixels = most_pixels(model)
    return (vision, pixels) if pixels else None
