"""Attention the plain way: gather a sequence's entries, dequantise, and let torch do the rest.

It serves prefill, and is what the kernels are compared with.
"""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention

from kvproof.lab.attention.view import GroupView, View
from kvproof.lab.pool.planes import Plane
from kvproof.lab.pool.tables import Table


def attend_dense(
    view: View, slot: int, q: torch.Tensor, *, scale: float, v_dim: int
) -> torch.Tensor:
    """Outputs [tokens, heads, v_dim] of queries [tokens, heads, k_dim], each sequence's own.

    A latent slot has one plane: its vectors are the keys, their first `v_dim` numbers the values.
    """
    group, planes = view.planes(slot)
    out, start = [], 0
    for table, count in zip(group.sources, view.counts, strict=True):
        k, v = read_table(table, planes, v_dim)
        mask = visible(group, table.entries, count)
        out.append(attend(q[start : start + count], k, v, mask, scale))
        start += count
    return torch.cat(out)


def read_table(
    table: Table, planes: tuple[Plane, ...], v_dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of all entries of a table, [entries, heads, dim] in f32."""
    blocks = torch.tensor(table.blocks, dtype=torch.long)
    entries = slice(0, table.entries)
    k = planes[0].read(blocks, entries)
    v = planes[1].read(blocks, entries) if len(planes) == 2 else k[..., :v_dim]
    return k, v


def visible(group: GroupView, entries: int, count: int) -> torch.Tensor | None:
    """Which entries each of the last `count` queries sees; None when it is all of them."""
    window = group.group.window
    if count == 1 and (window is None or entries <= window):
        return None
    query = torch.arange(entries - count, entries)[:, None]
    key = torch.arange(entries)[None]
    mask = key <= query
    return mask if window is None else mask & (key > query - window)


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, scale: float
) -> torch.Tensor:
    """Scaled dot-product attention of [tokens, heads, dim] tensors with grouped heads."""
    shaped = (q.float().transpose(0, 1)[None], k.transpose(0, 1)[None], v.transpose(0, 1)[None])
    out = scaled_dot_product_attention(*shaped, attn_mask=mask, scale=scale, enable_gqa=True)
    return out[0].transpose(0, 1).to(q.dtype)
