"""Experiments: each runs a real cache and returns what was predicted and what was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvproof.lab.experiments.evicting import evict
    from kvproof.lab.experiments.quality import quantize
    from kvproof.lab.experiments.ranks import parallel
    from kvproof.lab.experiments.serving import batch, preempt, prefix
    from kvproof.lab.experiments.sizes import blocks, bytes
    from kvproof.lab.experiments.speed import attention, bandwidth, cache_or_not

# name -> (module, what it answers in one line)
EXPERIMENTS = {
    "bytes": ("sizes", "Bytes of pools, tensors and the process against the plan."),
    "cache_or_not": ("speed", "A generation with and without the cache."),
    "attention": ("speed", "MHA, GQA, MQA and MLA: bytes and speed."),
    "quantize": ("quality", "Bytes, speed, KL divergence and perplexity by key and value type."),
    "evict": ("evicting", "Bytes kept, perplexity and recall by eviction policy and budget."),
    "blocks": ("sizes", "Waste and indirection against block size, 1 to 256."),
    "prefix": ("serving", "Prefill saved against shared length."),
    "preempt": ("serving", "Swapping against recomputing."),
    "batch": ("serving", "Throughput and latency until the pool is full."),
    "parallel": ("ranks", "Tensor parallelism over processes: what each rank keeps."),
    "bandwidth": ("speed", "Decode time against context, and the share of memory bandwidth."),
}

__all__ = [
    "EXPERIMENTS",
    "attention",
    "bandwidth",
    "batch",
    "blocks",
    "bytes",
    "cache_or_not",
    "evict",
    "parallel",
    "preempt",
    "prefix",
    "quantize",
]


def __getattr__(name: str) -> Any:
    """Experiments are imported when first asked for."""
    if name not in EXPERIMENTS:
        raise AttributeError(f"module 'kvproof.lab.experiments' has no attribute {name!r}")
    from importlib import import_module

    module = import_module(f"kvproof.lab.experiments.{EXPERIMENTS[name][0]}")
    return getattr(module, name)
