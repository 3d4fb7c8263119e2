"""mem_fraction_static where none is given: one rule after the other, by release.

Sources: server_args.py, `__post_init__` (0.3.6 to 0.5.2) and `_handle_gpu_memory_settings`
(0.5.3 on; arg_groups/memory_hook.py from 0.5.19). All reserves are MiB of the card as nvidia-smi
prints it. Multimodal models and AITER attention cut the result.
"""

from __future__ import annotations

from kvproof.engine.base import Deployment
from kvproof.engine.sglang.backend import (
    attention_backend,
    capability,
    is_compressed,
    is_latent,
    is_sparse,
    on_rocm,
)
from kvproof.engine.sglang.flags import Flags, card_mib
from kvproof.kinds import RecurrentSlot
from kvproof.model.types import Model
from kvproof.units import MIB

_RANKS = ((16, 0.79), (4, 0.85), (2, 0.87), (1, 0.88))
_VIT_LAYERS, _VIT_WIDTH = 24, 1024
_AITER_CUT, _AITER_CONTEXT = 0.85, 8192
_SMALL, _LARGE = 60 * 1024, 80 * 1024
# Fixed reserves by card (0.4.8 to 0.5.2): memory below, GiB, GiB a rank.
_CARDS = (
    (35 * 1024, 2.8, 0.1), (90 * 1024, 9.5, 0.5), (160 * 1024, 12.0, 0.5), (1 << 40, 32.0, 0.0),
)  # fmt: skip
_GRAPH_STEPS = ((32, 4), (256, 16), (512, 32), (1024, 64), (4096, 256), (1 << 30, 512))
_LLAMA2_TOKENS = 4096
# Prefill graphs that torch.compile cuts (0.5.10 to 0.5.14) leave these models out.
_NO_PIECEWISE = ("DeepseekV32ForCausalLM", "DeepseekV4ForCausalLM", "Qwen3NextForCausalLM",
                 "GlmMoeDsaForCausalLM", "BailingMoeV2_5ForCausalLM")  # fmt: skip
# Multimodal models that capture prefill graphs nonetheless (0.5.15 on).
_IMAGES_WITH_GRAPHS = (
    "Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration",
    "KimiK25ForConditionalGeneration", "KimiK3ForConditionalGeneration",
    "Glm5NextForConditionalGeneration", "MuseGlimmerForConditionalGeneration",
    "Cohere2VisionForConditionalGeneration", "MiniMaxM3SparseForConditionalGeneration",
)  # fmt: skip
_OTHER_GRAPHS = ("enable_lora", "lora_paths", "enable_hierarchical_cache")
_GRAPH_A2A = ("none", "deepep", "megamoe", "flashinfer")


def static_share(model: Model, deployment: Deployment, flags: Flags, total: int) -> float:
    """mem_fraction_static in force: as given or the default, cut for AITER attention."""
    if is_sparse(model) and flags.rules.sparse_share is not None:
        return flags.rules.sparse_share
    share, rules = flags.mem_fraction_static, flags.rules
    if share is None:
        share = default_fraction(model, deployment, flags, total)
    else:
        share *= _image_factor(model, flags) if rules.image_cut_given else 1
        if rules.cut_printed and flags.get("mem_fraction_resolved"):
            return share
    context = flags.context_length or model.context or 0
    aiter = rules.aiter_cut and attention_backend(model, deployment, flags) == "aiter"
    return share * _AITER_CUT if aiter and context > _AITER_CONTEXT else share


def default_fraction(model: Model, deployment: Deployment, flags: Flags, total: int) -> float:
    """mem_fraction_static where none is given, before the cut for AITER."""
    memory = card_mib(deployment) or total // MIB
    kind = flags.rules.share
    if kind == "chunk":
        share = round(1 - _reserved(model, deployment, flags, memory) / memory, 3)
    elif kind == "card":
        share = round(1 - _reserved_by_card(flags, memory) / memory, 3)
    else:
        share = _by_ranks(flags, memory)
    return share * _image_factor(model, flags)


