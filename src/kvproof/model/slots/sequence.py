"""Slots of encoder-decoder models: cross attention beside the decoder's own."""

from __future__ import annotations

from kvproof.kinds import CrossSlot, FullSlot, Slot
from kvproof.model.slots.attention import standard
from kvproof.model.slots.context import Context

_CROSS_TYPES = frozenset({
    "bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "fsmt", "led", "m2m_100",
    "marian", "mbart", "mvp", "nllb-moe", "pegasus", "pegasus_x", "plbart", "prophetnet",
    "seamless_m4t", "seamless_m4t_v2", "speech_to_text", "speecht5", "whisper", "longt5", "mt5",
    "pop2piano", "switch_transformers", "t5", "udop", "umt5", "moonshine", "moonshine_streaming",
})  # fmt: skip
_CROSS_ROOTS = frozenset({
    "encoder-decoder", "vision-encoder-decoder", "speech-encoder-decoder", "t5gemma", "t5gemma2",
    "florence2", "cohere_asr", "dia", "canary", "moonshine_streaming", "pix2struct",
    "blip-2",
})  # fmt: skip


def has_cross(ctx: Context) -> bool:
    """Whether the decoder attends to an encoder: by its class, unless built decoder-only."""
    resolved = ctx.resolved
    if resolved.architecture.endswith(("ForCausalLM", "LMHeadModel")):
        return resolved.model_type in _CROSS_ROOTS and resolved.model_type != ctx.type
    return resolved.model_type in _CROSS_ROOTS or ctx.type in _CROSS_TYPES


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
