"""SGLang's flags: their spellings, defaults by release and GPU memory.

Source: sglang/srt/server_args.py of 0.4.6, 0.5.5, 0.5.8.post1 and 0.5.12;
sglang/srt/arg_groups/memory_hook.py of 0.5.23.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from kvproof.engine.base import Deployment
from kvproof.engine.sglang.versions import Rules, rules_for
from kvproof.errors import UsageError, unknown_name
from kvproof.units import MIB, parse_bytes

_DATA = Path(__file__).with_name("data") / "flags.json"
_ALIASES = {
    "tp": "tp_size", "tensor_parallel_size": "tp_size", "dp": "dp_size",
    "data_parallel_size": "dp_size", "pp": "pp_size", "pipeline_parallel_size": "pp_size",
    "ep": "ep_size", "expert_parallel_size": "ep_size", "max_model_len": "context_length",
    "nsa_prefill_backend": "dsa_prefill_backend", "nsa_decode_backend": "dsa_decode_backend",
    "mamba_scheduler_strategy": "mamba_radix_cache_strategy", "dcp": "dcp_size",
    "decode_context_parallel_size": "dcp_size", "cuda_graph_max_bs_decode": "cuda_graph_max_bs",
}  # fmt: skip
# What kvproof adds: memory that the log or the user states, and a byte size for the pool.
_OWN = ("gpu_memory", "used", "max_total_kv_bytes", "dcp_size")
_WHOLE = (
    "tp_size", "dp_size", "pp_size", "ep_size", "dcp_size", "context_length", "page_size",
    "max_total_tokens", "max_running_requests", "chunked_prefill_size", "max_prefill_tokens",
    "cuda_graph_max_bs", "max_mamba_cache_size", "speculative_num_draft_tokens",
)  # fmt: skip
_SHARES = ("mem_fraction_static", "swa_full_tokens_ratio", "mamba_full_memory_ratio")
_DTYPES = (
    "auto", "bfloat16", "bf16", "float16", "half", "fp8", "fp8_e4m3", "fp8_e5m2", "nvfp4",
    "fp4_e2m1", "fp4_mx_block16", "mxfp8",
)  # fmt: skip

# (memory below, chunked prefill, graph batch with fewer than 4 GPUs, with more), MiB of the card.
_OLD_STEPS = (
    (20 * 1024, 2048, 8, 8), (35 * 1024, 2048, 24, 80), (60 * 1024, 4096, 32, 160),
    (160 * 1024, 8192, 256, 512), (1 << 40, 16384, 512, 512),
)  # fmt: skip
_NEW_STEPS = (
    (20 * 1024, 2048, 8, 8), (35 * 1024, 4096, 48, 160), (60 * 1024, 4096, 32, 160),
    (160 * 1024, 8192, 256, 512), (1 << 40, 16384, 512, 512),
)  # fmt: skip


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

    def get(self, name: str, default: Any = None) -> Any:
        """A flag as given, else `default`."""
        return self.given.get(name, default)


@cache
def known_flags() -> frozenset[str]:
    """Every name that some release understands."""
    return frozenset(json.loads(_DATA.read_text())["names"]) | {*_ALIASES, *_OWN}


_READ = frozenset(
    (*_WHOLE, *_SHARES, *_OWN, "kv_cache_dtype", "dtype", "enable_dp_attention",
     "disable_radix_cache", "disable_hybrid_swa_memory", "disable_overlap_schedule",
     "disable_piecewise_cuda_graph", "speculative_algorithm", "attention_backend",
     "decode_attention_backend", "dsa_prefill_backend", "dsa_decode_backend",
     "mamba_radix_cache_strategy", "mamba_ssm_dtype", "quantization")
)  # fmt: skip


def canonical_flag(name: str) -> str:
    """SGLang's own name of a flag that has several spellings."""
    return _ALIASES.get(name, name)


def is_read(name: str) -> bool:
    """Whether the flag bears on what is computed here."""
    return canonical_flag(name) in _READ


def read_flags(deployment: Deployment) -> Flags:
    """The deployment's flags under SGLang's names, checked; defaults by GPU memory filled in."""
    given: dict[str, Any] = {}
    for name, value in deployment.flags.items():
        if name not in known_flags():
            raise unknown_name("SGLang flag", name, sorted(known_flags()), see="write tp_size=8")
        if value is not None:
            given[_ALIASES.get(name, name)] = _value(_ALIASES.get(name, name), value)
    rules = rules_for(deployment.engine.version)
    tp, dp = given.get("tp_size", 1), given.get("dp_size", 1)
    attention = tp // dp if given.get("enable_dp_attention") else tp
    if attention < 1 or (given.get("enable_dp_attention") and tp % dp):
        raise UsageError(f"dp_size={dp} does not divide tp_size={tp}", hint="correct one of them")
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
        graph_batch=given.get("cuda_graph_max_bs", batch),
        mem_fraction_static=given.get("mem_fraction_static"),
    )


def card_mib(deployment: Deployment) -> int | None:
    """MiB of the card as nvidia-smi prints them, which decides the defaults."""
    gpu = deployment.accelerator
    if gpu is None:
        return None
    return max(gpu.nominal_memory_bytes, gpu.memory_bytes) // MIB


def _by_memory(deployment: Deployment, rules: Rules, tp: int) -> tuple[int, int]:
    memory = card_mib(deployment)
    if memory is None:
        return (4096, 160) if rules.heuristic else (8192, 160)
    if not rules.heuristic:
        return (2048, 8 if tp < 4 else 80) if memory < 25_000 else (8192, 160)
    steps = _NEW_STEPS if rules.wide_small_cards else _OLD_STEPS
    _, chunk, few, many = next(step for step in steps if memory < step[0])
    return chunk, few if tp < 4 else many


def _value(name: str, value: Any) -> Any:
    try:
        if name in ("gpu_memory", "used", "max_total_kv_bytes"):
            return parse_bytes(value)
        if name in _WHOLE:
            value = int(value)
        elif name in _SHARES:
            value = float(value)
    except (TypeError, ValueError):
        raise UsageError(f"{name}={str(value)[:40]!r} is no number", hint="give one") from None
    if name in _SHARES and not 0 < value <= (10 if name == "mamba_full_memory_ratio" else 1):
        raise UsageError(f"{name} is {value}", hint="give a share above 0, up to 1")
    positive = name in _WHOLE and name != "chunked_prefill_size"
    if positive and value < 1:
        raise UsageError(f"{name} is {value}", hint="give 1 or more")
    if name == "kv_cache_dtype" and value not in _DTYPES:
        raise unknown_name("SGLang kv_cache_dtype", str(value), list(_DTYPES), see="try fp8_e4m3")
    return value
