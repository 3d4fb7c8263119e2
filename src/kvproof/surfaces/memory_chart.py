"""The memory of a plan as bars: one for each device, a colour for each term."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from colorsys import hls_to_rgb
from typing import Any

from kvproof.engine.overheads import LEARNED
from kvproof.terms import Term, device_of
from kvproof.units import show_bytes

Spec = dict[str, Any]

PALETTE = (
    "#0f6b63", "#d9822b", "#333a6b", "#4aa3c4", "#8dbb6f", "#111111", "#b3154f", "#e3b93c",
)  # fmt: skip
"""The house's colours: the first six differ by 22 or more in CIE Lab for each kind of colour
blindness too."""
_CACHE, _WEIGHTS, _OTHERS = PALETTE[0], PALETTE[2], (PALETTE[1], *PALETTE[3:])
_FURTHER = (
    "#8c6bb1", "#8b5a2b", "#f4a6b8", "#2f6fdb", "#e8643c", "#c9b18c", "#6b1f1f", "#d65fb5",
    "#5f7d2e", "#b9a9d9", "#77776f",
)  # fmt: skip
_FIXED = {
    "KV cache": _CACHE,
    "K cache": _CACHE,
    "V cache": "#7fd6c2",
    "weights": _WEIGHTS,
    "left unused": "#d8d5cb",
    "left free": "#d8d5cb",
}
"""The cache in the house's first colour, weights in its third, unused memory in grey."""
_GOLDEN = 0.618034
_HEIGHT = 46
"""Pixels of a single device's bar; several are half as high."""


def memory_bars(plan: Any, place: str) -> Spec:
    """A bar for each device that differs, with a line at its memory and what is missing there."""
    devices: dict[str, list[Term]] = {}
    for term in plan.budget.terms:
        devices.setdefault(device_of(term), []).append(term)
    one = len(devices) == 1
    rows = [_device(name, terms, short=not plan.fits) for name, terms in devices.items()]
    values = [value for row in rows for value in row["values"]]
    stems = list(dict.fromkeys(value["term"] for value in values))
    bars = {
        "mark": {"type": "bar", "tooltip": True, "stroke": "#ffffff", "strokeWidth": 0.6},
        "encoding": {
            "y": _rows(one=one),
            "x": {"field": "gib", "type": "quantitative", "stack": "zero", "title": "GiB"},
            "color": {
                "field": "term",
                "type": "nominal",
                "title": None,
                "scale": {"domain": stems, "range": colours(stems)},
                "legend": {"orient": "top", "columns": 4, "labelLimit": 260},
            },
            "order": {"field": "order"},
        },
    }
    limits = [row["limit"] for row in rows if row["limit"] is not None]
    title = (
        f"Memory of {place}: {values[0]['device'].removeprefix('GPU, ')}"
        if one
        else "Memory of each device"
    )
    return {
        "title": {"text": f"{title}{_learned(plan)}", "fontSize": 13},
        "width": 640,
        "height": _HEIGHT if one else {"step": _HEIGHT // 2 + 7},
        "data": {"values": values},
        "layer": [bars, *([_limits(limits, one=one)] if limits else [])],
    }


def _rows(*, one: bool) -> Spec:
    """A row for each device, named beside it where there are several."""
    axis = None if one else {"ticks": False, "domain": False, "labelLimit": 260}
    return {"field": "device", "type": "nominal", "sort": None, "title": None, "axis": axis}


def _device(name: str, terms: list[Term], *, short: bool) -> dict[str, Any]:
    """Its terms above 0 in their order, and its memory unless it is the host's.

    `short`: the plan does not fit. What a plan that fits lacks is rounding to whole pages.
    """
    total, missing = sum(int(term.value) for term in terms), lacking(terms) if short else 0
    label = f"{name}, {show_bytes(total)}" if name else f"GPU, {show_bytes(total)}"
    if name == "host":
        label = f"host, {show_bytes(total)} used"
    if missing:
        label = f"{label}, {show_bytes(missing)} missing"
    values = [
        {
            "device": label,
            "term": stem(term),
            "gib": term.value / 2**30,
            "order": i,
            "formula": term.formula,
        }
        for i, term in enumerate(terms)
        if term.value > 0
    ]
    limit = None if name == "host" else {"device": label, "gib": total / 2**30}
    return {"values": values, "limit": limit}


def lacking(terms: Iterable[Term]) -> int:
    """Bytes that the terms take beyond the memory that is there."""
    return -sum(int(t.value) for t in terms if t.value < 0 and t.name != LEARNED)


def stem(term: Term) -> str:
    """A term's name without its device."""
    device = device_of(term)
    return term.name.removesuffix(f", {device}") if device else term.name


def _learned(plan: Any) -> str:
    """What starts were seen to take less than is drawn."""
    less = -sum(int(t.value) for t in plan.budget.terms if t.name == LEARNED and t.value < 0)
    return f" (learned: {show_bytes(less)} less is taken than drawn)" if less > 0 else ""


def _limits(values: list[dict[str, Any]], *, one: bool) -> Spec:
    """A line at the end of each device's memory, longer than its bar is high."""
    return {
        "data": {"values": values},
        "mark": {
            "type": "tick",
            "color": "#ff3b30",
            "opacity": 1,
            "thickness": 2.5,
            "bandSize": _HEIGHT + 6 if one else _HEIGHT // 2 + 9,
        },
        "encoding": {"y": _rows(one=one), "x": {"field": "gib", "type": "quantitative"}},
    }


def colours(stems: Iterable[str]) -> list[str]:
    """A colour of its own for each name of a term."""
    stems = list(stems)
    used = {_FIXED[name] for name in stems if name in _FIXED}
    others = (colour for colour in _endless() if colour not in used)
    taken: set[str] = set()
    found = []
    for name in stems:
        colour = _FIXED.get(name)
        if colour is None or colour in taken:
            colour = next(others)
        taken.add(colour)
        found.append(colour)
    return found


def _endless() -> Iterator[str]:
    """The house's colours, further ones, then hues that are far from the last ones."""
    yield from (*_OTHERS, *_FURTHER)
    hue = 0.0
    while True:
        hue = (hue + _GOLDEN) % 1
        parts = hls_to_rgb(hue, 0.45, 0.6)
        yield "#" + "".join(f"{round(255 * part):02x}" for part in parts)
