"""vLLM's pages, and those of servers that speak its names (the lab's own does).

/metrics has one line of settled configuration, `vllm:cache_config_info`, whose labels are the
fields of CacheConfig after start-up (vllm/config/cache.py: metrics_info), in newer releases with
the tokens and the concurrency that the log prints. `block_size` there is the smallest of the
groups' block sizes, the scheduler's unit (v1/engine/core.py). Blocks are taken as reported: the
platform chooses them where no flag does, and no page tells the platform. Newer servers add
`vllm:vllm_config_info` with every other part of the configuration under `PART_config_FIELD`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvproof.kinds import ELEMENT_TYPES
from kvproof.observe.figures import Figure, Log
from kvproof.observe.flags import scalar
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

PATHS = ("/v1/models", "/metrics", "/version")
_ENGINE_LABELS = ("engine", "engine_index")
# CacheConfig's fields that are flags of the same or another name.
_FLAGS = {
    "cache_dtype": "kv_cache_dtype", "enable_prefix_caching": "enable_prefix_caching",
    "gpu_memory_utilization": "gpu_memory_utilization",
    "num_gpu_blocks_override": "num_gpu_blocks_override",
    "kv_cache_memory_bytes": "kv_cache_memory_bytes", "mamba_block_size": "mamba_block_size",
    "mamba_cache_dtype": "mamba_cache_dtype", "mamba_cache_mode": "mamba_cache_mode",
    "mamba_ssm_cache_dtype": "mamba_ssm_cache_dtype",
}  # fmt: skip
_PARTS = {
    "parallel": ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size",
                 "decode_context_parallel_size", "enable_expert_parallel"),
    "scheduler": ("max_num_seqs", "max_num_batched_tokens"),
    "model": ("max_model_len", "dtype", "quantization"),
}  # fmt: skip
# What attention layers were settled on (0.32 on), else the smallest block of all groups.
_BLOCKS = ("effective_attention_block_size", "block_size")
_BYTES = ("kv_cache_memory_bytes", "cpu_kvcache_space_bytes")


def read(pages: Pages) -> Reading | None:
    """vLLM's reading; None when /metrics holds none of its names."""
    page = pages.get("/metrics")
    metrics = parse(page.text, ("vllm:",)) if page is not None else None
    if not metrics:
        return None
    infos = metrics.all("vllm:cache_config_info")
    labels = infos[0].labels if infos else {}
    lab = owner(pages) == "kvproof"
    figures = [f for info in infos for f in _figures(info.labels)]
    notes = () if infos else ("/metrics has no vllm:cache_config_info: give the flags after --",)
    if lab and labels.get("cache_dtype") not in ELEMENT_TYPES:
        figures = [f for f in figures if f.unit != "B"]
        notes = ("the lab's integers have scales of their own: kvproof lab bytes compares them",)
    return Reading(
        log=Log(
            engine="formula" if lab else "vllm",
            program="kvproof lab" if lab else "vLLM",
            version=_version(pages),
            model=_model(pages),
            gpu=None,
            flags=_lab_flags(labels) if lab else _flags(pages, metrics, labels),
            figures=tuple(figures),
        ),
        live=_live(metrics),
        notes=notes,
    )


def _version(pages: Pages) -> str | None:
    found = object_at(pages, "/version").get("version")
    return clean(found, 60) if isinstance(found, str) else None


def _model(pages: Pages) -> str | None:
    """What was loaded (`root`), else the name that it is served under."""
    entry = next(iter(models_of(pages)), {})
    found = entry.get("root") or entry.get("id")
    return clean(found, 400) if isinstance(found, str) else None


def _figures(labels: Mapping[str, str]) -> list[Figure]:
    """Blocks, tokens, concurrency, and bytes where they were asked for, of one engine."""
    worker = next((labels[n] for n in _ENGINE_LABELS if n in labels), None)
    out = []
    for label, name, unit in (
        ("num_gpu_blocks", "num_blocks", "block"),
        ("kv_cache_size_tokens", "kv_cache_tokens", "token"),
        ("block_size", "scheduler_block_size", "token"),
    ):
        value = count_of(labels.get(label))
        if value is not None:
            out.append(figure(name, value, unit, worker=worker))  # type: ignore[arg-type]
    ratio = scalar(labels.get("kv_cache_max_concurrency", ""))
    if isinstance(ratio, float | int) and ratio > 0:
        out.append(figure("max_concurrency", ratio, "x", step=1e-6 * ratio, worker=worker))
    size = next((n for label in _BYTES if (n := count_of(labels.get(label)))), None)
    if size is not None:
        out.append(figure("available_kv_memory", size, "B", worker=worker))
    return out


def _lab_flags(labels: Mapping[str, str]) -> dict[str, Any]:
    """The plain formula's inputs, which the lab's pool follows."""
    out: dict[str, Any] = {"block_size": count_of(labels.get("block_size"))}
    dtype = labels.get("cache_dtype")
    return {k: v for k, v in {**out, "kv_cache_dtype": dtype}.items() if v is not None}


def _flags(pages: Pages, metrics: Metrics, labels: Mapping[str, str]) -> dict[str, Any]:
    out = {flag: _value(labels[label]) for label, flag in _FLAGS.items() if label in labels}
    out["block_size"] = next((n for label in _BLOCKS if (n := count_of(labels.get(label)))), None)
    if count_of(labels.get("cpu_kvcache_space_bytes")):
        out["device"] = "cpu"
    entry = next(iter(models_of(pages)), {})
    out["max_model_len"] = count_of(entry.get("max_model_len"))
    for info in metrics.all("vllm:vllm_config_info")[:1]:
        for part, names in _PARTS.items():
            found = {n: info.labels.get(f"{part}_config_{n}") for n in names}
            out.update({n: _value(v) for n, v in found.items() if v is not None})
    return {name: value for name, value in out.items() if value is not None}


def _value(text: str) -> Any:
    """A label's value as Python would print it; None for what was not set."""
    read = scalar(text.removeprefix("torch."))
    return None if read == "None" else read


def _live(metrics: Metrics) -> Live:
    prompts = metrics.latency("prompt", "vllm:request_prompt_tokens")
    made = metrics.latency("made", "vllm:request_generation_tokens")
    found = (
        metrics.latency("time to first token", "vllm:time_to_first_token_seconds"),
        metrics.latency("time per output token", "vllm:request_time_per_output_token_seconds",
                        "vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
        metrics.latency("whole request", "vllm:e2e_request_latency_seconds"),
    )  # fmt: skip
    return Live(
        running=whole(metrics.total("vllm:num_requests_running")),
        waiting=whole(metrics.total("vllm:num_requests_waiting")),
        usage=metrics.most("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        preemptions=whole(metrics.total("vllm:num_preemptions_total", "vllm:num_preemptions")),
        queried_tokens=whole(metrics.total(*_either("prefix_cache_queries"))),
        hit_tokens=whole(metrics.total(*_either("prefix_cache_hits"))),
        prompt_tokens=whole(metrics.total("vllm:prompt_tokens_total")),
        generation_tokens=whole(metrics.total("vllm:generation_tokens_total")),
        mean_context=prompts.mean + made.mean / 2 if prompts and made else None,
        latencies=tuple(latency for latency in found if latency is not None),
    )


def _either(name: str) -> tuple[str, ...]:
    """A counter's name now and before V1's renaming."""
    return (f"vllm:{name}_total", f"vllm:{name}", f"vllm:gpu_{name}_total")
