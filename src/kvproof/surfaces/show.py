"""Sections of text that several commands print: the model, its slots, terms, a plan."""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from itertools import cycle
from typing import Any

import msgspec

from kvproof.engine.common_flags import limit_name
from kvproof.engine.drafts import DraftCache
from kvproof.engine.loading import Loaded
from kvproof.engine.overheads import LEARNED
from kvproof.kinds import (
    ChunkedSlot,
    CompressedSlot,
    ConvSlot,
    CrossSlot,
    FullSlot,
    IndexerSlot,
    LatentSlot,
    RecurrentSlot,
    SharedSlot,
    SlidingSlot,
    Slot,
    Types,
)
from kvproof.model.types import Model
from kvproof.model.weights import weight_bytes
from kvproof.planning import Plan
from kvproof.surfaces.text import bar, counted, heading, paint, table
from kvproof.terms import Term, device_of
from kvproof.units import show_bytes, show_context, show_count, show_gb, show_seconds


def model_lines(model: Model, weights: Loaded | None = None) -> str:
    """Name, type, parameters, weights, and where the description came from.

    `weights`: as an engine holds them, said where its flags change their type.
    """
    scheme = model.quantization.method if model.quantization else model.dtype
    active = ""
    if any(group.role == "expert" for group in model.tensors):
        active = f", {show_count(model.active_parameters)} active per token"
    source = f"{model.source.origin}: {model.source.location}"
    if model.source.revision:
        source += f" @ {model.source.revision}"
    context = f", trained for {model.context:,} tokens" if model.context else ""
    held = ""
    if weights is not None and weights.name is not None and weights.total is not None:
        size = f"{show_gb(weights.total)} ({show_bytes(weights.total)})"
        held = f", loaded as {weights.name}: {size}"
    return (
        f"{heading(model.name)}  ({model.model_type}, {model.layers} layers{context})\n"
        f"  {_weights_line(model, scheme, active)}{held}\n"
        f"  {paint(source, 'dim')}"
    )


def _weights_line(model: Model, scheme: str, active: str) -> str:
    """Parameters and weight bytes, or that they are unknown."""
    if not model.tensors and model.stored_weight_bytes is None:
        return "parameters and weights unknown: only the cache is read"
    size = weight_bytes(model)
    return (
        f"{show_count(model.parameters)} parameters{active}; weights {scheme}: "
        f"{show_gb(size)} ({show_bytes(size)})"
    )


def slot_table(model: Model, types: Types, draft: DraftCache | None = None) -> str:
    """What each kind of layer caches: one row for all layers that keep the same, drafts last."""
    rows = _slot_rows(model.slots, types)
    if draft is not None:
        rows += [
            [f"{layers}, draft", *rest] for layers, *rest in _slot_rows(draft.slots, draft.types)
        ]
    return table(["layers", "keeps", "per token", "fixed"], rows, left=2)


def _slot_rows(slots: Sequence[Slot], types: Types) -> list[list[str]]:
    groups: dict[Slot, list[int]] = {}
    for slot in slots:
        groups.setdefault(msgspec.structs.replace(slot, layer=0), []).append(slot.layer)
    return [
        [
            f"{len(layers)} x {_kind(slot)}",
            describe(slot, types),
            f"{slot.entry_bytes(types):,} B" if slot.entry_bytes(types) else "-",
            f"{slot.fixed_bytes(types):,} B" if slot.fixed_bytes(types) else "-",
        ]
        for slot, layers in groups.items()
    ]


def _kind(slot: Slot) -> str:
    """The slot's kind; "none" for a layer without attention or state, which shares with nobody."""
    return "none" if isinstance(slot, SharedSlot) and slot.source_layer is None else slot.kind


