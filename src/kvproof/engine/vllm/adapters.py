"""Weights that a draft adds to the model's own.

Source: vLLM 0.32, model_executor/models/deepseek_mtp.py and llama_eagle.py. An estimate.
"""

from __future__ import annotations

from kvproof.engine.vllm.experts import expert_ranks
from kvproof.engine.vllm.settings import Settings
from kvproof.model.tensors import ENCODER_ROLES, TensorGroup
from kvproof.model.types import Model
from kvproof.model.weights import stored_bytes


def draft_bytes(model: Model, settings: Settings) -> int:
    """Bytes of an MTP module or EAGLE head: a last layer of the target and a fusing matrix."""
    draft = settings.draft
    if not draft.layers:
        return 0
    layer = sum(_of_last_layer(model, settings, group) for group in model.tensors)
    fused = {"eagle3": 3}.get(draft.method, 2) * model.hidden_size**2 * 2
    return draft.layers * (layer + fused // settings.ranks)


def _of_last_layer(model: Model, settings: Settings, group: TensorGroup) -> int:
    if model.layers - 1 not in group.layers or group.role in ENCODER_ROLES:
        return 0
    if group.role == "expert" and settings.draft.method not in ("mtp", "dspark"):
        return 0
    ranks = expert_ranks(settings) if group.role == "expert" else settings.ranks
    return stored_bytes(model, group) // len(group.layers) // ranks
