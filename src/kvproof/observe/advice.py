"""Advice: what to change, and by how much, when a log says that a model does not fit."""

from __future__ import annotations

import math
import re

from kvproof.engine.base import Capacity, Deployment, engine_module
from kvproof.engine.common_flags import OPTIONS, flag_of
from kvproof.errors import KvproofError
from kvproof.model.types import Model
from kvproof.observe.advice_local import local_advice
from kvproof.observe.advice_start import (
    card_memory,
    fraction_advice,
    load_advice,
    refused_advice,
    share_in_force,
)
from kvproof.observe.capacity_rows import printed_pool
from kvproof.observe.figures import BARE, Log
from kvproof.units import GIB, show_bytes

_ROOM = 256 * 2**20


def fits(log: Log) -> bool:
    """Whether the log reports no start that failed for memory."""
    return not log.problems


def advice(log: Log, model: Model | None, deployment: Deployment | None) -> tuple[str, ...]:
    """Changes that would make it fit, cheapest first, each with its amount."""
    if log.engine == "llamacpp":
        return local_advice(log, _compute_to_come(log, model, deployment))
    if fits(log):
        return ()
    if log.program == BARE:
        return _without_engine(log)
    blocks, seqs = log.value("mamba_blocks"), log.flags.get("max_num_seqs")
    if blocks:
        return (f"--max-num-seqs {int(blocks)} (it is {seqs}): one state block a request",)
    for special in (refused_advice(log), fraction_advice(log, model, deployment)):
        if special:
            return special
    if log.value("oom_request") is not None:
        late = printed_pool(log) is not None
        share = share_in_force(log, model, deployment)
        return _out_of_memory(log, share) if late else load_advice(log, model, deployment)
    short = shortfall(log, model, deployment)
    share = share_in_force(log, model, deployment)
    more = _utilization(log, short, share, card_memory(log, deployment))
    return (*_length(log, model, deployment), *more, *_memory(log, short))


def _without_engine(log: Log) -> tuple[str, ...]:
    """PyTorch ran out of memory, and no line says for whom."""
    asked, free = log.value("oom_request"), log.value("oom_free")
    others = log.value("oom_others") or 0
    said = "no line is an engine's: its log from the start on says what to change"
    lines = [said]
    if asked is not None and free is not None:
        lines = [f"{show_bytes(asked)} did not fit in {show_bytes(free)}; {said}"]
    if others > GIB:
        lines.insert(0, f"stop the other processes: they hold {show_bytes(others)} of the GPU")
    return tuple(lines)


def _compute_to_come(log: Log, model: Model | None, deployment: Deployment | None) -> float | None:
    """llama.cpp's compute buffer on the device that refused the cache: as predicted."""
    refused = next((f for f in reversed(log.all("alloc_failed")) if f.device), None)
    if model is None or deployment is None or deployment.accelerator is None or refused is None:
        return None
    place = re.search(r"\d{1,3}$", refused.device or "")
    names = ("compute buffer", f"compute buffer, GPU {place[0] if place else 0}")
    try:
        whole = deployment.replace(fit="off")
        terms = engine_module(whole.engine.name).budget(model, whole).terms
    except KvproofError:
        return None
    return next((float(term.value) for term in terms if term.name in names), None)


def _out_of_memory(log: Log, share: float | None) -> tuple[str, ...]:
    """An allocation failed after the sizing: the share has to leave room for it."""
    asked, free = log.value("oom_request") or 0, log.value("oom_free") or 0
    total, short = log.value("total_gpu_memory"), max(0.0, asked - free) + _ROOM
    flag = OPTIONS[log.engine].share
    if not total:
        return (f"leave {show_bytes(short)} more free: lower {flag}",)
    part = math.ceil(1000 * short / total) / 1000
    if share is None:
        change = f"{flag} lower by {part:.3f}"
    else:
        change = f"{flag} {math.floor(1000 * (share - short / total)) / 1000:.3f} (it is {share:g})"
    return (
        f"{change}: "
        f"{show_bytes(asked)} did not fit in {show_bytes(free)}; something outside the budget "
        "(graphs, other processes, a larger batch) took the rest",
    )


def shortfall(log: Log, model: Model | None, deployment: Deployment | None) -> float | None:
    """Bytes a GPU that are missing for one request of full length."""
    pool = printed_pool(log)
    needed = log.value("kv_needed")
    if needed is None and model is not None and deployment is not None:
        needed = needed_bytes(model, deployment)
    if needed is None:
        return None
    if pool is not None:
        return max(0.0, needed - pool.value) or None
    held, length = log.value("kv_cache_tokens"), log.flags.get(_flag(log))
    if held and isinstance(length, int) and length > held:  # V0 names both lengths, no bytes
        return float(needed) * (1 - held / length)
    return _predicted_shortfall(log, float(needed), model, deployment)


