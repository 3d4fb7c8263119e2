"""Attention over paged caches: a dense path for prefill, kernels that read blocks in place."""

from __future__ import annotations

import torch

from kvproof.lab.attention.dense import attend_dense
from kvproof.lab.attention.paged import can_decode, decode, decode_latent
from kvproof.lab.attention.view import View

__all__ = ["View", "attend"]


def attend(view: View, slot: int, q: torch.Tensor, *, scale: float, v_dim: int) -> torch.Tensor:
    """Outputs [tokens, heads, v_dim] of queries [tokens, heads, k_dim] over the slot's entries.

    The step's new entries must have been written. Decode steps run in the kernel, others (and
    shapes that the kernel does not take) gather and use torch.
    """
    if can_decode(view, slot):
        if len(view.planes(slot)[1]) == 1:
            return decode_latent(view, slot, q, scale, v_dim)
        return decode(view, slot, q, scale)
    return attend_dense(view, slot, q, scale=scale, v_dim=v_dim)
