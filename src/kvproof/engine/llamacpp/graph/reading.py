"""The shape of a model's graph, from its slots and its metadata or config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from kvproof.engine.llamacpp.builds import Build
from kvproof.engine.llamacpp.context import Context, expands_latents, pad
from kvproof.engine.llamacpp.facts import fact, facts_by_layer
from kvproof.engine.llamacpp.graph.experts import experts_of
from kvproof.engine.llamacpp.graph.recipes import Recipe, recipe_of
from kvproof.engine.llamacpp.graph.repeating import by_device
from kvproof.engine.llamacpp.graph.schedule import Where
from kvproof.engine.llamacpp.graph.settings import described_only, flag, number, raw
from kvproof.engine.llamacpp.graph.shape import (
    Blockwise,
    Compressed,
    Hashed,
    Latent,
    Layer,
    Mixer,
    Pooling,
    Shape,
    Wkv,
)
from kvproof.engine.llamacpp.layout import (
    applies_windows,
    compressed_cells,
    reads_windows,
    sliding_cells,
)
from kvproof.kinds import (
    ChunkedSlot,
    CompressedSlot,
    ConvSlot,
    FullSlot,
    IndexerSlot,
    LatentSlot,
    RecurrentSlot,
    SharedSlot,
    SlidingSlot,
    Slot,
)
from kvproof.model.types import Model

_SECTIONS = 4
_STREAMS = 4  # of DeepSeek-V4, where its file does not say
_MOST = 256  # streams, and positions of a pool, that a graph is built of: each is a node
_ALTUP_WIDTH = 256  # of Gemma 3n's layer inputs, whatever the file says (gemma3n.cpp)
_QUERY_NORMS = ("qk_layernorm", "use_qk_norm", "qk_ln")


def shape_of(
    model: Model, context: Context, *, where: Where | None = None, whole: bool = False
) -> Shape | None:
    """The graph's shape, None for an architecture whose graph is not known.

    `where`: the devices of its layers, None for one. `whole`: layers that repeat stay too.

    A file that lacks a size which its graph divides by has none either: llama.cpp does not load it.
    """
    recipe = _recipe(model, context)
    layers = _read_layers(model, context, recipe) if recipe is not None else ()
    if recipe is None or not layers or not _sized(model, recipe, layers):
        return None
    windowed, sliding = _sliding(model, context, recipe)
    kept = [(layers, None)] if whole or recipe.checkpoints else by_device(layers, where)
    tokens = pad(context.ubatch, context.sequences)
    widest_heads = max(layer.kv_heads for layer in layers)
    return Shape(
        recipe=recipe,
        hidden=model.hidden_size,
        vocabulary=model.vocab_size,
        layers=tuple(layer for run, _ in kept for layer in run),
        ends=tuple(end for _, end in kept if end is not None),
        experts=experts_of(model, recipe.routing),
        inputs="either" if recipe.compressed else context.build.inputs,
        indexed_rows=context.build.indexed_rows,
        half_masks=context.build.half_masks,
        rotates=context.build.rotates,
        joint_gates=context.build.joint_gates,
        tokens=tokens,
        outputs=context.outputs,
        sequences=context.sequences,
        streams=context.sequences if recipe.compressed else context.streams,
        cells=context.sequence_cells,
        sliding_cells=sliding,
        windowed=windowed,
        flash=context.flash,
        k=context.k.name,
        v=context.v.name,
        widest_value=max(layer.kv_heads * layer.v_dim for layer in layers),
        position_parts=_position_parts(model, recipe),
        scaled=bool(recipe.routing and recipe.routing.scales) and described_only(model),
        mean_norm=_mean_norm(model, recipe),
        queries_norm=_queries_norm(model, recipe),
        fused_width=_fused_width(model, recipe, max(layers, key=lambda layer: layer.attends)),
        layer_width=_layer_width(model, recipe),
        layer_count=model.layers,
        stream_rank=fact(model, "hyper_connection.low_rank", "hc_lowrank"),
        stacked=sum(layer.stacks for layer in layers),
        residuals=_residuals(model),
        checkpoints=fact(model, "attn_res.block_size", "attn_res_block_size")
        if recipe.checkpoints
        else 0,
        second_norm=recipe.second_norm and (described_only(model) or widest_heads > 1),
    )


def _recipe(model: Model, context: Context) -> Recipe | None:
    """The architecture's recipe, as the model's metadata has it."""
    recipe = recipe_of(context.arch)
    if recipe is not None and recipe.swaps_norms and flag(model, "swin_norm", "swin_norm"):
        return msgspec.structs.replace(recipe, norms_before=False, norms_after=True)
    return recipe


def _read_layers(model: Model, context: Context, recipe: Recipe) -> tuple[Layer, ...]:
    """The layers; none where a graph of theirs is not known."""
    if recipe.compressed:
        return _compressed_layers(model, context, recipe)
    return (_wkv_layers if recipe.wkv else _layers)(model, context, recipe)


def _residuals(model: Model) -> int:
    """Streams beside each other."""
    return fact(model, "hyper_connection.count", "hc_mult", "hc_count") or _STREAMS


def _sized(model: Model, recipe: Recipe, layers: tuple[Layer, ...]) -> bool:
    """Whether a token takes experts where layers route, blocks and heads have a size."""
    return (
        (min(model.experts, model.experts_per_token) > 0 or not any(x.routed for x in layers))
        and (0 < _residuals(model) <= _MOST or not (recipe.streams or recipe.compressed))
        and all(layer.pooled is None or 0 < layer.pooled.each <= _MOST for layer in layers)
        and all(layer.blockwise is None or layer.blockwise.block > 0 for layer in layers)
        and all(
            layer.mixer is None or layer.mixer.rank > 0 or not recipe.scans_heads
            for layer in layers
        )
    )


def _sliding(model: Model, context: Context, recipe: Recipe) -> tuple[bool, int]:
    """Whether sliding layers have a cache of their own, and the cells of one stream of it."""
    windows = [
        slot.chunk if isinstance(slot, ChunkedSlot) else slot.window
        for slot in model.slots
        if isinstance(slot, SlidingSlot | ChunkedSlot | CompressedSlot)
    ]
    if not windows:
        return False, 0
    unified = context.unified and not recipe.compressed
    return applies_windows(context), sliding_cells(context, windows[0], unified=unified)


def _mean_norm(model: Model, recipe: Recipe) -> bool:
    """Whether norms take the mean off; by which epsilon the metadata has where the recipe says."""
    if recipe.norm == "eps":
        return not number(model, "attention.layer_norm_rms_epsilon", "rms_norm_eps")
    return recipe.norm == "mean"


def _layer_width(model: Model, recipe: Recipe) -> int:
    """Numbers that every layer adds for a token from a table, 0 for none."""
    if recipe.altup:
        return _ALTUP_WIDTH
    if not recipe.layer_inputs:
        return 0
    return fact(model, "embedding_length_per_layer_input", "hidden_size_per_layer_input")


def _queries_norm(model: Model, recipe: Recipe) -> str:
    """Whether queries and keys are normed: by head, by row, or not."""
    name, _, condition = recipe.queries_norm.partition(" if ")
    if not condition:
        return name
    inner = model.text_config.get("attn_config")
    settings = {**model.text_config, **(inner if isinstance(inner, dict) else {})}
    said = any(settings.get(key) is True for key in _QUERY_NORMS)
    return name if said or (condition == "any" and described_only(model)) else "none"


def _fused_width(model: Model, recipe: Recipe, layer: Layer) -> int:
    """Outputs of the one weight of queries, keys and values, 0 where there are three."""
    if recipe.fused == "no" or (recipe.fused == "in files" and described_only(model)):
        return 0
    if recipe.fused_hidden:
        heads = layer.kv_heads * (layer.k_dim + layer.v_dim) if recipe.fused_hidden == 1 else 0
        return recipe.fused_hidden * model.hidden_size + heads
    return layer.heads * layer.k_dim + layer.kv_heads * (layer.k_dim + layer.v_dim)


def _position_parts(model: Model, recipe: Recipe) -> int:
    """Numbers of a position: four where rotary sections are for time, height and width."""
    if recipe.sectioned:
        sections = raw(model, "rope.dimension_sections", "mrope_section")
        if isinstance(sections, list | tuple) and all(sections[:2]):
            return _SECTIONS
    return recipe.position_parts


class _Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What the layers of a model are read from; `dense` layers lead those with experts."""

    model: Model
    context: Context
    recipe: Recipe
    windowed: bool
    heads: Sequence[int]
    wide: Sequence[int]
    clamps: Sequence[bool]
    dense: int
    step: int
    """Every so many layers have experts."""
    own: Mapping[int, Slot]
    indexers: Mapping[int, IndexerSlot]


