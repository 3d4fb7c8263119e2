"""SGLang's pages: /server_info (older: /get_server_info) has every argument and what was sized.

Sizes there are GiB rounded to two digits (managers/scheduler.py: get_internal_state); /metrics
needs --enable-metrics.
"""

from __future__ import annotations

from typing import Any

from kvproof.observe.figures import Figure, Log
from kvproof.observe.probing.exposition import Metrics, parse
from kvproof.observe.probing.fetch import clean
from kvproof.observe.probing.live import (
    Live,
    Pages,
    Reading,
    count_of,
    figure,
    models_of,
    object_at,
    whole,
)

PATHS = ("/server_info", "/get_server_info")
_GIB = 2**30
_MOST_FLAGS = 2000


def read(pages: Pages) -> Reading | None:
    """SGLang's reading; None when neither page is its own."""
    info = object_at(pages, *PATHS)
    page = pages.get("/metrics")
    metrics = parse(page.text, ("sglang:",)) if page is not None else Metrics([])
    if "mem_fraction_static" not in info and not metrics:
        return None
    version = info.get("version")
    named = info.get("model_path") or next((m.get("id") for m in models_of(pages)), None)
    return Reading(
        log=Log(
            engine="sglang",
            program="SGLang",
            version=clean(version, 60) if isinstance(version, str) else None,
            model=clean(named, 400) if isinstance(named, str) else None,
            gpu=None,
            flags=_flags(info),
            figures=tuple(_figures(info, metrics)),
        ),
        live=_live(metrics),
        notes=() if metrics else ("no /metrics: start it with --enable-metrics",),
    )


def _flags(info: dict[str, Any]) -> dict[str, Any]:
    """The arguments that are plain values."""
    kept = (str, int, float, bool)
    items = list(info.items())[:_MOST_FLAGS]
    left = ("version", "model_path", "status", "max_total_num_tokens")
    return {k: v for k, v in items if isinstance(v, kept) and k.isidentifier() and k not in left}


def _figures(info: dict[str, Any], metrics: Metrics) -> list[Figure]:
    states = info.get("internal_states")
    first = states[0] if isinstance(states, list) and states else {}
    memory = first.get("memory_usage") if isinstance(first, dict) else {}
    memory = memory if isinstance(memory, dict) else {}
    out = []
    for key, name in (("weight", "weights"), ("kvcache", "kv_size"), ("graph", "cuda_graph")):
        value = memory.get(key)
        if isinstance(value, int | float) and 0 < value < 1e6:
            size = round(value * _GIB)
            out.append(figure(name, size, "B", step=_GIB / 100, text=f"{value:g} GB"))
    tokens = count_of(memory.get("token_capacity")) or count_of(info.get("max_total_num_tokens"))
    tokens = tokens or whole(metrics.most("sglang:max_total_num_tokens"))
    if tokens:
        out.append(figure("kv_cache_tokens", tokens, "token"))
    return out


def _live(metrics: Metrics) -> Live:
    found = (
        metrics.latency("time to first token", "sglang:time_to_first_token_seconds"),
        metrics.latency("time per output token", "sglang:inter_token_latency_seconds",
                        "sglang:time_per_output_token_seconds"),
        metrics.latency("whole request", "sglang:e2e_request_latency_seconds"),
    )  # fmt: skip
    return Live(
        running=whole(metrics.total("sglang:num_running_reqs")),
        waiting=whole(metrics.total("sglang:num_queue_reqs")),
        usage=metrics.most("sglang:token_usage"),
        preemptions=whole(metrics.total("sglang:num_retracted_requests_total")),
        hit_rate=metrics.most("sglang:cache_hit_rate"),
        prompt_tokens=whole(metrics.total("sglang:prompt_tokens_total")),
        generation_tokens=whole(metrics.total("sglang:generation_tokens_total")),
        latencies=tuple(latency for latency in found if latency is not None),
    )
