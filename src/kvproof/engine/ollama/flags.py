"""Ollama's settings as llama.cpp flags.

Source: Ollama's docs (faq, modelfile, context length) and start-up logs of 2025 and 2026. The
context defaults by memory hold since 0.15.5; before, 4,096 (2,048 before 0.6).
"""

from __future__ import annotations

from typing import Any

from kvproof.engine.base import Deployment
from kvproof.errors import UsageError, unknown_name
from kvproof.model.types import Model
from kvproof.units import GIB

TO_LLAMACPP = {
    "num_gpu": "n_gpu_layers", "main_gpu": "main_gpu", "kv_cache_type": "cache_type_k",
    "flash_attention": "flash_attn", "gpu_memory": "gpu_memory",
    "used": "used",
}  # fmt: skip
NAMES = (
    "num_ctx", "context_length", "num_parallel", "num_batch", "num_thread", "num_keep",
    "draft_num_predict", "num_predict", "keep_alive", "max_loaded_models", "max_queue",
    "sched_spread", "seed", "temperature", "top_k", "top_p", "min_p", "repeat_last_n",
    "repeat_penalty", "stop", "numa",
    "use_mmap", "use_mlock", "host", "models", "gpu_overhead", "load_timeout", "new_engine",
)  # fmt: skip
# From this much memory in all GPUs on, contexts of this many tokens are the default.
_CONTEXTS = ((48 * GIB, 262_144), (24 * GIB, 32_768), (0, 4_096))
_BATCH = 512
# Releases, and the llama.cpp builds whose rules their runners follow (by date, roughly).
_BUILDS = ((0, 16, None), (0, 13, 6869), (0, 11, 6325), (0, 7, 5434), (0, 0, 0))
_DEFAULT_TYPE = "f16"


def version_of(version: str | None) -> tuple[int, int, int]:
    """A release as numbers; unnamed, the newest."""
    if version is None:
        return (999, 0, 0)
    parts = version.lstrip("v").split("-")[0].split(".")[:3]
    numbers = [int(part) if part.isdigit() else 0 for part in parts]
    major, minor, patch = (*numbers, 0, 0, 0)[:3]
    return major, minor, patch


def build_name(version: str | None) -> str | None:
    """The llama.cpp build whose rules a release follows; None is the newest."""
    release = version_of(version)
    for major, minor, build in _BUILDS:
        if release >= (major, minor, 0):
            return None if build is None else f"b{build}"
    return None


# Settings of a Modelfile that decide memory.
_RUNNER = ("num_ctx", "num_batch", "num_gpu", "main_gpu")


def as_llamacpp(deployment: Deployment, model: Model | None = None) -> Deployment:
    """The llama.cpp deployment that Ollama starts for `model`, by its Modelfile too.

    A context beyond the trained length is cut to it, with a warning in Ollama's log
    (llm/server.go: "requested context size too large for model").
    """
    trained = model.context if model is not None else None
    chosen = model.settings if model is not None else {}
    flags = {**{k: chosen[k] for k in _RUNNER if k in chosen}, **deployment.flags}
    for name in flags:
        if name not in NAMES and name not in TO_LLAMACPP:
            raise unknown_name(
                "Ollama option", name, [*NAMES, *TO_LLAMACPP], see="see docs/engines/llamacpp.md"
            )
    slots = _whole(flags, "num_parallel", 1)
    context = _whole(flags, "num_ctx", 0) or _whole(flags, "context_length", 0)
    context = context or _default_context(deployment)
    context = min(context, trained) if trained else context
    batch = _whole(flags, "num_batch", _BATCH)
    out: dict[str, Any] = {
        "ctx_size": context * slots, "parallel": slots, "kv_unified": False,
        "batch_size": batch, "ubatch_size": batch,
    }  # fmt: skip
    out |= {TO_LLAMACPP[k]: v for k, v in flags.items() if k in TO_LLAMACPP}
    if "cache_type_k" in out:
        out["cache_type_v"] = out["cache_type_k"]
    build = build_name(deployment.engine.version)
    return Deployment(f"llamacpp@{build}" if build else "llamacpp", deployment.gpu, **out)


def _default_context(deployment: Deployment) -> int:
    release = version_of(deployment.engine.version)
    if release < (0, 6, 0):
        return 2_048
    if release < (0, 15, 5):
        return 4_096
    return next(tokens for least, tokens in _CONTEXTS if _memory(deployment) >= least)


def _memory(deployment: Deployment) -> int:
    """Nominal memory of all GPUs; none named counts as none."""
    given = deployment.flags.get("gpu_memory")
    if isinstance(given, int):
        return given
    if deployment.accelerator is None:
        return 0
    return sum(count * kind.nominal_memory_bytes for count, kind in deployment.kinds)


def _whole(flags: dict[str, Any], name: str, default: int) -> int:
    value = flags.get(name, default)
    try:
        number = int(str(value))
    except ValueError:
        number = -1
    if isinstance(value, bool) or not 0 <= number < 2**31:
        raise UsageError(f"Ollama's {name} is {str(value)[:40]!r}", hint="want a whole number")
    return number or default