def _facts(model: Model, context: Context, recipe: Recipe) -> _Facts:
    leads = recipe.routing is not None and recipe.routing.leading
    dense = fact(model, "leading_dense_block_count", "first_k_dense_replace") if leads else 0
    spread = recipe.routing is not None and recipe.routing.interleaved
    step = fact(model, "interleave_moe_layer_step", "interleave_moe_layer_step") if spread else 1
    indexers = {slot.layer: slot for slot in model.slots if isinstance(slot, IndexerSlot)}
    if recipe.blockwise and indexers:
        dense = dense or min(indexers)
    return _Facts(
        model=model, context=context, recipe=recipe,
        windowed=applies_windows(context)
        and any(isinstance(slot, SlidingSlot | ChunkedSlot) for slot in model.slots),
        heads=facts_by_layer(model, "attention.head_count", "num_attention_heads"),
        wide=facts_by_layer(model, "feed_forward_length", "dense_intermediate_size",
                            "intermediate_size", "ffn_hidden_size", "n_inner"),
        clamps=_clamps(model, recipe),
        dense=dense,
        step=max(step, 1),
        own={slot.layer: slot for slot in model.slots
             if isinstance(slot, FullSlot | SharedSlot | LatentSlot)},
        indexers=indexers,
    )  # fmt: skip


