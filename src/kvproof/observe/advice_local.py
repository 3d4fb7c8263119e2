"""Advice for llama.cpp and Ollama: what to change, and by how much, when a buffer does not fit."""

from __future__ import annotations

import math

from kvproof.observe.figures import Figure, Log
from kvproof.units import show_bytes

_PAD = 256
_Q8 = 1 - 34 / 64
"""What q8_0 saves of an f16 cache."""


def local_advice(log: Log, compute: float | None = None) -> tuple[str, ...]:
    """Changes that free what is missing, the cheapest first.

    `compute`: the predicted size of a compute buffer that no line tells yet.
    """
    short, where = _shortfall(log)
    coming = compute if short is not None and _awaits_compute(log) else None
    if short is not None and coming is not None:
        short += coming
        where += f", with {show_bytes(coming)} for the compute buffer, as predicted"
    if short is None:
        return _unmeasured(log)
    if short <= 0:
        return ()
    flag, kind = _spelled(log)
    lines = [f"{show_bytes(short)} less {where}"]
    cache, cells = _cache(log), log.value("cells") or log.flags.get("n_ctx")
    if cache and cells:
        keep = int(int(cells) * (1 - short / cache)) // _PAD * _PAD if short < cache else 0
        if keep > 0:
            lines.append(f"{flag} {keep} (it is {int(cells)}) frees that much of the cache")
        else:
            lines.append(
                f"{flag} alone can't do it: the whole cache of {int(cells)} cells is "
                f"{show_bytes(cache)}"
            )
        if log.flags.get("cache_type_k", "f16") == "f16" and cache * _Q8 >= short:
            lines.append(f"{kind} frees {show_bytes(cache * _Q8)} (with flash attention)")
    return (*lines, *_layers(log, short), *(() if coming else _still_to_come(log)))


def _awaits_compute(log: Log) -> bool:
    """Whether a buffer is made after a refused cache whose size no line tells."""
    return _refused_cache(log) and log.value("compute_buffer") is None


def _still_to_come(log: Log) -> list[str]:
    """A word on the buffer that is made after a refused cache."""
    if not _awaits_compute(log):
        return []
    return [
        "the compute buffer is made after the cache and not in these amounts: leave room for it"
    ]


def _refused_cache(log: Log) -> bool:
    """Whether it is the cache that could not be allocated."""
    return any("kv cache" in line.lower() for line in log.problems)


def _spelled(log: Log) -> tuple[str, str]:
    """How the context's length and an eight-bit cache are asked for."""
    if log.program == "Ollama":
        return "num_ctx", "OLLAMA_KV_CACHE_TYPE=q8_0"
    return "--ctx-size", "--cache-type-k/-v q8_0"


def _unmeasured(log: Log) -> tuple[str, ...]:
    """A buffer that was refused where the log does not say what was free."""
    asked = _last(log, "alloc_failed")
    if asked is None:
        return ()
    flag, kind = _spelled(log)
    where = asked.device or "the device"
    lines = [f"less than {show_bytes(asked.value)} was free on {where}; the log does not say more"]
    cache, cells = _cache(log), log.value("cells") or log.flags.get("n_ctx")
    if cache and cells:
        half = int(cells) // 2 // _PAD * _PAD
        if half:
            lines.append(f"{flag} {half} (it is {int(cells)}) frees {show_bytes(cache / 2)}")
    if cache and log.flags.get("cache_type_k", "f16") == "f16":
        lines.append(f"{kind} frees {show_bytes(cache * _Q8)} (with flash attention)")
    return (*lines, *_layers(log, asked.value))


def _shortfall(log: Log) -> tuple[float | None, str]:
    """Bytes that are missing, and where; None where the log does not tell."""
    reduce = log.value("fit_reduce")
    if reduce is not None:
        return reduce, "on the device"
    needed, free = log.value("system_needed"), log.value("system_free")
    if needed is not None and free is not None:
        return needed - free, "in memory (RAM and GPUs together)"
    asked = _last(log, "alloc_failed")
    if asked is None:
        return None, ""
    room = _room(log, asked.device)
    short = None if room is None else asked.value - room
    return short, f"on {asked.device or 'the device'}"


def _room(log: Log, device: str | None) -> float | None:
    """What was free on the device less the buffers that it already held."""
    free = [f for f in log.all("device_free") if device is None or f.device == device]
    if not free:
        return None
    held = {
        (f.name, f.device): f.value
        for name in ("model_buffer", "kv_buffer", "rs_buffer")
        for f in log.all(name)
        if f.device == free[-1].device
    }
    return max(0.0, free[-1].value - sum(held.values()))


def _last(log: Log, name: str) -> Figure | None:
    """The last figure of that name that names its device, else the last."""
    found = log.all(name)
    return next((f for f in reversed(found) if f.device), found[-1] if found else None)


def _cache(log: Log) -> float | None:
    """Bytes of the cache: as printed, or those that could not be allocated for it."""
    total = log.value("kv_total")
    if total:
        return total
    asked = _last(log, "alloc_failed")
    return asked.value if asked is not None and _refused_cache(log) else None


def _layers(log: Log, short: float) -> list[str]:
    """Fewer layers on the GPU, each with its part of the cache, where the log tells their sizes."""
    count = log.value("offloaded_layers")
    size = _largest_model_buffer(log) or _refused_weights(log)
    if not count or not size:
        return []
    fewer = math.ceil(short / (size / count + _cache_of_a_layer(log, count)))
    return [f"--n-gpu-layers {int(count - fewer)} (it is {int(count)})"] if fewer < count else []


def _refused_weights(log: Log) -> float:
    """Bytes of the layers' weights that could not be allocated; 0 where it was something else."""
    asked = _last(log, "alloc_failed")
    return asked.value if asked is not None and not _refused_cache(log) else 0.0


def _cache_of_a_layer(log: Log, count: float) -> float:
    """Bytes of the cache that go with a layer; 0 where it stays with the host, or is dealt out."""
    held = log.flags.get("offload_kqv", log.flags.get("kv_offload", True))
    dealt = len({figure.device for figure in log.all("kv_buffer")}) > 1
    if dealt or str(held).lower() in ("false", "0", "off"):
        return 0.0
    return (_cache(log) or 0.0) / (log.value("model_layers") or log.value("layers") or count)


def _largest_model_buffer(log: Log) -> float:
    latest = {f.device: f.value for f in log.all("model_buffer") if "CPU" not in (f.device or "")}
    return max(latest.values(), default=0.0)
