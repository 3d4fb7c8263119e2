"""Settings: a deployment's flags with vLLM's defaults filled in, for one model and release.

Source: vLLM 0.32, engine/arg_utils.py (get_batch_defaults), config/vllm.py
(max_concurrent_batches, max_in_flight_tokens), model_executor/models/config.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from kvproof.engine.base import Deployment
from kvproof.engine.vllm.architectures import check_architecture
from kvproof.engine.vllm.block_experts import check_block_dense, check_block_experts
from kvproof.engine.vllm.draft import Draft, read_draft
from kvproof.engine.vllm.dtypes import check_drafted, run_type
from kvproof.engine.vllm.engines import rules_of
from kvproof.engine.vllm.fallback import check_fallback
from kvproof.engine.vllm.first_engine import first_batch
from kvproof.engine.vllm.flags import asked_backend, read_flags
from kvproof.engine.vllm.lengths import derived_length
from kvproof.engine.vllm.mtp import check_modules
from kvproof.engine.vllm.platforms import (
    capability_of,
    is_radeon,
    over_pcie,
    platform_of,
    reported_memory,
    shares_pages,
)
from kvproof.engine.vllm.refusals import (
    ASYNC_METHODS,
    EXPANDED,
    HIDDEN_STATES,
    check_adapted_draft,
    check_aligned,
    check_cpu,
    check_draft,
    check_head_counts,
    check_keys,
    check_latent,
    check_mixed_windows,
    check_ngram,
    check_parallel,
    check_schedule,
    check_state_flags,
    check_windows,
)
from kvproof.engine.vllm.towers import text_only
from kvproof.engine.vllm.versions import Rules, parse_version
from kvproof.errors import UsageError
from kvproof.kinds import (
    ChunkedSlot,
    ConvSlot,
    IndexerSlot,
    LatentSlot,
    RecurrentSlot,
    SlidingSlot,
    Slot,
)
from kvproof.model.types import Model
from kvproof.units import GIB

# Falcon's attention layers are made without the cache's settings (models/falcon.py, 0.32), so the
# cache keeps the model's type whatever is asked for.
_OWN_CACHE_TYPE = ("FalconForCausalLM", "RWForCausalLM")
# Gemma 4's longest video: frames, tokens of a frame, marks and times around it (gemma4_mm.py).
_FRAMES, _FRAME_TOKENS, _FRAME_MARKS = 32, 70, 8
_BOTH_WAYS = ("bagel", "gemma3", "molmo2", "moondream3", "paligemma")
"""Model types that read pictures in both directions."""
_MANY_SEQS, _DIFFUSED_SEQS = 128, 8
"""From how many sequences on DiffusionGemma is given few: its sampler holds a whole block's logits
of each (model_executor/models/config.py, 0.32)."""
V4_PLAIN = "FLASHINFER_MLA_SPARSE_DSV4"
SKIPPED = "kv_cache_dtype_skip_layers"
_BATCHED_EXPERTS = 256
_ATTENTION_FREE = ("mamba", "falcon_mamba")
"""Model types that are nothing but states."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the planner needs to know of a deployment, every default resolved."""

    rules: Rules
    flags: Mapping[str, Any]
    platform: str
    capability: tuple[int, int]
    radeon: bool = False
    """AMD's cards of RDNA, which ROCm runs as it does Instinct's."""
    pcie: bool = False
    """Ranks that reach one another over PCIe."""
    host_pages: bool = False
    """Memory that is the CPU's too, on NVIDIA: what the system takes of it counts as the GPU's."""
    ranks: int = 1
    stages: int = 1
    replicas: int = 1
    context_ranks: int = 1
    max_model_len: int
    auto_fit: bool = False
    max_num_batched_tokens: int
    max_num_seqs: int
    async_scheduling: bool
    in_flight: int
    prefix_caching: bool
    state_mode: str
    kv_dtype: str
    dtype: str
    hybrid_manager: bool
    draft: Draft

    @property
    def block_size(self) -> int | None:
        """The block size that the user asked for."""
        value: int | None = self.flags.get("block_size")
        return value


def skips(settings: Settings, number: int, slot: Slot) -> bool:
    """Whether the layer of that number keeps the model's own type (kv_cache_dtype_skip_layers).

    Source: vLLM 0.32, model_executor/layers/attention/{attention,mla_attention}.py.
    """
    names = settings.flags.get(SKIPPED, ())
    sliding = isinstance(slot, SlidingSlot) and "sliding_window" in names
    return str(number) in names or sliding