def _layers(model: Model, context: Context, recipe: Recipe) -> tuple[Layer, ...]:
    """The usual layers; none where the graph of one is not known."""
    facts = _facts(model, context, recipe)
    made = [_layer(facts, index) for index in range(model.layers)]
    stacked = _stacked(model) if recipe.stacks else 0
    known = tuple(
        msgspec.structs.replace(layer, stacks=True) if layer.index < stacked else layer
        for layer in made if layer is not None
    )  # fmt: skip
    return known if len(known) == len(made) else ()


def _stacked(model: Model) -> int:
    """Layers that add vectors of a picture."""
    vision = model.config.get("vision_config")
    chosen = vision.get("deepstack_visual_indexes") if isinstance(vision, dict) else None
    return len(chosen) if isinstance(chosen, list) else fact(model, "n_deepstack_layers")


def _layer(facts: _Facts, index: int) -> Layer | None:
    model, recipe, own = facts.model, facts.recipe, facts.own
    slot, indexer = own.get(index), facts.indexers.get(index)
    if isinstance(slot, SharedSlot) and slot.source_layer is not None:
        slot = own.get(slot.source_layer)
    latent = blockwise = None
    if isinstance(slot, LatentSlot):
        latent = _latent(model, facts.context.build, slot, indexer, recipe)
        slot = _as_heads(slot, latent)
    mixer = _mixer(model, facts.context, recipe, index)
    attends = isinstance(slot, FullSlot)
    if not isinstance(slot, FullSlot):
        if mixer is None and not (recipe.single or recipe.partial):
            return None
        slot = FullSlot(layer=index, kv_heads=0, k_dim=0, v_dim=0)
    if recipe.blockwise and index >= facts.dense and _chooses_blocks(facts.context):
        blockwise = _blockwise(model, indexer)
    limited = isinstance(slot, SlidingSlot | ChunkedSlot)
    slides = facts.windowed and limited
    shares = isinstance(own.get(index), SharedSlot)
    wide = facts.wide[index] if index < len(facts.wide) else 0
    leads = index < facts.dense
    return Layer(
        index=index,
        heads=facts.heads[index] if index < len(facts.heads) else model.attention_heads,
        kv_heads=slot.kv_heads, k_dim=slot.k_dim, v_dim=slot.v_dim,
        sliding=slides,
        masked_apart=limited and reads_windows(facts.context),
        latent=latent, mixer=mixer, attends=attends, blockwise=blockwise,
        pooled=_pooling(model, recipe, index, indexer),
        neighbours=_neighbours(model, facts.context, index) if recipe.streams == "gated" else None,
        stores=not shares,
        wide=_wide(model, recipe, wide, shares=shares),
        clamped=index < len(facts.clamps) and facts.clamps[index],
        routed=bool(recipe.routing and model.experts and not leads
                    and (index + 1) % facts.step == 0),
        rotates=_rotates(recipe, index, slides or leads, facts.windowed, model.layers),
    )  # fmt: skip


