"""What size a preprocessor gives an image: pure functions of heights and widths."""

from __future__ import annotations

import math

from kvproof.errors import UsageError

_LONGEST_RATIO = 200


def fit_area(
    height: int, width: int, factor: int, low: int, high: int, *, frames: int = 0
) -> tuple[int, int]:
    """Height and width rounded to multiples of `factor`, with an area between `low` and `high`.

    With `frames` the budget is of the volume frames x height x width.
    """
    check_ratio(height, width)
    rows, columns = round(height / factor) * factor, round(width / factor) * factor
    depth, times = max(1, frames), max(1, frames)
    if times * rows * columns > high:
        shrink = math.sqrt(depth * height * width / high)
        rows = max(factor, math.floor(height / shrink / factor) * factor)
        columns = max(factor, math.floor(width / shrink / factor) * factor)
    elif times * rows * columns < low:
        grow = math.sqrt(low / (depth * height * width))
        rows = math.ceil(height * grow / factor) * factor
        columns = math.ceil(width * grow / factor) * factor
    return rows, columns


def fit_volume(
    frames: int, size: tuple[int, int], factor: int, period: int, budget: tuple[int, int]
) -> tuple[int, int]:
    """As `fit_area` for a video whose frames go to the encoder `period` at a time.

    The budget holds for frames rounded to whole periods; an image below `factor` is scaled up
    first.
    """
    height, width = size
    if min(height, width) < factor:
        scale = max(factor / height, factor / width)
        height, width = int(height * scale), int(width * scale)
    check_ratio(height, width)
    low, high = budget
    rows, columns = round(height / factor) * factor, round(width / factor) * factor
    volume = round(frames / period) * period * rows * columns
    if volume > high:
        shrink = math.sqrt(frames * height * width / high)
        rows = max(factor, math.floor(height / shrink / factor) * factor)
        columns = max(factor, math.floor(width / shrink / factor) * factor)
    elif volume < low:
        grow = math.sqrt(low / (frames * height * width))
        rows = math.ceil(height * grow / factor) * factor
        columns = math.ceil(width * grow / factor) * factor
    return rows, columns


def check_ratio(height: int, width: int) -> None:
    """Raises UsageError for an image that preprocessors with a pixel budget refuse."""
    if max(height, width) / min(height, width) > _LONGEST_RATIO:
        raise UsageError(
            f"an image of {width}x{height} is more than {_LONGEST_RATIO} times as long as wide",
            hint="the model's preprocessor refuses it; crop it",
        )


def up_to(value: float, multiple: int) -> int:
    """`value` rounded up to a multiple."""
    return math.ceil(value / multiple) * multiple


def nearest(value: float, multiple: int) -> int:
    """`value` rounded to a multiple, at least one."""
    return max(round(value / multiple) * multiple, multiple)


def fit_side_and_patches(
    size: tuple[int, int], patch: int, merge: int, most: tuple[int, int]
) -> tuple[int, int]:
    """Shrunk until it has at most `most[0]` patches, `most[1]` a side; padded to merged patches."""
    height, width = size
    patches, side = most
    count = max(1.0, height // patch) * max(1.0, width // patch)
    scale = min(1.0, math.sqrt(patches / count), side * patch / height, side * patch / width)
    rows = min(max(1, int(height * scale)), side * patch)
    columns = min(max(1, int(width * scale)), side * patch)
    return up_to(rows, merge * patch), up_to(columns, merge * patch)


def fit_token_budget(
    size: tuple[int, int], factor: int, period: int, tokens: tuple[int, int], frames: int
) -> tuple[int, int]:
    """Rounded up to multiples of `factor`, between a least and a greatest number of tokens.

    A token is `factor` x `factor` pixels of `period` frames.
    """
    height, width = size
    least, most = (count * period * factor**2 for count in tokens)
    depth = max(period, round(frames / period) * period)
    rows, columns = up_to(height, factor), up_to(width, factor)
    if depth * rows * columns < least:
        grow = math.sqrt(least / (frames * height * width))
        rows = up_to(max(1, math.ceil(height * grow)), factor)
        columns = up_to(max(1, math.ceil(width * grow)), factor)
    if depth * rows * columns <= most:
        return rows, columns
    best, bottom, top = (factor, factor), 1, height
    while bottom <= top:
        middle = (bottom + top) // 2
        tried = up_to(middle, factor), up_to(max(1, width * middle // height), factor)
        if depth * tried[0] * tried[1] <= most:
            best, bottom = tried, middle + 1
        else:
            top = middle - 1
    return best


def fit_pooled(height: int, width: int, patch: int, pool: int, most: int) -> tuple[int, int]:
    """The largest size of the same shape with at most `most` pools of `pool` x `pool` patches."""
    step = pool * patch
    factor = math.sqrt(most * pool**2 * patch**2 / (height * width))
    rows = math.floor(factor * height / step) * step
    columns = math.floor(factor * width / step) * step
    if rows == 0 and columns == 0:
        raise UsageError(f"an image of {width}x{height} shrinks to nothing")
    if rows == 0:
        return step, min(math.floor(width / height) * step, most * step)
    if columns == 0:
        return min(math.floor(height / width) * step, most * step), step
    return rows, columns


def fit_nearest_shape(height: int, width: int, cell: int, most: int) -> tuple[int, int]:
    """Rows and columns of cells: of the four roundings of the ideal grid, the truest in shape."""
    rows, columns = height / cell, width / cell
    ratio = columns / rows
    if rows * columns > most:
        rows = (most / ratio) ** 0.5
        columns = rows * ratio
    tried = {
        (r, c)
        for r in (math.floor(rows), math.ceil(rows))
        for c in (math.floor(columns), math.ceil(columns))
        if r >= 1 and c >= 1 and r * c <= most
    }
    if not tried:
        return max(1, round(rows)), max(1, round(columns))
    return min(tried, key=lambda grid: abs(grid[0] / grid[1] - height / width))


def fit_patch_range(
    height: int, width: int, patch: int, merge: int, budget: tuple[int, int]
) -> tuple[int, int]:
    """Rows and columns of patches between the budget's two ends, in multiples of `merge`."""
    low, high = budget
    rows, columns = round(height / patch + 0.5), round(width / patch + 0.5)
    shrink = min(math.sqrt(high / (rows * columns)), 1.0)
    rows, columns = math.floor(shrink * rows), math.floor(shrink * columns)
    if high > low and rows * columns < low:
        grow = math.sqrt(low / (rows * columns))
        rows, columns = math.ceil(grow * rows), math.ceil(grow * columns)
    rows = _to_merge(rows, columns, merge, high)
    return rows, _to_merge(columns, rows, merge, high)


def _to_merge(side: int, other: int, merge: int, high: int) -> int:
    rest = side % merge
    if not rest:
        return side
    grown = side + merge - rest
    return grown if grown * other <= high else max(merge, side - rest)
