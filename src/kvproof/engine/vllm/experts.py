"""How a deployment shares out the routed experts."""

from __future__ import annotations

from kvproof.engine.base import prefill_copies
from kvproof.engine.vllm.settings import Settings


def deals_experts(settings: Settings) -> bool:
    """Whether ranks hold whole experts: no expert's matrices are split."""
    return bool(settings.flags.get("enable_expert_parallel"))


def expert_ranks(settings: Settings) -> int:
    """Ranks that share the experts out, or split each of them (flatten_tp_across_dp_and_pcp)."""
    return settings.ranks * settings.replicas * prefill_copies(settings.flags)
