"""How a deployment shares out the routed experts."""

from __future__ import annotations

from kvproof.engine.vllm.settings import Settings


def expert_ranks(settings: Settings) -> int:
    """Ranks that share the experts out."""
    if settings.flags.get("enable_expert_parallel") or settings.replicas > 1:
        return settings.ranks * settings.replicas
    return settings.ranks
