"""Flat names: a log's figures as one mapping, `available_kv_memory_gib` and the like."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvproof.observe.figures import Figure, Log

_GIB, _MIB = 2**30, 2**20
# Names whose unit is not the engine's usual one; SGLang and TensorRT-LLM say GB and mean GiB.
_SUFFIX = {
    "engine": "mib", "activation": "mib", "device_used": "mib",
    "runtime_buffers": "gb", "decoder": "gb",
    "k_size": "gb", "v_size": "gb", "kv_size": "gb", "avail_mem_after": "gb",
    "avail_mem_before": "gb", "avail_mem_loaded": "gb", "avail_mem_start": "gb",
}  # fmt: skip
_PER_DEVICE = ("compute_buffer", "model_buffer", "kv_buffer", "rs_buffer", "output_buffer")


def flatten(log: Log) -> dict[str, Any]:
    """The last figure of each name, sizes in the unit of their suffix, buffers by device."""
    usual = "mib" if log.engine == "llamacpp" else "gib"
    out: dict[str, Any] = {}
    for figure in log.figures:
        if figure.name.startswith("mamba_") and log.engine == "sglang":
            _state(out, figure)
        elif figure.name in _PER_DEVICE:
            key = f"{figure.name}_mib"
            out.setdefault(key, {})[figure.device] = _printed(figure, _MIB)
        elif figure.unit == "B":
            suffix = _SUFFIX.get(figure.name, usual)
            out[f"{figure.name}_{suffix}"] = _printed(figure, _MIB if suffix == "mib" else _GIB)
        else:
            out[figure.name] = figure.value
    if log.engine == "llamacpp":
        for kind, parts in caches(log).items():
            _cache(out, kind, parts)
    return {**out, **_derived(log, out)}


def caches(log: Log) -> dict[str, dict[str, Figure]]:
    """The figures of each cache of a llama.cpp log: `base`, `swa`, `indexer`, `state`.

    The caches print the same words; a line that follows the indexer's announcement is the
    indexer's, a second one with other cells or layers is the sliding-window cache.
    """
    found: dict[str, dict[str, Figure]] = {}
    announced = {f.line for f in log.all("indexer_cells")}
    for line in sorted({f.line for f in log.figures if f.name in _CACHE_PARTS}):
        parts = {f.name: f for f in log.figures if f.line == line and f.name in _CACHE_PARTS}
        if "kv_total" not in parts and "rs" not in parts:
            continue
        if "rs" in parts:
            kind = "state"
        elif any(line - 3 < a < line for a in announced):
            kind = "indexer"
        else:
            kind = _which(found.get("base"), parts)
        found[kind] = parts
    return found


_CACHE_PARTS = frozenset(
    ("kv_total", "cells", "layers", "seqs", "streams", "k", "v",
     "rs", "rs_cells", "rs_layers", "rs_seqs", "rs_rollback", "rs_r", "rs_s")
)  # fmt: skip


def _which(base: dict[str, Figure] | None, parts: dict[str, Figure]) -> str:
    if base is None or "cells" not in parts or "cells" not in base:
        return "base"
    same = all(
        name not in base or name not in parts or base[name].value == parts[name].value
        for name in ("cells", "layers")
    )
    return "base" if same else "swa"


def _cache(out: dict[str, Any], kind: str, parts: dict[str, Figure]) -> None:
    plain = {
        name: _printed(figure, _MIB) if figure.unit == "B" else figure.value
        for name, figure in parts.items()
    }
    if kind == "base":
        out.update({f"{n}_mib" if parts[n].unit == "B" else n: v for n, v in plain.items()})
    elif kind == "state":
        names = {"rs_cells": "cells", "rs_layers": "layers_printed", "rs_r": "r", "rs_s": "s",
                 "rs_rollback": "rs_seq"}  # fmt: skip
        out["rs_mib"] = plain["rs"]
        out["rs_detail"] = {new: plain[old] for old, new in names.items() if old in plain}
    else:
        names = {"kv_total": "total"}
        key = "swa_cache" if kind == "swa" else "indexer"
        out[key] = {names.get(n, n): v for n, v in plain.items() if n != "seqs"}


def _state(out: dict[str, Any], figure: Figure) -> None:
    short = figure.name.removeprefix("mamba_")
    value = _printed(figure, _GIB) if figure.unit == "B" else figure.value
    key = "max_mamba_cache_size" if short == "slots" else f"{short}_gb"
    out.setdefault("mamba", {})[key] = value


def _printed(figure: Figure, unit: int) -> float:
    places = 4 if figure.step < unit / 1000 else 2
    return round(figure.value / unit, places)


def _derived(log: Log, flat: dict[str, Any]) -> dict[str, Any]:
    """Sums that logs leave to the reader: a pool's K and V."""
    out: dict[str, Any] = {}
    if "k_size_gb" in flat and "v_size_gb" in flat:
        out["available_kv_memory_gib"] = round(flat["k_size_gb"] + flat["v_size_gb"], 2)
    elif "kv_size_gb" in flat:
        out["available_kv_memory_gib"] = flat["kv_size_gb"]
    elif "kv_tensor_bytes" in flat:
        out["available_kv_memory_gib"] = round(flat["kv_tensor_bytes"] / _GIB, 4)
    if log.engine == "llamacpp":
        out.update(_local(log, flat))
    return out


def _local(log: Log, flat: dict[str, Any]) -> dict[str, Any]:
    """llama.cpp: what its lines say in several parts or elsewhere."""
    out: dict[str, Any] = {}
    if "estimate_full_mib" in flat:
        out["estimate_full_gib"] = round(flat["estimate_full_mib"] / 1024, 2)
    if "kv_total_mib" not in flat and flat.get("kv_buffer_mib"):
        out["kv_total_mib"] = round(sum(flat["kv_buffer_mib"].values()), 2)
    if "kv_total_mib" in flat and "streams" not in flat:
        out["streams"] = 1  # lines of builds before streams: all sequences share one
    if "kv_total_mib" in flat and "cells" not in flat and "n_ctx" in log.flags:
        out["cells"] = log.flags["n_ctx"]  # lines of builds before a cache had a size of its own
    if "seqs" not in flat and "rs_seqs" in flat:
        out["seqs"] = flat["rs_seqs"]
    if "ubatch_size" in log.flags:
        out["n_ubatch"] = log.flags["ubatch_size"]
    return out
