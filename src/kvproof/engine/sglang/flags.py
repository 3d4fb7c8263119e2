"""SGLang's flags: their spellings, defaults by release and GPU memory.

Source: sglang/srt/server_args.py (`_handle_gpu_memory_settings`) of the releases that `versions`
names; sglang/srt/arg_groups/memory_hook.py of 0.5.20 to 0.5.23.
"""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from kvproof.engine.base import Deployment
from kvproof.engine.cache_types import CacheType, Option, check_type, has_type
from kvproof.engine.came import Dates
from kvproof.engine.sglang.versions import Rules, rules_for
from kvproof.errors import UsageError, unknown_name
from kvproof.units import GIB, MIB, parse_bytes

_DATA = Path(__file__).with_name("data") / "flags.json"
DATES = Dates("SGLang", Path(__file__).with_name("data") / "came.json")
"""Its options by the releases that brought them."""
_ALIASES = {
    "tp": "tp_size", "tensor_parallel_size": "tp_size", "dp": "dp_size",
    "data_parallel_size": "dp_size", "pp": "pp_size", "pipeline_parallel_size": "pp_size",
    "ep": "ep_size", "expert_parallel_size": "ep_size", "max_model_len": "context_length",
    "nsa_prefill_backend": "dsa_prefill_backend", "nsa_decode_backend": "dsa_decode_backend",
    "mamba_scheduler_strategy": "mamba_radix_cache_strategy", "dcp": "dcp_size",
    "decode_context_parallel_size": "dcp_size", "cuda_graph_max_bs_decode": "cuda_graph_max_bs",
    "speculative_draft_model": "speculative_draft_model_path",
    "attention_context_parallel_size": "attn_cp_size",
    "enable_dsa_prefill_context_parallel": "enable_nsa_prefill_context_parallel",
}  # fmt: skip
# What kvproof adds: memory that the log or the user states (`free_memory`: what is free when the
# weights begin to load), a byte size for the pool, and that mem_fraction_static is the server's own
# printed value (`mem_fraction_resolved`), which most releases have cut already.
_OWN = ("gpu_memory", "used", "free_memory", "max_total_kv_bytes", "mem_fraction_resolved")
_WHOLE = (
    "tp_size", "dp_size", "pp_size", "ep_size", "dcp_size", "attn_cp_size", "context_length",
    "page_size", "max_total_tokens", "max_running_requests", "chunked_prefill_size",
    "max_prefill_tokens",
    "cuda_graph_max_bs", "max_mamba_cache_size", "speculative_num_draft_tokens",
    "speculative_eagle_topk", "piecewise_cuda_graph_max_tokens",
)  # fmt: skip
_AMOUNTS = ("cpu_offload_gb", "hicache_ratio", "hicache_size")
_SHARES = ("mem_fraction_static", "swa_full_tokens_ratio", "mamba_full_memory_ratio")
_KV_DTYPES = Option(
    engine="SGLang",
    flag="kv_cache_dtype",
    types=(
        CacheType("auto"),
        CacheType("fp8_e5m2"),
        CacheType("fp8_e4m3", (0, 4, 2)),
        CacheType("bf16", (0, 5, 4)),
        CacheType("bfloat16", (0, 5, 4)),
        CacheType("fp4_e2m1", (0, 5, 5), (0, 5, 15)),
        CacheType("mxfp8", (0, 5, 16)),
        CacheType("nvfp4", (0, 5, 16)),
        CacheType("fp4_mx_block16", (0, 5, 16)),
    ),
)
"""Source: the choices of --kv-cache-dtype (srt/server_args.py; srt/arg_groups/fields/model.py since
0.5.20) in 0.3.0, 0.3.6, 0.4.0 to 0.4.4, 0.4.6 to 0.4.10, and 0.5.2 to 0.5.23."""
OWN_KV_DTYPES = ("fp8", "float16", "half")
"""Names that are understood here and that no release of SGLang takes."""

# Cards of 35 GiB and more: memory below, chunked prefill, graph batch with fewer than 4 GPUs, with
# more (MiB of the card); below 20 GiB 2,048, 8 and 8; between, `Rules.small_card`.
_STEPS = (
    (60 * 1024, 4096, 32, 160), (160 * 1024, 8192, 256, 512), (1 << 40, 16384, 512, 512),
)  # fmt: skip
_FIXED_BATCHES = ((90 * 1024, 160), (160 * 1024, 256), (1 << 40, 512))
"""Graph batches where the reserve is fixed by the card (0.4.8 to 0.5.2)."""
_NO_DRAFT = ("NONE", "NGRAM")


