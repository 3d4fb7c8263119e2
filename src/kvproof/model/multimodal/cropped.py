"""Images that are cut by rules of one family each: windows, crops, slices, adaptive tiles.

A rule takes the settings of the model, height, width, and how many images the request has.
"""

from __future__ import annotations

import math

from kvproof.model.multimodal.counts import Count, Settings
from kvproof.model.multimodal.resize import nearest, up_to
from kvproof.model.multimodal.tiled import grid_text
from kvproof.model.multimodal.tiles import closest_shape, grids, least_scaling


def phi4(s: Settings, height: int, width: int, images: int) -> Count:
    """Phi-4 multimodal: tiles that cover the image; padding at their ends is left out."""
    tile, patch, most = s.whole("tile"), s.whole("patch"), s.whole("max_tiles")
    columns, rows = math.ceil(width / tile), math.ceil(height / tile)
    if columns * rows > most:
        columns, rows = closest_shape(height, width, (tile, tile), grids(1, most))
    scale_w, scale_h = columns * tile / width, rows * tile / height
    spare_w = spare_h = 0
    if scale_w < scale_h:
        spare_h = rows * tile - int(height * scale_w)
    else:
        spare_w = columns * tile - int(width * scale_h)
    side = tile // patch
    kept_rows = _halved_kept(rows, side, spare_h // patch)
    kept_columns = _halved_kept(columns, side, spare_w // patch)
    tokens = 256 + 1 + kept_rows * kept_columns + kept_rows + 16
    return Count(
        tokens=tokens,
        formula=f"256 + 16 line ends of the whole image + 1 + {kept_rows} x {kept_columns} "
        f"of {columns} x {rows} tiles + {kept_rows} line ends = {tokens:,}",
    )


def _halved_kept(tiles: int, side: int, spare: int) -> int:
    """Every second patch of every tile, those that the last `spare` patches do not cover."""
    kept = tiles * side - spare
    held = (min(side, max(0, kept - t * side)) for t in range(tiles))
    return sum(-(-patches // 2) for patches in held)


def lfm2(s: Settings, height: int, width: int, images: int) -> Count:
    """LFM2-VL: a small image at its size; a large one in tiles with a thumbnail."""
    patch, shrink, tile = s.whole("patch"), s.whole("downsample"), s.whole("tile")
    factor, area = patch * shrink, (patch * shrink) ** 2
    most = s.whole("max_tokens") * area
    sizes = max(factor, nearest(height, factor)), max(factor, nearest(width, factor))
    tall, wide = _fit(height, width, sizes, (factor, s.whole("min_tokens") * area, most))
    whole = math.ceil(tall // patch / shrink) * math.ceil(wide // patch / shrink)
    rounded = max(patch, round(height / factor) * factor) * max(
        patch, round(width / factor) * factor
    )
    if not s.flag("split") or rounded <= most * s.number("tolerance"):
        return _lfm2_count(s, (1, 1), 0, whole)
    among = grids(s.whole("min_tiles"), s.whole("max_tiles"))
    columns, rows = closest_shape(height, width, (tile, tile), among)
    per_tile = math.ceil(tile // patch / shrink) ** 2
    return _lfm2_count(s, (columns, rows), per_tile, whole)


def _fit(
    height: int, width: int, sizes: tuple[int, int], limits: tuple[int, int, int]
) -> tuple[int, int]:
    factor, low, high = limits
    if low <= sizes[0] * sizes[1] <= high:
        return sizes
    if sizes[0] * sizes[1] > high:
        shrink = math.sqrt(height * width / high)
        return (
            max(factor, math.floor(height / shrink / factor) * factor),
            max(factor, math.floor(width / shrink / factor) * factor),
        )
    grow = math.sqrt(low / (height * width))
    return up_to(height * grow, factor), up_to(width * grow, factor)


def _lfm2_count(s: Settings, grid: tuple[int, int], per_tile: int, whole: int) -> Count:
    columns, rows = grid
    tiles = columns * rows if per_tile else 0
    thumbnail = not tiles or s.flag("thumbnail")
    tokens = tiles * per_tile + (whole if thumbnail else 0)
    marks = 2 + tiles + (1 if tiles and thumbnail else 0)
    return Count(
        tokens=tokens,
        formula=f"{tiles} tiles x {per_tile} + {whole if thumbnail else 0} of the whole image "
        f"= {tokens:,}",
        marks=marks,
        marks_formula=f"{marks - 2} before tiles + start and end",
    )


def molmo2(s: Settings, height: int, width: int, images: int) -> Count:
    """Molmo2: overlapping crops pooled together, and the whole image; a column token a row."""
    size, patch, pool = s.whole("tile"), s.whole("patch"), s.whole("pool")
    margin = int(s.number("margin")) * 2
    window = size // patch - margin
    if window < 1:
        raise ValueError("the overlap leaves nothing of a crop")
    edge = margin * patch
    tiles = sorted(((r, c) for c, r in grids(1, s.whole("max_tiles"))), key=_by_area)
    flipped = [(c, r) for r, c in tiles]
    columns, rows = least_scaling(height - edge, width - edge, window * patch, flipped)
    high = math.ceil((rows * window + margin) / pool), math.ceil((columns * window + margin) / pool)
    low = math.ceil(size // patch / pool)
    tokens = high[0] * high[1] + low * low
    return Count(
        tokens=tokens,
        formula=f"{columns} x {rows} crops pooled to {high[0]} x {high[1]} + {low} x {low} "
        f"of the whole image = {tokens:,}",
        marks=high[0] + low + 4,
        marks_formula=f"{high[0]} + {low} row ends + 2 x start and end",
    )


def _by_area(grid: tuple[int, int]) -> tuple[int, int]:
    return grid[0] * grid[1], grid[0]


def perception(s: Settings, height: int, width: int, images: int) -> Count:
    """Perception LM: a canvas of tiles that holds the image, or one of its shape; a thumbnail."""
    tile, patch, pool = s.whole("tile"), s.whole("patch"), s.whole("pool")
    among = _by_shape(s.whole("max_tiles"))
    columns, rows = _holding(height, width, tile, among) or _of_shape(height, width, among)
    per_tile, views = (tile // patch // pool) ** 2, columns * rows + 1
    return Count(
        tokens=views * per_tile,
        formula=f"{grid_text(columns, rows)} = {views} x {per_tile} = {views * per_tile:,}",
    )


def _by_shape(most: int) -> dict[float, list[tuple[int, int]]]:
    shapes: dict[float, list[tuple[int, int]]] = {}
    for count in range(most, 0, -1):
        for columns in (n for n in range(1, count + 1) if count % n == 0):
            grid = (columns, count // columns)
            shapes.setdefault(grid[0] / grid[1], []).append(grid)
    return shapes


def _holding(
    height: int, width: int, tile: int, shapes: dict[float, list[tuple[int, int]]]
) -> tuple[int, int] | None:
    best: tuple[int, int] | None = None
    largest: tuple[float, float] = (0.0, 0.0)
    ratio = width / height
    for columns, rows in (grid for group in shapes.values() for grid in group):
        if columns * tile < width or rows * tile < height:
            continue
        scale = min(columns * tile / width, rows * tile / height)
        size = _scaled(scale, height, width)
        taken = size[0] >= largest[0] if ratio < 1 else size[1] >= largest[1]
        if best is None or taken:
            best, largest = (columns, rows), size
    return best


def _scaled(scale: float, height: int, width: int) -> tuple[float, float]:
    ratio = width / height
    if ratio > 1.0:
        wide = scale * width
        return wide, math.floor(wide / ratio)
    tall = scale * height
    return math.floor(tall * ratio), tall


def _of_shape(
    height: int, width: int, shapes: dict[float, list[tuple[int, int]]]
) -> tuple[int, int]:
    ratio = width / height
    if ratio >= 1:
        nearest_shape = min((k for k in shapes if k <= ratio), key=lambda k: abs(k - ratio))
        return max(shapes[nearest_shape], key=lambda grid: grid[0])
    above = [k for k in shapes if k > ratio]
    nearest_shape = min(above, key=lambda k: abs(1 / k - 1 / ratio))
    return max(shapes[nearest_shape], key=lambda grid: grid[1])


def window_tiles(s: Settings, height: int, width: int, images: int) -> Count:
    """Step 3: windows over the image, each seen at one size, and the whole image."""
    size, patch, step = s.whole("tile"), s.whole("window"), s.whole("stride")
    if min(width, height) < 32 and max(width / height, height / width) > 4:
        width = height = max(width, height)
    longest = max(width, height)
    if longest > s.whole("longest"):
        scale = s.whole("longest") / longest
        width, height = int(width * scale), int(height * scale)
    short, long = min(width, height), max(width, height)
    window = patch
    if long <= size:
        window = short if long / short > 1.5 else 0
    elif long / short > 4:
        window = min(short, patch)
    columns, rows = (_windows(width, window), _windows(height, window)) if window else (0, 0)
    whole, each = (size // step) ** 2, (patch // step) ** 2
    tokens = whole + columns * rows * each
    breaks = max(0, rows - 1)
    return Count(
        tokens=tokens,
        formula=f"{whole} of the whole image + {columns} x {rows} windows x {each} = {tokens:,}",
        marks=2 + 2 * columns * rows + breaks,
        marks_formula=f"2 + 2 x {columns * rows} around windows + {breaks} line ends",
    )


def _windows(length: int, window: int) -> int:
    if length >= window:
        length = window * (length // window + (length % window > 0.2 * window))
    return max(1, length // window)


def slices(s: Settings, height: int, width: int, images: int) -> Count:
    """MiniCPM-V: the whole image, and slices of it when it is larger than one view."""
    view, most = s.whole("view"), s.whole("max_tiles")
    step = s.whole("patch") * s.whole("merge")
    grid = _slice_grid(height, width, view, most)
    whole = _view((height, width), view, step, grow=grid is None)
    tokens, formula = whole[0] * whole[1], f"{whole[0]} x {whole[1]} of the whole image"
    marks, lines = 2, 0
    if grid is not None:
        rows, columns = grid
        cell = nearest(height, rows) / rows, nearest(width, columns) / columns
        each = _view(cell, view, step, grow=True)
        tokens += rows * columns * each[0] * each[1]
        formula += f" + {rows} x {columns} slices of {each[0]} x {each[1]}"
        marks, lines = 2 + 2 * rows * columns, rows - 1
    ids = 2 if s.flag("numbered") else 0
    return Count(
        tokens=tokens,
        formula=f"{formula} = {tokens:,}",
        marks=marks + lines + ids,
        marks_formula=f"{marks} around views + {lines} line ends + {ids} around its number",
    )


def _slice_grid(height: int, width: int, view: int, most: int) -> tuple[int, int] | None:
    wanted = min(math.ceil(width * height / view**2), most)
    if wanted <= 1:
        return None
    shape, best, smallest = math.log(width / height), (1, 1), math.inf
    for count in (wanted - 1, wanted, wanted + 1):
        if count == 1 or count > most:
            continue
        for rows in (n for n in range(1, count + 1) if count % n == 0):
            off = abs(shape - math.log(count // rows / rows))
            if off < smallest or (off == smallest and rows > best[0]):
                best, smallest = (rows, count // rows), off
    return best


def _view(size: tuple[float, float], view: int, step: int, *, grow: bool) -> tuple[int, int]:
    height, width = size
    if height * width > view * view or grow:
        ratio = width / height
        height = int(view / math.sqrt(ratio))
        width = int(height * ratio)
    return nearest(height, step) // step, nearest(width, step) // step