def settle(model: Model, deployment: Deployment) -> Settings:
    """The settings of `deployment` for `model`; raises UsageError for what vLLM refuses."""
    flags = read_flags(deployment)
    rules = rules_of(model, deployment, flags)
    platform = platform_of(deployment, flags)
    ranks = flags.get("tensor_parallel_size", 1)
    stages = flags.get("pipeline_parallel_size", 1)
    _check_model(model, rules, platform, stages)
    check_windows(model, flags, rules)
    check_parallel(model, deployment, flags)
    check_block_experts(model, flags, rules)
    check_block_dense(model, flags, rules)
    length, auto_fit = _length(model, flags, rules)
    draft, dtype = read_draft(model, flags), run_type(model, deployment, flags)
    batched, seqs = _batch(model, flags, rules, deployment, length)
    if rules.v1:
        check_schedule(model, flags, rules, batched, seqs, length)
        check_draft(model, flags, draft)
        check_adapted_draft(flags, draft, rules, batched, seqs)
        check_drafted(draft.model, rules.version, dtype)
        check_modules(model, flags, rules)
        check_ngram(model, flags, draft)
    asynchronous = flags.get("async_scheduling", _async_default(rules, platform, stages, draft))
    asynchronous = asynchronous and platform != "cpu"  # platforms/cpu.py
    prefix = _prefix_caching(model, flags, rules) and not _latents_on_cpu(model, platform)
    check_state_flags(model, flags, rules, length, prefix=prefix)
    mode = _state_mode(model, flags, rules, prefix=prefix)
    check_aligned(flags, rules, mode)
    return Settings(
        rules=rules,
        flags=flags,
        platform=platform,
        capability=capability_of(deployment, platform),
        radeon=is_radeon(deployment),
        host_pages=shares_pages(deployment),
        pcie=over_pcie(deployment),
        ranks=ranks,
        stages=stages,
        replicas=flags.get("data_parallel_size", 1),
        context_ranks=flags.get("decode_context_parallel_size", 1),
        max_model_len=length,
        auto_fit=auto_fit,
        max_num_batched_tokens=batched,
        max_num_seqs=seqs,
        async_scheduling=asynchronous,
        in_flight=batched * _batches(rules, stages, asynchronous=asynchronous),
        prefix_caching=prefix,
        state_mode=mode,
        kv_dtype=_kv_dtype(model, flags, rules, platform, capability_of(deployment, platform)),
        dtype=dtype,
        hybrid_manager=_hybrid_manager(model, flags, draft),
        draft=draft,
    )


def _check_model(model: Model, rules: Rules, platform: str, stages: int) -> None:
    """Refuse what the release does not run, or not there."""
    check_architecture(model, rules)
    check_keys(model, rules)
    check_head_counts(model, rules)
    check_mixed_windows(model)
    check_fallback(model, rules, stages)
    if platform == "cpu" and rules.null_reserved:
        check_cpu(model)
    check_latent(model, rules, platform)


def _latents_on_cpu(model: Model, platform: str) -> bool:
    """Whether a CPU keeps latents: then no prefill is cut and no prefix kept (platforms/cpu.py)."""
    latent = any(isinstance(slot, LatentSlot) for slot in model.slots)
    return platform == "cpu" and latent and not model.model_type.startswith(EXPANDED)


def _hybrid_manager(model: Model, flags: Mapping[str, Any], draft: Draft) -> bool:
    """Whether layers of several kinds have groups of their own; not with chunks beside EAGLE.

    Source: vLLM 0.32, config/vllm.py (need_disable_hybrid_kv_cache_manager).
    """
    chunked = any(isinstance(slot, ChunkedSlot) for slot in model.slots)
    unable = chunked and draft.method in HIDDEN_STATES
    asked = flags.get("disable_hybrid_kv_cache_manager")
    if asked is False and unable:
        raise UsageError(
            f"vLLM has no hybrid cache manager for chunks beside {draft.method}",
            hint="leave disable_hybrid_kv_cache_manager out",
        )
    return not (unable if asked is None else asked)


def is_hybrid(model: Model) -> bool:
    """Whether some layers keep a state of fixed size beside layers with attention."""
    return has_states(model) and not model.model_type.startswith(_ATTENTION_FREE)


def has_states(model: Model) -> bool:
    """Whether some layers keep a state of fixed size."""
    if is_inkling(model):
        return False
    return any(isinstance(slot, ConvSlot | RecurrentSlot) for slot in model.slots)


def is_inkling(model: Model) -> bool:
    """Whether convolutions keep their inputs in short windows of the block pool, not in states."""
    return model.model_type.startswith("inkling")


def is_diffusion(model: Model) -> bool:
    """Whether blocks of tokens are drawn at once, each seeing the others: DiffusionGemma."""
    return "BlockDiffusion" in model.architecture