class Flags(msgspec.Struct, frozen=True, kw_only=True):
    """Flags as given (`given`, canonical names), and those that were settled on."""

    given: dict[str, Any]
    rules: Rules
    tp: int
    pp: int
    dp: int
    attention_tp: int
    context_length: int | None
    chunked_prefill_size: int
    graph_batch: int
    mem_fraction_static: float | None
    layers: range | None = None
    """The layers of the pipeline stage that is answered for; None: all."""

    def get(self, name: str, default: Any = None) -> Any:
        """A flag as given, else `default`."""
        return self.given.get(name, default)

    @property
    def algorithm(self) -> str:
        """The speculative algorithm in capitals, NONE without one."""
        return str(self.get("speculative_algorithm") or "NONE").upper()

    @property
    def drafts(self) -> bool:
        """Whether a draft model or layer runs beside the target."""
        return self.algorithm not in _NO_DRAFT

    @property
    def draft_tokens(self) -> int:
        """Tokens verified at once; 4 where SGLang would choose (its choice is 4 or 5)."""
        return int(self.get("speculative_num_draft_tokens", 4))

    @property
    def hosted(self) -> int:
        """Bytes of the decoder's layers that each rank keeps in host memory."""
        return int(float(self.get("cpu_offload_gb", 0)) * GIB)

    @property
    def context_ranks(self) -> int:
        """Ranks that a request's tokens are dealt out to."""
        return int(self.get("dcp_size", 1))

    @property
    def replicas(self) -> int:
        """Attention data-parallel replicas in one tensor-parallel group."""
        return self.dp if self.given.get("enable_dp_attention") else 1


@cache
def spelled_in(name: str, version: str | None) -> str:
    """The name that a release (None: the newest) has for a flag: today's, else the one before."""
    own = canonical_flag(name)
    others = [alias for alias, whole in _ALIASES.items() if whole == own and alias in _names()]
    return next((n for n in (own, *others) if not DATES.lacks(n, version)), own)


@cache
def _names() -> frozenset[str]:
    """Every option of SGLang's own."""
    return frozenset(json.loads(_DATA.read_text())["names"])


@cache
def known_flags() -> frozenset[str]:
    """Every name that some release understands."""
    return _names() | {*_ALIASES, *_OWN}


_READ = frozenset(
    (*_WHOLE, *_SHARES, *_AMOUNTS, *_OWN, "kv_cache_dtype", "dtype", "enable_dp_attention",
     "disable_radix_cache", "disable_hybrid_swa_memory", "disable_overlap_schedule",
     "disable_piecewise_cuda_graph", "speculative_algorithm", "attention_backend",
     "decode_attention_backend", "prefill_attention_backend", "prefill_kv_cache_dequant_dtype",
     "dsa_prefill_backend", "dsa_decode_backend",
     "mamba_radix_cache_strategy", "mamba_ssm_dtype", "quantization", "disable_cuda_graph",
     "cuda_graph_bs", "enable_piecewise_cuda_graph", "disaggregation_mode", "moe_a2a_backend",
     "enable_lora", "lora_paths", "enable_hierarchical_cache", "enable_hisparse",
     "enable_unified_memory", "language_only", "load_format",
     "disable_prefill_cuda_graph", "disable_decode_cuda_graph", "json_model_override_args",
     "speculative_draft_model_path", "speculative_draft_kv_cache_dtype",
     "enable_nsa_prefill_context_parallel",
     "speculative_num_steps")  # SGLang refuses the tokens and choices of a draft without its steps
)  # fmt: skip


def canonical_flag(name: str) -> str:
    """SGLang's own name of a flag that has several spellings."""
    return _ALIASES.get(name, name)


def takes_kv_dtype(name: str, version: str | None) -> bool:
    """Whether a release's --kv-cache-dtype takes `name`."""
    return has_type(_KV_DTYPES, name, version)


def is_read(name: str) -> bool:
    """Whether the flag bears on what is computed here."""
    return canonical_flag(name) in _READ


# Pools of another build: mem_cache/sparsity (HiSparse), unified_memory_pool.py of 0.5.23.
_REFUSED = {
    "enable_hisparse": "keeps entries in the host's memory that its pool has no room for",
    "enable_unified_memory": "lets states and tokens share one pool while it runs",
}


def read_flags(deployment: Deployment) -> Flags:
    """The deployment's flags under SGLang's names, checked; defaults by GPU memory filled in."""
    given: dict[str, Any] = {}
    for name, value in deployment.flags.items():
        if name not in known_flags():
            raise unknown_name("SGLang flag", name, sorted(known_flags()), see="write tp_size=8")
        if value is not None:
            given[_ALIASES.get(name, name)] = _value(_ALIASES.get(name, name), value)
    for name, what in _REFUSED.items():
        if given.get(name):
            raise UsageError(f"SGLang's {name} {what}: not computed", hint="leave it out")
    rules = rules_for(deployment.engine.version)
    if given.get("kv_cache_dtype", "auto") not in OWN_KV_DTYPES:
        check_type(_KV_DTYPES, str(given.get("kv_cache_dtype", "auto")), deployment.engine.version)
    tp, dp = given.get("tp_size", 1), given.get("dp_size", 1)
    attention = _attention_tp(given, tp, dp)
    _check_context_ranks(given, rules, attention)
    chunk, batch = _by_memory(deployment, rules, tp)
    return Flags(
        given=given,
        rules=rules,
        tp=tp,
        pp=given.get("pp_size", 1),
        dp=dp,
        attention_tp=attention,
        context_length=given.get("context_length"),
        chunked_prefill_size=given.get("chunked_prefill_size", chunk),
        graph_batch=_graph_batch(given, rules, batch),
        mem_fraction_static=given.get("mem_fraction_static"),
    )