def describe(slot: Slot, types: Types) -> str:
    """One slot's shape in words, a state with its element type."""
    if isinstance(slot, SharedSlot):
        source = slot.source_layer
        return "nothing to cache" if source is None else f"reads the cache of layer {source}"
    if isinstance(slot, FullSlot):
        return _heads(slot)
    if isinstance(slot, CompressedSlot):
        index = f", with index keys of {slot.index_dim}" if slot.index_dim else ""
        return f"last {slot.window:,} tokens, then {slot.dim} for each {slot.ratio:,}{index}"
    if isinstance(slot, IndexerSlot):
        return f"index keys of {slot.dim} {(slot.element or types.model).name}"
    if isinstance(slot, LatentSlot):
        tail = f", last {slot.window:,} tokens" if slot.window else ""
        return f"latent {slot.latent_dim} + rotary key {slot.rope_dim}{tail}"
    if isinstance(slot, ConvSlot):
        element = (slot.element or types.model).name
        if slot.mixer == "token_ids":
            return f"the last {slot.columns} token ids {element}"
        kept = f"{counted(slot.channels, 'channel')} x {slot.columns}"
        return f"{slot.mixer.removesuffix('_conv')} convolution, {kept} {element}"
    if isinstance(slot, RecurrentSlot):
        shape = " x ".join(map(str, slot.shape))
        return f"{slot.mixer.replace('_', ' ')} state {shape} {(slot.element or types.model).name}"
    if isinstance(slot, CrossSlot):
        return f"{counted(slot.kv_heads, 'KV head')} x {slot.k_dim}, of the {slot.source}"
    return slot.kind


def _heads(slot: FullSlot) -> str:
    widths = f"{slot.k_dim}" if slot.k_dim == slot.v_dim else f"{slot.k_dim}/{slot.v_dim}"
    tail = ""
    if isinstance(slot, SlidingSlot):
        tail = f", last {slot.window:,} tokens"
    elif isinstance(slot, ChunkedSlot):
        tail = f", chunks of {slot.chunk:,} tokens"
    return f"{counted(slot.kv_heads, 'KV head')} x {widths}{tail}"


def terms_text(title: str, terms: Sequence[Term]) -> str:
    """The derivation: each term with its formula, and its source."""
    lines = [heading(title)]
    for term in terms:
        lines.append(f"  {term.name}: {term.formula}")
        lines.append(paint(f"      {term.source}", "dim"))
    return "\n".join(lines)


# A sign for each term; in plain terminals too, where others stand for the first nine.
_SIGNS = "█▓▒░▞▚╱╲·:+*&@$~^" + string.ascii_uppercase


def budget_text(plan: Plan) -> str:
    """The memory of one GPU (of each device, where they differ) as a bar and a table of terms."""
    devices: dict[str, list[Term]] = {}
    for term in plan.budget.terms:
        devices.setdefault(device_of(term), []).append(term)
    return "\n\n".join(_memory_text(plan, device, terms) for device, terms in devices.items())


def _memory_text(plan: Plan, device: str, terms: Sequence[Term]) -> str:
    shown = [term for term in terms if term.value > 0]
    learned = [term for term in terms if term.value < 0 and term.name == LEARNED]
    total = sum(int(term.value) for term in terms)
    ordered = sorted(shown, key=lambda term: not term.name.startswith("KV cache"))
    signs = {term.name: sign for term, sign in zip(ordered, cycle(_SIGNS), strict=False)}
    drawn = bar([(signs[t.name], float(t.value)) for t in ordered])
    rows = [
        [
            f"{signs[t.name]} {t.name.removesuffix(f', {device}')}",
            show_bytes(t.value),
            _share(t, total),
            _bounds(t),
        ]
        for t in ordered
    ]
    rows += [[f"  {t.name}", show_bytes(t.value), _share(t, total), ""] for t in learned]
    lacking = -sum(int(t.value) for t in terms if t.value < 0 and t not in learned)
    if lacking and not plan.fits:
        rows.append(["  missing", show_bytes(lacking), "", ""])
    title = f"Memory of {place_of(plan, device)}: {show_bytes(total)}"
    return f"{heading(title)}\n  {drawn}\n" + table(["", "size", "share", "between"], rows)


