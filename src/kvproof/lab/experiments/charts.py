"""Charts of experiments: measured as solid marks, predicted as black ticks or dashed lines.

Plain Vega-Lite dicts. Series differ by shape as well as by colour.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

Spec = dict[str, Any]
Records = Sequence[dict[str, Any]]
_WIDTH, _HEIGHT = 520, 260
_AXIS = {"labelLimit": 240, "titlePadding": 8, "tickCount": 6}
_FEW = 10  # points that get a tick each
_COLOUR = "#0f6b63"
_TICK = {"type": "tick", "thickness": 2.5, "color": "#111111", "tooltip": True}


def lines(
    records: Records,
    x: str,
    y: str,
    colour: str | None = None,
    *,
    predicted: str | None = None,
    scales: tuple[str, str] = ("linear", "linear"),
) -> Spec:
    """`y` against `x`, one line for each `colour`; the field `predicted` dashed.

    `scales` are those of x and y: "linear" from zero, "log" or "log2".
    """
    title = f"{y} (dashed: predicted)" if predicted else y
    across = _axis(x, scales[0], [r[x] for r in records])
    across["axis"] |= _at_points(records, x) if scales[0] == "linear" else {}
    heights = [r[f] for r in records for f in (y, predicted) if f and r[f] is not None]
    up = _axis(y, scales[1], heights) | {"title": title}
    series: Spec = {}
    if colour:
        order = list(dict.fromkeys(r[colour] for r in records))
        series = {"field": colour, "type": "nominal", "title": colour, "scale": {"domain": order}}
    paint = {"color": series} if series else {"color": {"value": _COLOUR}}
    shape = {"shape": series} if series else {}
    where = {"x": across, "y": up}
    layers: list[Spec] = [
        {"mark": {"type": "line", "strokeWidth": 2.5}, "encoding": where | paint},
        {"mark": {"type": "point", "filled": True, "size": 70, "opacity": 1, "tooltip": True},
         "encoding": where | paint | shape},
    ]  # fmt: skip
    if predicted:
        far = {"x": across, "y": up | {"field": predicted}}
        ink = {"color": series} if series else {"color": {"value": "#111111"}}
        dashed = {"type": "line", "strokeWidth": 1.5, "strokeDash": [5, 4]}
        layers.append({"mark": dashed, "encoding": far | ink})
    return _panel(list(records), {"layer": layers})


def bars(
    records: Records, x: str, y: str, *, predicted: str | None = None, form: str = ",~r"
) -> Spec:
    """Horizontal bars of `y` with their values, a black tick where `predicted` says."""
    where: Spec = {"field": x, "type": "nominal", "title": None, "sort": None, "axis": _AXIS}
    long: Spec = {"field": y, "type": "quantitative", "title": y, "axis": _AXIS}
    text: Spec = {"field": y, "type": "quantitative", "format": form}
    layers: list[Spec] = [
        {"mark": {"type": "bar", "color": _COLOUR, "opacity": 0.6, "tooltip": True},
         "encoding": {"y": where, "x": long}},
        {"mark": {"type": "text", "align": "left", "dx": 6, "fontSize": 11},
         "encoding": {"y": where, "x": long, "text": text}},
    ]  # fmt: skip
    if predicted:
        title = f"{y} (bar), predicted (tick)"
        long["title"] = title
        far: Spec = {"field": predicted, "type": "quantitative", "title": title}
        layers.append({"mark": _TICK, "encoding": {"y": where, "x": far}})
    height = {"step": 28}
    return {"width": _WIDTH, "height": height, "data": {"values": list(records)}, "layer": layers}


def grouped(records: Records, group: str, x: str, y: str, predicted: str) -> Spec:
    """Bars of `y` for each `x` inside each `group`, each with a tick at `predicted`."""
    order = list(dict.fromkeys(r[x] for r in records))
    where: Spec = {
        "y": {"field": group, "type": "nominal", "title": None, "sort": None, "axis": _AXIS},
        "yOffset": {"field": x, "sort": order},
    }
    title = f"{y} (bar), predicted (tick)"
    bar: Spec = {
        "x": {"field": y, "type": "quantitative", "title": title, "axis": _AXIS},
        "color": {"field": x, "type": "nominal", "title": x, "sort": order},
    }
    tick: Spec = {"x": {"field": predicted, "type": "quantitative", "title": title}}
    layers = [
        {"mark": {"type": "bar", "opacity": 0.65, "tooltip": True}, "encoding": where | bar},
        {"mark": {**_TICK, "height": 9}, "encoding": where | tick},
    ]
    height = {"step": 13}
    return {"width": _WIDTH, "height": height, "data": {"values": list(records)}, "layer": layers}


def above(*panels: Spec) -> Spec:
    """Panels one above the other, each with its own scales."""
    apart = {scale: "independent" for scale in ("color", "shape")}
    return {"vconcat": list(panels), "spacing": 34, "resolve": {"scale": apart}}


def _at_points(records: Records, field: str) -> Spec:
    """Ticks where something was measured, when that is at a few whole numbers."""
    points = sorted({r[field] for r in records})
    few = len(points) <= _FEW and all(isinstance(point, int) for point in points)
    return {"values": points, "format": ",d"} if few else {}


def _axis(field: str, scale: str, values: Sequence[Any]) -> Spec:
    """A quantitative axis: from zero, or logarithmic with ticks at the values or powers of ten."""
    out: Spec = {"field": field, "type": "quantitative", "title": field, "axis": dict(_AXIS)}
    if scale == "linear":
        out["scale"] = {"zero": True}
    elif scale == "log2":
        ends = [min(values), max(values)]
        out["scale"] = {"type": "log", "base": 2, "domain": ends}
        out["axis"]["values"] = sorted(set(values))
    elif scale == "log":
        found = [v for v in values if v > 0]
        low, high = math.floor(math.log10(min(found))), math.ceil(math.log10(max(found)))
        powers = [10.0**k for k in range(low, max(high, low + 1) + 1)]
        out["scale"] = {"type": "log", "domain": [powers[0], powers[-1]]}
        out["axis"] |= {"values": powers, "format": ",~r"}
    return out


def _panel(values: list[Spec], rest: Spec) -> Spec:
    return {"width": _WIDTH, "height": _HEIGHT, "data": {"values": values}, **rest}
