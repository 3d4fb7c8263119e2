"""Slots of a model from its GGUF metadata, by the keys llama.cpp itself decides by.

Source: llama.cpp's load_hparams and per-architecture load_arch_hparams (b11549). Windows and
states are stated as the model has them; what llama.cpp does not honour (phi3's window) or lays
out differently is the engine's business.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from kvproof.errors import ModelError
from kvproof.kinds import (
    CompressedSlot,
    ConvSlot,
    CrossSlot,
    FullSlot,
    IndexerSlot,
    LatentSlot,
    RecurrentSlot,
    SharedSlot,
    SlidingSlot,
    Slot,
)
from kvproof.kinds.elements import INT64
from kvproof.kinds.slots import ChunkedSlot
from kvproof.model.gguf_keys import Keys


class Sliding(msgspec.Struct, frozen=True):
    """How an architecture mixes sliding and full layers where its file does not list them.

    Every `period`-th layer is full (0: none), the last of each group or, with `full_first`, the
    first. `window` None: the key must be there; 0: without the key no layer slides.
    """

    period: int
    window: int | None = 0
    full_first: bool = False
    fixed: bool = False
    chunked: bool = False


_SLIDING = {
    "afmoe": Sliding(4),
    "cohere2": Sliding(4, None),
    "cohere2moe": Sliding(4, None, full_first=True),
    "exaone-moe": Sliding(4, None),
    "exaone4": Sliding(4, 4096),
    "gemma2": Sliding(2, 4096),
    "gemma3": Sliding(6),
    "gemma3n": Sliding(5, None),
    "gemma4": Sliding(0, None),
    "gpt-oss": Sliding(2, None),
    "granite_swa": Sliding(0, None),
    "laguna": Sliding(4, full_first=True),
    "lfm2": Sliding(0),
    "llama4": Sliding(4, 8192, fixed=True, chunked=True),
    "maple": Sliding(0, None),
    "mellum": Sliding(4),
    "mimo2": Sliding(0, None),
    "muse-glimmer": Sliding(4, None),
    "olmo2": Sliding(4),
    "phi3": Sliding(0),
    "plamo3": Sliding(8),
    "smallthinker": Sliding(4, full_first=True, fixed=True),
    "spark2_5": Sliding(0, None),
    "step35": Sliding(0, None),
    "dots3note": Sliding(0, None),
}
_SMALLTHINKER_WINDOW = 4096
_EXAONE4_SLIDING_LAYERS = 64

_RECURRENT = frozenset({"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"})
_BY_ZERO_HEADS = frozenset({
    "jamba", "granitehybrid", "lfm2", "lfm2moe", "kimi-linear", "kimi-k3", "bailingmoe3",
    "glm5-next", "plamo2", "nemotron_h", "nemotron_h_moe",
})  # fmt: skip
_BY_INTERVAL = {"qwen3next": 4, "qwen35": 4, "qwen35moe": 4, "qwen4exp": 4, "minimax-01": 8}
_GATED_DELTA = frozenset({"qwen3next", "qwen35", "qwen35moe", "qwen4exp"})
_SKIPS_FEED_FORWARD = frozenset({"nemotron_h", "nemotron_h_moe"})
_INDEXED = frozenset({"deepseek32", "glm-dsa", "dots3note", "minimax-m3", "glm5-next",
                      "qwen4exp", "hy_v4"})  # fmt: skip
# Latent attention whose files may hold the expanded heads instead.
_LATENT = frozenset({"deepseek2", "minicpm3", "plm"})
_GLM_5_2_CONTEXT = 1_048_576
_SPARSE_RATIO = 4

HYBRID = _BY_ZERO_HEADS | frozenset(_BY_INTERVAL) | {"falcon-h1"}
WINDOWED = frozenset(_SLIDING) - {"phi3"}


def slots_of(keys: Keys) -> tuple[Slot, ...]:
    """All slots, layer by layer; a layer's keys and values come before its states."""
    if keys.arch == "deepseek4":
        return _deepseek4(keys)
    if keys.arch == "t5":
        return _t5(keys)
    recurrent = recurrent_layers(keys)
    states = _state_maker(keys)
    hashed = _hashed_neighbours(keys)
    attention = _Attention(keys)
    out: list[Slot] = []
    for layer in range(keys.layers):
        if not recurrent[layer] or keys.arch == "falcon-h1":
            out += attention.slots(layer)
        if recurrent[layer]:
            out += states(layer)
            out += hashed(layer)
    return tuple(out)


