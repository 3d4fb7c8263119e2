"""Weights on one rank: what tensor, expert and pipeline parallelism split and what they copy.

Source: vLLM 0.32, model_executor/layers (VocabParallelEmbedding pads the vocabulary to 64;
norms, routers and latent down-projections are copied), fused_moe/config.py (expert parallelism
deals whole experts), layers/attention/mla_attention.py (the absorbed copy of kv_b_proj).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from kvproof.engine.rank_weights import COPIED_ROLES, even_part, loaded_bytes
from kvproof.engine.vllm.compressed import is_v4
from kvproof.engine.vllm.experts import copied_experts, deals_experts, expert_ranks
from kvproof.engine.vllm.layers import stage_layers
from kvproof.engine.vllm.pieces import (
    Piece,
    bytes_without_zeros,
    piece_of,
    scheme_of,
    symmetric_gptq,
    tensor_sizes,
)
from kvproof.engine.vllm.pooled import group_size
from kvproof.engine.vllm.rocm import counts_device, held_beyond, pad_bytes
from kvproof.engine.vllm.rotary import rotary_bytes
from kvproof.engine.vllm.settings import Settings, is_sparse, keeps_latent
from kvproof.engine.vllm.torch_blocks import block_bytes
from kvproof.engine.vllm.towers import drops_tower
from kvproof.kinds import FullSlot, IndexerSlot, LatentSlot
from kvproof.model.tensors import ENCODER_ROLES, TensorGroup
from kvproof.model.types import Model
from kvproof.model.weights import stored_bytes, unknown_weights
from kvproof.units import GIB

_VOCAB_UNIT = 64
_COPIED_NAMES = (
    "q_a_proj", "kv_a_proj", "indexer", "compressor", "q_a_norm", "kv_norm", "scale", "hc_", "_hc.",
    "hyper_connection",
)  # fmt: skip
_DEEP_VISION = "qwen3_vl"
"""Classes that keep a buffer of image features for each of the first layers."""
_WHOLE_TOWERS = ("gemma4", "gemma3n")
"""Classes whose towers are transformers' own modules, whole on every rank (gemma4_mm.py)."""
_HOST_NAMES = ("ngram_embedding",)
"""Tables that stay in the host's memory by default (config/engram.py, cpu_offload)."""
_FP4_ROLES = ("expert", "mlp", "shared_expert")
"""What --quantization of a four-bit float covers; the other schemes cover all linear layers."""
_SPLIT_LIMIT = (0, 21, 0)
"""From this release on blocks are not cut while loading (vLLM pull request 41268)."""
_HALVES_SINCE = (0, 8, 0)
_F32_ROUTERS, _F32_ROUTERS_PAST = (0, 11, 1), (0, 32, 0)
_MXFP4_BLOCK, _MXFP4_UNIT = 32, 256
_TRITON_SINCE = (0, 12, 0)
"""Since when Triton's kernels for MXFP4 come with vLLM, so that Hopper runs them
(cmake/external_projects/triton_kernels.cmake; 64.38 GiB of gpt-oss-120b in 0.14.1, vllm#33155)."""
_PLAIN_WIDTH = 128


