"""What a graph is built from: widths of the model's layers and the batch that is reserved."""

from __future__ import annotations

import functools
from importlib import resources
from typing import Any, Literal

import msgspec

from kvproof.engine.llamacpp.context import Context, expands_latents, pad
from kvproof.engine.llamacpp.facts import fact, facts_by_layer
from kvproof.engine.llamacpp.layout import applies_windows, sliding_cells
from kvproof.kinds import (
    ChunkedSlot,
    FullSlot,
    IndexerSlot,
    LatentSlot,
    SharedSlot,
    SlidingSlot,
    Slot,
)
from kvproof.kinds.elements import element_type
from kvproof.model.types import Model

_ROTATED = 64
_SECTIONS = 4
_LEADING, _PERIOD, _ROUNDS = 6, 13, 2
_QUERY_NORMS = ("qk_layernorm", "use_qk_norm", "qk_ln")
_QUANTIZED = frozenset({"q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl"})


class Routing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an architecture routes tokens to experts; `normed` None: as its metadata says.

    `leading`: it honours the count of dense layers in front; `interleaved`: every so many layers;
    `gating_key`: it reads the gating from the metadata. `scales` and `merges`: it takes scales of
    experts and merged gates where they exist. `shared_by`: what the width of shared experts
    follows. `early`: the router reads the layer's input.
    """

    gating: Literal["softmax", "sigmoid", "late"] = "softmax"
    normed: bool | None = True
    scale: bool = True
    biased: bool = False
    weighs_first: bool = False
    form: str = "gated"
    shared: Literal["", "add", "gated", "before"] = ""
    shared_form: str = ""
    shared_by: Literal["key", "count", "both", "dense", "expert"] = "key"
    leading: bool = False
    interleaved: bool = False
    gating_key: bool = False
    scales: bool = False
    merges: bool = False
    early: bool = False
    as_wide_as_dense: bool = False
    beside: Literal["", "arctic", "grove"] = ""


Rope = Literal[
    "all", "none", "sliding", "sliding or alone", "sliding or leading", "three of four",
    "last three of four",
]  # fmt: skip


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an architecture's layers are put together; what is not said is as in Llama.

    `norm` "eps": by which epsilon the metadata has. `residual` "own": attention and feed-forward
    beside each other with a norm each; letters: with one norm, and the order of the sums.
    `rows`: where the rows of tokens without outputs are dropped. `gate`: the attention's output
    times a gate for every number or head. `second_norm`: attention has a norm of its own.
    """

    norm: Literal["rms", "mean", "eps"] = "rms"
    queries_norm: Literal["none", "head", "row", "head if any", "row if said"] = "none"
    fused: Literal["no", "yes", "in files"] = "no"
    fused_hidden: int = 0
    second_norm: bool = False
    gate: Literal["", "all", "heads"] = ""
    rope: Rope = "all"
    rope_when_layers: int = 0
    temperature: bool = False
    residual: Literal["serial", "own", "fas", "afs", "fsa"] = "serial"
    norms_before: bool = True
    norms_after: bool = False
    rows: Literal["last layer", "before norm", "after norm"] = "last layer"
    rows_after_norm: bool = False
    feed_forward: Literal["gated", "plain", "fused", "product"] = "gated"
    half_wide: bool = False
    clamps: bool = False
    position_parts: int = 1
    sectioned: bool = False
    learned_positions: bool = False
    embedding_norm: bool = False
    scaled_rows: bool = False
    skips: bool = False
    routing: Routing | None = None