def _predicted_shortfall(
    log: Log, needed: float, model: Model | None, deployment: Deployment | None
) -> float | None:
    """What is missing by the budget, where the log says that nothing is left and not how little."""
    none_left = any("no available memory" in line.lower() for line in log.problems)
    if not none_left or model is None or deployment is None or deployment.accelerator is None:
        return None
    try:
        budget = engine_module(deployment.engine.name).budget(model, deployment)
    except KvproofError:
        return None
    missing = sum(float(term.value) for term in budget.terms if term.name == "missing")
    left = float(budget.kv_bytes) + missing
    return needed - left if left < needed else None


def needed_bytes(model: Model, deployment: Deployment) -> float | None:
    """Bytes of the cache for one request of full length, the null block included."""
    try:
        plan: Capacity = engine_module(deployment.engine.name).capacity(model, deployment, GIB)
    except KvproofError:
        return None
    return float((plan.blocks_per_sequence + 1) * plan.bytes_per_block)


def _flag(log: Log) -> str:
    """The flag of the length, in the engine's snake_case."""
    return flag_of(OPTIONS[log.engine].length)


def _length(log: Log, model: Model | None, deployment: Deployment | None) -> list[str]:
    fit = log.value("est_max_model_len")
    asked = log.value("kv_needed_for_len") or log.flags.get(_flag(log))
    if fit is None and log.value("kv_cache_tokens") and isinstance(asked, int | float):
        fit = min(float(log.value("kv_cache_tokens") or 0), float(asked))
    if fit is None and model is not None and deployment is not None:
        fit = longest(log, model, deployment)
    if not fit or (isinstance(asked, int | float) and fit >= asked):
        return []
    was = f" (it is {int(asked):,})" if isinstance(asked, int | float) else ""
    return [f"{OPTIONS[log.engine].length} {int(fit)}{was}: what the memory holds"]


def longest(log: Log, model: Model, deployment: Deployment) -> int | None:
    """The longest request that the printed memory holds, by bisection over the engine's rules."""
    pool, flag = printed_pool(log), _flag(log)
    if pool is None or pool.value <= 0:
        return None
    low, high = 0, int(model.context or 131_072)
    module = engine_module(deployment.engine.name)
    while low < high:
        middle = (low + high + 1) // 2
        try:
            changed = deployment.replace(**{flag: middle})
            answer: Capacity = module.capacity(model, changed, int(pool.value))
        except KvproofError:
            return None
        low, high = (middle, high) if answer.fits else (low, middle - 1)
    return low or None


def _utilization(
    log: Log, short: float | None, share: float | None, total: float | None
) -> list[str]:
    """The share that holds what is missing."""
    flag = OPTIONS[log.engine].share
    if short is None:
        return []
    if total is None:
        return [f"name the GPU (--gpu) for the share that gives {show_bytes(short)} more"]
    if share is None:
        return [f"{flag} higher by {math.ceil(1000 * short / total) / 1000:.3f}"]
    free = log.value("free_memory") or total * 0.985
    needed = math.ceil(1000 * (share + short / total)) / 1000
    if needed * total > free:
        return [
            f"{flag} can't do it alone: {needed:.3f} of {total / GIB:.2f} GiB "
            f"is more than the {free / GIB:.2f} GiB free"
        ]
    return [f"{flag} {needed:.3f} (it is {share:g})"]


def _memory(log: Log, short: float | None) -> list[str]:
    if short is None:
        held = log.value("kv_cache_tokens")  # an FP8 cache needs a pool to halve
        fewer = (
            " or a quantized checkpoint" if not held else " a quantized checkpoint, or an FP8 cache"
        )
        return [f"more GPUs ({OPTIONS[log.engine].ranks}),{fewer}"]
    lines = []
    peak = log.value("peak_activation")
    batch = log.flags.get("max_num_batched_tokens")
    if peak and isinstance(batch, int) and peak > short * 1.1:
        part = max(1024, int(batch * (1 - short * 1.1 / peak)) // 256 * 256)
        lines.append(
            f"--max-num-batched-tokens {part} (it is {batch}): "
            f"activations take {peak / GIB:.2f} GiB"
        )
    needed = log.value("kv_needed")
    if needed and needed / 2 >= short and "fp8" not in str(log.flags.get("kv_cache_dtype", "")):
        lines.append("--kv-cache-dtype fp8: halves what a request needs")
    weights = log.value("weights")
    if weights and weights / 2 >= short:
        lines.append(f"twice the GPUs a replica: {show_bytes(weights / 2)} of weights less on each")
    return lines or [f"{show_bytes(short)} are missing: more GPUs, or a smaller checkpoint"]
