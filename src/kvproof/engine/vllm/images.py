"""The profiled image: what an encoder's own run takes, and what of it outlives that run.

The embeddings of the largest image, and with the first runner its inputs, are held while the
decoder is profiled, so they add to its peak. Source: vLLM 0.11 to 0.32,
v1/worker/gpu_model_runner.py (profile_run), v1/worker/gpu/mm/encoder_runner.py
(profile_encoder_cache), model_executor/models/{qwen2_5_vl,qwen3_vl}.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from kvproof.engine.vllm.runners import second_runner
from kvproof.engine.vllm.settings import Settings
from kvproof.engine.vllm.towers import closed, limit_of, profiles_towers
from kvproof.model.types import Model

_PROFILED = ("qwen2_", "qwen2_5_", "qwen3_", "qwen4_")
"""Families whose encoder is profiled with the largest image that their processor lets through."""
_PLACED = ("qwen3_", "qwen4_")
"""Families that add a table of positions to the patches and keep its rows."""
_COLOURS, _FRAMES, _F32, _BF16 = 3, 2, 4, 2
_CAST_SINCE = (0, 10, 0)
"""Since when a processor's pictures come in the model's type, no longer in f32
(multimodal/processing.py; read in 0.11.0, not in 0.9.2)."""
_PLAIN_ROTARY = (0, 12, 0)
"""Since when the encoder's rotary embedding makes no copies in f32 (not in 0.11.0; read in
0.20.0)."""
_SECOND_PROFILES = (0, 27, 0)
"""The second runner's first release that profiles an encoder (v1/worker/gpu/model_runner.py)."""
_SPREAD = (0, 10, 2), (0, 13, 0)
"""Releases that keep an item's embeddings in as many rows as the encoder's budget has, read in
0.11.0 and 0.11.1, in neither 0.9.2 nor 0.20.0 (pull request 30475 of December 2025; the servers'
starts of Qwen3-VL with 0.13.0 leave no room for them)."""
_SPACED_TOKENS, _VIDEO_TOKENS = 153_600, 12_288
"""Qwen3-VL's longest video until then: rows with its time stamps between, as public starts of
0.11.0 and December 2025 print, and the 8 % of them that are embeddings (the pull request)."""
_WHOLE, _SHARED, _SHARED_F32 = 3, 8, 13
"""Rows of a patch alive at once around attention: the residual, its norm and the output on every
rank; queries, keys and values, the rotated pair twice and the context shared out over the ranks;
and what the f32 copies of an older rotary embedding add."""


class _Picture(msgspec.Struct, frozen=True):
    """The largest images of a batch: pixels, patches, and the tokens that their embeddings take."""

    vision: dict[str, Any]
    pixels: int
    patches: int
    tokens: int
    hidden: int


def image_bytes(model: Model, settings: Settings) -> int:
    """Peak of the encoder's own run over the largest images, which ends before the decoder's.

    As many as a batch's tokens hold, but one at least (multimodal/encoder_budget.py).

    The image's inputs, and a layer's attention or feed-forward, whichever holds more; names keep
    what they were given until their function ends.
    """
    picture = _largest(model, settings)
    if picture is None:
        return 0
    layer = max(_attention(model, settings, picture), _feed_forward(settings, picture))
    return _inputs(picture, settings) + picture.patches * layer * _BF16


def held_bytes(model: Model, settings: Settings) -> int:
    """The image's embeddings, one more for every deep layer fed with them, and its inputs.

    The second runner has let its inputs go.
    """
    picture = _largest(model, settings)
    if picture is None or not settings.rules.v1:
        return 0
    deep = picture.vision.get("deepstack_visual_indexes")
    copies = 1 + (len(deep) if isinstance(deep, list) else 0)
    embeddings = picture.tokens * model.hidden_size * copies * _BF16
    return embeddings + (0 if second_runner(model, settings) else _inputs(picture, settings))


