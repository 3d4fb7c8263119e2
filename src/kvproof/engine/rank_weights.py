"""Weight bytes that one GPU of several holds: what tensor parallelism splits and what it copies."""

from __future__ import annotations

from kvproof.model.tensors import ENCODER_ROLES, TensorGroup
from kvproof.model.types import Model
from kvproof.model.weights import known_tensors, stored_bytes

# Copied to every rank: norms and routers, and MLA's down-projections, whose output all heads read.
_COPIED_ROLES = ("norm", "router", "position")
_COPIED_NAMES = ("q_a_proj", "kv_a_proj", "kv_a_proj_with_mqa", "indexer")
_KEPT_ROLES = ("head", "embedding", "router", *ENCODER_ROLES)
_ASKED_BITS = (
    (("mxfp4",), 4 + 8 / 32),
    (("fp4",), 4 + 8 / 16),
    (("awq", "gptq", "int4", "w4a16", "w4afp8", "auto_round", "bitsandbytes"), 4 + 32 / 128),
    (("fp8", "w8a8", "int8", "modelopt", "fbgemm"), 8.0),
)
"""Bits a weight by a part of the flag's name, first match: a number's, and its share of the scale.

Groups and scales are those of model/quantization.py: MXFP4's 8 bits for 32 weights, NVFP4's for
16, and a scale and a zero point of 16 bits each for 128 of the integer formats.
"""


def rank_weight_bytes(
    model: Model,
    ranks: int,
    stages: int = 1,
    attention_ranks: int | None = None,
    quantization: str | None = None,
) -> int:
    """Bytes on the largest of `ranks` x `stages` GPUs; tensors are split evenly.

    `attention_ranks`: the ranks that one attention replica is split over, where attention runs
    data-parallel; each replica then has the embedding whole. `quantization`: the engine's flag,
    which speaks for a config that names no scheme.
    """
    total = 0
    for group in known_tensors(model):
        size = loaded_bytes(model, group, quantization)
        share = -(-size // _ways(group, ranks, attention_ranks or ranks))
        total += share if not group.layers else -(-share // stages)
    return total


def loaded_bytes(model: Model, group: TensorGroup, asked: str | None) -> int:
    """Bytes of a group as loaded; `asked`, the engine's flag, speaks where no scheme is named."""
    size = stored_bytes(model, group)
    if not asked or model.quantization is not None:
        return size
    if not group.linear or group.role in _KEPT_ROLES:
        return size
    name = asked.lower().replace("-", "_")
    bits = next((bits for parts, bits in _ASKED_BITS if any(part in name for part in parts)), 16)
    return int(size * bits / 16)


def layer_weight_bytes(model: Model, ranks: int) -> int:
    """Bytes of the last layer on one rank, and of a projection of two hidden states to one.

    What a multi-token-prediction layer that ships with the model adds.
    """
    last = model.layers - 1
    total = 2 * model.hidden_size**2 * 2
    for group in known_tensors(model):
        if last in group.layers:
            size = stored_bytes(model, group) // len(group.layers)
            total += -(-size // _ways(group, ranks, ranks))
    return total


def _ways(group: TensorGroup, ranks: int, attention: int) -> int:
    """Over how many ranks a tensor is split."""
    if group.role in _COPIED_ROLES or any(name in group.name for name in _COPIED_NAMES):
        return 1
    if group.role == "attention":
        return attention
    return 1 if group.role == "embedding" and attention < ranks else ranks
