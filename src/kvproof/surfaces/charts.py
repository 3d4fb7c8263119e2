"""Charts as Vega-Lite specifications (plain dicts), and the files they are saved to.

SVG and PNG are drawn by vl-convert (extra [charts]); HTML is one self-contained page.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from kvproof.errors import UsageError
from kvproof.surfaces.memory_chart import PALETTE, lacking, memory_bars
from kvproof.surfaces.text import counted
from kvproof.terms import device_of
from kvproof.units import show_bytes, show_context

Spec = dict[str, Any]

_SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"
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
    "range": {"category": list(PALETTE)},
}


def base(title: str, subtitle: str | list[str], **rest: Any) -> Spec:
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
    """The memory of each device as a bar, and sequences and speed at each context that fits."""
    from kvproof.surfaces.show import place_of

    panels: list[Spec] = [memory_bars(plan, place_of(plan, ""))]
    if any(row.sequences for row in plan.rows):
        panels.append({"hconcat": [_fit_bars(plan), _speed_bars(plan)], "spacing": 40})
    copies = "one replica" if plan.replicas == 1 else f"{plan.replicas} replicas"
    gpus = counted(plan.ranks, "GPU")
    subtitle = [f"{plan.engine}; {gpus} per replica, {copies}", *_misfit(plan)]
    return base(
        f"{plan.model} on {plan.gpu or 'the given memory'}", subtitle, vconcat=panels, spacing=30
    )


def _misfit(plan: Any) -> list[str]:
    """What a plan that does not fit lacks; nothing where it fits."""
    from kvproof.surfaces.way_out import verdict

    if plan.fits and plan.capacity.error is None:
        return []
    short: dict[str, list[Any]] = {}
    for term in plan.budget.terms:
        short.setdefault(device_of(term), []).append(term)
    missing = [(n, lacking(terms)) for n, terms in short.items() if lacking(terms) > 0]
    missing = missing if not plan.fits else []
    said = "; ".join(
        f"{show_bytes(size)} missing{f' on {name}' if name else ''}" for name, size in missing
    )
    return [": ".join(part for part in (verdict(plan), said) if part)]


def _fit_bars(plan: Any) -> Spec:
    values = [
        {"context": show_context(r.context), "sequences": r.total_sequences} for r in plan.rows
    ]
    copies = plan.replicas * plan.attention_copies
    whole = f", {copies} copies together" if copies > 1 else ""
    return _labelled_bars(values, "sequences", f"Sequences that fit{whole}", ",d")


def _speed_bars(plan: Any) -> Spec:
    values = [
        {
            "context": show_context(r.context),
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


def capacity_chart(name: str, engine: str, answer: Any, sequences: dict[int, int]) -> Spec:
    """How many sequences of each context the cache memory runs at once."""
    values = [{"context": show_context(n), "sequences": count} for n, count in sequences.items()]
    panel = _labelled_bars(values, "sequences", "Sequences that run at once", ",d")
    held = f"{answer.num_blocks:,} blocks of {answer.block_size:,} tokens: {answer.tokens:,} tokens"
    error = [f"Does not fit: {answer.error}"] if answer.error else []
    return base(f"{name}, cache of {engine}", [held, *error], vconcat=[{**panel, "width": 460}])


def variant_chart(name: str, variant: str, rows: list[tuple[int, Any]]) -> Spec:
    """The figures of a quantized or an offloaded cache side by side at each context."""
    fields = rows[0][1].__struct_fields__
    values = [
        {
            "context": show_context(n),
            "figure": _spoken(field),
            "gib": getattr(answer, field) / 2**30,
        }
        for n, answer in rows
        for field in fields
    ]
    names = [_spoken(field) for field in fields]
    return base(
        f"What {name} holds at each context",
        f"transformers' {variant} cache",
        width=640,
        height=320,
        data={"values": values},
        mark={"type": "bar", "tooltip": True},
        encoding={
            "x": {"field": "context", "type": "ordinal", "sort": None, "title": "context",
                  "axis": {"labelAngle": 0}},
            "xOffset": {"field": "figure", "sort": names},
            "y": {"field": "gib", "type": "quantitative", "title": "GiB"},
            "color": {"field": "figure", "type": "nominal", "title": None, "sort": names},
        },
    )  # fmt: skip


def _spoken(field: str) -> str:
    return "in all" if field == "bytes" else field.removesuffix("_bytes").replace("_", " ")


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


def check_target(path: str) -> None:
    """UsageError where `save` could not write `path`: asked before what takes minutes."""
    target = Path(path)
    _render({"mark": "point"}, target.suffix.lower(), path)
    if target.is_dir() or not os.access(target.parent, os.W_OK):
        raise UsageError(f"can't write {path}", hint="choose another place")


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
