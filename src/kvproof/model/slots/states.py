"""Slots of state-space and linear-attention layers: short convolutions and recurrent states."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from kvproof.kinds import (
    F32,
    INT64,
    ConvSlot,
    FullSlot,
    IndexerSlot,
    RecurrentSlot,
    SharedSlot,
    Slot,
)
from kvproof.model.slots.attention import kv_slots
from kvproof.model.slots.context import Context
from kvproof.model.slots.latent import latent_slot

Mixer = Callable[[Context, int], list[Slot]]


def mamba1(expand: str | None = None, state: str = "state_size", kernel: str = "conv_kernel",
           heads: str | None = None) -> Mixer:  # fmt: skip
    """Mamba 1: channels (`expand` x hidden, or intermediate_size) with a state each."""

    def make(ctx: Context, layer: int) -> list[Slot]:
        inner = ctx.need("intermediate_size") if expand is None else 0
        channels = inner or ctx.need(str(expand)) * ctx.need("hidden_size")
        count = ctx.need(heads) if heads else channels
        width = (channels // count,) if heads else ()
        shape = (count, *width, ctx.need(state))
        return [
            ConvSlot(layer=layer, channels=channels, kernel=ctx.need(kernel), mixer="mamba1"),
            RecurrentSlot(layer=layer, shape=shape, mixer="mamba1", heads=count),
        ]

    return make


def _mamba2_slots(ctx: Context, layer: int, inner: int, names: tuple[str, ...]) -> list[Slot]:
    heads, width, groups, state, kernel = (ctx.need(name) for name in names)
    shared = 2 * groups * state
    return [
        ConvSlot(
            layer=layer, channels=inner + shared, kernel=kernel, mixer="mamba2",
            groups=groups, group_channels=shared,
        ),
        RecurrentSlot(layer=layer, shape=(heads, width, state), mixer="mamba2", heads=heads),
    ]  # fmt: skip


def mamba2(ctx: Context, layer: int) -> list[Slot]:
    """Mamba 2 under its first names."""
    inner = int(ctx.need("expand") * ctx.need("hidden_size"))
    return _mamba2_slots(
        ctx, layer, inner, ("num_heads", "head_dim", "n_groups", "state_size", "conv_kernel")
    )


def mamba2_hybrid(ctx: Context, layer: int) -> list[Slot]:
    """Bamba, Falcon-H1, Granite 4: names with mamba_ in front."""
    inner = ctx.get("mamba_d_ssm") or ctx.need("mamba_expand") * ctx.need("hidden_size")
    names = ("mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_state", "mamba_d_conv")
    return _mamba2_slots(ctx, layer, inner, names)


def nemotron_mixer(ctx: Context, layer: int) -> list[Slot]:
    """Nemotron-H: heads x width channels."""
    inner = ctx.need("mamba_num_heads") * ctx.need("mamba_head_dim")
    names = ("mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", "conv_kernel")
    return _mamba2_slots(ctx, layer, inner, names)


def zamba2_mixer(ctx: Context, layer: int) -> list[Slot]:
    """Zamba 2."""
    inner = ctx.need("mamba_expand") * ctx.need("hidden_size")
    names = ("n_mamba_heads", "mamba_headdim", "mamba_ngroups", "mamba_d_state", "mamba_d_conv")
    return _mamba2_slots(ctx, layer, inner, names)


def gated_delta(ctx: Context, layer: int) -> list[Slot]:
    """Gated DeltaNet (Qwen3-Next and kin): queries, keys and values pass the convolution."""
    k_heads, v_heads = ctx.need("linear_num_key_heads"), ctx.need("linear_num_value_heads")
    k_dim, v_dim = ctx.need("linear_key_head_dim"), ctx.need("linear_value_head_dim")
    channels = 2 * k_heads * k_dim + v_heads * v_dim
    kernel = ctx.need("linear_conv_kernel_dim")
    return [
        ConvSlot(layer=layer, channels=channels, kernel=kernel, mixer="gdn"),
        RecurrentSlot(layer=layer, shape=(v_heads, k_dim, v_dim), mixer="gdn", heads=v_heads),
    ]


def kda(ctx: Context, layer: int) -> list[Slot]:
    """Kimi Delta Attention: one square state a head."""
    heads, width = ctx.need("linear_num_heads"), ctx.need("linear_head_dim")
    kernel = ctx.need("linear_conv_kernel_dim")
    return [
        ConvSlot(layer=layer, channels=3 * heads * width, kernel=kernel, mixer="kda"),
        RecurrentSlot(layer=layer, shape=(heads, width, width), mixer="kda", heads=heads),
    ]


def lightning(ctx: Context, layer: int) -> list[Slot]:
    """MiniMax' lightning attention: a square state a query head, in the model's type."""
    heads, width = ctx.need("num_attention_heads"), ctx.head_dim()
    return [
        RecurrentSlot(
            layer=layer, shape=(heads, width, width), mixer="lightning", heads=heads, element=None
        )
    ]


def short_conv(ctx: Context, layer: int) -> list[Slot]:
    """LFM2: a short convolution over the hidden size and no other state."""
    return [
        ConvSlot(
            layer=layer, channels=ctx.need("hidden_size"), kernel=ctx.need("conv_L_cache"),
            mixer="short_conv",
        )
    ]  # fmt: skip


def rglru(ctx: Context, layer: int) -> list[Slot]:
    """RecurrentGemma: a gated linear recurrence; transformers keeps it outside the cache."""
    width = ctx.need("lru_width")
    return [
        ConvSlot(layer=layer, channels=width, kernel=ctx.need("conv1d_width") - 1, mixer="rglru"),
        RecurrentSlot(
            layer=layer, shape=(width,), mixer="rglru", heads=ctx.need("num_attention_heads")
        ),
    ]


def hybrid(mixer: Mixer, *, linear: str = "linear_attention") -> Callable[[Context], list[Slot]]:
    """Layers of `linear` kind hold states; "hybrid" ones both; the others keys and values."""

    def read(ctx: Context) -> list[Slot]:
        out: list[Slot] = []
        for layer, kind in enumerate(ctx.kinds):
            if kind == linear:
                out += mixer(ctx, layer)
            elif kind in ("moe", "mlp"):
                out.append(SharedSlot(layer=layer))
            else:
                out += kv_slots(ctx, layer, kind)
                out += mixer(ctx, layer) if kind.startswith("hybrid") else []
        return out

    return read


def latent_hybrid(ctx: Context) -> list[Slot]:
    """KDA beside latent attention (Kimi Linear, Bailing 2.5), or beside indexed (GLM-5 Next)."""
    out: list[Slot] = []
    indexers = ctx.get("indexer_types")
    for layer, kind in enumerate(ctx.kinds):
        if kind == "linear_attention":
            out += kda(ctx, layer)
            continue
        out.append(latent_slot(ctx, layer))
        if kind == "indexed_attention" and not (indexers and indexers[layer] == "shared"):
            # GLM-5 Next pools keys and keeps the pooling weights beside them.
            out.append(IndexerSlot(layer=layer, dim=2 * ctx.need("index_head_dim") + 1))
    return out


def qwen4_exp(ctx: Context) -> list[Slot]:
    """Gated delta beside indexed attention, whose indexer also keeps three int64 positions."""
    out: list[Slot] = []
    embedded = ctx.get("ple_layer_ids", [])  # counted from one
    for layer, kind in enumerate(ctx.kinds):
        if kind == "linear_attention":
            out += gated_delta(ctx, layer)
            out += _ngram_states(ctx, layer) if layer + 1 in embedded else []
        elif kind == "indexed_attention":
            out += kv_slots(ctx, layer, "full_attention")
            width = ctx.need("indexer_kv_heads") * ctx.need("indexer_head_dim")
            out.append(IndexerSlot(layer=layer, dim=width, extra_bytes=24))
        else:
            raise ctx.unknown_kind(kind)
    return out


def _ngram_states(ctx: Context, layer: int) -> list[Slot]:
    """Per-layer n-gram embedding: a dilated convolution and the last token ids (int64)."""
    span, taps = ctx.need("ngram_size"), ctx.need("ple_conv_kernel_size")
    width = ctx.need("hc_count") * ctx.need("hidden_size")
    kernel = (taps - 1) * span
    return [
        ConvSlot(layer=layer, channels=width, kernel=kernel, mixer="short_conv"),
        ConvSlot(layer=layer, channels=1, kernel=span - 1, mixer="token_ids", element=INT64),
    ]


def inkling(ctx: Context) -> list[Slot]:
    """Four short convolutions a layer in f32, beside keys and values.

    Inkling 2 Loop passes some layers several times; each pass is a layer of the cache.
    """
    order = list(range(ctx.layers))
    if ctx.type.startswith("inkling2_loop"):
        start = ctx.need("loop_layer_index_start", low=0)
        end = ctx.need("loop_layer_index_end", low=0)
        order = ctx.unrolled(order[:start], order[start:end], order[end:])
    out: list[Slot] = []
    for at, layer in enumerate(order):
        for slot in kv_slots(ctx, layer, ctx.kinds[layer]):
            out.append(replace(slot, layer=at))
            width = slot.kv_heads * slot.k_dim if isinstance(slot, FullSlot) else 0
            for channels in (width, width, ctx.need("hidden_size"), ctx.need("hidden_size")):
                out.append(
                    ConvSlot(
                        layer=at, channels=channels, kernel=ctx.need("conv_kernel_size"),
                        mixer="short_conv", element=F32,
                    )
                )  # fmt: skip
    return out


def zaya(ctx: Context) -> list[Slot]:
    """Compressed convolutional attention: a convolution and the previous hidden value."""
    out: list[Slot] = []
    width, kv = ctx.head_dim(), ctx.kv_heads()
    channels = width * (ctx.need("num_attention_heads") + kv)
    for layer, kind in enumerate(ctx.kinds):
        out += kv_slots(ctx, layer, kind)
        kernel = ctx.need("cca_time0") + ctx.need("cca_time1") - 2
        out.append(ConvSlot(layer=layer, channels=channels, kernel=kernel, mixer="cca"))
        shape = (kv * width // 2,)
        out.append(RecurrentSlot(layer=layer, shape=shape, mixer="cca", heads=kv, element=None))
    return out
