"""Slots of designs that stand alone."""

from __future__ import annotations

from kvproof.kinds import INT64, FullSlot, IndexerSlot, RecurrentSlot, SharedSlot, SlidingSlot, Slot
from kvproof.model.slots.context import Context


def nothing(ctx: Context) -> list[Slot]:
    """openai-gpt: computes everything anew at each step."""
    return [SharedSlot(layer=layer) for layer in range(ctx.layers)]


def reference_window(ctx: Context) -> list[Slot]:
    """Unlimited-OCR: the whole prompt, and a window of what was decoded after it."""
    heads, width = ctx.kv_heads(), ctx.head_dim()
    if ctx.config.get("sliding_window") is None:
        return [
            FullSlot(layer=i, kv_heads=heads, k_dim=width, v_dim=width) for i in range(ctx.layers)
        ]
    window = ctx.need("sliding_window")
    return [
        SlidingSlot(
            layer=i, kv_heads=heads, k_dim=width, v_dim=width, window=window, after_prompt=True
        )
        for i in range(ctx.layers)
    ]


def reformer(ctx: Context) -> list[Slot]:
    """Reformer keeps hidden states, and hash buckets of long prompts, not keys and values."""
    width = ctx.need("hidden_size")
    buckets = ctx.need("num_attention_heads") * ctx.need("num_hashes")
    out: list[Slot] = []
    for layer, kind in enumerate(ctx.list_of("attn_layers")):
        out.append(FullSlot(layer=layer, kv_heads=1, k_dim=width, v_dim=0))
        if kind == "lsh":
            after = ctx.need("lsh_attn_chunk_length")
            out.append(IndexerSlot(layer=layer, dim=buckets, element=INT64, after=after))
    return out


def xlnet(ctx: Context) -> list[Slot]:
    """XLNet keeps the hidden states before every layer."""
    width = ctx.need("hidden_size")
    return [FullSlot(layer=i, kv_heads=1, k_dim=width, v_dim=0) for i in range(ctx.layers)]


def rwkv(ctx: Context) -> list[Slot]:
    """RWKV 4: two last inputs in the model's type and three sums in f32."""
    hidden, wide = ctx.need("hidden_size"), ctx.need("attention_hidden_size")
    out: list[Slot] = []
    for layer in range(ctx.layers):
        for _ in range(2):
            out.append(
                RecurrentSlot(layer=layer, shape=(hidden,), mixer="rwkv", heads=1, element=None)
            )
        out += [RecurrentSlot(layer=layer, shape=(wide,), mixer="rwkv", heads=1) for _ in range(3)]
    return out


def xlstm(ctx: Context) -> list[Slot]:
    """xLSTM: a matrix memory, its normaliser and the running maximum of each head."""
    heads = ctx.need("num_heads")
    k_dim, v_dim = ctx.need("qk_head_dim"), ctx.need("v_head_dim")
    shapes = ((heads, k_dim, v_dim), (heads, k_dim), (heads, 1))
    return [
        RecurrentSlot(layer=layer, shape=shape, mixer="mlstm", heads=heads, element=None)
        for layer in range(ctx.layers)
        for shape in shapes
    ]
