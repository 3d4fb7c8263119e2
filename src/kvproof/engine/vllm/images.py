"""The profiled image: what an encoder's own run takes, and what of it outlives that run.

The inputs and the embeddings of the largest image are held while the decoder is profiled, so they
add to its peak. Source: vLLM 0.28, v1/worker/gpu_model_runner.py (profile_run).
"""

from __future__ import annotations

from typing import Any

from kvproof.engine.vllm.settings import Settings
from kvproof.model.types import Model

_QWEN_PIXELS = {"qwen2": 12_845_056, "qwen2_5": 12_845_056, "qwen3": 16_777_216,
                "qwen4": 16_777_216}  # fmt: skip
"""The largest image that Qwen's processors let through; the encoder is profiled with one."""
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
    if not isinstance(vision, dict) or settings.flags.get("language_model_only"):
        return None
    family = str(model.config.get("model_type", ""))
    pixels = next((n for key, n in sorted(_QWEN_PIXELS.items(), reverse=True)
                   if family.startswith(f"{key}_")), 0)  # fmt: skip
    return (vision, pixels) if pixels else None
