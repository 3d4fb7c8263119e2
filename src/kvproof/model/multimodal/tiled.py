"""Images that are cut into tiles: a grid is chosen by size or shape, each tile has its tokens.

A rule takes the settings of the model, height, width, and how many images the request has.
"""

from __future__ import annotations

import math
from fractions import Fraction

from kvproof.model.multimodal.counts import Count, Settings
from kvproof.model.multimodal.tiles import (
    best_canvas,
    chunk_canvases,
    closest_shape,
    covering,
    grids,
    least_scaling,
    smallest_upscale,
)


def shape_tiles(s: Settings, height: int, width: int, images: int) -> Count:
    """InternVL and its kin: the nearest grid and, beside several tiles, the whole image."""
    tile, per_tile = s.whole("tile"), _per_tile(s)
    columns, rows = 1, 1
    if s.flag("split") and s.whole("max_tiles") > 1:
        among = grids(s.whole("min_tiles"), s.whole("max_tiles"))
        columns, rows = closest_shape(height, width, (tile, tile), among)
    tiles = columns * rows
    views = tiles + 1 if tiles > 1 else 1
    marks = int(s.number("marks")) if s.has("marks") else 0
    each = views if s.flag("mark_each") else 0
    return Count(
        tokens=views * per_tile,
        formula=f"{grid_text(columns, rows)} = {views} x {per_tile} = {views * per_tile:,}",
        marks=marks + each,
        marks_formula=f"{marks} around it + {each} before tiles" if marks + each else "",
    )


def scale_tiles(s: Settings, height: int, width: int, images: int) -> Count:
    """Cohere: the grid that scales the image least; a break after every tile."""
    tile, per_tile = s.whole("tile"), s.whole("patch") ** 2
    columns, rows = 1, 1
    if s.flag("split"):
        columns, rows = least_scaling(height, width, tile, grids(1, s.whole("max_tiles")))
    views = columns * rows + (columns * rows > 1)
    return Count(
        tokens=views * per_tile,
        formula=f"{grid_text(columns, rows)} = {views} x {per_tile} = {views * per_tile:,}",
        marks=views + 2,
        marks_formula=f"{views} tile ends + begin and end",
    )


def covering_tiles(s: Settings, height: int, width: int, images: int) -> Count:
    """Ovis2: the smallest grid that keeps 90 % of the image; separators between tiles."""
    per_tile, most = s.whole("per_tile"), s.whole("max_tiles")
    columns, rows = covering(height, width, s.whole("tile"), most) if s.flag("split") else (1, 1)
    views = columns * rows + (columns * rows > 1)
    between = rows * (columns - 1) + rows - 1
    return Count(
        tokens=views * per_tile,
        formula=f"{grid_text(columns, rows)} = {views} x {per_tile} = {views * per_tile:,}",
        marks=between + 3,
        marks_formula=f"{between} between tiles + start, grid, end",
    )


