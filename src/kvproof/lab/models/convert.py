"""MHA to GQA: each group of key and value heads becomes their mean (Ainslie et al., 2023).

The converted model has the cache of its fewer heads at once; its quality comes back only with some
training (the paper: about 5 % of the original), which the lab does not do.
"""

from __future__ import annotations

import msgspec
import torch

from kvproof.errors import UsageError
from kvproof.lab.models.runner import Runner


def to_gqa(runner: Runner, kv_heads: int) -> Runner:
    """The same model with `kv_heads` KV heads, each the mean of its group.

    Raises UsageError unless `kv_heads` divides the model's.
    """
    body = runner.body
    if body.latent is not None or kv_heads < 1 or body.kv_heads % kv_heads:
        raise UsageError(f"{body.kv_heads} KV heads can't be pooled to {kv_heads}")
    weights = dict(runner.weights)
    for layer in range(body.layers):
        for name in ("k", "v"):
            weights[f"{layer}.{name}"] = pool_heads(
                weights[f"{layer}.{name}"], body.kv_heads, kv_heads
            )
    return Runner(msgspec.structs.replace(body, kv_heads=kv_heads), weights)


def pool_heads(weight: torch.Tensor, heads: int, groups: int) -> torch.Tensor:
    """Means of `groups` equal groups of heads along the rows of a projection."""
    rows, width = weight.shape
    parts = weight.view(groups, heads // groups, rows // heads, width)
    return parts.float().mean(1).to(weight.dtype).reshape(-1, width)