def _attention(model: Model, settings: Settings, picture: _Picture) -> int:
    whole = _WHOLE + str(model.config.get("model_type", "")).startswith(_PLACED)
    shared = _SHARED if settings.rules.version >= _PLAIN_ROTARY else _SHARED_F32
    return picture.hidden * whole + picture.hidden * shared // _split(settings)


def _feed_forward(settings: Settings, picture: _Picture) -> int:
    """The residual and its norm, and the inner state before and after the activation."""
    inner = picture.vision.get("intermediate_size")
    inner = inner if isinstance(inner, int) else 4 * picture.hidden
    return 2 * picture.hidden + 2 * inner // _split(settings)


def _split(settings: Settings) -> int:
    """Ranks that share a layer of the encoder; each runs it whole where images are dealt out."""
    return 1 if settings.flags.get("mm_encoder_tp_mode") == "data" else settings.ranks


def _inputs(picture: _Picture, settings: Settings) -> int:
    """Pixels of two frames in the model's type, before in f32 with a copy in that type."""
    cast = settings.rules.version >= _CAST_SINCE
    return picture.pixels * _COLOURS * _FRAMES * (_BF16 if cast else _F32 + _BF16)


def _largest(model: Model, settings: Settings) -> _Picture | None:
    """The largest image that the encoder is profiled with; None without either."""
    vision = model.config.get("vision_config")
    if not isinstance(vision, dict) or closed(model, settings.flags, "vision"):
        return None
    if not profiles_towers(model, settings.flags):
        return None
    if not str(model.config.get("model_type", "")).startswith(_PROFILED):
        return None
    if second_runner(model, settings) and settings.rules.version < _SECOND_PROFILES:
        return None
    pixels = _most_pixels(model, settings)
    patch, hidden = _size(vision, "patch_size"), _size(vision, "hidden_size")
    merged = patch * (_size(vision, "spatial_merge_size") or 2)
    if not (pixels and patch and hidden):
        return None
    tokens = max(1, pixels // merged**2)
    if _profiles_video(model, settings):
        pixels = _VIDEO_TOKENS * merged**2
        return _Picture(vision, pixels, pixels // patch**2, _SPACED_TOKENS, hidden)
    count = _count(settings, tokens)
    budget = max(settings.max_num_batched_tokens, tokens)
    held = budget if _SPREAD[0] <= settings.rules.version < _SPREAD[1] else tokens
    return _Picture(vision, count * pixels, count * (pixels // patch**2), count * held, hidden)


def _profiles_video(model: Model, settings: Settings) -> bool:
    """Whether Qwen3-VL's longest video is the largest item: while its time stamps counted too."""
    dated = (0, 11, 0) <= settings.rules.version < _SPREAD[1]
    named = str(model.config.get("model_type", "")).startswith("qwen3_vl")
    return dated and named and limit_of(settings.flags, "video") != 0


def _most_pixels(model: Model, settings: Settings) -> int | None:
    """Pixels of the largest image, where the start does not set them for the processor."""
    from kvproof.model.multimodal import most_pixels

    asked = settings.flags.get("mm_processor_kwargs") or {}
    own = asked.get("images_kwargs")
    for given in (own if isinstance(own, Mapping) else {}, asked):
        size = given.get("size")
        longest = size.get("longest_edge") if isinstance(size, Mapping) else None
        found = given.get("max_pixels", longest)
        if isinstance(found, int) and found > 0:
            return found
    return most_pixels(model)


def _count(settings: Settings, tokens: int) -> int:
    """Images profiled at once: as many as a batch, and all requests' prompts, may hold.

    Source: vLLM 0.32, multimodal/encoder_budget.py (_get_max_items).
    """
    if not settings.rules.v1:
        return 1
    limit = limit_of(settings.flags, "image")
    each = settings.max_model_len // tokens
    prompt = max(1, each if limit is None else min(limit, each))
    return max(1, min(settings.max_num_batched_tokens // tokens, settings.max_num_seqs * prompt))


def _size(vision: dict[str, Any], key: str) -> int:
    """A whole number of the tower's config; 0 where there is none."""
    value = vision.get(key)
    return value if isinstance(value, int) and value > 0 else 0