class Latent(msgspec.Struct, frozen=True, kw_only=True):
    """Widths of latent attention and of its indexer (0: none).

    `absorbed`: the latent is what is cached; else every head's keys and values are.
    """

    absorbed: bool
    query_rank: int
    rank: int
    rope: int
    nope: int
    value: int
    index_dim: int = 0
    index_heads: int = 0
    index_top: int = 0


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
    clamped: bool
    routed: bool
    rotates: bool
    latent: Latent | None = None


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
    merged: bool = False
    grouped_count: int = 0
    grouped_width: int = 0


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
    mean_norm: bool
    queries_norm: str
    fused_width: int
    second_norm: bool

    def cells_of(self, layer: Layer) -> int:
        """Cells of one stream of the cache that a layer reads."""
        return self.sliding_cells if layer.sliding else self.cells

    def k_bytes(self, numbers: int) -> int:
        """Bytes of so many numbers in the type of keys."""
        return element_type(self.k).bytes(numbers)

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
        mean_norm=recipe.norm == "mean"
        or (
            recipe.norm == "eps"
            and not _number(model, "attention.layer_norm_rms_epsilon", "rms_norm_eps")
        ),
        queries_norm=_queries_norm(model, recipe),
        fused_width=_fused_width(model, recipe, layers[0]),
        second_norm=recipe.second_norm
        and (_described_only(model) or max(layer.kv_heads for layer in layers) > 1),
    )


def _queries_norm(model: Model, recipe: Recipe) -> str:
    """Whether queries and keys are normed: by head, by row, or not."""
    name, _, condition = recipe.queries_norm.partition(" if ")
    if not condition:
        return name
    inner = model.text_config.get("attn_config")
    settings = {**model.text_config, **(inner if isinstance(inner, dict) else {})}
    said = any(settings.get(key) is True for key in _QUERY_NORMS)
    return name if said or (condition == "any" and _described_only(model)) else "none"


def _fused_width(model: Model, recipe: Recipe, layer: Layer) -> int:
    """Outputs of the one weight of queries, keys and values, 0 where there are three."""
    if recipe.fused == "no" or (recipe.fused == "in files" and _described_only(model)):
        return 0
    if recipe.fused_hidden:
        heads = layer.kv_heads * (layer.k_dim + layer.v_dim) if recipe.fused_hidden == 1 else 0
        return recipe.fused_hidden * model.hidden_size + heads
    return layer.heads * layer.k_dim + layer.kv_heads * (layer.k_dim + layer.v_dim)


