"""llama.cpp, Ollama, TGI and TensorRT-LLM: servers that report less of their cache.

llama-server: /props (total_slots, n_ctx of a slot, build), /v1/models (`meta`: parameters and
tensor bytes of the GGUF), /metrics where started with --metrics (tools/server/README.md).
Ollama: /api/ps. TGI: /info. trtllm-serve: /metrics is JSON, one object an iteration.
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
    owner,
    whole,
)

PATHS = ("/props", "/slots", "/info", "/api/version", "/api/ps")


def llamacpp(pages: Pages) -> Reading | None:
    """llama-server's reading; None when /props and /v1/models are not its own."""
    props = object_at(pages, "/props")
    if "total_slots" not in props and owner(pages) != "llamacpp":
        return None
    entry = next(iter(models_of(pages)), {})
    meta = entry.get("meta")
    build = props.get("build_info")
    path = props.get("model_path") or entry.get("id")
    slots, context = count_of(props.get("total_slots")), _slot_context(pages, props)
    page = pages.get("/metrics")
    metrics = parse(page.text, ("llamacpp:",)) if page is not None else Metrics([])
    return Reading(
        log=Log(
            engine="llamacpp",
            program="llama.cpp",
            version=clean(build, 60).partition("-")[0] if isinstance(build, str) else None,
            model=clean(path, 400) if isinstance(path, str) else None,
            gpu=None,
            flags={"parallel": slots} if slots else {},
            figures=tuple(_gguf_figures(meta if isinstance(meta, dict) else {}, context)),
        ),
        live=_llama_live(pages, metrics),
        notes=() if metrics else ("no /metrics: start it with --metrics",),
    )


def _slot_context(pages: Pages, props: dict[str, Any]) -> int | None:
    settings = props.get("default_generation_settings")
    found = count_of(settings.get("n_ctx")) if isinstance(settings, dict) else None
    return found or next((count_of(slot.get("n_ctx")) for slot in _slots(pages)), None)


def _slots(pages: Pages) -> list[dict[str, Any]]:
    page = pages.get("/slots")
    body = page.json() if page is not None else None
    return [s for s in body[:1000] if isinstance(s, dict)] if isinstance(body, list) else []


def _gguf_figures(meta: dict[str, Any], context: int | None) -> list[Figure]:
    found = (
        ("parameters", meta.get("n_params"), "1"),
        ("weight_bytes", meta.get("size"), "B"),
        ("trained_context", meta.get("n_ctx_train"), "token"),
        ("slot_context", context, "token"),
    )
    return [figure(name, value, unit) for name, raw, unit in found  # type: ignore[arg-type]
            if (value := count_of(raw))]  # fmt: skip


def _llama_live(pages: Pages, metrics: Metrics) -> Live:
    slots = _slots(pages)
    running = whole(metrics.total("llamacpp:requests_processing"))
    if running is None and slots:
        running = sum(1 for slot in slots if slot.get("is_processing") is True)
    return Live(
        running=running,
        waiting=whole(metrics.total("llamacpp:requests_deferred")),
        usage=metrics.most("llamacpp:kv_cache_usage_ratio"),
        prompt_tokens=whole(metrics.total("llamacpp:prompt_tokens_total")),
        generation_tokens=whole(metrics.total("llamacpp:tokens_predicted_total")),
    )


def ollama(pages: Pages) -> Reading | None:
    """Ollama's reading: the model in memory first."""
    version, loaded = object_at(pages, "/api/version"), object_at(pages, "/api/ps").get("models")
    if not isinstance(version.get("version"), str) or not isinstance(loaded, list):
        return None
    first = next((m for m in loaded[:1000] if isinstance(m, dict)), {})
    context = count_of(first.get("context_length"))
    named, sizes = first.get("name"), (("size", "total_size"), ("size_vram", "gpu_size"))
    return Reading(
        log=Log(
            engine="ollama",
            program="Ollama",
            version=clean(version["version"], 60),
            model=clean(named, 400) if isinstance(named, str) else None,
            gpu=None,
            flags={"context_length": context} if context else {},
            figures=tuple(figure(name, value, "B") for key, name in sizes
                          if (value := count_of(first.get(key)))),
        ),
        live=Live(),
        notes=() if first else ("Ollama holds no model at the moment",),
    )  # fmt: skip


def tgi(pages: Pages) -> Reading | None:
    """TGI's reading, by the plain formula: kvproof has no rules of its own for it."""
    info = object_at(pages, "/info")
    if "max_total_tokens" not in info or "model_id" not in info:
        return None
    page = pages.get("/metrics")
    metrics = parse(page.text, ("tgi_",)) if page is not None else Metrics([])
    tokens, length = (count_of(info.get(k)) for k in ("max_batch_total_tokens", "max_total_tokens"))
    version = info.get("version")
    latency = metrics.latency("time per output token", "tgi_request_mean_time_per_token_duration")
    return Reading(
        log=Log(
            engine="formula",
            program="TGI",
            version=clean(version, 60) if isinstance(version, str) else None,
            model=clean(info["model_id"], 400) if isinstance(info["model_id"], str) else None,
            gpu=None,
            flags={"max_model_len": length} if length else {},
            figures=(figure("kv_cache_tokens", tokens, "token"),) if tokens else (),
        ),
        live=Live(
            running=whole(metrics.total("tgi_batch_current_size")),
            waiting=whole(metrics.total("tgi_queue_size")),
            latencies=(latency,) if latency else (),
        ),
        notes=("kvproof has no rules of its own for TGI: the plain formula is used",),
    )


def tensorrt_llm(pages: Pages) -> Reading | None:
    """trtllm-serve's reading: the last iteration that its /metrics tells of."""
    page = pages.get("/metrics")
    body = page.json() if page is not None else None
    rows = [r for r in body[-1000:] if isinstance(r, dict)] if isinstance(body, list) else []
    last = next((r for r in reversed(rows) if isinstance(r.get("kvCacheStats"), dict)), None)
    if last is None:
        return None
    stats = last["kvCacheStats"]
    blocks, used = count_of(stats.get("maxNumBlocks")), count_of(stats.get("usedNumBlocks")) or 0
    size = count_of(stats.get("tokensPerBlock"))
    rate, named = stats.get("cacheHitRate"), next((m.get("id") for m in models_of(pages)), None)
    version = object_at(pages, "/version").get("version")
    found = (("num_blocks", blocks, "block"), ("tokens_per_block", size, "token"))
    return Reading(
        log=Log(
            engine="tensorrt_llm",
            program="TensorRT-LLM",
            version=clean(version, 60) if isinstance(version, str) else None,
            model=clean(named, 400) if isinstance(named, str) else None,
            gpu=None,
            flags={"tokens_per_block": size} if size else {},
            figures=tuple(figure(n, v, u) for n, v, u in found if v),  # type: ignore[arg-type]
        ),
        live=Live(
            running=count_of(last.get("numActiveRequests")) or 0,
            waiting=count_of(last.get("numQueuedRequests")) or 0,
            usage=used / blocks if blocks else None,
            hit_rate=float(rate) if isinstance(rate, int | float) and 0 <= rate <= 1 else None,
        ),
    )
