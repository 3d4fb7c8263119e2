"""Weight bytes that one GPU of several holds: what tensor parallelism splits and what it copies."""

from __future__ import annotations

from kvproof.model.tensors import ENCODER_ROLES, TensorGroup
from kvproof.model.types import Model
from kvproof.model.weights import known_tensors, stored_bytes

# Copied to every rank: norms and routers, and MLA's down-projections, whose output all heads read.
COPIED_ROLES = ("norm", "router", "position")
_COPIED_NAMES = ("q_a_proj", "kv_a_proj", "kv_a_proj_with_mqa", "indexer")
_KEPT_ROLES = ("head", "embedding", "router", *ENCODER_ROLES)
_ASKED_BITS = (
    (("mxfp4",), 4 + 8 / 32),
    (("fp4",), 4 + 8 / 16),
    (("bitsandbytes",), 4 + 32 / 64),
    (("awq", "gptq", "int4", "w4a16", "w4afp8", "auto_round"), 4 + 32 / 128),
    (("fp8", "w8a8", "int8", "modelopt", "fbgemm"), 8.0),
)
"""Bits a weight by a part of the flag's name, first match: a number's, and its share of the scale.

Groups and scales are those of model/quantization.py: MXFP4's 8 bits for 32 weights, NVFP4's for
16, bitsandbytes' an f32 for 64 (bitsandbytes_loader.py, dequantize_dq), and a scale and a zero
point of 16 bits each for 128 of the integer formats.
"""


def rank_weight_bytes(
    model: Model,
    ranks: int,
    part: range | None = None,
    attention_ranks: int | None = None,
    quantization: str | None = None,
    hosted: int = 0,
) -> int:
    """Bytes on one GPU of the stage that holds the layers `part` (None: all); split evenly.

    `attention_ranks`: the ranks that one attention replica is split over, where attention runs
    data-parallel; each replica then has the embedding whole. `quantization`: the engine's flag,
    which speaks for a config that names no scheme. `hosted`: bytes of the decoder's layers that
    every rank keeps in host memory instead.
    """
    if not model.tensors and model.stored_weight_bytes is not None:
        return max(0, even_part(model, model.stored_weight_bytes, part) // ranks - hosted)
    layers = rest = 0
    for group in known_tensors(model):
        size = loaded_bytes(model, group, quantization)
        share = -(-size // _ways(group, ranks, attention_ranks or ranks))
        share = -(-share * _held(model, group, part) // max(1, len(group.layers)))
        if group.layers and group.role not in ENCODER_ROLES:
            layers += share
        else:
            rest += share
    return rest + max(0, layers - hosted)


def even_part(model: Model, size: int, part: range | None) -> int:
    """A stage's part of a checkpoint of which only the bytes are known, layer by layer."""
    if part is None or not model.layers:
        return size
    return size * sum(layer < model.layers for layer in part) // model.layers


def _held(model: Model, group: TensorGroup, part: range | None) -> int:
    """Of a group's layers, those in a stage; 1 or 0 for a group without layers."""
    if part is None or group.role in ENCODER_ROLES:
        return max(1, len(group.layers))
    if group.layers:
        return sum(layer in part for layer in group.layers)
    last = part.stop >= model.layers
    if group.role == "embedding":
        return int(part.start == 0 or (last and model.tied))
    return int(last)


def loaded_bytes(model: Model, group: TensorGroup, asked: str | None) -> int:
    """Bytes of a group as loaded; `asked`, the engine's flag, speaks where no scheme is named."""
    size = stored_bytes(model, group)
    if not asked or model.quantization is not None:
        return size
    if not group.linear or group.role in _KEPT_ROLES:
        return size
    name = str(asked).lower().replace("-", "_")
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
    if group.role in COPIED_ROLES or any(name in group.name for name in _COPIED_NAMES):
        return 1
    if group.role == "attention":
        return attention
    return 1 if group.role == "embedding" and attention < ranks else ranks
