"""What a graph is built from: widths of the model's layers and the batch that is reserved."""

from __future__ import annotations

import functools
from importlib import resources
from typing import Any, Literal

import msgspec

from kvproof.engine.llamacpp.context import Context, pad
from kvproof.engine.llamacpp.facts import fact, facts_by_layer
from kvproof.engine.llamacpp.layout import applies_windows, sliding_cells
from kvproof.kinds import ChunkedSlot, FullSlot, SharedSlot, SlidingSlot
from kvproof.model.types import Model

_ROTATED = 64
_SECTIONS = 4
_STRETCH, _TWICE = 2, 2
_QUANTIZED = frozenset({"q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl"})


class Routing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an architecture routes tokens to experts, where its metadata does not say."""

    gating: Literal["softmax", "sigmoid", "late"] = "softmax"
    normed: bool | None = True
    biased: bool = False
    weighs_first: bool = False
    form: str = "gated"
    shared: Literal["", "add", "gated"] = ""
    leading: bool = False
    gating_key: bool = False
    scales: bool = False
    as_wide_as_dense: bool = False
    beside: Literal["", "arctic"] = ""


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an architecture's layers are put together; what is not said is as in Llama."""

    norm: Literal["rms", "mean"] = "rms"
    queries_norm: Literal["none", "head", "row"] = "none"
    fused: bool = False
    rope: Literal[
        "all", "none", "sliding", "sliding or alone", "three of four", "last three of four"
    ] = "all"
    rope_when_layers: int = 0
    residual: Literal["serial", "own", "fas", "afs", "fsa"] = "serial"
    norms_before: bool = True
    norms_after: bool = False
    feed_forward: Literal["gated", "plain", "fused", "product"] = "gated"
    position_parts: int = 1
    sectioned: bool = False
    learned_positions: bool = False
    embedding_norm: bool = False
    scaled_rows: bool = False
    routing: Routing | None = None


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """One layer: its heads and widths, which cache it reads, its feed-forward."""

    index: int
    heads: int
    kv_heads: int
    k_dim: int
    v_dim: int
    sliding: bool
    stores: bool
    wide: int
    routed: bool
    rotates: bool


class Experts(msgspec.Struct, frozen=True, kw_only=True):
    """Experts of a layer and how they are chosen; a `count` of 0 is a model without."""

    count: int = 0
    used: int = 0
    width: int = 0
    shared_width: int = 0
    gating: str = "softmax"
    normed: bool = False
    scaled: bool = False
    biased: bool = False
    groups: int = 0
    groups_used: int = 0
    weighs_first: bool = False
    form: str = "gated"


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """A model and the batch whose graph llama.cpp reserves memory for."""

    recipe: Recipe
    hidden: int
    vocabulary: int
    layers: tuple[Layer, ...]
    experts: Experts
    tokens: int
    outputs: int
    sequences: int
    streams: int
    cells: int
    sliding_cells: int
    windowed: bool
    flash: bool
    k: str
    v: str
    widest_value: int
    position_parts: int
    scaled: bool

    def cells_of(self, layer: Layer) -> int:
        """Cells of one stream of the cache that a layer reads."""
        return self.sliding_cells if layer.sliding else self.cells

    def rotation(self, layer: Layer) -> tuple[int, int]:
        """Sizes of the matrices that turn keys and values before they are quantized, 0 for none."""
        key = value = 0
        if self.k in _QUANTIZED and layer.k_dim % _ROTATED == 0:
            key = _ROTATED
            while layer.k_dim % (2 * key) == 0:
                key *= 2
        if self.v in _QUANTIZED and layer.v_dim % _ROTATED == 0:
            value = _ROTATED
        return key, value


@functools.cache
def _recipes() -> dict[str, Recipe]:
    file = resources.files("kvproof.engine.llamacpp").joinpath("data/graphs.json")
    table = msgspec.json.decode(file.read_bytes())
    return msgspec.convert(table["architectures"], type=dict[str, Recipe])


def shape_of(model: Model, context: Context) -> Shape | None:
    """The graph's shape, None for an architecture whose graph is not known."""
    recipe = _recipes().get(context.arch or "")
    layers = _layers(model, context, recipe) if recipe else ()
    if recipe is None or not layers:
        return None
    windows = [slot.chunk if isinstance(slot, ChunkedSlot) else slot.window
               for slot in model.slots if isinstance(slot, SlidingSlot | ChunkedSlot)]  # fmt: skip
    windowed = applies_windows(context) and bool(windows)
    tokens = pad(context.ubatch, context.sequences)
    return Shape(
        recipe=recipe,
        hidden=model.hidden_size,
        vocabulary=model.vocab_size,
        layers=_distinct(layers),
        experts=_experts(model, recipe.routing),
        tokens=tokens,
        outputs=context.outputs,
        sequences=context.sequences,
        streams=context.streams,
        cells=context.sequence_cells,
        sliding_cells=sliding_cells(context, windows[0], unified=context.unified) if windows else 0,
        windowed=windowed,
        flash=context.flash,
        k=context.k.name,
        v=context.v.name,
        widest_value=max(layer.kv_heads * layer.v_dim for layer in layers),
        position_parts=_position_parts(model, recipe),
        scaled=bool(recipe.routing and recipe.routing.scales) and _described_only(model),
    )


