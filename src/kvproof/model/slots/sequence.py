"""Slots of encoder-decoder models: cross attention beside the decoder's own."""

from __future__ import annotations

from kvproof.kinds import CrossSlot, FullSlot, Slot
from kvproof.model.slots.attention import standard
from kvproof.model.slots.context import Context


def has_cross(ctx: Context) -> bool:
    """Whether the decoder attends to an encoder; classes built decoder-only do not."""
    resolved = ctx.resolved
    alone = resolved.architecture.endswith(("ForCausalLM", "LMHeadModel"))
    return bool(resolved.root.get("is_encoder_decoder")) and not (
        alone and resolved.text is resolved.root
    )


def with_cross(ctx: Context, own: list[Slot]) -> list[Slot]:
    """The decoder's slots, each layer followed by its cross-attention slot."""
    out: list[Slot] = []
    for slot in own:
        out.append(slot)
        if isinstance(slot, FullSlot):
            heads, k_dim, v_dim = _cross_widths(ctx, slot)
            out.append(
                CrossSlot(
                    layer=slot.layer, kv_heads=heads, k_dim=k_dim, v_dim=v_dim,
                    default_tokens=_fixed_length(ctx),
                )
            )  # fmt: skip
    return out


def _cross_widths(ctx: Context, slot: FullSlot) -> tuple[int, int, int]:
    heads = ctx.get("cross_num_key_value_heads")
    if heads is None:
        return slot.kv_heads, slot.k_dim, slot.v_dim
    width = ctx.need("cross_head_dim")
    return int(heads), width, width


def _fixed_length(ctx: Context) -> int | None:
    """Whisper's encoder always gives max_source_positions states."""
    return ctx.need("max_source_positions") if ctx.type == "whisper" else None


def mllama(ctx: Context) -> list[Slot]:
    """Llama 3.2 Vision: some layers attend to the image only."""
    layers = ctx.config.get("cross_attention_layers")
    cross = set(layers) if isinstance(layers, list) else set()
    out: list[Slot] = []
    for slot in standard(ctx):
        if slot.layer in cross and isinstance(slot, FullSlot):
            heads, k_dim, v_dim = slot.kv_heads, slot.k_dim, slot.v_dim
            slot = CrossSlot(
                layer=slot.layer, kv_heads=heads, k_dim=k_dim, v_dim=v_dim, source="image"
            )
        out.append(slot)
    return out
