"""How a deployment shares out the routed experts."""

from __future__ import annotations

from kvproof.engine.base import prefill_copies
from kvproof.engine.vllm.settings import Settings
from kvproof.model.types import Model


def deals_experts(settings: Settings) -> bool:
    """Whether ranks hold whole experts: no expert's matrices are split."""
    return bool(settings.flags.get("enable_expert_parallel"))


def copied_experts(model: Model, settings: Settings) -> float:
    """Experts that are held, copies of hot ones among them, over those that the model has.

    Source: vLLM 0.32, model_executor/layers/fused_moe/layer.py (global_num_experts); without
    enable_eplb vLLM refuses them.
    """
    flags = settings.flags
    config = flags.get("eplb_config") or {}
    copies = config.get("num_redundant_experts") or flags.get("num_redundant_experts") or 0
    if not flags.get("enable_eplb") or not model.experts:
        return 1.0
    return (model.experts + int(copies)) / model.experts


def expert_ranks(settings: Settings) -> int:
    """Ranks that share the experts out, or split each of them (flatten_tp_across_dp_and_pcp)."""
    return settings.ranks * settings.replicas * prefill_copies(settings.flags)