class RankWeights(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of weights on the fullest rank: decoder, encoders, and what loading adds."""

    decoder: int
    """Without what --cpu-offload-gb keeps in host memory."""
    encoders: int
    absorbed: int
    tables: int
    buffers: int = 0
    """Buffers of a whole batch that the model's class allocates with its weights."""
    remainders: int = 0
    """What the allocator holds beyond the tensors: ends of blocks; on ROCm padding and pieces."""

    @property
    def total(self) -> int:
        """All of them."""
        return (
            self.decoder
            + self.encoders
            + self.absorbed
            + self.tables
            + self.buffers
            + self.remainders
        )


def rank_weights(
    model: Model, settings: Settings, stages: Collection[int] | None = None
) -> RankWeights:
    """The weights of the rank that holds most, of all stages or of `stages`.

    Raises ModelError when they aren't known.
    """
    if not model.tensors and model.stored_weight_bytes is None:
        raise unknown_weights(model)
    scale = _stored_scale(model)
    parts = stage_layers(model, settings.stages)
    own = [part for i, part in enumerate(parts) if stages is None or i in stages]
    decoder = max(_kept_on_gpu(model, settings, part, scale) for part in own)
    encoders = sum(
        _encoder_bytes(model, settings, group)
        for group in model.tensors
        if group.role in ENCODER_ROLES
    )
    found = RankWeights(
        decoder=round(decoder),
        encoders=encoders,
        absorbed=_absorbed(model, settings),
        tables=sum(rotary_bytes(model, settings)),
        buffers=_batch_buffers(model, settings),
    )
    if counts_device(settings):
        remainders = held_beyond(model, settings, found.total)
    else:
        remainders = _block_ends(model, settings, own, scale) + pad_bytes(model, settings)
    return msgspec.structs.replace(found, remainders=remainders)


def _block_ends(model: Model, settings: Settings, parts: list[range], scale: float) -> int:
    """What torch's blocks hold beyond the tensors of the stage that holds most."""
    pieces = [
        piece_of(model, group, _rank_bytes(model, settings, group) * scale)
        for group in model.tensors
        if not any(name in group.name for name in _HOST_NAMES)
    ]
    limited = settings.rules.version >= _SPLIT_LIMIT
    ends = 0
    for part in parts:
        sizes = tensor_sizes(_in_stage(pieces, part), part)
        sizes += rotary_bytes(model, settings)
        ends = max(ends, block_bytes(sizes, limited=limited) - sum(sizes))
    return ends


def _in_stage(pieces: list[Piece], part: range) -> list[Piece]:
    """Those that stand in layers, and the others at the ends of the model."""
    return pieces if part.start == 0 else [piece for piece in pieces if piece.layers]


def _rank_bytes(model: Model, settings: Settings, group: TensorGroup) -> float:
    """Bytes of a group on one rank that holds all layers."""
    if group.role in ENCODER_ROLES:
        return _encoder_bytes(model, settings, group)
    return kept_bytes(model, settings, group) * _share(model, settings, group)


def _stored_scale(model: Model) -> float:
    """The checkpoint's own bytes over the computed ones, where the headers are known."""
    if model.stored_weight_bytes is None:
        return 1.0
    computed = sum(stored_bytes(model, group) for group in model.tensors)
    return model.stored_weight_bytes / computed if computed else 1.0


def _kept_on_gpu(model: Model, settings: Settings, part: range, scale: float) -> float:
    """A stage's bytes, less those of its layers that --cpu-offload-gb moves to the host.

    Source: vLLM 0.32, model_executor/offloader/uva.py: parameter by parameter of the layers, on
    every rank, until the limit is reached.
    """
    layers, rest = _stage_bytes(model, settings, part)
    if not model.tensors and model.stored_weight_bytes is not None:
        layers = even_part(model, model.stored_weight_bytes, part) / settings.ranks
    moved = float(settings.flags.get("cpu_offload_gb") or 0) * GIB
    return rest * scale + max(0.0, layers * scale - moved)


def _stage_bytes(model: Model, settings: Settings, part: range) -> tuple[float, float]:
    """Bytes of a stage on one rank: of its layers, and of what stands before and after them."""
    layers = rest = 0.0
    first, last = part.start == 0, part.stop > model.layers
    for group in model.tensors:
        if group.role in ENCODER_ROLES or any(name in group.name for name in _HOST_NAMES):
            continue
        size = _rank_bytes(model, settings, group)
        if group.layers:
            layers += size * sum(layer in part for layer in group.layers) / len(group.layers)
        elif group.role == "embedding":
            rest += size if first or (last and model.tied) else 0
        else:
            rest += size if last else 0
    return layers, rest


def kept_bytes(model: Model, settings: Settings, group: TensorGroup) -> int:
    """Bytes of a group as loaded under --quantization."""
    asked = str(settings.flags.get("quantization") or "")
    if "fp4" in asked.lower() and group.role not in _FP4_ROLES:
        return stored_bytes(model, group)
    if group.fp32 and group.role == "router" and _plain_router(model, settings):
        return stored_bytes(model, group) // 2
    if symmetric_gptq(model) and settings.platform == "cuda":
        return bytes_without_zeros(model, group)
    return loaded_bytes(model, group, asked)


def _plain_router(model: Model, settings: Settings) -> bool:
    """Whether routers that the checkpoint's class keeps in f32 are held in 16 bits.

    So 0.32's classes but GLM-4's. Starts of DeepSeek-R1 print as much more from 0.11.2 on as f32
    takes, and those of DeepSeek-V3.2 and Kimi-K2.5 no less.
    """
    version = settings.rules.version
    if version >= _F32_ROUTERS_PAST:
        return not model.model_type.startswith("glm4")
    return version < _F32_ROUTERS


def _share(model: Model, settings: Settings, group: TensorGroup) -> float:
    """The part of a group's bytes that one rank holds."""
    ranks = settings.ranks
    if group.role in ("embedding", "head"):
        rows = group.shape[0]
        unit = _VOCAB_UNIT * ranks if ranks > 1 else _VOCAB_UNIT
        return -(-rows // unit) * unit / rows / ranks if rows else 1.0
    if group.role in COPIED_ROLES or any(name in group.name for name in _COPIED_NAMES):
        return 1.0
    if is_v4(model) and group.name.endswith("self_attn.kv_proj.weight"):
        return 1.0  # one projection with the queries' down-projection
    if group.role == "expert":
        held = _expert_padding(model, settings) * copied_experts(model, settings)
        return held / expert_ranks(settings)
    if group.name.endswith(("k_proj.weight", "v_proj.weight", "k_proj.bias", "v_proj.bias")):
        return max(1, ranks // _copies_base(model)) / ranks if _copies_base(model) else 1 / ranks
    return 1 / ranks


def _copies_base(model: Model) -> int:
    """KV heads of the model: beyond these, ranks hold copies of keys' and values' projections."""
    heads = [s.kv_heads for s in model.slots if isinstance(s, FullSlot)]
    return max(heads, default=0)


def _expert_padding(model: Model, settings: Settings) -> float:
    """What kernels pad experts to: MXFP4 gpt-oss's widths of 2,880, FlashInfer's FP8 plain ones.

    gpt-oss deals whole blocks of a width out over the ranks; each rank pads its own part. Source:
    vLLM 0.20.2, quantization/utils/flashinfer_utils.py (align_fp8_moe_weights_for_fi), and 0.10.1,
    models/gpt_oss.py (per_rank_intermediate_size) and quantization/mxfp4.py (create_weights), since
    0.18 fused_moe/oracle/mxfp4.py (mxfp4_round_up_hidden_size_and_intermediate_size).
    """
    if model.model_type.startswith("nemotron_h"):
        return _plain_padding(model, settings)
    if not model.model_type.startswith("gpt_oss"):
        return 1.0
    hidden = model.hidden_size
    width = model.number("intermediate_size") or hidden
    if not hidden or not width:
        return 1.0
    split = 1 if deals_experts(settings) else settings.ranks
    own = -(-(width // _MXFP4_BLOCK) // split) * _MXFP4_BLOCK
    return _padded_mxfp4(settings, hidden, own) * split / (hidden * width)


def _padded_mxfp4(settings: Settings, hidden: int, own: int) -> float:
    """Elements of a rank's matrix of `hidden` x `own`, padded, its scales counted as elements.

    TensorRT-LLM's kernels (Blackwell) and ROCm's pad both to 256, Marlin's the inner one to 128.
    Triton's on Hopper pad the inner one to 64 and, when they lay values out anew, each product's
    inputs to 256, not its scales: 64.38 GiB are printed for gpt-oss-120b, 13.47 for 20b (log091).
    """
    capability = settings.capability
    on_hopper = settings.platform == "cuda" and capability[0] == 9
    if on_hopper and settings.rules.version >= _TRITON_SINCE:
        inner = _up(own, 64)
        values = (2 * inner * _up(hidden, _MXFP4_UNIT) + hidden * _up(inner, _MXFP4_UNIT)) / 3
        return values * (16 / 17) + hidden * inner / 17  # 4 bits, and 8 for 32 of them
    whole = settings.platform == "rocm" or capability[0] == 10
    return _up(hidden, _MXFP4_UNIT) * _up(own, _MXFP4_UNIT if whole else 128)


def _up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def _plain_padding(model: Model, settings: Settings) -> float:
    """FP8 experts without a gate have their inner width padded to 128, since 0.18."""
    method = model.quantization.default if model.quantization is not None else None
    width = model.number("moe_intermediate_size")
    eight = method is not None and "fp8" in str(method).lower()
    if not width or not eight or settings.platform != "cuda" or settings.rules.version < (0, 18, 0):
        return 1.0
    split = 1 if deals_experts(settings) else settings.ranks
    own = width // split
    return -(-own // _PLAIN_WIDTH) * _PLAIN_WIDTH / own


def _encoder_bytes(model: Model, settings: Settings, group: TensorGroup) -> int:
    role = "audio" if "audio" in group.name else group.role
    if drops_tower(model, settings.flags, settings.rules, role):
        return 0
    data = settings.flags.get("mm_encoder_tp_mode") == "data"
    whole = data or not group.linear or model.model_type.startswith(_WHOLE_TOWERS)
    ranks = 1 if whole else settings.ranks
    return stored_bytes(model, group) // ranks


def _absorbed(model: Model, settings: Settings) -> int:
    """Latent attention keeps kv_b_proj and its absorbed halves: views of it, or 16-bit copies
    where it is quantized (mla_attention.py, split_kv_b_proj).

    Before 0.8 they are multiplied into the queries' projection and the output's, which are kept
    too, and the queries' rotary part apart (attention/backends/mla/utils.py of 0.7.3).
    """
    if not keeps_latent(model, settings):
        return 0
    total = 0
    query = int(model.text_config.get("q_lora_rank") or model.hidden_size)
    for slot in model.slots:
        if isinstance(slot, LatentSlot) and slot.heads:
            heads = max(1, slot.heads // settings.ranks)
            wide = slot.nope_dim + slot.value_dim
            if settings.rules.version < _HALVES_SINCE:
                total += heads * query * slot.rope_dim * 2
                wide = query + model.hidden_size
            elif not _quantizes(model, "kv_b_proj"):
                continue
            total += heads * wide * slot.latent_dim * 2
    return total // settings.stages


def _quantizes(model: Model, name: str) -> bool:
    """Whether a projection of the first layer is stored in a scheme."""
    group = next((g for g in model.tensors if f".{name}." in g.name), None)
    return group is not None and scheme_of(model, group) is not None


def _batch_buffers(model: Model, settings: Settings) -> int:
    """Rows for every token of a batch: the positions an indexer picks, the streams for MTP.

    Source: models/deepseek_v4 and models/qwen4_exp (topk_indices_buffer, _mtp_hidden_buffer);
    model_executor/models/qwen3_vl.py (deepstack_input_embeds), gemma4_mm.py
    (per_layer_embeddings), deepseek_v2.py.
    """
    config, tokens = model.text_config, settings.max_num_batched_tokens
    if model.model_type.startswith(_DEEP_VISION):
        if drops_tower(model, settings.flags, settings.rules, "vision"):
            return 0
        vision = model.config.get("vision_config")
        levels = vision.get("deepstack_visual_indexes") if isinstance(vision, Mapping) else None
        return tokens * model.hidden_size * 2 * len(levels or ())
    own = model.number("hidden_size_per_layer_input")
    if own and model.model_type.startswith(_WHOLE_TOWERS) and "vision_config" in model.config:
        return tokens * model.layers * own * 2
    if is_sparse(model) and not is_v4(model) and not model.model_type.startswith("qwen4_exp"):
        return tokens * int(config.get("index_topk") or 0) * 4
    if is_v4(model):
        streams = int(config.get("hc_mult") or 1) * model.hidden_size * 2
        return tokens * (streams + int(config.get("index_topk") or 0) * 4)
    if model.model_type.startswith("qwen4_exp"):
        picked = int(config.get("indexer_budget") or 0) + group_size(model)
        layers = sum(isinstance(slot, IndexerSlot) for slot in model.slots)
        streams = int(config.get("hc_count") or 1) * model.hidden_size * 2
        return tokens * (layers * picked * 4 + (streams if settings.draft.layers else 0))
    return 0
