"""vLLM: its flags by release, its block pool, its memory budget.

`capacity` equals the planner of vLLM 0.32 (tests/ground_truth/vllm_cases.json); `versions`
holds what earlier releases did otherwise. `budget` is an estimate with an interval.
"""

from __future__ import annotations

from kvproof.engine.base import Cache, CacheRequest, Deployment
from kvproof.engine.vllm.budget import budget, refusals_for
from kvproof.engine.vllm.flags import read_flags
from kvproof.engine.vllm.planner import VllmCapacity, VllmGroup, capacity
from kvproof.engine.vllm.sequence import sequence_cache
from kvproof.model.types import Model

__all__ = [
    "VllmCapacity",
    "VllmGroup",
    "budget",
    "cache",
    "capacity",
    "check_flags",
    "refusals_for",
]


def check_flags(deployment: Deployment) -> None:
    """Raise UsageError for a flag that vLLM does not have or a value it can't read."""
    read_flags(deployment)


def cache(model: Model, request: CacheRequest, version: str | None = None) -> Cache:
    """Bytes that sequences hold in vLLM's blocks on one GPU."""
    return sequence_cache(model, request, version)