def _distinct(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """Layers that can decide the peak: a stretch of kinds that has come twice adds nothing.

    Every layer ends with one tensor alive, so a kind that follows the same two kinds for the
    third time finds the memory as the second time. The last layers, which drop rows, stay.
    """
    seen: dict[tuple[Layer, ...], int] = {}
    kinds = [msgspec.structs.replace(layer, index=0) for layer in layers]
    kept = []
    for index, layer in enumerate(layers):
        stretch = tuple(kinds[max(index - _STRETCH, 0) : index + 1])
        seen[stretch] = seen.get(stretch, 0) + 1
        if seen[stretch] <= _TWICE or index >= len(layers) - _STRETCH:
            kept.append(layer)
    return tuple(kept)


def _position_parts(model: Model, recipe: Recipe) -> int:
    """Numbers of a position: four where rotary sections are for time, height and width."""
    if recipe.sectioned:
        sections = _raw(model, "rope.dimension_sections", "mrope_section")
        if isinstance(sections, list | tuple) and all(sections[:2]):
            return _SECTIONS
    return recipe.position_parts


def _described_only(model: Model) -> bool:
    """Whether a GGUF file's metadata came without tensors: llama.cpp then makes optional ones."""
    return model.source.origin == "dict" and "general.architecture" in model.config


def _layers(model: Model, context: Context, recipe: Recipe) -> tuple[Layer, ...]:
    windowed = applies_windows(context) and any(
        isinstance(slot, SlidingSlot | ChunkedSlot) for slot in model.slots
    )
    heads = facts_by_layer(model, "attention.head_count", "num_attention_heads")
    wide = facts_by_layer(model, "feed_forward_length", "intermediate_size", "ffn_hidden_size",
                          "n_inner")  # fmt: skip
    leads = recipe.routing is not None and recipe.routing.leading
    dense = fact(model, "leading_dense_block_count", "first_k_dense_replace") if leads else 0
    made: list[Layer] = []
    own = {slot.layer: slot for slot in model.slots if isinstance(slot, FullSlot | SharedSlot)}
    for index in range(model.layers):
        slot = own.get(index)
        if isinstance(slot, SharedSlot) and slot.source_layer is not None:
            slot = own.get(slot.source_layer)
        if not isinstance(slot, FullSlot):
            return ()
        slides = windowed and isinstance(slot, SlidingSlot | ChunkedSlot)
        made.append(Layer(
            index=index,
            heads=heads[index] if index < len(heads) else model.attention_heads,
            kv_heads=slot.kv_heads, k_dim=slot.k_dim, v_dim=slot.v_dim,
            sliding=slides,
            stores=isinstance(own[index], FullSlot),
            wide=wide[index] if index < len(wide) else 0,
            routed=bool(recipe.routing and model.experts and index >= dense),
            rotates=_rotates(recipe, index, slides, windowed, model.layers),
        ))  # fmt: skip
    return tuple(made)


def _rotates(recipe: Recipe, index: int, slides: bool, windowed: bool, layers: int) -> bool:
    """Whether a layer's queries and keys are rotated by position."""
    if recipe.rope == "sliding":
        return slides
    if recipe.rope == "sliding or alone":
        return slides or not windowed
    if recipe.rope == "three of four":
        return (index + 1) % 4 != 0
    if recipe.rope == "last three of four":
        return index % 4 != 0
    return recipe.rope == "all" or layers == recipe.rope_when_layers


_GATING = {1: "softmax", 2: "sigmoid", 3: "late"}


def _experts(model: Model, routing: Routing | None) -> Experts:
    if routing is None or not model.experts:
        return Experts()
    width = 0
    if not routing.as_wide_as_dense:
        width = fact(model, "expert_feed_forward_length", "moe_intermediate_size")
    width = width or fact(model, "feed_forward_length", "intermediate_size")
    shared = fact(model, "expert_shared_feed_forward_length", "shared_expert_intermediate_size")
    shared = shared or width * fact(model, "expert_shared_count", "n_shared_experts")
    asked = fact(model, "expert_gating_func") if routing.gating_key else 0
    gating = _GATING.get(asked, routing.gating)
    normed = routing.normed
    if normed is None:
        normed = _flag(model, "expert_weights_norm", "norm_topk_prob")
    scale = _number(model, "expert_weights_scale", "routed_scaling_factor")
    return Experts(
        count=model.experts, used=model.experts_per_token, width=width,
        shared_width=shared if routing.shared else 0, gating=gating, normed=bool(normed),
        scaled=scale not in (0.0, 1.0), biased=routing.biased,
        groups=fact(model, "expert_group_count", "n_group"),
        groups_used=fact(model, "expert_group_used_count", "topk_group"),
        weighs_first=routing.weighs_first, form=routing.form,
    )  # fmt: skip


def _raw(model: Model, key: str, name: str) -> Any:
    arch = model.config.get("general.architecture")
    if isinstance(arch, str):
        return model.config.get(f"{arch}.{key}")
    return model.text_config.get(name)


def _flag(model: Model, key: str, name: str) -> bool:
    return _raw(model, key, name) is True


def _number(model: Model, key: str, name: str) -> float:
    value = _raw(model, key, name)
    return float(value) if isinstance(value, int | float) else 0.0