def keeps_latent(model: Model, settings: Settings) -> bool:
    """Whether vLLM keeps the model's latents; other models' are expanded to heads first.

    Source: vLLM 0.32, transformers_utils/model_arch_config_convertor.py (is_deepseek_mla).
    """
    return settings.rules.latent and not model.model_type.startswith(EXPANDED)


def is_sparse(model: Model) -> bool:
    """Whether an indexer picks the positions that latent attention reads."""
    kinds = [type(slot) for slot in model.slots]
    return IndexerSlot in kinds and LatentSlot in kinds


def _length(model: Model, flags: Mapping[str, Any], rules: Rules) -> tuple[int, bool]:
    asked = flags.get("max_model_len")
    own = derived_length(model, flags, rules)
    if asked == -1:
        return own, True
    if asked and asked > own and flags.get("disable_sliding_window"):
        raise UsageError(
            f"max_model_len {asked} exceeds the window of {own} that disable_sliding_window leaves",
            hint="vLLM refuses this; lower max_model_len",
        )
    return asked or own, False


def _batch(
    model: Model, flags: Mapping[str, Any], rules: Rules, deployment: Deployment, length: int
) -> tuple[int, int]:
    """max_num_batched_tokens and max_num_seqs: given, else by GPU, release and usage."""
    platform = platform_of(deployment, flags)
    tokens, seqs = _batch_defaults(flags, rules, deployment, platform)
    asked_tokens, asked_seqs = flags.get("max_num_batched_tokens"), flags.get("max_num_seqs")
    if flags.get("performance_mode") == "throughput":
        tokens, seqs = tokens * 2, seqs * 2
    count = asked_seqs or seqs
    if asked_tokens is None and not rules.v1:
        release = parse_version(deployment.engine.version)
        tokens = first_batch(model, flags, release, platform, length)
    elif asked_tokens is None:
        if flags.get("enable_chunked_prefill") is False:
            tokens = max(length, tokens)
        tokens = max(tokens, _whole_item(model, flags, rules))
        tokens = min(tokens, count * length)
    batched = asked_tokens or tokens
    seqs = asked_seqs or min(seqs, batched)
    if _latents_on_cpu(model, platform):
        batched = max(length, 2048)
    if is_diffusion(model) and seqs >= _MANY_SEQS:
        seqs = _DIFFUSED_SEQS
    return batched, seqs


def _whole_item(model: Model, flags: Mapping[str, Any], rules: Rules) -> int:
    """Tokens of the longest video where pictures are read in both directions, so in one batch.

    Source: vLLM 0.32, engine/arg_utils.py (_get_min_mm_batched_tokens), models/gemma4_mm.py.
    """
    video = model.model_type.startswith("gemma4") and model.config.get("vision_config")
    if not (rules.null_reserved and video and reads_pictures(model, flags)):
        return 0
    return _FRAMES * (_FRAME_TOKENS + _FRAME_MARKS)


def reads_pictures(model: Model, flags: Mapping[str, Any]) -> bool:
    """Whether the model reads its pictures in both directions.

    Source: vLLM 0.32, transformers_utils/model_arch_config_convertor.py (is_mm_prefix_lm).
    """
    if "ForConditionalGeneration" not in model.architecture or text_only(model, flags):
        return False
    kind = str(model.config.get("model_type", ""))
    if kind.startswith("gemma4"):
        return model.text_config.get("use_bidirectional_attention") == "vision"
    return bool(model.config.get("is_mm_prefix_lm", kind in _BOTH_WAYS))


def _batch_defaults(
    flags: Mapping[str, Any], rules: Rules, deployment: Deployment, platform: str
) -> tuple[int, int]:
    """(tokens, sequences) of a batch that nobody asked for."""
    tokens, sequences = _usual_batch(flags, rules, deployment, platform)
    return (_BATCHED_EXPERTS if _batches_experts(flags, rules) else tokens), sequences


def _batches_experts(flags: Mapping[str, Any], rules: Rules) -> bool:
    """Whether experts get their tokens in batches of one size from all replicas.

    Source: config/parallel.py (use_batched_dp_moe) and config/scheduler.py; not in 0.19, in 0.20.
    """
    replicas = flags.get("data_parallel_size", 1)
    named = flags.get("all2all_backend") in ("deepep_low_latency", "nixl_ep")
    together = bool(flags.get("enable_expert_parallel")) and replicas > 1
    return named and together and rules.version >= (0, 20, 0)


