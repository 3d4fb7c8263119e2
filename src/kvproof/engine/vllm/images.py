"""The profiled image: what an encoder's own run takes, and what of it outlives that run.

The embeddings of the largest image, and with the first runner its inputs, are held while the
decoder is profiled, so they add to its peak. Source: vLLM 0.11 to 0.32,
v1/worker/gpu_model_runner.py (profile_run), v1/worker/gpu/mm/encoder_runner.py
(profile_encoder_cache), model_executor/models/{qwen2_5_vl,qwen3_vl}.py. Families whose pictures
have one size are in pictures.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from kvproof.engine.vllm.pictures import Item, fixed_item
from kvproof.engine.vllm.runners import second_runner
from kvproof.engine.vllm.settings import Settings
from kvproof.engine.vllm.towers import closed, limit_of, profiles_towers
from kvproof.model.types import Model

_MERGED = ("qwen2_", "qwen2_5_", "qwen3_", "qwen4_", "exaone4_5", "glm4v", "minimax_m3")
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
_WHOLE, _SHARED, _TURNED, _TURNED_F32 = 3, 4, 4, 9
"""Rows of a patch alive at once around attention: the residual, its norm and the output on every
rank; queries, keys, values and the context shared out over the ranks; the rotated pair twice, with
the f32 copies of an older rotary embedding."""
_MASKS = (0, 12, 0), (0, 29, 0)
"""Releases without xformers' blocks, whose Pixtral has a mask of all patches by all patches
(model_executor/models/pixtral.py, generate_block_attention_mask; read in 0.14 to 0.28)."""
_TOGETHER = (0, 22, 0)
"""Since when Gemma 4's frames are encoded together (gemma4_mm.py, _encoder_chunk; not in 0.21)."""


class Pictures(msgspec.Struct, frozen=True):
    """The largest items of a batch together."""

    item: Item
    count: int
    rows: int
    """Rows that their embeddings take."""


def image_bytes(model: Model, settings: Settings) -> int:
    """Peak of the encoder's own run over the largest images, which ends before the decoder's.

    As many as a batch's tokens hold, but one at least (multimodal/encoder_budget.py).

    The image's inputs, and a layer's attention or feed-forward, whichever holds more; names keep
    what they were given until their function ends.
    """
    return image_peak(model, settings)[0]


def image_peak(model: Model, settings: Settings) -> tuple[int, str]:
    """The bytes of `image_bytes`, and how they come about."""
    found = largest_pictures(model, settings)
    if found is None:
        return 0, ""
    patches = found.count * found.item.patches
    if settings.rules.version < _TOGETHER:
        patches = found.item.frame or patches
    layer = max(_attention(model, settings, found.item), _feed_forward(settings, found.item))
    masks = _MASKS[0] <= settings.rules.version < _MASKS[1] and found.item.masked
    pixels, width = _inputs(found, settings), layer + (patches if masks else 0)
    words = f"{pixels:,} B of pixels + {patches:,} patches x {width:,} x {_BF16} B"
    return pixels + patches * width * _BF16, words


def held_bytes(model: Model, settings: Settings) -> int:
    """The image's embeddings, one more for every deep layer fed with them, and its inputs.

    The second runner has let its inputs go.
    """
    return held_picture(model, settings)[0]


def held_picture(model: Model, settings: Settings) -> tuple[int, str]:
    """The bytes of `held_bytes`, and how they come about."""
    found = largest_pictures(model, settings)
    if found is None or not settings.rules.v1:
        return 0, ""
    deep = model.config["vision_config"].get("deepstack_visual_indexes")
    copies = 1 + (len(deep) if isinstance(deep, list) else 0)
    embeddings = found.rows * model.hidden_size * copies * _BF16
    words = f"{found.rows:,} embeddings x {model.hidden_size * copies:,} x {_BF16} B"
    if second_runner(model, settings):
        return embeddings, words
    pixels = _inputs(found, settings)
    return embeddings + pixels, f"{words} + {pixels:,} B of pixels"


def _attention(model: Model, settings: Settings, item: Item) -> int:
    whole = _WHOLE + str(model.config.get("model_type", "")).startswith(_PLACED)
    turned = _TURNED if settings.rules.version >= _PLAIN_ROTARY else _TURNED_F32
    shared = _SHARED + (turned if item.turned else 0)
    return item.hidden * whole + item.hidden * shared // _split(settings)


def _feed_forward(settings: Settings, item: Item) -> int:
    """The residual and its norm, and the inner state before and after the activation."""
    return 2 * item.hidden + 2 * item.inner // _split(settings)


def _split(settings: Settings) -> int:
    """Ranks that share a layer of the encoder; each runs it whole where images are dealt out."""
    return 1 if settings.flags.get("mm_encoder_tp_mode") == "data" else settings.ranks


def _inputs(found: Pictures, settings: Settings) -> int:
    """Pixels in the model's type, before in f32 with a copy in that type."""
    cast = settings.rules.version >= _CAST_SINCE
    return found.count * found.item.values * (_BF16 if cast else _F32 + _BF16)


def largest_pictures(model: Model, settings: Settings) -> Pictures | None:
    """The largest items that the encoder is profiled with; None without either."""
    if closed(model, settings.flags, "vision") or not profiles_towers(model, settings.flags):
        return None
    if second_runner(model, settings) and settings.rules.version < _SECOND_PROFILES:
        return None
    merged = _merged(model, settings)
    item = merged or fixed_item(model, settings.flags)
    if item is None:
        return None
    if _profiles_video(model, settings):
        return Pictures(item, 1, _SPACED_TOKENS)
    count = _count(settings, item.slots)
    spread = merged is not None and _SPREAD[0] <= settings.rules.version < _SPREAD[1]
    each = max(settings.max_num_batched_tokens, item.slots) if spread else item.embeddings
    return Pictures(item, count, count * each)


def _merged(model: Model, settings: Settings) -> Item | None:
    """The largest image of two frames, its patches merged to tokens."""
    vision = model.config.get("vision_config")
    kind = str(model.config.get("model_type", ""))
    if not isinstance(vision, dict) or not kind.startswith(_MERGED):
        return None
    pixels = _most_pixels(model, settings)
    patch, hidden = _size(vision, "patch_size"), _size(vision, "hidden_size")
    merged = patch * (_size(vision, "spatial_merge_size") or 2)
    if not (pixels and patch and hidden):
        return None
    tokens = max(1, pixels // merged**2)
    if _profiles_video(model, settings):
        pixels = _VIDEO_TOKENS * merged**2
    return Item(
        values=pixels * _COLOURS * _FRAMES,
        patches=pixels // patch**2,
        embeddings=tokens,
        slots=tokens,
        hidden=hidden,
        inner=_size(vision, "intermediate_size") or 4 * hidden,
        turned=True,
    )


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
