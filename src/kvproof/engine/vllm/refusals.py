"""What vLLM refuses to start with, found before anything is computed.

Source: vLLM 0.32, config/model.py (verify_with_parallel_config) and the models' constructors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvproof.engine.base import Deployment
from kvproof.errors import UsageError
from kvproof.kinds import ConvSlot, FullSlot, LatentSlot, RecurrentSlot, SlidingSlot
from kvproof.model.types import Model

EXPANDED = ("minicpm3",)
"""Model types whose latents vLLM does not keep."""
_NO_STAGES = ("gemma3n",)
"""Model types without pipeline parallelism in vLLM."""


def check_parallel(model: Model, deployment: Deployment, flags: Mapping[str, Any]) -> None:
    """Raise UsageError for ranks, stages or replicas that vLLM can't run the model on."""
    ranks = flags.get("tensor_parallel_size", 1)
    stages = flags.get("pipeline_parallel_size", 1)
    _check_heads(model, ranks)
    if stages > model.layers:
        raise UsageError(
            f"pipeline_parallel_size {stages} exceeds the {model.layers} layers of {model.name}",
            hint="choose fewer stages",
        )
    if stages > 1 and model.model_type.startswith(_NO_STAGES):
        raise UsageError(
            f"vLLM has no pipeline parallelism for {model.name}", hint="use tensor_parallel_size"
        )
    _check_context(model, ranks, flags.get("decode_context_parallel_size", 1))
    _check_states(model, ranks)
    world = ranks * stages * flags.get("data_parallel_size", 1)
    gpus = deployment.gpu_count
    if gpus is not None and gpus % world:
        raise UsageError(
            f"{gpus} GPUs are no multiple of the {world} that one copy takes",
            hint="change the count or the parallel sizes",
        )


def _check_heads(model: Model, ranks: int) -> None:
    if model.attention_heads and model.attention_heads % ranks:
        raise UsageError(
            f"tensor_parallel_size {ranks} does not divide the {model.attention_heads} attention "
            f"heads of {model.name}",
            hint="vLLM refuses this; choose a divisor",
        )
    if model.model_type.startswith("gpt_oss") and ranks > _kv_heads(model):
        raise UsageError(
            f"{model.name} has {_kv_heads(model)} KV heads: vLLM 0.32 fails on it with "
            f"tensor_parallel_size {ranks}",
            hint="use no more ranks than KV heads",
        )


def _kv_heads(model: Model) -> int:
    return max((slot.kv_heads for slot in model.slots if isinstance(slot, FullSlot)), default=1)


def _check_context(model: Model, ranks: int, context: int) -> None:
    """Decode context parallelism shares out the ranks that would hold copies of a KV head."""
    if context == 1:
        return
    if any(isinstance(slot, SlidingSlot) for slot in model.slots):
        raise UsageError(
            "vLLM has no decode context parallelism for sliding-window layers",
            hint="set decode_context_parallel_size=1",
        )
    latent = any(isinstance(slot, LatentSlot) for slot in model.slots)
    expanded = model.model_type.startswith(EXPANDED)
    if latent and not expanded:
        return
    heads = model.attention_heads if expanded else _kv_heads(model)
    if ranks <= heads or context > ranks // heads:
        raise UsageError(
            f"decode_context_parallel_size {context} needs as many copies of each of the "
            f"{heads} KV heads: tensor_parallel_size {ranks} makes {max(1, ranks // heads)}",
            hint="raise tensor_parallel_size or lower decode_context_parallel_size",
        )
    if model.attention_heads // heads % context:
        raise UsageError(
            f"decode_context_parallel_size {context} does not divide the "
            f"{model.attention_heads // heads} query heads of a KV head",
            hint="choose a divisor",
        )


def _check_states(model: Model, ranks: int) -> None:
    for slot in model.slots:
        if isinstance(slot, RecurrentSlot) and slot.heads % ranks:
            raise UsageError(
                f"tensor_parallel_size {ranks} does not divide the {slot.heads} state heads of "
                f"{model.name}",
                hint="vLLM refuses this; choose a divisor",
            )
        if isinstance(slot, ConvSlot) and slot.groups > 1 and slot.groups % ranks:
            raise UsageError(
                f"tensor_parallel_size {ranks} does not divide the {slot.groups} state groups of "
                f"{model.name}",
                hint="vLLM refuses this; choose a divisor",
            )