def _wkv_layers(model: Model, context: Context, recipe: Recipe) -> tuple[Layer, ...]:
    """Layers of RWKV, as a file's metadata describes them."""
    size = fact(model, "wkv.head_size")
    if not size or context.ubatch <= 0:
        return ()
    wkv = Wkv(
        version=recipe.wkv, size=size, shifts=fact(model, "token_shift_count") or 2,
        decay=fact(model, "time_decay_extra_dim" if recipe.wkv == _SIX
                   else "attention.decay_lora_rank"),
        rate=fact(model, "attention.iclr_lora_rank"),
        value=fact(model, "attention.value_residual_mix_lora_rank"),
        gate=fact(model, "attention.gate_lora_rank"), extra=fact(model, "time_mix_extra_dim"),
        leads=False,
    )  # fmt: skip
    wide = facts_by_layer(model, "feed_forward_length")
    return tuple(
        Layer(
            index=index, heads=0, kv_heads=0, k_dim=0, v_dim=0, sliding=False, stores=False,
            wide=wide[index], clamped=False, routed=False, rotates=False, attends=False,
            wkv=msgspec.structs.replace(wkv, leads=index == 0),
        )
        for index in range(model.layers)
    )  # fmt: skip


_SIX = 6


def _chooses_blocks(context: Context) -> bool:
    """Blocks are chosen only with flash attention and where a stream is one sequence's."""
    return context.flash and (context.sequences == 1 or not context.unified)


def _blockwise(model: Model, indexer: IndexerSlot | None) -> Blockwise | None:
    if indexer is None:
        return None
    return Blockwise(
        dim=indexer.dim,
        heads=fact(model, "attention.indexer.head_count", "index_n_heads"),
        top=fact(model, "attention.indexer.top_k", "index_topk_blocks"),
        block=fact(model, "attention.indexer.block_size", "index_block_size"),
    )


def _compressed_layers(model: Model, context: Context, recipe: Recipe) -> tuple[Layer, ...]:
    """Layers of compressed entries, or of a window alone."""
    made: list[Layer] = []
    hashed = fact(model, "hash_layer_count", "num_hash_layers")
    slots = {slot.layer: slot for slot in model.slots}
    for index in range(model.layers):
        slot = slots.get(index)
        if not isinstance(slot, CompressedSlot | SlidingSlot):
            return ()
        ratio, index_dim, dim = 0, 0, 0
        if isinstance(slot, CompressedSlot):
            ratio, index_dim, dim = slot.ratio, slot.index_dim, slot.dim
        else:
            dim = slot.k_dim
        compressed = Compressed(
            ratio=ratio, index_dim=index_dim, planes=context.planes,
            cells=compressed_cells(context, ratio) if ratio else 0,
            query_rank=fact(model, "attention.q_lora_rank", "q_lora_rank"),
            groups=max(fact(model, "attention.output_group_count", "o_groups"), 1),
            rank=fact(model, "attention.output_lora_rank", "o_lora_rank"),
            index_heads=fact(model, "attention.indexer.head_count", "index_n_heads"),
            index_top=fact(model, "attention.indexer.top_k", "index_topk"),
        )  # fmt: skip
        made.append(Layer(
            index=index, heads=model.attention_heads, kv_heads=1, k_dim=dim, v_dim=dim,
            sliding=True, stores=True, wide=0, routed=True, rotates=True, hashed=index < hashed,
            clamped=False, compressed=compressed,
        ))  # fmt: skip
    return tuple(made)


_MIXERS = frozenset({"mamba1", "mamba2", "short_conv", "gdn", "kda"})


