"""Images whose size alone decides their tokens: fixed counts and one grid over the image.

A rule takes the settings of the model, height, width, and how many images the request has.
"""

from __future__ import annotations

import math

from kvproof.errors import UsageError
from kvproof.model.multimodal.counts import Count, Settings
from kvproof.model.multimodal.resize import (
    fit_area,
    fit_nearest_shape,
    fit_patch_range,
    fit_pooled,
    fit_side_and_patches,
    fit_token_budget,
    fit_volume,
)


def fixed(s: Settings, height: int, width: int, images: int) -> Count:
    """The same count whatever the size."""
    tokens = s.whole("tokens")
    marks = int(s.number("marks")) if s.has("marks") else 0
    return Count(
        tokens=tokens,
        formula=f"{tokens:,} at any size",
        marks=marks,
        marks_formula=f"{marks} special tokens around it" if marks else "",
        slots=s.flag("slots"),
    )


def vit_grid(s: Settings, height: int, width: int, images: int) -> Count:
    """Every patch of the image brought to the encoder's own square size.

    `cls`: the encoder has a class token; a feature strategy "default" drops the first position.
    """
    size, patch = s.whole("image_size"), s.whole("patch")
    tokens, formula = (size // patch) ** 2, f"({size}/{patch})^2"
    if s.flag("cls"):
        tokens, formula = tokens + 1, f"{formula} + 1 class token"
    if s.flag("distilled"):
        tokens, formula = tokens + 1, f"{formula} + 1 distillation token"
    if s.values.get("strategy") == "default":
        tokens, formula = tokens - 1, f"{formula} - 1 dropped"
    slots = s.flag("slots")
    return Count(tokens=tokens, formula=f"{formula} = {tokens:,} at any size", slots=slots)


def merged_grid(s: Settings, height: int, width: int, images: int) -> Count:
    """Patches of an image fitted into a pixel budget, merged `merge` x `merge`."""
    patch, merge = s.whole("patch"), s.whole("merge")
    factor, budget = patch * merge, (s.whole("min_pixels"), s.whole("max_pixels"))
    if s.has("frames"):
        frames = s.whole("frames")
        tall, wide = fit_volume(frames, (height, width), factor, frames, budget)
    else:
        sides = _scaled_up(height, width, factor) if s.flag("scale_small") else (height, width)
        tall, wide = fit_area(*sides, factor, *budget)
    return _grid(s, (tall // factor, wide // factor), f"{wide}x{tall}", factor)


def budget_grid(s: Settings, height: int, width: int, images: int) -> Count:
    """As `merged_grid` with a budget that is given in tokens and sizes rounded up."""
    factor = s.whole("patch") * s.whole("merge")
    tokens, frames = (s.whole("min_tokens"), s.whole("max_tokens")), s.whole("frames")
    tall, wide = fit_token_budget((height, width), factor, frames, tokens, frames)
    return _grid(s, (tall // factor, wide // factor), f"{wide}x{tall}", factor)


def side_grid(s: Settings, height: int, width: int, images: int) -> Count:
    """Patches of an image limited in patches and in patches a side, merged."""
    patch, merge = s.whole("patch"), s.whole("merge")
    most = (s.whole("max_patches"), s.whole("max_side"))
    tall, wide = fit_side_and_patches((height, width), patch, merge, most)
    factor = patch * merge
    return _grid(s, (tall // factor, wide // factor), f"{wide}x{tall}", factor)


def shape_grid(s: Settings, height: int, width: int, images: int) -> Count:
    """Merged patches of an image whose cells keep its shape within a number of tokens."""
    factor = s.whole("patch") * s.whole("merge")
    rows, columns = fit_nearest_shape(height, width, factor, s.whole("max_tokens"))
    return _grid(s, (rows, columns), f"{columns * factor}x{rows * factor}", factor)


def range_grid(s: Settings, height: int, width: int, images: int) -> Count:
    """Merged patches of an image with a least and a greatest number of patches."""
    patch, merge, low = s.whole("patch"), s.whole("merge"), s.whole("min_patches")
    context = (s.whole("max_model_len") - 4) * merge**2
    high = max(min(max(context, low * images), s.whole("max_patches")), low)
    rows, columns = fit_patch_range(height, width, patch, merge, (low, high))
    size = f"{columns * patch}x{rows * patch}"
    return _grid(s, (rows // merge, columns // merge), size, patch * merge)


def _grid(s: Settings, grid: tuple[int, int], size: str, factor: int) -> Count:
    """Rows x columns, with what some models add: a break a row, tokens at the ends, marks."""
    rows, columns = grid
    tokens, formula = rows * columns, f"{size} / {factor} = {rows} x {columns}"
    if s.flag("row_breaks"):
        tokens, formula = tokens + rows, f"{formula} + {rows} row ends"
    if s.has("extra"):
        extra = s.whole("extra")
        tokens, formula = tokens + extra, f"{formula} + {extra}"
    marks = int(s.number("marks")) if s.has("marks") else 0
    return Count(
        tokens=tokens,
        formula=f"{formula} = {tokens:,}",
        marks=marks,
        marks_formula=f"{marks} special tokens around it" if marks else "",
    )


def _scaled_up(height: int, width: int, factor: int) -> tuple[int, int]:
    """A side below `factor` is brought to it, the other one in proportion."""
    if height < factor:
        width, height = round(width * factor / height), factor
    if width < factor:
        height, width = round(height * factor / width), factor
    return height, width


def pooled_patches(s: Settings, height: int, width: int, images: int) -> Count:
    """Gemma 4: the image at its shape, as many pools of patches as the budget holds."""
    patch, pool, most = s.whole("patch"), s.whole("pool"), s.whole("max_tokens")
    tall, wide = fit_pooled(height, width, patch, pool, most)
    rows, columns = tall // patch // pool, wide // patch // pool
    tokens = rows * columns
    return Count(
        tokens=tokens,
        formula=f"{wide}x{tall} / ({patch} x {pool}) = {rows} x {columns} = {tokens:,}",
        marks=2,
        marks_formula="begin and end of image",
    )


def long_side_grid(s: Settings, height: int, width: int, images: int) -> Count:
    """Pixtral: shrunk to the longest side, sizes rounded up; a break token after each row."""
    cell, longest = s.whole("patch") * s.whole("merge"), s.whole("image_size")
    ratio = max(height / longest, width / longest)
    if ratio > 1:
        height, width = math.floor(height / ratio), math.floor(width / ratio)
    rows, columns = (height - 1) // cell + 1, (width - 1) // cell + 1
    tokens = rows * columns
    breaks = rows if s.flag("row_breaks") else 0
    return Count(
        tokens=tokens,
        formula=f"{width}x{height} / {cell} rounded up = {rows} x {columns} = {tokens:,}",
        marks=breaks,
        marks_formula=f"{rows} breaks and the end" if breaks else "",
    )


def open_grid(s: Settings, height: int, width: int, images: int) -> Count:
    """Patches of the image as it is. `beyond`: one more column than a width of whole patches."""
    patch = s.whole("patch")
    rows = -(-height // patch)
    columns = width // patch + 1 if s.flag("beyond") else -(-width // patch)
    tokens = rows * columns
    return Count(tokens=tokens, formula=f"{rows} x {columns} patches of {patch} = {tokens:,}")


def code_grid(s: Settings, height: int, width: int, images: int) -> Count:
    """Discrete codes of an image: a grid of codes with row ends, its size written before it."""
    step = s.whole("patch")
    tall, wide = fit_area(height, width, step, s.whole("min_pixels"), s.whole("max_pixels"))
    rows, columns = tall // step, wide // step
    ends = rows if s.flag("last_row_end") else rows - 1
    tokens, marks = rows * columns, int(s.number("marks"))
    return Count(
        tokens=tokens,
        formula=f"{wide}x{tall} / {step} = {rows} x {columns} = {tokens:,} codes",
        marks=ends + marks,
        marks_formula=f"{ends} row ends + {marks}; the size in digits is text and not counted",
    )


def fuyu(s: Settings, height: int, width: int, images: int) -> Count:
    """Fuyu: patches of an image that fits the canvas, a line end a row and one begin token."""
    patch, tall, wide = s.whole("patch"), s.whole("canvas_height"), s.whole("canvas_width")
    if width > wide or height > tall:
        scale = min(tall / height, wide / width)
        height, width = int(height * scale), int(width * scale)
    if height < 1 or width < 1:
        raise UsageError("the image shrinks to nothing on the model's canvas")
    rows = min(tall // patch, math.ceil(height / patch))
    columns = min(wide // patch, math.ceil(width / patch))
    return Count(
        tokens=rows * columns,
        formula=f"{rows} x {columns} patches of {patch} = {rows * columns:,}",
        marks=rows + 1,
        marks_formula=f"{rows} line ends + 1",
    )


def mllama(s: Settings, height: int, width: int, images: int) -> Count:
    """Llama 3.2 Vision: every image is padded to the most tiles; cross-attention reads them all."""
    size, patch, tiles = s.whole("image_size"), s.whole("patch"), s.whole("max_tiles")
    tokens = tiles * ((size // patch) ** 2 + 1)
    return Count(
        tokens=tokens,
        formula=f"{tiles} tiles x (({size}/{patch})^2 + 1) = {tokens:,} "
        "(unused tiles are padded and kept)",
        marks=1,
        marks_formula="the image's own placeholder",
        slots=True,
    )
