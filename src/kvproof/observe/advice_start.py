"""Advice for starts that fail before the cache has a size: refused, out of memory while loading,
a static share that weights alone exceed."""

from __future__ import annotations

import math

from kvproof.engine.base import Capacity, Deployment, engine_module
from kvproof.engine.common_flags import OPTIONS, flag_of
from kvproof.errors import KvproofError
from kvproof.model.types import Model
from kvproof.model.weights import weight_bytes
from kvproof.observe.deploy import ranks_of
from kvproof.observe.figures import Log
from kvproof.observe.releases import USUAL_SHARE, asked_share
from kvproof.units import GIB, show_bytes

_COUNTS = (1, 2, 4, 8, 16, 32)
_BESIDE = 2 * GIB
"""Context, workspaces and a little cache that a GPU needs beside the weights."""
_MOST_SHARE = 0.97
_TOKENS = 4096
"""A pool that holds fewer tokens is no use."""


def card_memory(log: Log, deployment: Deployment | None) -> float | None:
    """The GPU's memory as printed, else by the table."""
    card = deployment.accelerator if deployment is not None else None
    return log.value("total_gpu_memory") or (float(card.memory_bytes) if card else None)


def share_in_force(log: Log, model: Model | None, deployment: Deployment | None) -> float | None:
    """The share of the GPU that the engine was given; None where only card and flags tell it."""
    if log.engine != "sglang" or flag_of(OPTIONS["sglang"].share) in log.flags:
        return asked_share(log)
    if model is None or deployment is None or deployment.accelerator is None:
        return None
    try:
        return float(engine_module("sglang").share(model, deployment))
    except KvproofError:
        return None


def refused_advice(log: Log) -> tuple[str, ...]:
    """vLLM asks for more than is free at the start."""
    free = log.value("free_memory")
    total = log.value("total_gpu_memory") or log.value("node_memory")
    asked = log.value("requested_memory")
    if any("less than requested memory for kv" in line.lower() for line in log.problems):
        return _node_advice(log)
    if not any("less than desired" in line.lower() for line in log.problems):
        return ()
    if free is None or total is None or asked is None:
        return ("lower --gpu-memory-utilization, or stop what else uses the GPU",)
    share = math.floor(100 * free / total) / 100
    given = log.flags.get("gpu_memory_utilization", round(asked / total, 2))
    return (
        f"--gpu-memory-utilization {share:.2f} (it is {given:g}): "
        f"{free / GIB:.2f} of {total / GIB:.2f} GiB are free",
        f"or free {show_bytes(asked - free)}: other processes hold {show_bytes(total - free)}",
    )


def _node_advice(log: Log) -> tuple[str, ...]:
    """vLLM on a CPU: the cache of one rank is larger than what is free on its memory node."""
    free, asked = log.value("free_memory"), log.value("requested_kv_memory")
    if free is None or asked is None:
        return ("lower VLLM_CPU_KVCACHE_SPACE or --gpu-memory-utilization",)
    return (
        f"VLLM_CPU_KVCACHE_SPACE={math.floor(free / GIB)} or less (it asks for {asked / GIB:g}): "
        f"{free / GIB:.2f} GiB are free for all ranks of the node",
        f"or free {show_bytes(asked - free)} of the node's memory",
    )


