"""Slots of ordinary attention: keys and values, whole, in a window, or in a chunk."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from kvproof.kinds import ChunkedSlot, FullSlot, IndexerSlot, SharedSlot, SlidingSlot, Slot
from kvproof.model.checks import MAX_LAYERS, bad_value
from kvproof.model.slots.context import Context

Widths = tuple[int, int, int]
_FULL = ("full_attention", "hybrid", "attention")
_SLIDING = ("sliding_attention", "hybrid_sliding")


def standard(ctx: Context) -> list[Slot]:
    """One slot per layer, of the kind that layer_types says."""
    return [slot for layer, kind in enumerate(ctx.kinds) for slot in kv_slots(ctx, layer, kind)]


def kv_slots(ctx: Context, layer: int, kind: str) -> list[Slot]:
    """The key/value slot of one layer; empty for kinds without attention.

    A sliding_window of 0 says that there is none (vLLM 0.32, config/model.py).
    """
    heads, k_dim, v_dim = widths(ctx, layer, kind)
    if kind in _FULL or (kind in _SLIDING and ctx.get("sliding_window") == 0):
        return [FullSlot(layer=layer, kv_heads=heads, k_dim=k_dim, v_dim=v_dim)]
    if kind in _SLIDING:
        window = ctx.need("sliding_window", layer)
        return [SlidingSlot(layer=layer, kv_heads=heads, k_dim=k_dim, v_dim=v_dim, window=window)]
    if kind == "chunked_attention":
        chunk = ctx.need("attention_chunk_size", layer)
        return [ChunkedSlot(layer=layer, kv_heads=heads, k_dim=k_dim, v_dim=v_dim, chunk=chunk)]
    if kind in ("moe", "mlp"):
        return []
    raise ctx.unknown_kind(kind)


def widths(ctx: Context, layer: int, kind: str) -> Widths:
    """KV heads, key width and value width of one layer."""
    rule = _WIDTHS.get(ctx.type)
    if rule is not None:
        return rule(ctx, layer, kind)
    width = ctx.head_dim(layer)
    return ctx.kv_heads(layer), width, width


def _falcon(ctx: Context, layer: int, kind: str) -> Widths:
    """The heads whose weights exist; transformers repeats them (engine/transformers.py)."""
    width = ctx.head_dim()
    if ctx.get("new_decoder_architecture"):
        return ctx.need("num_kv_heads"), width, width
    return (1 if ctx.get("multi_query") else ctx.need("num_attention_heads")), width, width


def _mimo(ctx: Context, layer: int, kind: str) -> Widths:
    """Keys are wider than values; sliding layers have twice the heads (in the modeling code)."""
    heads = ctx.kv_heads()
    if kind == "sliding_attention":
        heads = ctx.get("swa_num_key_value_heads") or 2 * heads
    return heads, ctx.head_dim(), ctx.need("v_head_dim")


def _inkling(ctx: Context, layer: int, kind: str) -> Widths:
    if kind == "hybrid_sliding" and ctx.get("swa_num_key_value_heads") is not None:
        width = ctx.need("swa_head_dim")
        return ctx.need("swa_num_key_value_heads"), width, width
    return ctx.kv_heads(), ctx.head_dim(), ctx.head_dim()


def _decoder_heads(key: str) -> Callable[[Context, int, str], Widths]:
    """Encoder-decoder classes: heads under their own name, hidden size shared by them."""

    def rule(ctx: Context, layer: int, kind: str) -> Widths:
        heads = ctx.need(key)
        width = ctx.need(_HIDDEN.get(ctx.type, "hidden_size")) // heads
        return heads, width, width

    return rule


def _even(ctx: Context, layer: int, kind: str) -> Widths:
    width = ctx.need("hidden_size") // ctx.need("num_attention_heads")
    return ctx.kv_heads(), width, width


def _zamba(ctx: Context, layer: int, kind: str) -> Widths:
    width = ctx.need("attention_head_dim")
    return ctx.kv_heads(), width, width


def _moonshine(ctx: Context, layer: int, kind: str) -> Widths:
    width = ctx.need("hidden_size") // ctx.need("decoder_num_attention_heads")
    return ctx.need("decoder_num_key_value_heads"), width, width


def gemma_shared(ctx: Context) -> list[Slot]:
    """gemma3n, gemma4: the last num_kv_shared_layers read the last layer of their kind."""
    shared = ctx.get("num_kv_shared_layers", 0)
    first = ctx.layers - (ctx.need("num_kv_shared_layers", low=0) if shared else 0)
    if first < 0:
        raise bad_value("num_kv_shared_layers", shared, f"at most {ctx.layers}", ctx.type)
    if first == 0:  # a draft head that reads its target's cache
        return [SharedSlot(layer=layer) for layer in range(ctx.layers)]
    out: list[Slot] = []
    for layer, kind in enumerate(ctx.kinds):
        if layer < first:
            out += kv_slots(ctx, layer, kind)
            continue
        source = max((i for i in range(first) if ctx.kinds[i] == kind), default=None)
        if source is None:
            raise ctx.unknown_kind(f"{kind} (no layer to share with)")
        out.append(SharedSlot(layer=layer, source_layer=source))
    return out


def full_with_indexer(ctx: Context) -> list[Slot]:
    """Ordinary heads beside an indexer of sparse attention (minimax_m3)."""
    out: list[Slot] = []
    for layer, kind in enumerate(ctx.kinds):
        if kind != "minimax_m3_sparse":
            out += kv_slots(ctx, layer, kind)
            continue
        out += kv_slots(ctx, layer, "full_attention")
        out.append(IndexerSlot(layer=layer, dim=ctx.need("index_head_dim")))
    return out


def looped(ctx: Context) -> list[Slot]:
    """dory: with a cache per loop, each further loop of the recurrent layers has slots too."""
    out = standard(ctx)
    if ctx.get("recurrent_kv_cache_mode", "last_loop") != "per_loop":
        return out
    first, count = ctx.need("n_input_layers", low=0), ctx.need("n_recurrent_layers", low=0)
    loops = ctx.need("n_recurrent_loops")
    if loops * count > MAX_LAYERS:
        raise bad_value("n_recurrent_loops", loops, f"at most {MAX_LAYERS:,} layers", ctx.type)
    again = [slot for slot in out if first <= slot.layer < first + count]
    for slot in (loops - 1) * again:
        out.append(replace(slot, layer=len(out)))
    return out


def prefixed(ctx: Context) -> list[Slot]:
    """cpmant: learned prompt tokens stand before the text in every sequence."""
    prefix = ctx.need("prompt_length", low=0)
    heads, width = ctx.need("num_attention_heads"), ctx.need("dim_head")
    return [
        FullSlot(layer=i, kv_heads=heads, k_dim=width, v_dim=width, prefix=prefix)
        for i in range(ctx.layers)
    ]


_HIDDEN = {"xlm": "emb_dim"}
_WIDTHS: dict[str, Callable[[Context, int, str], Widths]] = {
    **dict.fromkeys(
        ("bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "fsmt", "led", "m2m_100",
         "marian", "mbart", "mvp", "nllb-moe", "pegasus", "pegasus_x", "plbart", "seamless_m4t",
         "seamless_m4t_v2", "speech_to_text", "speecht5", "trocr", "whisper", "florence2_language",
         "pp_formulanet_text"),
        _decoder_heads("decoder_attention_heads"),
    ),
    "falcon": _falcon,
    "gpt_neo": _even,
    "inkling2_loop_text": _inkling,
    "inkling2_text": _inkling,
    "inkling_text": _inkling,
    "mimo_v2_flash": _mimo,
    "moonshine": _moonshine,
    "prophetnet": _decoder_heads("num_decoder_attention_heads"),
    "zamba": _zamba,
    "zamba2": _zamba,
}  # fmt: skip
