"""Weight bytes that one GPU of several holds: what tensor parallelism splits and what it copies."""

from __future__ import annotations

from kvproof.model.tensors import TensorGroup
from kvproof.model.types import Model
from kvproof.model.weights import known_tensors, stored_bytes

# Copied to every rank: norms and routers, and MLA's down-projections, whose output all heads read.
_COPIED_ROLES = ("norm", "router", "position")
_COPIED_NAMES = ("q_a_proj", "kv_a_proj", "kv_a_proj_with_mqa", "indexer")


def rank_weight_bytes(
    model: Model, ranks: int, stages: int = 1, attention_ranks: int | None = None
) -> int:
    """Bytes on the largest of `ranks` x `stages` GPUs; tensors are split evenly.

    `attention_ranks`: the ranks that one attention replica is split over, where attention runs
    data-parallel; each replica then has the embedding whole.
    """
    total = 0
    for group in known_tensors(model):
        share = -(-stored_bytes(model, group) // _ways(group, ranks, attention_ranks or ranks))
        total += share if not group.layers else -(-share // stages)
    return total


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
