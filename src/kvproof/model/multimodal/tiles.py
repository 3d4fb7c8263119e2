"""How preprocessors cut an image into tiles: pure functions of heights and widths.

A grid is (columns, rows).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction

Grid = tuple[int, int]


def grids(least: int, most: int) -> list[Grid]:
    """All grids of `least` to `most` tiles, fewest tiles first."""
    found = [
        (columns, rows)
        for columns in range(1, most + 1)
        for rows in range(1, most // columns + 1)
        if columns * rows >= least
    ]
    return sorted(found, key=lambda grid: grid[0] * grid[1])


def closest_shape(height: int, width: int, tile: tuple[int, int], among: Iterable[Grid]) -> Grid:
    """The grid whose shape is nearest the image's.

    Of two equally near the later one wins if the image covers more than half of its area.
    """
    shape, best, smallest = width / height, (1, 1), math.inf
    for grid in among:
        off = abs(shape - grid[0] / grid[1])
        bigger = width * height > 0.5 * tile[0] * tile[1] * grid[0] * grid[1]
        if off < smallest or (off == smallest and bigger):
            best, smallest = grid, off
    return best


def least_scaling(height: int, width: int, tile: int, among: Sequence[Grid]) -> Grid:
    """The grid that needs the least enlarging, or the least shrinking if none is large enough.

    Sides of zero and below (an image smaller than what is taken off it) count as the source's
    division gives them: infinite, and negative scales.
    """

    def scale_of(grid: Grid) -> float:
        across = grid[0] * tile / width if width else math.inf
        return min(across, grid[1] * tile / height if height else math.inf)

    scales = [scale_of(grid) for grid in among]
    if all(scale < 1 for scale in scales):
        return among[scales.index(max(scales))]
    return among[scales.index(min(scale for scale in scales if scale >= 1))]


def covering(height: int, width: int, tile: int, most: int, share: float = 0.9) -> Grid:
    """The smallest grid whose tiles hold more than `share` of the image without shrinking it.

    Rows and columns are named as the source names them: the first of a grid divides the height.
    """
    candidates = []
    for grid in grids(1, most):
        candidates.append((grid, _covered(height, width, grid, tile) / (height * width)))
    enough = [item for item in candidates if item[1] > share]
    if enough:
        return min(enough, key=lambda item: (item[0][0] * item[0][1], -item[1]))[0]
    return min(candidates, key=lambda item: (-item[1], item[0][0] * item[0][1]))[0]


def _covered(height: int, width: int, grid: Grid, tile: int) -> float:
    rows, columns = grid
    tall, wide = height // rows, width // columns
    total = 0.0
    for row in range(rows):
        for column in range(columns):
            h = height - row * tall if row == rows - 1 else tall
            w = width - column * wide if column == columns - 1 else wide
            total += _within(h, w, tile)
    return total


def _within(height: float, width: float, side: int) -> float:
    long, short = max(height, width), min(height, width)
    if long > side:
        short, long = short / long * side, side
    return long * short


def best_canvas(height: int, width: int, canvases: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Of (height, width) canvases the one that keeps most pixels, then wastes fewest."""
    best, kept, wasted = canvases[0], 0, math.inf
    for tall, wide in canvases:
        scale = min(wide / width, tall / height)
        pixels = min(int(width * scale) * int(height * scale), height * width)
        rest = tall * wide - pixels
        if pixels > kept or (pixels == kept and rest < wasted):
            best, kept, wasted = (tall, wide), pixels, rest
    return best


def smallest_upscale(
    height: int, width: int, canvases: Sequence[tuple[int, int]], *, largest: bool = False
) -> tuple[int, int]:
    """The (height, width) canvas that scales the image up least, else down least.

    Exact fractions stand for the single-precision scales of the source: equal scales tie,
    and of those the smallest canvas is taken. `largest`: up as far as it goes.
    """
    scales = [min(Fraction(tall, height), Fraction(wide, width)) for tall, wide in canvases]
    ups = [scale for scale in scales if scale >= 1]
    chosen = (max(ups) if largest else min(ups)) if ups else max(scales)
    fitting = [c for c, scale in zip(canvases, scales, strict=True) if scale == chosen]
    return min(fitting, key=lambda canvas: canvas[0] * canvas[1])


def chunk_canvases(most: int, tile: int) -> list[tuple[int, int]]:
    """All (height, width) canvases of at most `most` tiles, grouped by shape as found."""
    shapes: dict[Fraction, list[tuple[int, int]]] = {}
    for count in range(most, 0, -1):
        for rows in (n for n in range(1, count + 1) if count % n == 0):
            shape = Fraction(rows, count // rows)
            shapes.setdefault(shape, []).append((rows * tile, count // rows * tile))
    return [canvas for group in shapes.values() for canvas in group]
