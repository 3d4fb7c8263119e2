"""The largest picture of families whose processor always makes the same, for the profiled encoder.

Each is what `get_dummy_mm_data` of the class builds. Source: vLLM 0.24,
model_executor/models/{gemma3_mm,gemma4_mm,llava,llava_next,mistral3,pixtral,mllama4,kimi_vl,
kimi_k25,internvl}.py. A start's line of its encoder cache says how many there were: two of
Mistral-3 in 8,192 tokens, three videos of Gemma 4, five pictures of LLaVA-NeXT in 16,384.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from kvproof.engine.vllm.towers import limit_of
from kvproof.model.types import Model

_COLOURS = 3
_FRAMES, _FRAME_TOKENS, _FRAME_MARKS = 32, 70, 8
"""Gemma 4's longest video: frames, tokens of one, marks and time stamp beside them."""
_TILES, _TILE_TOKENS = 17, 144
"""Llama 4's picture of 16 tiles in a row and the whole, and what a tile becomes."""
_KIMI_PATCHES, _KIMI_VL_PATCHES, _MERGED = 16_384, 4096, 4
"""in_patch_limit of Kimi's processors, and patches merged to a token."""


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """A picture or video as the encoder takes it."""

    values: int
    """Elements of its pixels."""
    patches: int
    embeddings: int
    """Rows that its embeddings take."""
    slots: int
    """Tokens of a prompt that it fills, marks and all."""
    hidden: int
    inner: int
    turned: bool = False
    """Whether positions turn queries and keys."""
    masked: bool = False
    """Whether a mask of patches by patches keeps pictures apart."""
    frame: int = 0
    """Patches of one call, where older releases encode one picture after another."""


Vision = Mapping[str, Any]


def fixed_item(model: Model, flags: Mapping[str, Any]) -> Item | None:
    """The largest item of a family with one; None for the others, and where sizes are missing."""
    vision = model.config.get("vision_config")
    kind = str(model.config.get("model_type", ""))
    rule = _RULES.get(kind)
    if rule is None or not isinstance(vision, Mapping):
        return None
    found = rule(model, vision, flags)
    return (
        found if found is not None and min(found.patches, found.slots, found.hidden) > 0 else None
    )


def _number(config: Vision, *keys: str) -> int:
    """A whole number of a config, a square's side; 0 where there is none."""
    found = (config.get(key) for key in keys)
    sides = (value[0] if isinstance(value, list) and value else value for value in found)
    return next((side for side in sides if isinstance(side, int) and side > 0), 0)


def _square(vision: Vision, tokens: int, tiles: int = 1, **more: bool) -> Item | None:
    """`tiles` squares of image_size, cut into patches, each of so many tokens."""
    side, patch = _number(vision, "image_size"), _number(vision, "patch_size")
    hidden = _number(vision, "hidden_size")
    if not patch:
        return None
    return Item(
        values=tiles * _COLOURS * side**2,
        patches=tiles * (side // patch) ** 2,
        embeddings=tiles * tokens,
        slots=tiles * tokens,
        hidden=hidden,
        inner=_number(vision, "intermediate_size") or 4 * hidden,
        **more,
    )


def _gemma3(model: Model, vision: Vision, flags: Mapping[str, Any]) -> Item | None:
    return _square(vision, _number(model.config, "mm_tokens_per_image") or 256)


def _llava(model: Model, vision: Vision, flags: Mapping[str, Any]) -> Item | None:
    return _square(vision, _grid(vision))


def _llava_next(model: Model, vision: Vision, flags: Mapping[str, Any]) -> Item | None:
    """The pinpoint of most tiles beside the whole, its rows ended by a mark."""
    side, tokens = _number(vision, "image_size"), _grid(vision)
    pinpoints = model.config.get("image_grid_pinpoints")
    pairs = [pair for pair in pinpoints if _is_pair(pair)] if isinstance(pinpoints, list) else []
    if not side or not pairs:
        return None
    tiles = max(height // side * (width // side) for height, width in pairs)
    found = _square(vision, tokens, tiles + 1)
    marks = round(tokens**0.5) * round(tiles**0.5)
    return found and msgspec.structs.replace(found, slots=found.slots + marks)


def _is_pair(value: Any) -> bool:
    sized = isinstance(value, list) and len(value) == 2
    return sized and all(isinstance(side, int) and side > 0 for side in value)


def _grid(vision: Vision) -> int:
    return (_number(vision, "image_size") // max(1, _number(vision, "patch_size"))) ** 2


def _mistral3(model: Model, vision: Vision, flags: Mapping[str, Any]) -> Item | None:
    """A square of the longest edge; its rows of merged patches end with a mark."""
    merge = _number(model.config, "spatial_merge_size") or 2
    rows = _number(vision, "image_size") // (max(1, _number(vision, "patch_size")) * merge)
    found = _square(vision, rows**2, turned=True, masked=True)
    return found and msgspec.structs.replace(found, slots=rows * (rows + 1))


def _llama4(model: Model, vision: Vision, flags: Mapping[str, Any]) -> Item | None:
    return _square(vision, _TILE_TOKENS, _TILES, turned=True)


def _internvl(model: Model, vision: Vision, flags: Mapping[str, Any]) -> Item | None:
    tiles = (_number(model.config, "max_dynamic_patch") or 12) + 1
    return _square(vision, _grid(vision) // _MERGED, tiles)


def _gemma4(model: Model, vision: Vision, flags: Mapping[str, Any]) -> Item | None:
    """A video, where one may be sent: smaller pictures, but many; else a picture."""
    pool, patch = _number(vision, "pooling_kernel_size") or 3, _number(vision, "patch_size")
    tokens = _number(model.config, "vision_soft_tokens_per_image") or 280
    embeddings, slots, frame = tokens, tokens, tokens
    if limit_of(flags, "video") != 0:
        frame = _FRAME_TOKENS
        embeddings, slots = _FRAMES * frame, _FRAMES * (frame + _FRAME_MARKS)
    patches, hidden = embeddings * pool**2, _number(vision, "hidden_size")
    return Item(
        values=patches * _COLOURS * patch**2,
        patches=patches,
        embeddings=embeddings,
        slots=slots,
        hidden=hidden,
        inner=_number(vision, "intermediate_size"),
        turned=True,
        frame=frame * pool**2,
    )


def _kimi(model: Model, vision: Vision, flags: Mapping[str, Any]) -> Item | None:
    kind = str(model.config.get("model_type", ""))
    patches = _KIMI_VL_PATCHES if kind == "kimi_vl" else _KIMI_PATCHES
    tokens = patches // _MERGED
    return Item(
        values=patches * _COLOURS * _number(vision, "patch_size") ** 2,
        patches=patches,
        embeddings=tokens,
        slots=tokens,
        hidden=_number(vision, "vt_hidden_size", "hidden_size"),
        inner=_number(vision, "vt_intermediate_size", "intermediate_size"),
        turned=True,
    )


_Rule = Callable[[Model, Vision, Mapping[str, Any]], Item | None]
_RULES: dict[str, _Rule] = {
    "gemma3": _gemma3, "gemma4": _gemma4, "llava": _llava, "llava_next": _llava_next,
    "mistral3": _mistral3, "llama4": _llama4, "internvl": _internvl,
    "kimi_vl": _kimi, "kimi_k25": _kimi, "kimi_k3": _kimi,
}  # fmt: skip
