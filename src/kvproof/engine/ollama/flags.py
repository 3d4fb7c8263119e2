"""Ollama's settings as llama.cpp flags; what depends on the release is in `releases`."""

from __future__ import annotations

from typing import Any

import msgspec

from kvproof.engine.base import Deployment
from kvproof.engine.ollama import releases
from kvproof.engine.ollama.batch import automatic_batch
from kvproof.errors import UsageError, unknown_name
from kvproof.kinds import SlidingSlot
from kvproof.model.types import Model
from kvproof.units import parse_bytes

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
    "typical_p", "tfs_z", "presence_penalty", "frequency_penalty", "penalize_newline", "mirostat",
    "mirostat_tau", "mirostat_eta", "low_vram", "vocab_only", "f16_kv", "logits_all",
)  # fmt: skip
_UBATCH = 512
_PLAIN_TYPES = ("f16", "f32", "bf16")


def build_name(version: str | None) -> str | None:
    """The llama.cpp build whose rules a release follows; None is the newest."""
    return releases.build_name(releases.release_of(version))


# Settings of a Modelfile that decide memory.
_RUNNER = ("num_ctx", "num_batch", "num_gpu", "main_gpu")


def as_llamacpp(deployment: Deployment, model: Model | None = None) -> Deployment:
    """The llama.cpp deployment that Ollama starts for `model`, by its Modelfile too.

    A context beyond the trained length is cut to it, with a warning in Ollama's log
    (llm/server.go: "requested context size too large for model").
    """
    chosen = model.settings if model is not None else {}
    flags = {**{k: chosen[k] for k in _RUNNER if k in chosen}, **deployment.flags}
    for name in flags:
        if name not in NAMES and name not in TO_LLAMACPP:
            raise unknown_name(
                "Ollama option", name, [*NAMES, *TO_LLAMACPP], see="see docs/engines/ollama.md"
            )
    release = releases.release_of(deployment.engine.version)
    arch = releases.architecture(model) if model is not None else ""
    slots = releases.slots(release, arch, _whole(flags, "num_parallel"))
    context = _context(deployment, release, flags, model)
    own = release < releases.SERVER and (
        _switched(flags, "new_engine") or releases.own_engine(release, arch)
    )
    build = releases.own_engine_build(release) if own else releases.build_name(release)
    out: dict[str, Any] = {"ctx_size": context * slots, "parallel": slots, "kv_unified": own}
    out |= {TO_LLAMACPP[k]: v for k, v in flags.items() if k in TO_LLAMACPP}
    out |= _attention(release, arch, own, out)
    out |= _batches(deployment, model, release, flags, context * slots, slots)
    return Deployment(f"llamacpp@{build}" if build else "llamacpp", deployment.gpu, **out)


def runner_model(model: Model, version: str | None) -> Model:
    """The model with the windows that the runner keeps: wider ones for some on its own engine."""
    release, arch = releases.release_of(version), releases.architecture(model)
    slots = tuple(
        msgspec.structs.replace(slot, window=releases.kept_window(release, arch, slot.window))
        if isinstance(slot, SlidingSlot)
        else slot
        for slot in model.slots
    )
    return model if slots == model.slots else msgspec.structs.replace(model, slots=slots)


def _context(
    deployment: Deployment, release: releases.Release, flags: dict[str, Any], model: Model | None
) -> int:
    trained = model.context if model is not None else None
    context = _whole(flags, "num_ctx") or _whole(flags, "context_length")
    context = context or releases.default_context(release, memory_of(deployment))
    return min(context, trained) if trained and release >= releases.CUT else context


def _attention(
    release: releases.Release, arch: str, own: bool, flags: dict[str, Any]
) -> dict[str, Any]:
    """Flash attention as it ends up, and the cache's type, which needs it to be quantized."""
    out: dict[str, Any] = {}
    if "flash_attn" not in flags and (own or release < releases.AUTO_FLASH):
        out["flash_attn"] = "on" if releases.flash_by_default(release, arch) else "off"
    if flags.get("cache_type_k") is None:
        return out
    asked = releases.cache_type(release, arch, str(flags["cache_type_k"]).lower())
    flash = out.get("flash_attn", flags.get("flash_attn", "auto"))
    on = flash is True or str(flash).lower() in ("on", "1", "true")
    auto = str(flash).lower() == "auto" and release >= releases.SERVER
    if asked not in _PLAIN_TYPES and not (on or auto):
        asked = "f16"  # "quantized kv cache requested but flash attention disabled"
    return {**out, "cache_type_k": asked, "cache_type_v": asked}


def _batches(
    deployment: Deployment, model: Model | None, release: releases.Release, flags: dict[str, Any],
    cells: int, slots: int,
) -> dict[str, int]:  # fmt: skip
    batch = _whole(flags, "num_batch")
    if release >= releases.SERVER:
        off = "flash_attention" in flags and not _switched(flags, "flash_attention")
        batch = batch or automatic_batch(model, deployment, cells, memory_of(deployment), off)
        return {"batch_size": batch, "ubatch_size": batch}
    batch = batch or _UBATCH
    ubatch = batch if release >= releases.OWN_UBATCH else min(batch * slots, _UBATCH)
    return {"batch_size": batch * slots, "ubatch_size": ubatch}


def memory_of(deployment: Deployment) -> int:
    """Memory of all GPUs as detected; none named counts as none."""
    given = deployment.flags.get("gpu_memory")
    if given is not None:
        return parse_bytes(given)
    if deployment.accelerator is None:
        return 0
    return sum(count * kind.memory_bytes for count, kind in deployment.kinds)


def _switched(flags: dict[str, Any], name: str) -> bool:
    return str(flags.get(name, "")).lower() in ("1", "true", "on", "t")


def _whole(flags: dict[str, Any], name: str) -> int:
    """A whole number, 0 where it is not given."""
    value = flags.get(name, 0)
    try:
        number = int(str(value))
    except ValueError:
        number = -1
    if isinstance(value, bool) or not 0 <= number < 2**31:
        raise UsageError(f"Ollama's {name} is {str(value)[:40]!r}", hint="want a whole number")
    return number