def recurrent_layers(keys: Keys) -> tuple[bool, ...]:
    """Which layers keep a state of fixed size."""
    layers = keys.layers
    if keys.arch in _RECURRENT or keys.arch == "falcon-h1":
        return (True,) * layers
    if keys.arch in _BY_INTERVAL:
        listed = keys.get("attention.recurrent_layers")
        if listed is not None:
            return tuple(bool(v) for v in keys.per_layer("attention.recurrent_layers", layers))
        period = keys.positive("full_attention_interval", _BY_INTERVAL[keys.arch])
        return tuple((layer + 1) % period != 0 for layer in range(layers))
    if keys.arch not in _BY_ZERO_HEADS:
        return (False,) * layers
    heads = keys.per_layer("attention.head_count_kv", keys.all_layers)
    wide = feed_forward_widths(keys)
    skip = keys.arch in _SKIPS_FEED_FORWARD
    return tuple(heads[i] == 0 and not (skip and wide[i]) for i in range(layers))


def feed_forward_widths(keys: Keys) -> tuple[int, ...]:
    """The dense feed-forward width of every layer, 0 where there is none."""
    return keys.per_layer("feed_forward_length", keys.all_layers, 0)


class _Attention:
    """Keys and values of the layers that attend."""

    def __init__(self, keys: Keys) -> None:
        self.keys = keys
        count = keys.all_layers
        self.heads = keys.per_layer("attention.head_count", count, 0)
        self.kv_heads = (
            keys.per_layer("attention.head_count_kv", count)
            if keys.has("attention.head_count_kv")
            else self.heads
        )
        width = keys.count("embedding_length") // self.heads[0] if self.heads[0] else 0
        self.k_dim = keys.count("attention.key_length", width)
        self.v_dim = keys.count("attention.value_length", width)
        self.k_dim_sliding = keys.count("attention.key_length_swa", self.k_dim)
        self.v_dim_sliding = keys.count("attention.value_length_swa", self.v_dim)
        self.mla = bool(
            keys.count("attention.key_length_mla", 0)
            and keys.count("attention.value_length_mla", 0)
        )
        self.latent = self.mla or keys.arch in _LATENT
        self.window, self.slides = sliding_layers(keys)
        self.own = _layers_with_cache(keys)
        self.indexed = _indexer_layers(keys)
        self.wide = feed_forward_widths(keys)

    def slots(self, layer: int) -> list[Slot]:
        """The slots of one layer: its attention's and its indexer's."""
        if layer >= self.own:
            return [
                SharedSlot(layer=layer, source_layer=self.own - (2 if self.slides[layer] else 1))
            ]
        if not self.kv_heads[layer] or (self.keys.arch in _SKIPS_FEED_FORWARD and self.wide[layer]):
            return [SharedSlot(layer=layer)]
        out = [self._latent(layer) if self.latent else self._full(layer)]
        if self.indexed[layer]:
            # Qwen4-exp keeps three int64 positions beside each key.
            extra = 24 if self.keys.arch == "qwen4exp" else 0
            out.append(IndexerSlot(layer=layer, dim=_indexer_dim(self.keys), extra_bytes=extra))
        return out

    def _full(self, layer: int) -> Slot:
        kv_heads = self.kv_heads[layer]
        if not self.slides[layer]:
            return FullSlot(layer=layer, kv_heads=kv_heads, k_dim=self.k_dim, v_dim=self.v_dim)
        k_dim, v_dim = self.k_dim_sliding, self.v_dim_sliding
        if _SLIDING[self.keys.arch].chunked:
            return ChunkedSlot(
                layer=layer, kv_heads=kv_heads, k_dim=k_dim, v_dim=v_dim, chunk=self.window
            )
        return SlidingSlot(
            layer=layer, kv_heads=kv_heads, k_dim=k_dim, v_dim=v_dim, window=self.window
        )

    def _latent(self, layer: int) -> Slot:
        """One latent vector a token; K rows that no latent explains stay plain keys."""
        keys, slides, heads = self.keys, self.slides[layer], self.heads[layer]
        tail = "_swa" if slides else ""
        rank = keys.count(f"attention.kv_lora_rank{tail}", keys.count("attention.kv_lora_rank", 0))
        if self.mla:
            rope = (self.k_dim_sliding if slides else self.k_dim) - rank
            nope = keys.count(f"attention.key_length_mla{tail}") - rope
            value, kept = keys.count(f"attention.value_length_mla{tail}"), 1
        else:
            rope = keys.count("rope.dimension_count", 0)
            nope, value, kept = self.k_dim - rope, self.v_dim, heads
        if self.kv_heads[layer] != kept or rank <= 0 or rope < 0 or nope < 0:
            return self._full(layer) if not self.mla else self._keys_only(layer)
        return LatentSlot(
            layer=layer,
            latent_dim=rank,
            rope_dim=rope,
            heads=heads,
            nope_dim=nope,
            value_dim=value,
            window=self.window if slides else None,
        )

    def _keys_only(self, layer: int) -> Slot:
        return FullSlot(layer=layer, kv_heads=self.kv_heads[layer], k_dim=self.k_dim, v_dim=0)