def load_advice(log: Log, model: Model | None, deployment: Deployment | None) -> tuple[str, ...]:
    """Out of memory before the cache was sized: the weights do not fit, or others hold it."""
    total, others = card_memory(log, deployment), log.value("oom_others") or 0
    ranks = ranks_of(log)
    flag = OPTIONS[log.engine].ranks
    if model is None or not model.tensors or total is None:
        lacking = (
            "the GPU (--gpu)" if model is not None and model.tensors else "the model (--model)"
        )
        return (
            f"{flag} {2 * ranks} (it is {ranks}): half the weights on each GPU; or a quantized "
            f"checkpoint; name {lacking} for amounts",
        )
    weights = weight_bytes(model)
    share = share_in_force(log, model, deployment) or USUAL_SHARE
    lines = []
    if others > GIB:
        lines.append(f"stop the other processes: they hold {show_bytes(others)} of the GPU")
    enough = next(
        (n for n in _COUNTS if _holds(n, share * total, model, deployment, flag)), _COUNTS[-1]
    )
    if enough > ranks:
        lines.append(
            f"{flag} {enough} (it is {ranks}): {show_bytes(weights / enough)} of weights on each "
            f"GPU instead of {show_bytes(weights / ranks)} of {show_bytes(total)}"
        )
        most = ranks * (share * total - _BESIDE) / model.parameters * 8
        lines.append(f"or a checkpoint of at most {most:.1f} bits a parameter on {ranks} GPU(s)")
    elif not lines:
        short = (log.value("oom_request") or 0) - (log.value("oom_free") or 0)
        lines.append(
            f"the weights take {show_bytes(weights / ranks)}: something else holds the rest; a "
            f"smaller batch or image profile has to give {show_bytes(max(short, 0))}"
        )
    return tuple(lines)


def _holds(
    ranks: int, given: float, model: Model, deployment: Deployment | None, flag: str
) -> bool:
    """Whether so many GPUs hold the weights and a small pool in `given` bytes of each."""
    if weight_bytes(model) / ranks + _BESIDE > given:
        return False
    if deployment is None or deployment.accelerator is None:
        return True
    try:
        split = deployment.replace(**{flag_of(flag): ranks})
        left = engine_module(split.engine.name).budget(model, split).kv_bytes
    except KvproofError:
        return True
    return bool(left >= _pool(model, split))


def fraction_advice(
    log: Log, model: Model | None, deployment: Deployment | None
) -> tuple[str, ...]:
    """SGLang: what is left after loading lies within the reserve of 1 - mem_fraction_static."""
    if not any("mem-fraction-static" in line.lower() for line in log.problems):
        return ()
    loaded = log.smallest("avail_mem_loaded")
    start = log.smallest("avail_mem_start") or log.smallest("avail_mem_before")
    weights = log.smallest("weights")
    before = start.value if start else loaded.value + weights.value if loaded and weights else None
    if loaded is None or not before:
        return ("raise --mem-fraction-static; the lines of loading would say by how much",)
    need = _pool(model, deployment)
    share = math.ceil(1000 * (1 - (loaded.value - need) / before)) / 1000
    given = log.flags.get("mem_fraction_static")
    was = f" (it is {given:g})" if isinstance(given, int | float) else ""
    left = f"{loaded.value / GIB:.2f} of {before / GIB:.2f} GiB are left after loading"
    ranks = ranks_of(log)
    more = (
        f"{OPTIONS[log.engine].ranks} {2 * ranks} (it is {ranks}): half the weights on each GPU, "
        "or a quantized checkpoint"
    )
    if share > _MOST_SHARE or need >= loaded.value:
        return (f"--mem-fraction-static can't do it alone: {left}", more)
    if isinstance(given, int | float) and share <= given:
        return (
            f"--mem-fraction-static higher{was}: by these lines it leaves a pool ({left}), so a "
            "rank whose lines are not here has less",
            more,
        )
    return (
        f"--mem-fraction-static {share:.3f}{was}: {left}, {need / GIB:.2f} GiB of them for the "
        "pool",
        more,
    )


def _pool(model: Model | None, deployment: Deployment | None) -> float:
    """Bytes of a small pool on one GPU."""
    if model is None or deployment is None:
        return 0.5 * GIB
    try:
        plan: Capacity = engine_module(deployment.engine.name).capacity(model, deployment, GIB)
    except KvproofError:
        return 0.5 * GIB
    return max(1.0, plan.bytes_per_block / max(1, plan.block_size)) * _TOKENS
