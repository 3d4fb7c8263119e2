"""Weight bytes that one GPU of several holds: what tensor parallelism splits and what it copies."""

from __future__ import annotations

from kvproof.model.types import Model
from kvproof.model.weights import known_tensors, stored_bytes

# Copied to every rank: norms and routers, and MLA's down-projections, whose output all heads read.
_COPIED_ROLES = ("norm", "router", "position")
_COPIED_NAMES = ("q_a_proj", "kv_a_proj", "kv_a_proj_with_mqa", "indexer")


def rank_weight_bytes(model: Model, ranks: int, stages: int = 1) -> int:
    """Bytes on the largest of `ranks` x `stages` GPUs; tensors are split evenly."""
    total = 0
    for group in known_tensors(model):
        size = stored_bytes(model, group)
        copied = group.role in _COPIED_ROLES or any(n in group.name for n in _COPIED_NAMES)
        share = size if copied else -(-size // ranks)
        total += share if not group.layers else -(-share // stages)
    return total
