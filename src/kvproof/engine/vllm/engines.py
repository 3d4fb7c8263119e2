"""Which of its two engines a vLLM start of 0.8 to 0.10 runs: V1, but for what only V0 had.

Source: engine/arg_utils.py (_is_v1_supported_oracle) of 0.8.0, 0.8.5, 0.9.0, 0.9.2, 0.10.0, 0.10.1
and 0.10.2; a case ends with the first of them that no longer has it. 0.11.0 has V1 alone and stops
at VLLM_USE_V1=0; later releases don't know the variable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from kvproof.engine.base import Deployment
from kvproof.engine.vllm.dtypes import run_type
from kvproof.engine.vllm.flags import speculation_of
from kvproof.engine.vllm.platforms import capability_of, platform_of
from kvproof.engine.vllm.versions import (
    BOTH_ENGINES,
    V0_LAST,
    Rules,
    Version,
    parse_version,
    rules_for,
)
from kvproof.errors import UsageError
from kvproof.kinds import ConvSlot, LatentSlot, RecurrentSlot
from kvproof.model.types import Model

_VARIABLE_GONE: Version = (0, 11, 1)
_FA3, _BLACKWELL, _LATENTS = (0, 8, 5), (0, 10, 0), (0, 10, 2)
"""Since when V1 keeps FP8 on Hopper, on Blackwell, and for multi-head latent attention."""
_FLASH = "FLASH_ATTN_VLLM_V1"
_V0_ONLY: Mapping[str, Version] = {
    "Gemma3ForConditionalGeneration": (0, 8, 5), "GlmForCausalLM": (0, 8, 5),
    "MiniCPMV": (0, 8, 5), "Phi4MMForCausalLM": (0, 8, 5),
    "BloomForCausalLM": (0, 10, 2), "WhisperForConditionalGeneration": (0, 10, 2),
    "MllamaForConditionalGeneration": (0, 11, 0), "Phi4FlashForCausalLM": (0, 11, 0),
    "BartForConditionalGeneration": (0, 11, 0), "MBartForConditionalGeneration": (0, 11, 0),
    "MotifForCausalLM": (0, 11, 0),
}  # fmt: skip
"""Classes marked SupportsV0Only (model_executor/models), and the first release read without."""


class _Start(msgspec.Struct, frozen=True, kw_only=True):
    model: Model
    flags: Mapping[str, Any]
    version: Version
    platform: str
    capability: tuple[int, int]
    dtype: str


class _Case(msgspec.Struct, frozen=True):
    """Until release `until`, `holds` made vLLM fall back to V0; `what` says why."""

    what: str
    until: Version
    holds: Callable[[_Start], bool]
    since: Version = BOTH_ENGINES[0]


def _cache_type(start: _Start) -> bool:
    """Whether V1 keeps no such cache (platforms/cuda.py, is_kv_cache_dtype_supported)."""
    asked = str(start.flags.get("kv_cache_dtype", "auto"))
    if asked == "auto" or (start.platform == "rocm" and start.version >= (0, 9, 0)):
        return False
    if start.version >= _BLACKWELL and start.capability == (10, 0):
        return False
    if start.version >= _LATENTS and any(isinstance(s, LatentSlot) for s in start.model.slots):
        return False
    flash = start.flags.get("attention_backend") in (None, _FLASH)
    third = start.version >= _FA3 and start.capability[0] == 9
    return not (asked.startswith("fp8") and flash and third)


def _has_states(start: _Start) -> bool:
    """Whether the model keeps states: in V0 only until 0.9, and by default until 0.10.1."""
    return any(isinstance(slot, ConvSlot | RecurrentSlot) for slot in start.model.slots)


def _only_in_v0(start: _Start) -> bool:
    until = _V0_ONLY.get(start.model.architecture)
    return until is not None and start.version < until


def _quantized_by(*names: str) -> Callable[[_Start], bool]:
    def holds(start: _Start) -> bool:
        own = start.model.quantization
        method = start.flags.get("quantization") or (own.method if own is not None else None)
        return method in names

    return holds


_CASES = (
    _Case("a compute capability below 8.0", (0, 10, 2),
          lambda s: s.platform == "cuda" and s.capability < (8, 0)),
    _Case("this model", BOTH_ENGINES[1], _only_in_v0),
    _Case("a model with states", (0, 10, 2), _has_states),
    _Case("an AMD GPU", (0, 9, 2), lambda s: s.platform == "rocm"),
    _Case("this type of the cache", BOTH_ENGINES[1], _cache_type),
    _Case("32-bit floats", (0, 9, 2), lambda s: s.dtype == "f32"),
    _Case("bitsandbytes", (0, 8, 5), _quantized_by("bitsandbytes")),
    _Case("GGUF weights", (0, 9, 0), _quantized_by("gguf")),
    _Case("pipeline stages without Ray", (0, 9, 0),
          lambda s: s.flags.get("pipeline_parallel_size", 1) > 1),
    _Case("--cpu-offload-gb", (0, 8, 5), lambda s: bool(s.flags.get("cpu_offload_gb"))),
    _Case("LoRA", (0, 8, 5), lambda s: bool(s.flags.get("enable_lora"))),
    _Case("speculation", (0, 9, 0), lambda s: bool(speculation_of(s.flags))),
    _Case("a draft model", (0, 10, 0), lambda s: _drafts(s.flags) == "draft_model", (0, 9, 0)),
)  # fmt: skip


def _drafts(flags: Mapping[str, Any]) -> str | None:
    config = speculation_of(flags)
    method = config.get("method") or ("draft_model" if config.get("model") else None)
    return None if method is None else str(method)


def rules_of(model: Model, deployment: Deployment, flags: Mapping[str, Any]) -> Rules:
    """The rules of the engine that starts: the release's own, or V0's last.

    Raises UsageError for 0.11.0, which stops at VLLM_USE_V1=0.
    """
    if runs_v0(model, deployment, flags) is not None:
        return rules_for(V0_LAST)
    version = parse_version(deployment.engine.version)
    if flags.get("use_v1") is False and BOTH_ENGINES[1] <= version < _VARIABLE_GONE:
        raise UsageError(
            f"vLLM {deployment.engine.version} has no V0 engine and stops at VLLM_USE_V1=0",
            hint="leave the variable out; 0.10.2 is the last release with both engines",
        )
    rules, second = rules_for(deployment.engine.version), flags.get("use_v2_model_runner")
    if second is None:
        return rules
    return msgspec.structs.replace(rules, runner_v2=rules.runner_v2 and second)


def runs_v0(model: Model, deployment: Deployment, flags: Mapping[str, Any]) -> str | None:
    """Why a release with both engines runs V0; None where it runs V1, or has one engine."""
    version = parse_version(deployment.engine.version)
    if not BOTH_ENGINES[0] <= version < BOTH_ENGINES[1]:
        return None
    asked = flags.get("use_v1")
    if asked is not None:
        return None if asked else "VLLM_USE_V1=0"
    return _fallback(model, deployment, flags, version)


def engine_notes(model: Model, deployment: Deployment, flags: Mapping[str, Any]) -> list[str]:
    """What to say of the engine that starts where it is not the release's usual one."""
    version = parse_version(deployment.engine.version)
    named, asked = f"vLLM {deployment.engine.version or ''}".strip(), flags.get("use_v1")
    why = runs_v0(model, deployment, flags)
    if why is not None:
        return [f"{named} runs its V0 engine with {why}: planned by the rules of {V0_LAST}"]
    if asked is False and version >= BOTH_ENGINES[1]:
        return [f"{named} has no V0 engine (since 0.11.0): VLLM_USE_V1=0 changes nothing"]
    if asked is False or asked is None:
        return []
    if version < BOTH_ENGINES[0]:
        return [f"{named} runs V1 only as an experiment, whose rules are not known: V0 is planned"]
    both = version < BOTH_ENGINES[1]
    refused = _fallback(model, deployment, flags, version) if both else None
    return [] if refused is None else [f"{named} may refuse VLLM_USE_V1=1 with {refused}"]


def _fallback(
    model: Model, deployment: Deployment, flags: Mapping[str, Any], version: Version
) -> str | None:
    platform = platform_of(deployment, flags)
    start = _Start(
        model=model,
        flags=flags,
        version=version,
        platform=platform,
        capability=capability_of(deployment, platform),
        dtype=run_type(model, deployment, flags),
    )
    return next((c.what for c in _CASES if c.since <= version < c.until and c.holds(start)), None)