def _by_ranks(flags: Flags, memory: int) -> float:
    """Up to 0.4.7: a table of ranks, with exceptions for cards above 80 or 96 GiB."""
    kind = flags.rules.share
    if kind == "ranks_13" and memory > _LARGE:
        return (memory - 13 * 1024) / memory
    ranks = flags.tp * (flags.pp if kind in ("ranks_48", "ranks_18") else 1)
    share = next(value for least, value in _RANKS if ranks >= least)
    share = flags.rules.eight_ranks if 8 <= ranks < 16 else share
    if kind in ("ranks_48", "ranks_18"):
        share = share if memory <= _LARGE else 0.88
        if kind == "ranks_48" and memory > 180_000:
            return 0.79
        if memory > 96 * 1024:
            drafting = kind == "ranks_48" and flags.algorithm != "NONE"
            reserve = (20 if drafting else 18) * 1024
            return min(share + 48 * 1024 * (1 - share) / memory, (memory - reserve) / memory)
        if kind == "ranks_48" and flags.algorithm != "NONE":
            share *= 0.95
    return share


def _reserved_by_card(flags: Flags, memory: int) -> float:
    _, base, rank = next(row for row in _CARDS if memory < row[0])
    reserved = (base + flags.tp * flags.pp * rank) * 1024
    if flags.algorithm != "NONE":
        reserved += (6 if flags.algorithm == "STANDALONE" else 2) * 1024
    return reserved + (4 * 1024 if flags.get("enable_dp_attention") else 0)


def _reserved(model: Model, deployment: Deployment, flags: Flags, memory: int) -> float:
    """0.5.3 on: constants, activations by the prefill chunk, graphs, ranks, drafts."""
    rules = flags.rules
    reserved = 512 + _activation_tokens(flags) * 1.5 + flags.tp * flags.pp / 8 * 1024
    mode = str(flags.get("disaggregation_mode") or "null")
    if not (rules.graph_reserve_off and (mode == "prefill" or _no_decode_graphs(flags))):
        reserved += flags.graph_batch * 2
    if flags.get("enable_dp_attention") and not (rules.graph_reserve_off and mode == "prefill"):
        reserved += flags.graph_batch * flags.dp * (4.5 if flags.graph_batch > 300 else 3)
    if not (rules.graph_reserve_off and mode == "decode"):
        reserved += _prefill_graph_mib(model, deployment, flags)
    if memory > _SMALL:
        reserved = max(reserved, 10 * 1024)
    deepep = str(flags.get("moe_a2a_backend") or "none") == "deepep"
    if rules.graph_reserve_off and deepep and mode != "prefill" and not _no_decode_graphs(flags):
        reserved += 2 * 1024
    if rules.draft_reserve_mib and flags.drafts:
        reserved += 6 * 1024 if flags.algorithm == "STANDALONE" else rules.draft_reserve_mib
    return reserved


def _activation_tokens(flags: Flags) -> int:
    """Tokens that the working set scales with: a prefill chunk, or a decoder's whole batch."""
    if flags.rules.graph_reserve_off and flags.get("disaggregation_mode") == "decode":
        running = int(flags.get("max_running_requests") or flags.graph_batch)
        return max(running * int(flags.get("speculative_num_draft_tokens", 1)), 2048)
    chunk = flags.chunked_prefill_size
    return max(chunk if chunk > 0 else int(flags.get("max_prefill_tokens", 16384)), 2048)


def _no_decode_graphs(flags: Flags) -> bool:
    return bool(flags.get("disable_cuda_graph") or flags.get("disable_decode_cuda_graph"))


