"""Slots of DeepSeek-V4: a window of raw entries and compressed ones for all that went before."""

from __future__ import annotations

from kvproof.kinds import CompressedSlot, SlidingSlot, Slot
from kvproof.model.checks import need
from kvproof.model.slots.context import Context


def deepseek_v4(ctx: Context) -> list[Slot]:
    """One slot per layer: plain window, heavily compressed (HCA), compressed sparse (CSA)."""
    dim, window = ctx.head_dim(), ctx.need("sliding_window")
    rates = ctx.get("compress_rates", {})
    out: list[Slot] = []
    for layer, kind in enumerate(ctx.kinds):
        if kind == "sliding_attention":
            out.append(SlidingSlot(layer=layer, kv_heads=1, k_dim=dim, v_dim=dim, window=window))
            continue
        if kind not in ("heavily_compressed_attention", "compressed_sparse_attention"):
            raise ctx.unknown_kind(kind)
        sparse = kind == "compressed_sparse_attention"
        out.append(
            CompressedSlot(
                layer=layer,
                window=window,
                ratio=need(rates, kind, where=f"{ctx.type} compress_rates"),
                dim=dim,
                index_dim=ctx.need("index_head_dim") if sparse else 0,
                overlap=sparse,
            )
        )
    return out