def sliding_layers(keys: Keys) -> tuple[int, tuple[bool, ...]]:
    """The window, and which layers keep no more than it."""
    rule, layers = _SLIDING.get(keys.arch), keys.layers
    none = (0, (False,) * keys.all_layers)
    if rule is None or (keys.arch == "exaone4" and layers != _EXAONE4_SLIDING_LAYERS):
        return none
    window = keys.count("attention.sliding_window", rule.window)
    if not window:
        return none
    if rule.fixed:
        window = rule.window or _SMALLTHINKER_WINDOW
    listed = keys.flags("attention.sliding_window_pattern", layers)
    if listed is None:
        listed = _pattern(keys, rule)
    return window, listed + (False,) * (keys.all_layers - layers)


def _pattern(keys: Keys, rule: Sliding) -> tuple[bool, ...]:
    period = keys.count("attention.sliding_window_pattern", rule.period)
    if period == 0:
        if rule.window is None and keys.arch != "lfm2":
            raise ModelError(
                f"the GGUF metadata lacks {keys.arch}.attention.sliding_window_pattern",
                hint="convert it anew",
            )
        return (True,) * keys.layers
    full = 0 if rule.full_first else period - 1
    return tuple(layer % period != full for layer in range(keys.layers))


def _layers_with_cache(keys: Keys) -> int:
    """Layers from the first on that have a cache of their own; the rest read another's."""
    if keys.arch == "gemma3n":
        return min(20, keys.layers)
    if keys.arch == "gemma4":
        own = keys.all_layers - keys.count("attention.shared_kv_layers", 0)
        if own < 2:
            raise keys.fail("attention.shared_kv_layers", keys.all_layers - own)
        return own
    return keys.layers


def _indexer_dim(keys: Keys) -> int:
    """Numbers an indexer keeps a token; a pooling one keeps pooling weights and a gate beside."""
    width = keys.count("attention.indexer.key_length")
    return 2 * width + 1 if keys.count("attention.indexer.kpool", 0) else width


def _indexer_layers(keys: Keys) -> tuple[bool, ...]:
    """Which layers rank tokens with an indexer of their own."""
    layers = keys.layers
    if keys.arch not in _INDEXED or not keys.count("attention.indexer.key_length", 0):
        return (False,) * layers
    if keys.arch == "minimax-m3":
        dense = keys.count("leading_dense_block_count", 0)
        return tuple(layer >= dense for layer in range(layers))
    listed = keys.flags("attention.indexer.types", layers)
    if listed is not None:
        return listed
    if keys.arch == "glm-dsa" and keys.count("context_length", 0) >= _GLM_5_2_CONTEXT:
        return tuple(layer < 3 or layer % 4 == 2 for layer in range(layers))
    return (True,) * layers


def _state_maker(keys: Keys) -> Callable[[int], list[Slot]]:
    """What one recurrent layer keeps, by the keys that describe its mixer."""
    if keys.has("wkv.head_size"):
        return _rwkv(keys)
    if keys.has("shortconv.l_cache"):
        width, kernel = keys.count("embedding_length"), keys.positive("shortconv.l_cache")
        return lambda i: [ConvSlot(layer=i, channels=width, kernel=kernel, mixer="short_conv")]
    if keys.has("kda.head_dim"):
        return _kda(keys)
    if keys.arch == "minimax-01":
        heads, dim = (
            keys.per_layer("attention.head_count", 1)[0],
            keys.count("attention.key_length"),
        )
        return lambda i: [
            RecurrentSlot(
                layer=i, shape=(heads, dim, dim), mixer="lightning", heads=heads, element=None
            )
        ]
    if keys.has("ssm.conv_kernel"):
        return _ssm(keys)
    return lambda i: []