def _attention_tp(given: dict[str, Any], tp: int, dp: int) -> int:
    """Ranks that an attention layer is split over, less than all where copies of it work.

    Source: SGLang 0.5.23, layers/dp_attention.py (compute_dp_attention_world_info); context
    parallelism of sparse attention's prefill takes all ranks of a copy (server_args.py, and
    models/deepseek_v2.py before attn_cp_size).
    """
    copies = dp if given.get("enable_dp_attention") else 1
    if tp % copies:
        raise UsageError(f"dp_size={dp} does not divide tp_size={tp}", hint="correct one of them")
    whole = tp // copies if given.get("enable_nsa_prefill_context_parallel") else 1
    context = given.get("attn_cp_size", whole)
    if tp // copies % context:
        of = f"tp_size={tp} / dp_size={dp}" if copies > 1 else f"tp_size={tp}"
        raise UsageError(f"attn_cp_size={context} does not divide {of}", hint="correct one of them")
    return int(tp // copies // context)


def _check_context_ranks(given: dict[str, Any], rules: Rules, attention: int) -> None:
    """Decode context parallelism takes some of the ranks that an attention layer is split over."""
    ranks = given.get("dcp_size", 1)
    if ranks == 1:
        return
    if rules.context_ranks == "none":
        raise UsageError("SGLang has dcp_size since 0.5.15", hint="leave it out")
    if attention % ranks:
        raise UsageError(
            f"dcp_size={ranks} does not divide the {attention} ranks of an attention layer",
            hint="correct one of them",
        )


def _graph_batch(given: dict[str, Any], rules: Rules, default: int) -> int:
    sizes = given.get("cuda_graph_bs")
    if isinstance(sizes, list | tuple) and sizes:
        return max(int(size) for size in sizes)
    if "cuda_graph_max_bs" in given:
        return int(given["cuda_graph_max_bs"])
    running = given.get("max_running_requests")
    return min(default, running) if rules.batch_by_requests and running else default


def card_mib(deployment: Deployment) -> int | None:
    """MiB of the card as nvidia-smi prints them, which decides the defaults."""
    gpu = deployment.accelerator
    if gpu is None:
        return None
    return max(gpu.nominal_memory_bytes, gpu.memory_bytes) // MIB


def _by_memory(deployment: Deployment, rules: Rules, tp: int) -> tuple[int, int]:
    """Prefill chunk and graph batch where none are given."""
    memory = card_mib(deployment)
    old = rules.share not in ("card", "chunk")
    if memory is None:
        return (8192 if old else 4096), 160
    if old:
        return (2048, 8 if tp < 4 else 80) if memory < 25_000 else (8192, 160)
    if memory < 20 * 1024:
        return 2048, 8
    if memory < 35 * 1024:
        chunk, few, many = rules.small_card
        return chunk, few if tp < 4 else many
    if rules.share == "card":
        batch = next(size for below, size in _FIXED_BATCHES if memory < below)
        return (8192 if memory < 160 * 1024 else 16384), batch
    _, chunk, few, many = next(step for step in _STEPS if memory < step[0])
    return chunk, few if tp < 4 else many


def _value(name: str, value: Any) -> Any:
    try:
        if name in ("gpu_memory", "used", "free_memory", "max_total_kv_bytes"):
            return parse_bytes(value)
        if name == "cuda_graph_bs":
            return [int(size) for size in (value if isinstance(value, list | tuple) else [value])]
        if name in _WHOLE:
            value = int(value)
        elif name in _SHARES or name in _AMOUNTS:
            value = float(value)
    except (TypeError, ValueError, OverflowError):
        raise UsageError(f"{name}={str(value)[:40]!r} is no number", hint="give one") from None
    if name in _SHARES and not 0 < value <= (10 if name == "mamba_full_memory_ratio" else 1):
        raise UsageError(f"{name} is {value}", hint="give a share above 0, up to 1")
    if name in _AMOUNTS and not 0 <= value < math.inf:
        raise UsageError(f"{name} is {value}", hint="give 0 or more")
    positive = name in _WHOLE and name != "chunked_prefill_size"
    if positive and value < 1:
        raise UsageError(f"{name} is {value}", hint="give 1 or more")
    return value
