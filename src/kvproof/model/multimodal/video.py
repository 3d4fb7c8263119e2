"""Video: frames that the sampler has chosen, and their size.

A rule takes the settings of the model, the number of frames, height and width. Timestamps and
frame labels that processors write are text of the tokenizer and not counted.
"""

from __future__ import annotations

from kvproof.errors import UsageError
from kvproof.model.multimodal.counts import Count, Settings
from kvproof.model.multimodal.resize import (
    fit_area,
    fit_nearest_shape,
    fit_side_and_patches,
    fit_token_budget,
    fit_volume,
)


def area_groups(s: Settings, frames: int, height: int, width: int) -> Count:
    """Frames in groups of `period`; each frame fits a pixel budget of its own."""
    factor = s.whole("patch") * s.whole("merge")
    sides = fit_area(height, width, factor, s.whole("min_pixels"), s.whole("max_pixels"))
    return _groups(s, frames, sides, factor)


def volume_groups(s: Settings, frames: int, height: int, width: int) -> Count:
    """Frames in groups of `period`; the whole video fits a budget of pixels."""
    factor, period = s.whole("patch") * s.whole("merge"), s.whole("period")
    if frames < period:
        raise UsageError(
            f"{s.model} takes {period} frames of a video at least, not {frames}",
            hint="raise --video-frames",
        )
    budget = s.whole("min_pixels"), s.whole("max_pixels")
    return _groups(s, frames, fit_volume(frames, (height, width), factor, period, budget), factor)


def side_groups(s: Settings, frames: int, height: int, width: int) -> Count:
    """Frames in groups of `period`; each frame is limited in patches, in all and a side."""
    patch, merge = s.whole("patch"), s.whole("merge")
    most = s.whole("max_patches"), s.whole("max_side")
    sides = fit_side_and_patches((height, width), patch, merge, most)
    return _groups(s, frames, sides, patch * merge)


def budget_groups(s: Settings, frames: int, height: int, width: int) -> Count:
    """Frames in groups of `period`; the whole video fits a budget of tokens, rounded up."""
    factor, period = s.whole("patch") * s.whole("merge"), s.whole("period")
    low, high = s.whole("min_tokens"), s.whole("max_tokens")
    sides = fit_token_budget((height, width), factor, period, (low, high), frames)
    return _groups(s, frames, sides, factor)


def shape_groups(s: Settings, frames: int, height: int, width: int) -> Count:
    """Frames in groups of `period`; the cells of a frame keep its shape within some tokens."""
    factor = s.whole("patch") * s.whole("merge")
    rows, columns = fit_nearest_shape(height, width, factor, s.whole("max_tokens"))
    return _groups(s, frames, (rows * factor, columns * factor), factor)


def _groups(s: Settings, frames: int, sides: tuple[int, int], factor: int) -> Count:
    period, (tall, wide) = s.whole("period"), sides
    groups, rows, columns = -(-frames // period), tall // factor, wide // factor
    tokens = groups * rows * columns
    each, once = (int(s.number(n)) if s.has(n) else 0 for n in ("marks", "once"))
    marks = each * groups + once
    ends = f" + {once}" if once else ""
    return Count(
        tokens=tokens,
        formula=f"{frames} frames / {period} = {groups} x {rows} x {columns} "
        f"({wide}x{tall} / {factor}) = {tokens:,}",
        marks=marks,
        marks_formula=f"{groups} x {each}{ends} special tokens; timestamps are text"
        if marks
        else "",
    )


def per_frame(s: Settings, frames: int, one: Count) -> Count:
    """So many frames of `one` image; `once`: positions of the video, `breaks`: lines between."""
    once = s.whole("once") if s.has("once") else 0
    breaks = frames - 1 if s.flag("breaks") else 0
    tokens = frames * one.tokens + once
    return Count(
        tokens=tokens,
        formula=f"{frames} x ({one.formula}){f' + {once}' if once else ''} = {tokens:,}",
        marks=frames * one.marks + breaks,
        marks_formula=f"{frames} x {one.marks}{f' + {breaks} line breaks' if breaks else ''}; "
        "labels and timestamps are text and not counted",
        slots=one.slots,
    )


def pooled_frame(s: Settings) -> Count:
    """One frame at the encoder's own size, its patches pooled `pool` x `pool`."""
    side, pool = s.whole("image_size") // s.whole("patch"), s.whole("pool")
    per_side = -(-side // pool) if s.flag("rounded_up") else side // pool
    tokens = per_side**2 if not s.flag("floor_whole") else side * side // pool**2
    marks = int(s.number("marks")) if s.has("marks") else 0
    return Count(
        tokens=tokens,
        formula=f"{side}^2 patches pooled {pool} x {pool} = {tokens}",
        marks=marks,
        marks_formula="start and end of the frame" if marks else "",
    )