def _distinct(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """The layers without repetitions that cannot change the peak.

    Every layer ends with one tensor alive, whose place alternates; so after two rounds of the
    pattern of layers the memory is as it was two rounds before. Such pairs of rounds are left out.
    """
    if any(layer.latent and layer.latent.index_dim for layer in layers):
        return layers  # each has a constant of its own, made before everything else
    kinds = [msgspec.structs.replace(layer, index=0) for layer in layers]
    for start in range(min(_LEADING, len(layers))):
        for period in range(1, _PERIOD):
            if kinds[start:-period] == kinds[start + period :]:
                rounds = (len(layers) - start) // (2 * period) - _ROUNDS
                left = start + 2 * period * _ROUNDS
                return layers[:left] + layers[left + 2 * period * max(rounds, 0) :]
    return layers


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
    clamps = _clamps(model, recipe)
    spread = recipe.routing is not None and recipe.routing.interleaved
    step = fact(model, "interleave_moe_layer_step", "interleave_moe_layer_step") if spread else 1
    made: list[Layer] = []
    own: dict[int, Slot] = {
        slot.layer: slot for slot in model.slots
        if isinstance(slot, FullSlot | SharedSlot | LatentSlot)
    }  # fmt: skip
    indexers = {slot.layer: slot for slot in model.slots if isinstance(slot, IndexerSlot)}
    for index in range(model.layers):
        slot = own.get(index)
        if isinstance(slot, SharedSlot) and slot.source_layer is not None:
            slot = own.get(slot.source_layer)
        latent = None
        if isinstance(slot, LatentSlot):
            latent = _latent(model, slot, indexers.get(index))
            slot = _as_heads(slot, latent)
        if not isinstance(slot, FullSlot):
            return ()
        slides = windowed and isinstance(slot, SlidingSlot | ChunkedSlot)
        made.append(Layer(
            index=index,
            heads=heads[index] if index < len(heads) else model.attention_heads,
            kv_heads=slot.kv_heads, k_dim=slot.k_dim, v_dim=slot.v_dim,
            sliding=slides,
            latent=latent,
            stores=not isinstance(own[index], SharedSlot),
            wide=(wide[index] if index < len(wide) else 0) // (2 if recipe.half_wide else 1),
            clamped=index < len(clamps) and clamps[index],
            routed=bool(recipe.routing and model.experts and index >= dense
                        and (index + 1) % max(step, 1) == 0),
            rotates=_rotates(recipe, index, slides or index < dense, windowed, model.layers),
        ))  # fmt: skip
    return tuple(made)


def _latent(model: Model, slot: LatentSlot, indexer: IndexerSlot | None) -> Latent:
    return Latent(
        absorbed=not expands_latents(model),
        query_rank=fact(model, "attention.q_lora_rank", "q_lora_rank"),
        rank=slot.latent_dim, rope=slot.rope_dim, nope=slot.nope_dim, value=slot.value_dim,
        index_dim=indexer.dim if indexer else 0,
        index_heads=fact(model, "attention.indexer.head_count", "index_n_heads"),
        index_top=fact(model, "attention.indexer.top_k", "index_topk"),
    )  # fmt: skip


def _as_heads(slot: LatentSlot, latent: Latent) -> FullSlot:
    """What is cached of a latent layer: one wide key, or keys and values of every head."""
    if latent.absorbed:
        return FullSlot(layer=slot.layer, kv_heads=1, k_dim=slot.latent_dim + slot.rope_dim,
                        v_dim=slot.latent_dim)  # fmt: skip
    return FullSlot(layer=slot.layer, kv_heads=slot.heads, k_dim=slot.nope_dim + slot.rope_dim,
                    v_dim=slot.value_dim)  # fmt: skip


def _clamps(model: Model, recipe: Recipe) -> tuple[bool, ...]:
    """Whether the experts of each layer clamp their gate, which is then multiplied in place."""
    value = _raw(model, "swiglu_clamp_exp", "swiglu_limits") if recipe.clamps else None
    if isinstance(value, list | tuple):
        return tuple(bool(entry) for entry in value)
    return (bool(value),) * model.layers


def _rotates(recipe: Recipe, index: int, slides: bool, windowed: bool, layers: int) -> bool:
    """Whether a layer's queries and keys are rotated by position."""
    if recipe.rope in ("sliding", "sliding or leading"):
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
    asked = fact(model, "expert_gating_func") if routing.gating_key else 0
    gating = _GATING.get(asked, routing.gating)
    normed = routing.normed
    if normed is None:
        normed = _flag(model, "expert_weights_norm", "norm_topk_prob")
    scale = _number(model, "expert_weights_scale", "routed_scaling_factor")
    return Experts(
        count=model.experts, used=model.experts_per_token, width=width,
        shared_width=_shared_width(model, routing, width), gating=gating, normed=bool(normed),
        scaled=routing.scale and scale not in (0.0, 1.0), biased=routing.biased,
        groups=fact(model, "expert_group_count", "n_group"),
        groups_used=fact(model, "expert_group_used_count", "topk_group"),
        weighs_first=routing.weighs_first, form=routing.form,
        merged=routing.merges and _described_only(model),
        grouped_count=model.experts // max(fact(model, "experts_per_group"), 1),
        grouped_width=fact(model, "expert_chunk_feed_forward_length")
        or fact(model, "attention.key_length", "head_dim"),
    )  # fmt: skip


def _shared_width(model: Model, routing: Routing, width: int) -> int:
    """Width of the experts that every token passes through, as one feed-forward."""
    if not routing.shared:
        return 0
    own = fact(model, "expert_shared_feed_forward_length", "shared_expert_intermediate_size",
               "moe_shared_expert_intermediate_size", "shared_intermediate_size")  # fmt: skip
    count = fact(model, "expert_shared_count", "n_shared_experts", "num_shared_experts",
                 "moe_num_shared_experts", "num_shared_expert")  # fmt: skip
    if routing.shared_by == "dense":
        return fact(model, "feed_forward_length", "intermediate_size")
    if routing.shared_by == "expert":
        return width
    if routing.shared_by == "count":
        return width * count
    if routing.shared_by == "both":
        return (own or width) * count
    return own or width * count


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