def _hashed_neighbours(keys: Keys) -> Callable[[int], list[Slot]]:
    """What a table of hashed neighbours keeps beside a layer's states (Qwen4-exp)."""
    listed = keys.get("ple.layers")
    if not isinstance(listed, list | tuple) or not listed:
        return lambda i: []
    taps, span = keys.positive("ple.conv_kernel"), keys.positive("ple.ngram_size")
    width = keys.positive("hyper_connection.count") * keys.count("embedding_length")
    return lambda i: [
        ConvSlot(layer=i, channels=width, kernel=(taps - 1) * span, mixer="short_conv"),
        ConvSlot(layer=i, channels=1, kernel=span - 1, mixer="token_ids", element=INT64),
    ] if i in listed else []  # fmt: skip


def _rwkv(keys: Keys) -> Callable[[int], list[Slot]]:
    width, size = keys.count("embedding_length"), keys.positive("wkv.head_size")
    shift, heads = keys.count("token_shift_count", 2), width // size
    return lambda i: [
        ConvSlot(layer=i, channels=width, kernel=shift, mixer="rwkv"),
        RecurrentSlot(layer=i, shape=(heads, size, size), mixer="rwkv", heads=heads),
    ]


def _kda(keys: Keys) -> Callable[[int], list[Slot]]:
    size, kernel = keys.count("kda.head_dim"), keys.count("ssm.conv_kernel", 0) or 4
    heads = keys.per_layer("attention.head_count", 1)[0]
    return lambda i: [
        ConvSlot(layer=i, channels=3 * heads * size, kernel=kernel, mixer="kda"),
        RecurrentSlot(layer=i, shape=(heads, size, size), mixer="kda", heads=heads),
    ]


def _ssm(keys: Keys) -> Callable[[int], list[Slot]]:
    kernel, inner = keys.positive("ssm.conv_kernel"), keys.positive("ssm.inner_size")
    state, groups = keys.positive("ssm.state_size"), keys.count("ssm.group_count", 0)
    heads = keys.count("ssm.time_step_rank", 0)
    shared = 2 * groups * state
    if keys.arch in _GATED_DELTA:
        if not heads or inner % heads:
            raise keys.fail("ssm.time_step_rank", heads)
        return _mixer("gdn", inner + shared, kernel, (heads, state, inner // heads))
    if groups and heads and inner % heads == 0:
        return _mixer("mamba2", inner + shared, kernel, (heads, inner // heads, state),
                      groups=groups, group_channels=shared)  # fmt: skip
    return _mixer("mamba1", inner + shared, kernel, (inner, state))


def _mixer(
    mixer: str, channels: int, kernel: int, shape: tuple[int, ...], *,
    groups: int = 0, group_channels: int = 0,
) -> Callable[[int], list[Slot]]:  # fmt: skip
    """A short convolution and a recurrent state, both of one design."""
    return lambda i: [
        ConvSlot(layer=i, channels=channels, kernel=kernel, mixer=mixer, groups=groups,
                 group_channels=group_channels),
        RecurrentSlot(layer=i, shape=shape, mixer=mixer, heads=shape[0]),
    ]  # fmt: skip


def _deepseek4(keys: Keys) -> tuple[Slot, ...]:
    """Windows of raw entries in every layer; entries of 4 or 128 tokens in most."""
    ratios = keys.per_layer("attention.compress_ratios", keys.layers)
    dim, window = keys.positive("attention.key_length"), keys.positive("attention.sliding_window")
    index = keys.count("attention.indexer.key_length")
    out: list[Slot] = []
    for layer, ratio in enumerate(ratios):
        if not ratio:
            out.append(SlidingSlot(layer=layer, kv_heads=1, k_dim=dim, v_dim=dim, window=window))
            continue
        out.append(
            CompressedSlot(
                layer=layer,
                window=window,
                ratio=ratio,
                dim=dim,
                index_dim=index if ratio == _SPARSE_RATIO else 0,
                overlap=ratio == _SPARSE_RATIO,
            )
        )
    return tuple(out)


def _t5(keys: Keys) -> tuple[Slot, ...]:
    layers = keys.count("decoder_block_count", keys.all_layers)
    heads = keys.per_layer("attention.head_count", 1)[0]
    k_dim, v_dim = keys.count("attention.key_length"), keys.count("attention.value_length")
    out: list[Slot] = []
    for layer in range(layers):
        out.append(FullSlot(layer=layer, kv_heads=heads, k_dim=k_dim, v_dim=v_dim))
        out.append(CrossSlot(layer=layer, kv_heads=heads, k_dim=k_dim, v_dim=v_dim))
    return tuple(out)