def _usual_batch(
    flags: Mapping[str, Any], rules: Rules, deployment: Deployment, platform: str
) -> tuple[int, int]:
    offline = flags.get("usage_context") == "llm_class"
    if not rules.v1:
        return 2048, 256
    if flags.get("usage_context") == "engine_context":
        return 2048, 128
    if platform == "cpu":
        world = flags.get("tensor_parallel_size", 1) * flags.get("pipeline_parallel_size", 1)
        return (4096 * world, 256 * world) if offline else (2048 * world, 128 * world)
    gpu = deployment.first
    memory = reported_memory(deployment)
    name = f"{gpu.name} {gpu.device_name or ''}".lower() if gpu is not None else ""
    large, small = rules.seqs_v1
    if rules.large_gpu_batch and memory >= 160 * GIB:
        return 16384, 1024
    big = memory >= 70 * GIB and not (rules.a100_small and "a100" in name)
    if rules.large_by_name:
        big = "h100" in name or "h200" in name
    if big:
        return (16384 if offline else 8192), large
    return (8192 if offline else 2048), small


def _async_default(rules: Rules, platform: str, stages: int, draft: Draft) -> bool:
    if not rules.async_default or platform == "cpu":
        return False
    if draft.method and draft.method not in ASYNC_METHODS:
        return False
    return stages == 1 or rules.pp_async


def _batches(rules: Rules, stages: int, *, asynchronous: bool) -> int:
    """Batches whose blocks may be held at once."""
    if not rules.in_flight:
        return 1
    if asynchronous and (rules.runner_v2 or stages == 1):
        return stages + 1
    return stages


def _prefix_caching(model: Model, flags: Mapping[str, Any], rules: Rules) -> bool:
    hybrid = has_states(model)
    default = rules.v1 and ((rules.hybrid_prefix_caching and is_hybrid(model)) or not hybrid)
    asked: bool = flags.get("enable_prefix_caching", default)
    return asked and (not hybrid or _caches_states(model, rules))


def _caches_states(model: Model, rules: Rules) -> bool:
    """Whether states can be kept for prefixes; until 0.16 of Mamba's scan alone, else it is off.

    Source: 0.11.1 to 0.14.0, model_executor/models/config.py (MambaModelConfig) and the classes
    with SupportsMambaPrefixCaching.
    """
    if not rules.mamba_prefix_caching or "align" in rules.state_modes:
        return rules.mamba_prefix_caching
    return any(isinstance(s, RecurrentSlot) and "mamba" in s.mixer for s in model.slots)


def _state_mode(model: Model, flags: Mapping[str, Any], rules: Rules, *, prefix: bool) -> str:
    """How states are cached: "none" the running one, "align" one more, "all" every block's."""
    if not prefix or not has_states(model):
        return "none"
    asked = str(flags.get("mamba_cache_mode", "none"))
    if asked != "none" and asked in rules.state_modes:
        return asked
    if "align" not in rules.state_modes:
        return "all"
    mamba2 = any(isinstance(s, RecurrentSlot) and "mamba" in s.mixer for s in model.slots)
    return "all" if "all" in rules.state_modes and mamba2 else "align"


def _kv_dtype(
    model: Model,
    flags: Mapping[str, Any],
    rules: Rules,
    platform: str,
    capability: tuple[int, int],
) -> str:
    asked = str(flags.get("kv_cache_dtype", "auto"))
    if model.architecture in _OWN_CACHE_TYPE:
        return "auto"
    if asked != "auto":
        return asked
    own = model.quantization.kv_dtype if model.quantization is not None else None
    if own is not None and rules.checkpoint_kv_dtype and _names_method(model):
        return own
    sparse_glm = "GlmMoeDsa" in model.architecture
    if sparse_glm and platform == "cuda" and capability[0] == 10:
        return "fp8_e4m3"
    if "DeepseekV4" in model.architecture:  # FlashInfer alone keeps plain rows (compressed.py)
        return asked if asked_backend(flags) == V4_PLAIN else "fp8"
    return _old_sparse_default(model, rules, asked)


def _names_method(model: Model) -> bool:
    """Whether vLLM finds the method of the checkpoint's quantization, and so its cache type.

    ModelOpt's flat section must name it; its older form holds a section of its own. Source:
    vLLM 0.32, transformers_utils/model_arch_config_convertor.py (_normalize_quantization_config).
    """
    section = model.config.get("quantization_config")
    if not isinstance(section, Mapping):
        return True
    return "producer" not in section or "quantization" in section or "quant_method" in section


def _old_sparse_default(model: Model, rules: Rules, asked: str) -> str:
    """DeepSeek-V3.2 kept its cache in fp8 by default until 0.19."""
    if "DeepseekV32" in model.architecture and rules.version < (0, 20, 0):
        return "fp8"
    return asked
