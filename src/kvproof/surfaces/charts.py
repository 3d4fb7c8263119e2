"""Charts as Vega-Lite specifications (plain dicts), and the files they are saved to.

SVG and PNG are drawn by vl-convert (extra [charts]); HTML is one self-contained page.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvproof.errors import UsageError

Spec = dict[str, Any]

_SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"
# The first six differ by 22 or more in CIE Lab for each kind of colour blindness too.
_PALETTE = (
    "#0f6b63", "#d9822b", "#333a6b", "#4aa3c4", "#8dbb6f", "#111111", "#b3154f", "#e3b93c",
)  # fmt: skip
_CONFIG = {
    "font": "Inter, Helvetica, Arial, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelFontSize": 12,
        "titleFontSize": 12,
        "gridColor": "#e8e6df",
        "domainColor": "#8a887f",
    },
    "title": {
        "fontSize": 16,
        "subtitleFontSize": 12,
        "anchor": "start",
        "subtitleColor": "#5f5e55",
        "offset": 14,
    },
    "legend": {"labelFontSize": 12, "titleFontSize": 12},
    "range": {"category": list(_PALETTE)},
}


def base(title: str, subtitle: str, **rest: Any) -> Spec:
    """A specification with the house's title, fonts and colours."""
    return {
        "$schema": _SCHEMA,
        "title": {"text": title, "subtitle": subtitle},
        "background": "#ffffff",
        "padding": 18,
        "config": _CONFIG,
        **rest,
    }


def plan_chart(plan: Any) -> Spec:
    """The memory of one GPU as a bar, and sequences and speed at each context."""
    return base(
        f"{plan.model} on {plan.gpu or 'the given memory'}",
        f"{plan.engine}; {plan.ranks} GPU per replica, "
        + ("one replica" if plan.replicas == 1 else f"{plan.replicas} replicas"),
        vconcat=[
            _budget_bar(plan),
            {"hconcat": [_fit_bars(plan), _speed_bars(plan)], "spacing": 40},
        ],
        spacing=30,
    )


def _budget_bar(plan: Any) -> Spec:
    values = [
        {"term": t.name, "gib": t.value / 2**30, "order": i, "formula": t.formula}
        for i, t in enumerate(plan.budget.terms)
        if t.value > 0
    ]
    return {
        "title": {"text": "Memory of one GPU", "fontSize": 13},
        "width": 640,
        "height": 46,
        "data": {"values": values},
        "mark": {"type": "bar", "tooltip": True},
        "encoding": {
            "x": {"field": "gib", "type": "quantitative", "stack": "zero", "title": "GiB"},
            "color": {
                "field": "term",
                "type": "nominal",
                "title": None,
                "scale": {"domain": [v["term"] for v in values], "range": _term_colours(values)},
                "legend": {"orient": "top", "columns": 4},
            },
            "order": {"field": "order"},
        },
    }


def _term_colours(values: list[dict[str, Any]]) -> list[str]:
    """The cache in the house's first colour, unused memory in grey, the others in turn."""
    fixed = {"KV cache": _PALETTE[0], "left unused": "#d8d5cb"}
    others = iter(_PALETTE[1:] * 3)
    return [fixed.get(str(v["term"])) or next(others) for v in values]


def _context_label(tokens: int) -> str:
    from kvproof.units import show_context

    return show_context(tokens)


def _fit_bars(plan: Any) -> Spec:
    values = [
        {"context": _context_label(r.context), "sequences": r.total_sequences} for r in plan.rows
    ]
    return _labelled_bars(values, "sequences", "Sequences that fit", ",d")


def _speed_bars(plan: Any) -> Spec:
    values = [
        {
            "context": _context_label(r.context),
            "rate": round(r.step.tokens_per_second_per_user, 1) if r.step else 0,
        }
        for r in plan.rows
    ]
    return _labelled_bars(values, "rate", "Tokens per second for each of them", ",.0f")


_HEADROOM = 1.12
"""The scale's top over the highest bar. Labels stay within, so that titles are level."""


def _labelled_bars(values: list[dict[str, Any]], field: str, title: str, form: str) -> Spec:
    top = _HEADROOM * max((value[field] for value in values), default=0) or 1
    encoding = {
        "x": {
            "field": "context",
            "type": "ordinal",
            "sort": None,
            "title": "context",
            "axis": {"labelAngle": 0},
        },
        "y": {
            "field": field,
            "type": "quantitative",
            "title": None,
            "scale": {"domainMax": top},
            "axis": {"labelFlush": 8},
        },
    }
    return {
        "title": {"text": title, "fontSize": 13},
        "width": 290,
        "height": 180,
        "data": {"values": values},
        "layer": [
            {"mark": {"type": "bar", "color": "#0f6b63", "tooltip": True}, "encoding": encoding},
            {
                "mark": {"type": "text", "dy": -7, "fontSize": 12},
                "encoding": {
                    **encoding,
                    "text": {"field": field, "type": "quantitative", "format": form},
                },
            },
        ],
    }