_SEVERAL = re.compile(r"^\d+x|\+")


def place_of(plan: Plan, device: str) -> str:
    """A device's name in a title; "": what a plan of like GPUs calls one of them."""
    if device:
        return {"host": "the host, used"}.get(device, device)
    if not plan.gpu or not _SEVERAL.search(plan.gpu):
        return f"one {plan.gpu or 'GPU'}"
    return f"each GPU of {plan.gpu}"


def _share(term: Term, total: int) -> str:
    return f"{100 * term.value / max(1, total):.1f} %"


def _bounds(term: Term) -> str:
    if term.low is None or term.high is None:
        return ""
    return f"{show_bytes(term.low)} .. {show_bytes(term.high)}"


def rows_text(plan: Plan) -> str:
    """How many sequences fit at each context, what a full step reads, and what limits."""
    engine = plan.engine.partition("@")[0]
    rows = [_plan_row(row, limit_name(engine, row.limit)) for row in plan.rows]
    head = ["context", "per sequence", "fit", "stopped by", "step reads", "KV share", "step",
            "limit", "tok/s/user", "tok/s all"]  # fmt: skip
    replicas = f", {plan.replicas} replicas of {counted(plan.ranks, 'GPU')}"
    copies = replicas if plan.replicas > 1 else ""
    if plan.attention_copies > 1:
        copies += f", each of {plan.attention_copies} copies of the attention"
    copies += "; in brackets of all" if copies else ""
    title = f"How many fit, and how fast ({plan.engine}{copies}; all at full length)"
    return f"{heading(title)}\n{table(head, rows)}{_speed_note(plan)}"


def _speed_note(plan: Plan) -> str:
    """How far from the peak the step times were taken to be."""
    step = next((row.step for row in plan.rows if row.step), None)
    if step is None:
        return ""
    used, alone = step.efficiency, ""
    if plan.draft is not None:
        alone = " Steps are the model's own: a draft's reads and the tokens it saves are left out."
    if used.weights == used.attention == 1:
        bound = "  Steps at the full bandwidth: a bound, not a measurement."
        return "\n" + paint(bound + alone, "dim")
    said = f"weights at {100 * used.weights:.0f} %, KV at {100 * used.attention:.0f} %"
    source = used.source.partition(";")[0]
    return "\n" + paint(f"  Steps read {said} of the bandwidth ({source}).{alone}", "dim")


def _plan_row(row: Any, limit: str) -> list[str]:
    step = row.step
    fit = _with_all(row.sequences, row.total_sequences)
    first = [show_context(row.context), show_bytes(row.bytes_per_sequence), fit, limit]
    if step is None:
        return [*first, "-", "-", "-", "-", "-", "-"]
    copies = row.total_sequences // row.sequences
    return [
        *first,
        show_gb(step.bytes, digits=1),
        f"{100 * step.kv_share:.0f} %",
        show_seconds(step.seconds),
        step.limit,
        f"{step.tokens_per_second_per_user:.0f}",
        _with_all(step.tokens_per_second, step.tokens_per_second * copies),
    ]


def _with_all(one: float, total: float) -> str:
    """One replica's figure, and that of all of them in brackets where there are several."""
    return f"{one:,.0f}" + (f" ({total:,.0f})" if total != one else "")


def crossover_text(plan: Plan) -> str:
    """Where KV reads overtake weight reads."""
    tokens = plan.crossover_tokens
    if tokens is None:
        return "KV reads never overtake weight reads: no cache is read."
    first = plan.rows[0].context if plan.rows else 4096
    return (
        f"KV reads overtake weight reads at {tokens:,.0f} cached tokens in the batch: "
        f"{tokens / first:.1f} sequences at {show_context(first)}."
    )
