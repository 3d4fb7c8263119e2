"""Weights that a draft adds to the model's own.

Source: vLLM 0.32, model_executor/models/deepseek_mtp.py and llama_eagle.py. An estimate.
"""

from __future__ import annotations

from math import prod

from kvproof.engine.drafts import own_tensors
from kvproof.engine.rank_weights import rank_weight_bytes
from kvproof.engine.vllm.experts import expert_ranks
from kvproof.engine.vllm.settings import Settings
from kvproof.model.quantization import ALWAYS_KEPT
from kvproof.model.tensors import ENCODER_ROLES, TensorGroup
from kvproof.model.types import Model
from kvproof.model.weights import stored_bytes

_BF16 = 2


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
    count = group.count // len(group.layers)
    if settings.draft.method == "mtp" and _kept(model, group):
        return count * prod(group.shape) * _BF16 // ranks
    return stored_bytes(model, group) // len(group.layers) // ranks


def _kept(model: Model, group: TensorGroup) -> bool:
    """Whether a quantized checkpoint leaves its MTP modules as they were trained.

    They are called `mtp`, or are one layer more than the model has. NVIDIA's checkpoints in NVFP4
    whose lists are at hand all keep them, so those without a list are taken to.
    """
    if model.quantization is None:
        return False
    listed = set(model.quantization.ignore) - set(ALWAYS_KEPT)
    if model.quantization.method == "modelopt" and not listed:
        return True
    own = group.name.rpartition("{}.")[2] if group.name.count("{}") == 1 else ""
    names = (f"mtp.layers.0.{own}", group.name.replace("{}", str(model.layers), 1))
    return any(model.quantization.keeps(name.replace("{}", "0")) for name in names)