def _prefill_graph_mib(model: Model, deployment: Deployment, flags: Flags) -> float:
    """Memory outside torch of captured prefill graphs: 8 MiB each, 1.5 GiB with latents."""
    if not _captures_prefill(model, deployment, flags):
        return 0
    latent = is_latent(model)
    if latent and flags.rules.prefill_graphs != "asked":
        return 1536
    tokens = flags.get("piecewise_cuda_graph_max_tokens") or flags.chunked_prefill_size
    limits = [tokens, flags.get("max_total_tokens") or tokens]
    if flags.rules.graphs_to_context and flags.context_length:
        limits.append(flags.context_length)
    if "llama-2" in model.name.lower():
        limits.append(_LLAMA2_TOKENS)
    return prefill_graphs(min(int(limit) for limit in limits)) * 8


def _captures_prefill(model: Model, deployment: Deployment, flags: Flags) -> bool:
    """Whether graphs of prefill are captured."""
    rules = flags.rules
    if rules.prefill_graphs == "asked":
        return bool(flags.get("enable_piecewise_cuda_graph"))
    off = ("disable_piecewise_cuda_graph", "disable_prefill_cuda_graph")
    if any(flags.get(name) for name in off) or on_rocm(deployment) or flags.pp > 1:
        return False
    if rules.graph_reserve_off and (flags.get("disable_cuda_graph") or flags.context_ranks > 1):
        return False
    if capability(deployment) is None or is_compressed(model):
        return False
    a2a = str(flags.get("moe_a2a_backend") or "none")
    images = isinstance(model.config.get("vision_config"), dict)
    if rules.prefill_graphs == "breakable":
        listed = model.architecture in _IMAGES_WITH_GRAPHS
        return (listed or not images) and _breakable(model, deployment, flags, a2a)
    if flags.drafts and not rules.graphs_with_draft:
        return False
    if any(flags.get(name) for name in _OTHER_GRAPHS) or flags.get("enable_dp_attention"):
        return False
    plain = str(flags.get("disaggregation_mode") or "null") == "null" and a2a == "none"
    gguf = "gguf" in (flags.get("load_format"), flags.get("quantization"))
    return plain and not images and not gguf and model.architecture not in _NO_PIECEWISE


def _breakable(model: Model, deployment: Deployment, flags: Flags, a2a: str) -> bool:
    """Whether breakable prefill graphs are kept for this attention and these flags."""
    if flags.rules.strict_graphs:
        other = any(flags.get(n) for n in ("enable_lora", "lora_paths", "enable_dp_attention"))
        return not (is_latent(model) or other or a2a != "none")
    backend = attention_backend(model, deployment, flags)
    if model.architecture == "DeepseekV3ForCausalLM" and backend == "trtllm_mla":
        return False
    kda = is_latent(model) and any(isinstance(slot, RecurrentSlot) for slot in model.slots)
    return a2a in _GRAPH_A2A and not kda


def prefill_graphs(chunk: int) -> int:
    """How many prefill lengths are captured: steps that grow with the length."""
    count, low = 0, 0
    for high, step in _GRAPH_STEPS:
        count += max(0, min(chunk, high) - low) // step
        low = min(chunk, high)
    return count


def _image_factor(model: Model, flags: Flags) -> float:
    """The cut for multimodal models: fixed, then 5 %, more or less by the vision encoder's size."""
    vision = model.config.get("vision_config")
    if not isinstance(vision, dict) or flags.get("language_only"):
        return 1.0
    if flags.rules.image_cut:
        return flags.rules.image_cut
    # `depth`, as Qwen's and GLM's encoders call it, has no other name in the transformers that
    # SGLang pins (4.57.1 to 5.19.0): those count as 24 layers.
    layers = _VIT_LAYERS if "depth" in vision else vision.get("num_hidden_layers", _VIT_LAYERS)
    width = vision.get("hidden_size", _VIT_WIDTH)
    try:
        ratio = int(layers) * int(width) ** 2 / (_VIT_LAYERS * _VIT_WIDTH**2)
    except (TypeError, ValueError):
        return 0.95
    return 0.95 * max(0.8, min(1.05, 1 - 0.1 * (ratio - 1)))
