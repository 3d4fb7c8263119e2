"""What a batch holds at its peak in one layer, and the buffers that sparse attention keeps.

Source: vLLM 0.32, model_executor/layers/attention/mla_attention.py (the profiled up-projection),
model_executor/layers/sparse_attn_indexer.py and v1/attention/backends/mla/{indexer,
flashmla_sparse}.py (workspaces), models/deepseek_v4/nvidia/flashmla.py.
"""

from __future__ import annotations

from kvproof.engine.vllm.compressed import is_v4
from kvproof.engine.vllm.expert_kernels import FLASHINFER, kernel_of, passing_bytes
from kvproof.engine.vllm.experts import deals_experts, expert_ranks
from kvproof.engine.vllm.pooled import group_size
from kvproof.engine.vllm.settings import Settings, is_sparse, keeps_latent
from kvproof.kinds import LatentSlot
from kvproof.model.types import Model
from kvproof.units import MIB

Sized = tuple[int, str]
"""Bytes, and how they come about."""
_COPIES = 3
"""Copies of the hidden and of the widest inner state alive at once in a layer."""
_STREAM_COPIES = 6
"""Copies of all residual streams in f32, where a doubly stochastic matrix mixes them
(DeepSeek-V4, GLM-5.3-Flash): the printed peak of log228."""
_MIXERS = ("mixer", "attention")
_PREFILL_ROWS = 64 * 1024
"""Most rows of latents that a chunked prefill gathers at once."""
_INDEXER_LOGITS = 512 * MIB
"""VLLM_SPARSE_INDEXER_MAX_LOGITS_MB: reserved once while profiling."""
_LONG = 256 * 1024
_INDEX_ROWS, _INDEX_ROW = 8, 132
"""Indexer keys gathered for each row of latents (576 x 2 // 132), and a key's bytes."""
_LATENT_ROW = 576 * 2
_V4_CHUNK = 4
"""Sequences of a prefill chunk of DeepSeek-V4, whose compressed entries are gathered together."""


def layer_bytes(model: Model, settings: Settings) -> int:
    """A batch through the layer that holds most: streams beside the feed-forward, experts, or what
    attention and scans read and give."""
    return layer_peak(model, settings)[0]


def layer_peak(model: Model, settings: Settings) -> Sized:
    """The bytes of `layer_bytes`, and the parts that they are the sum of."""
    tokens = settings.max_num_batched_tokens
    inner, inner_words = max(
        _dense(model, settings),
        _experts(model, settings),
        _mixer(model, settings),
        key=lambda sized: sized[0],
    )
    streams, stream_words = _streams(model)
    beside, beside_words = _latents(model, settings)
    parts = f"{stream_words} + {inner_words}" if inner else stream_words
    words = f"{tokens:,} tokens x ({parts})" + (f" + {beside_words}" if beside else "")
    return tokens * (streams + inner) + beside, words


def _streams(model: Model) -> Sized:
    """A token's residual streams: one, or several that are mixed between layers."""
    config, hidden = model.text_config, model.hidden_size
    mixed, plain = int(config.get("hc_mult") or 1), int(config.get("hc_count") or 1)
    if mixed > 1:
        words = f"{mixed} streams of {hidden:,} x 4 B x {_STREAM_COPIES} copies"
        return mixed * hidden * 4 * _STREAM_COPIES, words
    count = max(1, plain)
    streams = f"{count} streams of {hidden:,}" if count > 1 else f"hidden {hidden:,}"
    return count * hidden * 2 * _COPIES, f"{streams} x 2 B x {_COPIES} copies"


def _dense(model: Model, settings: Settings) -> Sized:
    """A token's inner states in an ordinary feed-forward; none where all layers have experts."""
    inner = model.number("intermediate_size")
    dense = any(g.role == "mlp" and g.linear and inner in g.shape for g in model.tensors)
    if model.experts and not dense:
        return 0, ""
    own = inner // settings.ranks
    return own * 2 * _COPIES, f"inner {own:,} x 2 B x {_COPIES} copies"


