"""How a deployment shares out the routed experts."""

from __future__ import annotations

from kvproof.engine.vllm.settings import Settings


def deals_experts(settings: Settings) -> bool:
    """Whether ranks hold whole experts: no expert's matrices are split."""
    return bool(settings.flags.get("enable_expert_parallel"))


def expert_ranks(settings: Settings) -> int:
    """Ranks that share the experts out."""
    if deals_experts(settings) or settings.replicas > 1:
        return settings.ranks * settings.replicas
    return settings.ranks
