"""Weights that a draft adds to the model's own.

Source: vLLM 0.32, model_executor/models/deepseek_mtp.py and llama_eagle.py. An estimate.
"""

from __future__ import annotations

from kvproof.engine.drafts import own_tensors
from kvproof.engine.rank_weights import rank_weight_bytes
from kvproof.engine.vllm.experts import expert_ranks
from kvproof.engine.vllm.settings import Settings
from kvproof.model.tensors import ENCODER_ROLES, TensorGroup
from kvproof.model.types import Model
from kvproof.model.weights import stored_bytes


def draft_bytes(model: Model, settings: Settings) -> int:
    """Bytes of a draft: its own tensors where its config is known (an EAGLE head reads the target's
    embedding and head), else a last layer of the target; a head or MTP module also has a matrix
    that joins its two or three inputs.
    """
    draft = settings.draft
    if not draft.layers:
        return 0
    own = draft.model
    if own is not None and own.tensors:
        if draft.method == "draft_model":
            return rank_weight_bytes(own, settings.ranks)
        head = own_tensors(own, heads=draft.method != "eagle3")
        return rank_weight_bytes(head, settings.ranks) + _fused(model, settings)
    layer = sum(_of_last_layer(model, settings, group) for group in model.tensors)
    return draft.layers * (layer + _fused(model, settings))


def _fused(model: Model, settings: Settings) -> int:
    inputs = 3 if settings.draft.method == "eagle3" else 2
    return inputs * model.hidden_size**2 * 2 // settings.ranks


def _of_last_layer(model: Model, settings: Settings, group: TensorGroup) -> int:
    if model.layers - 1 not in group.layers or group.role in ENCODER_ROLES:
        return 0
    if group.role == "expert" and settings.draft.method not in ("mtp", "dspark"):
        return 0
    ranks = expert_ranks(settings) if group.role == "expert" else settings.ranks
    return stored_bytes(model, group) // len(group.layers) // ranks