def _mixer(model: Model, context: Context, recipe: Recipe, index: int) -> Mixer | None:
    """The mixer of a layer, None where it has none."""
    slots = [slot for slot in model.slots if slot.layer == index]
    conv = next((slot for slot in slots if isinstance(slot, ConvSlot)), None)
    state = next((slot for slot in slots if isinstance(slot, RecurrentSlot)), None)
    if conv is None and state is not None and state.mixer == "lightning":
        return Mixer(
            kind=state.mixer, channels=0, kernel=1, shape=state.shape, groups=1, rank=0,
            planes=context.planes, normed=False,
        )  # fmt: skip
    if conv is None or conv.mixer not in _MIXERS:
        return None
    groups = fact(model, "ssm.group_count", "n_groups", "mamba_n_groups", "linear_num_key_heads")
    normed = recipe.mixer_norms == "yes" or (
        recipe.mixer_norms == "in files" and described_only(model)
    )
    return Mixer(
        kind=conv.mixer, channels=conv.channels, kernel=conv.kernel,
        shape=state.shape if state else (), groups=max(groups, 1),
        rank=fact(model, "ssm.time_step_rank", "time_step_rank", "mamba_dt_rank"),
        planes=context.planes, normed=normed,
    )  # fmt: skip


def _wide(model: Model, recipe: Recipe, width: int, *, shares: bool) -> int:
    """Width of a layer's feed-forward."""
    if recipe.half_wide:
        return width // 2
    return width * 2 if shares and model.text_config.get("use_double_wide_mlp") is True else width


def _latent(
    model: Model, build: Build, slot: LatentSlot, indexer: IndexerSlot | None, recipe: Recipe
) -> Latent:
    return Latent(
        absorbed=not expands_latents(model, build),
        query_rank=0 if recipe.direct_queries
        else fact(model, "attention.q_lora_rank", "q_lora_rank"),
        rank=slot.latent_dim, rope=slot.rope_dim, nope=slot.nope_dim, value=slot.value_dim,
        index_dim=indexer.dim if indexer else 0,
        index_heads=fact(model, "attention.indexer.head_count", "index_n_heads"),
        index_top=fact(model, "attention.indexer.top_k", "index_topk"),
    )  # fmt: skip


def _pooling(
    model: Model, recipe: Recipe, index: int, indexer: IndexerSlot | None
) -> Pooling | None:
    """How a layer's indexer ranks cells in pools, None where it does not."""
    if indexer is None or recipe.streams not in ("mixed", "gated"):
        return None
    heads = fact(model, "attention.indexer.head_count", "index_n_heads", "indexer_n_heads")
    top = fact(model, "attention.indexer.top_k", "index_topk", "indexer_budget")
    if recipe.streams == "gated":
        ratios = facts_by_layer(model, "attention.compress_ratios", "indexer_compress_ratio")
        each = ratios[index] if index < len(ratios) else 0
        return Pooling(each=each, dim=indexer.dim, heads=heads, top=top, tail=True,
                       masked=False) if each else None  # fmt: skip
    each = fact(model, "attention.indexer.kpool", "index_kpool")
    return Pooling(
        each=each, heads=heads, top=top,
        dim=(indexer.dim - 1) // 2,  # a gate and a weight lie beside the key
        tail=flag(model, "attention.indexer.kpool_select_tail", "index_kpool_always_select_tail"),
        masked=True,
    ) if each else None  # fmt: skip


def _neighbours(model: Model, context: Context, index: int) -> Hashed | None:
    """The table of hashed neighbours that a layer reads, None for none."""
    beside = {slot.mixer: slot for slot in model.slots
              if isinstance(slot, ConvSlot) and slot.layer == index}  # fmt: skip
    numbers, spread = beside.get("token_ids"), beside.get("short_conv")
    if numbers is None or spread is None:
        return None
    span = numbers.kernel + 1
    heads = (span - 1) * fact(model, "ple.heads_per_ngram", "heads_per_ngram")
    return Hashed(
        heads=heads, taps=spread.kernel // span + 1, span=span, planes=context.planes,
        width=fact(model, "embedding_length_per_layer_input")
        or model.number("ple_embed_dim") // max(heads, 1),
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
    value = raw(model, "swiglu_clamp_exp", "swiglu_limits") if recipe.clamps else None
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