def canvas_tiles(s: Settings, height: int, width: int, images: int) -> Count:
    """Llama 4: a canvas of tiles that scales the image up least, and the whole image."""
    tile, patch = s.whole("tile"), s.whole("patch")
    per_tile = int((tile // patch) ** 2 // round(1 / s.number("shuffle") ** 2))
    canvases = chunk_canvases(s.whole("max_tiles"), tile)
    tall, wide = smallest_upscale(height, width, canvases, largest=s.flag("largest"))
    rows, columns = tall // tile, wide // tile
    views = rows * columns + (rows * columns > 1)
    between = rows * columns if rows * columns > 1 else 0
    return Count(
        tokens=views * per_tile,
        formula=f"{grid_text(columns, rows)} = {views} x {per_tile} = {views * per_tile:,}",
        marks=between + 3,
        marks_formula=f"{between} tile separators + start, image, end",
    )


def anyres(s: Settings, height: int, width: int, images: int) -> Count:
    """LLaVA-NeXT: the best canvas without its padding, a line end a row, and the whole image."""
    size, side = s.whole("image_size"), s.whole("image_size") // s.whole("patch")
    tall, wide = best_canvas(height, width, s.pairs("canvases"))
    scale = Fraction(str(s.values["downsample"])) if s.has("downsample") else Fraction(1)
    side = int(side * scale)
    rows, columns = _unpadded(height, width, (side * (tall // size), side * (wide // size)))
    base = side * side + (1 if s.flag("cls") else 0)
    base -= s.values.get("strategy") == "default"
    return _anyres_count((wide, tall), (rows, columns), base)


def anyres_limited(s: Settings, height: int, width: int, images: int) -> Count:
    """LLaVA-OneVision: as LLaVA-NeXT, shrunk to `anyres_max_N` tiles; several images get none."""
    size, side = s.whole("image_size"), s.whole("image_size") // s.whole("patch")
    base = side * side - (s.values.get("strategy") == "default")
    if images > 1:
        return Count(
            tokens=base + 1, formula=f"{side}^2 + 1 line end = {base + 1:,}: one of several images"
        )
    tall, wide = best_canvas(height, width, s.pairs("canvases"))
    rows, columns = _unpadded(height, width, (side * (tall // size), side * (wide // size)))
    most = int(str(s.values.get("aspect", "anyres_max_9")).rpartition("_")[2])
    shrink = math.sqrt(rows * columns / (most * side**2))
    if shrink > 1.1:
        rows, columns = int(rows // shrink), int(columns // shrink)
    return _anyres_count((wide, tall), (rows, columns), base)


def _unpadded(height: int, width: int, grid: tuple[int, int]) -> tuple[int, int]:
    """The rows and columns of patches that hold the image and not the padding around it."""
    rows, columns = grid
    if width / height > columns / rows:
        kept = int(round(height * (columns / width), 7))
        return rows - (rows - kept) // 2 * 2, columns
    kept = int(round(width * (rows / height), 7))
    return rows, columns - (columns - kept) // 2 * 2


def _anyres_count(canvas: tuple[int, int], grid: tuple[int, int], base: int) -> Count:
    rows, columns = grid
    tokens = rows * columns + rows + base
    return Count(
        tokens=tokens,
        formula=f"canvas {canvas[0]}x{canvas[1]}: {rows} x {columns} + {rows} line ends "
        f"+ {base:,} of the whole image = {tokens:,}",
    )


def idefics2(s: Settings, height: int, width: int, images: int) -> Count:
    """Idefics2: each view is resampled to the same latents; four quarters and the whole image."""
    per_view, views = s.whole("per_tile"), 5 if s.flag("split") else 1
    return Count(
        tokens=views * per_view,
        formula=f"{views} views x {per_view} = {views * per_view:,}",
        marks=views + 1,
        marks_formula=f"{views} + 1 tokens around the views",
    )


def idefics3(s: Settings, height: int, width: int, images: int) -> Count:
    """Idefics3 and SmolVLM: tiles of the image scaled to the longest side, and the whole image."""
    tile, per_tile = s.whole("image_size"), _per_tile(s)
    rows, columns = 0, 0
    if s.flag("split"):
        longest = s.whole("longest") if s.has("longest") else s.whole("longest_tiles") * tile
        rows, columns = _long_side_tiles(height, width, longest, tile)
    if rows * columns <= 1:
        return Count(
            tokens=per_tile,
            formula=f"one view of {per_tile}",
            marks=3,
            marks_formula="3 around it",
        )
    views = rows * columns + 1
    return Count(
        tokens=views * per_tile,
        formula=f"{grid_text(columns, rows)} = {views} x {per_tile} = {views * per_tile:,}",
        marks=rows * columns * 2 + rows + 3,
        marks_formula=f"2 x {rows * columns} before tiles + {rows} line ends + 3",
    )


def _long_side_tiles(height: int, width: int, longest: int, tile: int) -> tuple[int, int]:
    """Rows and columns of an image whose longer side is brought to `longest`, at most 4,096."""
    ratio = width / height
    if width >= height:
        width = longest
        height = int(width / ratio)
        height += height % 2
    else:
        height = longest
        width = int(height * ratio)
        width += width % 2
    height, width = max(height, 1), max(width, 1)
    limit = 4096
    if max(height, width) > limit:
        ratio = width / height
        wider = width >= height
        width = limit if wider else max(int(limit * ratio), 1)
        height = max(int(limit / ratio), 1) if wider else limit
    return math.ceil(height / tile), math.ceil(width / tile)


def page_tiles(s: Settings, height: int, width: int, images: int) -> Count:
    """Granite Docling: the nearest grid of a page, each tile named by row and column."""
    tile, per_tile = s.whole("tile"), _per_tile(s)
    side = min(s.whole("max_tiles"), 16)
    among = [g for g in grids(s.whole("min_tiles"), s.whole("max_tiles")) if max(g) <= side]
    columns, rows = closest_shape(height, width, (tile, tile), among)
    views = columns * rows + (columns * rows > 1)
    marks = columns * rows * 2 + rows + (3 if columns * rows > 1 else 0)
    return Count(
        tokens=views * per_tile,
        formula=f"{grid_text(columns, rows)} = {views} x {per_tile} = {views * per_tile:,}",
        marks=marks,
        marks_formula=f"2 x {columns * rows} before tiles + {rows} line ends"
        + (" + 3" if columns * rows > 1 else ""),
    )


def ocr_tiles(s: Settings, height: int, width: int, images: int) -> Count:
    """DeepSeek-OCR and its kin: the padded page, and beyond one tile's size local tiles."""
    size, tile, step = s.whole("image_size"), s.whole("tile"), s.whole("stride")
    columns = rows = 0
    if s.flag("split") and max(height, width) > tile:
        among = grids(s.whole("min_tiles"), s.whole("max_tiles"))
        columns, rows = closest_shape(height, width, (tile, tile), among)
    whole, local = math.ceil(size / step), math.ceil(tile / step)
    if s.flag("row_breaks"):
        tokens = whole * (whole + 1) + 1
        tokens += rows * local * (columns * local + 1)
    else:
        tokens = whole * whole + columns * rows * local * local + 1
    ends = " with row ends" if s.flag("row_breaks") else ""
    return Count(
        tokens=tokens,
        formula=f"{whole} x {whole} of the page + {columns} x {rows} tiles of {local} x {local}"
        f"{ends} + 1 = {tokens:,}",
    )


def split_or_whole(s: Settings, height: int, width: int, images: int) -> Count:
    """Aria: one view, or with splitting the tiles of the best canvas."""
    per_tile, size, views = s.whole("per_tile"), s.whole("image_size"), 1
    if s.flag("split"):
        tall, wide = best_canvas(height, width, s.pairs("canvases"))
        views = math.ceil(tall / size) * math.ceil(wide / size)
    return Count(
        tokens=views * per_tile, formula=f"{views} views x {per_tile} = {views * per_tile:,}"
    )


def _per_tile(s: Settings) -> int:
    """Tokens of one tile: given, or its patches after the pixel shuffle."""
    if s.has("per_tile"):
        return s.whole("per_tile")
    patch, size = (
        s.whole("patch"),
        s.whole("image_size") if s.has("image_size") else s.whole("tile"),
    )
    if s.has("shuffle"):
        return (size // patch // s.whole("shuffle")) ** 2
    return (size // patch) ** 2


def grid_text(columns: int, rows: int) -> str:
    """How a grid is shown in a formula."""
    if columns * rows <= 1:
        return "one view"
    return f"{columns} x {rows} tiles + the whole image"