def _experts(model: Model, settings: Settings) -> Sized:
    """A token's states in its experts: both halves of the inner state, and their outputs.

    Where they lie in a workspace that is counted apart, only what is made beside it.
    """
    if not model.experts or _fused(model, settings):
        return 0, ""
    if kernel_of(model, settings) not in ("", FLASHINFER):
        passing = passing_bytes(model, settings)
        return passing, f"{passing:,} B beside the experts' workspace"
    inner = model.number("moe_intermediate_size", "intermediate_size")
    split = (
        1 if expert_ranks(settings) > settings.ranks or deals_experts(settings) else settings.ranks
    )
    chosen, both = model.experts_per_token, 2 * inner // split
    words = f"{chosen} experts x (inner {both:,} + hidden {model.hidden_size:,}) x 2 B"
    return chosen * (both + model.hidden_size) * 2, words


def _fused(model: Model, settings: Settings) -> bool:
    """Whether one kernel runs quantized experts from end to end: TensorRT-LLM's on Blackwell.

    MXFP4 of compressed-tensors runs in Marlin's, which keep states between two products.
    """
    asked = str(settings.flags.get("quantization") or "").lower()
    quantized = model.quantization is not None or bool(asked)
    if settings.flags.get("moe_backend") not in (None, "auto", "flashinfer_trtllm"):
        return False
    return settings.capability[0] == 10 and quantized and "mxfp4" not in asked


def _mixer(model: Model, settings: Settings) -> Sized:
    """A token's states around attention or a scan: what is projected from the hidden state, and
    the output.

    The scan itself is left out of the run (layers/mamba/gdn, mamba_mixer2.py: without metadata
    they return first). None for DeepSeek-V4, whose streams are counted by a whole printed peak.
    """
    if is_v4(model):
        return 0, ""
    widths: dict[tuple[int, ...], int] = {}
    for group in model.tensors:
        if group.role in _MIXERS and group.linear and len(group.shape) == 2 and group.layers:
            outputs, inputs = group.shape
            each = group.count // len(group.layers)
            own = each * (outputs if inputs == model.hidden_size else inputs)
            widths[group.layers] = widths.get(group.layers, 0) + own
    widest = max(widths.values(), default=0) // settings.ranks
    return widest * 2, f"{widest:,} around attention or a scan x 2 B"


def _latents(model: Model, settings: Settings) -> Sized:
    """Latents of a chunk raised to heads again; an indexer's scores where attention is sparse."""
    slot = next((s for s in model.slots if isinstance(s, LatentSlot) and s.heads), None)
    scores = _INDEXER_LOGITS, f"{_INDEXER_LOGITS:,} B of an indexer's scores"
    if is_v4(model):
        return scores
    if slot is None or not settings.rules.v1 or not keeps_latent(model, settings):
        return 0, ""
    if is_sparse(model):
        return scores
    rows = min(max(8 * settings.max_model_len, 64 * settings.max_num_seqs), _PREFILL_ROWS)
    heads, width = max(1, slot.heads // settings.ranks), slot.nope_dim + slot.value_dim
    words = f"{rows:,} rows of latents x {heads:,} heads x {width:,} x 2 B"
    return rows * heads * width * 2, words


def sparse_need(model: Model, settings: Settings) -> Sized:
    """The buffer that sparse attention gathers into, as long as the longest sequence allows.

    One buffer serves the indexer and the attention: the larger need decides.
    """
    if settings.platform != "cuda" or not settings.rules.v1:
        return 0, ""
    length = settings.max_model_len
    if is_v4(model):
        entries = length // _V4_CHUNK + settings.max_num_batched_tokens
        row = int(model.text_config.get("head_dim") or 0) * 2
        rows = _gathered(settings, length)
        return max(
            (_V4_CHUNK * entries * row, f"{_V4_CHUNK} x {entries:,} entries x {row:,} B"),
            _index_keys(rows, _V4_CHUNK),
        )
    if not is_sparse(model):
        return 0, ""
    rows = _gathered(settings, length)
    attention = rows * _LATENT_ROW if settings.capability[0] == 9 else 0
    latents = attention, f"{rows:,} rows of latents x {_LATENT_ROW:,} B"
    return max(_index_keys(rows, group_size(model)), latents)


def _index_keys(rows: int, pooled: int) -> Sized:
    words = f"{rows:,} rows x {_INDEX_ROWS} index keys x {_INDEX_ROW} B"
    words += f" // {pooled}" if pooled > 1 else ""
    return rows * _INDEX_ROWS * _INDEX_ROW // pooled, words


def _gathered(settings: Settings, length: int) -> int:
    """Rows of latents gathered: five of the longest sequences, two where that is very long."""
    few = settings.rules.short_gather and length > _LONG
    return length * (2 if few else 5)
