"""Slots of multi-head latent attention, with or without an indexer of sparse attention."""

from __future__ import annotations

from typing import Any

from kvproof.kinds import F32, IndexerSlot, LatentSlot, SharedSlot, Slot
from kvproof.model.slots.context import Context


def latent_slot(ctx: Context, layer: int, *, rope: bool = True, window: bool = False) -> Slot:
    """The latent and rotary key of one layer."""
    rope_dim = ctx.need("qk_rope_head_dim", layer, low=0) if rope else 0
    return LatentSlot(
        layer=layer,
        latent_dim=ctx.need("kv_lora_rank", layer),
        rope_dim=rope_dim,
        heads=ctx.need("num_attention_heads", layer),
        nope_dim=ctx.need("qk_nope_head_dim", layer),
        value_dim=ctx.need("v_head_dim", layer),
        window=ctx.need("sliding_window", layer) if window else None,
    )


def latent(ctx: Context) -> list[Slot]:
    """Every layer alike (DeepSeek-V2, V3 and their kin)."""
    return [latent_slot(ctx, layer) for layer in range(ctx.layers)]


def indexed(ctx: Context) -> list[Slot]:
    """Latent layers with an indexer (DeepSeek-V3.2); indexers marked "shared" keep nothing."""
    shared = ctx.get("indexer_types")
    kinds: list[Any] = ctx.list_of("indexer_types") if shared is not None else []
    out: list[Slot] = []
    for layer, kind in enumerate(ctx.kinds):
        if kind not in ("indexed_attention", "full_attention"):
            raise ctx.unknown_kind(kind)
        out.append(latent_slot(ctx, layer))
        if kind == "indexed_attention" and not (kinds and kinds[layer] == "shared"):
            out.append(IndexerSlot(layer=layer, dim=ctx.need("index_head_dim")))
    return out


def dots3_note(ctx: Context) -> list[Slot]:
    """Latent layers in a window with widths of their own; the indexer's keys are f32."""
    out: list[Slot] = []
    for layer, kind in enumerate(ctx.kinds):
        out.append(latent_slot(ctx, layer, window=kind == "sliding_attention"))
        if kind == "indexed_attention":
            out.append(IndexerSlot(layer=layer, dim=ctx.need("index_head_dim"), element=F32))
    return out


def mistral_large4(ctx: Context) -> list[Slot]:
    """Layers may read another layer's latent (kv_source_layers) yet keep an indexer."""
    ropes, sources = ctx.list_of("no_rope_layers"), ctx.list_of("kv_source_layers")
    indexers = ctx.list_of("indexer_types")
    out: list[Slot] = []
    for layer in range(ctx.layers):
        if sources[layer] != layer:
            out.append(SharedSlot(layer=layer, source_layer=sources[layer]))
        else:
            out.append(latent_slot(ctx, layer, rope=bool(ropes[layer])))
        if indexers[layer] != "shared":
            out.append(IndexerSlot(layer=layer, dim=ctx.need("index_head_dim")))
    return out