def cache_chart(model: Any, types: Any) -> Spec:
    """Bytes of one sequence against its length, stacked by kind of slot."""
    top = min(max(model.context or 131072, 8192), 2**20)
    lengths = [top * i // 64 for i in range(1, 65)]
    kinds: dict[str, list[Any]] = {}
    for slot in model.slots:
        kinds.setdefault(slot.kind, []).append(slot)
    values = [
        {"tokens": n, "kind": kind, "gib": sum(s.bytes(n, types) for s in slots) / 2**30}
        for kind, slots in kinds.items()
        for n in lengths
    ]
    return base(
        f"What one sequence of {model.name} holds",
        f"keys {types.k.name}, values {types.v.name}; by kind of layer",
        width=640,
        height=320,
        data={"values": values},
        mark={"type": "area", "line": True, "opacity": 0.75, "tooltip": True},
        encoding={
            "x": {
                "field": "tokens",
                "type": "quantitative",
                "title": "tokens",
                "axis": {"format": "~s"},
            },
            "y": {"field": "gib", "type": "quantitative", "title": "GiB", "stack": "zero"},
            "color": {"field": "kind", "type": "nominal", "title": None},
        },
    )


def without_cache_chart(answer: Any) -> Spec:
    """Operations of each decode step, with and without the cache."""
    marks = range(1, answer.decode_steps + 1, max(1, answer.decode_steps // 120))
    values = [
        {"step": i, "way": way, "tflop": 2 * answer.parameters * tokens / 1e12}
        for i in marks
        for way, tokens in (("without the cache", answer.prompt + i), ("with the cache", 1))
    ]
    return base(
        f"A {answer.output:,}-token answer costs {answer.ratio:,.0f} times more without the cache",
        f"prompt of {answer.prompt:,} tokens, {answer.parameters:,} parameters",
        width=640,
        height=320,
        data={"values": values},
        mark={"type": "line", "strokeWidth": 3, "tooltip": True},
        encoding={
            "x": {"field": "step", "type": "quantitative", "title": "decode step"},
            "y": {"field": "tflop", "type": "quantitative", "title": "TFLOP per step"},
            "color": {"field": "way", "type": "nominal", "title": None},
        },
    )


def compare_chart(rows: list[dict[str, Any]]) -> Spec:
    """GiB per sequence, and how many fit where a GPU is named, one bar for each row."""
    labels = [f"{row['model']}{' on ' + row['gpu'] if 'gpu' in row else ''}" for row in rows]
    values = [
        {"row": label, "gib": row["bytes_per_sequence"] / 2**30, "sequences": row.get("sequences")}
        for label, row in zip(labels, rows, strict=True)
    ]
    context = f"{rows[0]['context']:,} tokens"
    panels = [_ranked(values, "gib", f"GiB of one sequence of {context}", ",.3f")]
    if any("sequences" in row for row in rows):
        panels.append(_ranked(values, "sequences", f"Sequences of {context} that fit", ",d"))
    return base("Side by side", f"{context} per sequence", vconcat=panels, spacing=30)


def _ranked(values: list[dict[str, Any]], field: str, title: str, form: str) -> Spec:
    encoding = {
        "y": {
            "field": "row",
            "type": "nominal",
            "sort": None,
            "title": None,
            "axis": {"labelLimit": 320},
        },
        "x": {"field": field, "type": "quantitative", "title": None},
    }
    return {
        "title": {"text": title, "fontSize": 13},
        "width": 460,
        "height": {"step": 30},
        "data": {"values": values},
        "layer": [
            {"mark": {"type": "bar", "color": "#0f6b63", "tooltip": True}, "encoding": encoding},
            {
                "mark": {"type": "text", "align": "left", "dx": 4, "fontSize": 12},
                "encoding": {
                    **encoding,
                    "text": {"field": field, "type": "quantitative", "format": form},
                },
            },
        ],
    }


def save(spec: Spec, path: str) -> None:
    """Write `spec` to `path` as .svg, .png, .html or .json; nothing is left behind on failure.

    Raises UsageError for another ending, a missing [charts] extra, or an unwritable folder.
    """
    target = Path(path)
    content = _render(spec, target.suffix.lower(), path)
    partial = target.with_name(f".{target.name}.partial")
    try:
        partial.write_bytes(content)
        partial.replace(target)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise UsageError(
            f"can't write {path}: {error.strerror}", hint="choose another place"
        ) from None


def _render(spec: Spec, suffix: str, path: str) -> bytes:
    if suffix == ".json":
        import msgspec

        return msgspec.json.format(msgspec.json.encode(spec), indent=2)
    if suffix not in (".svg", ".png", ".html"):
        raise UsageError(f"can't draw {path!r}", hint="end it in .svg, .png, .html or .json")
    try:
        import vl_convert
    except ImportError:
        raise UsageError("charts need an extra", hint="pip install 'kvproof[charts]'") from None
    if suffix == ".svg":
        return str(vl_convert.vegalite_to_svg(spec)).encode()
    if suffix == ".png":
        return bytes(vl_convert.vegalite_to_png(spec, scale=2))
    return str(vl_convert.vegalite_to_html(spec, bundle=True)).encode()
