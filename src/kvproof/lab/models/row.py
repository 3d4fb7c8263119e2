"""One token through a layer in two kernels: what a decode step of one sequence runs.

A torch operation on one row costs more in its call than in its arithmetic, and a step of a small
model has hundreds of them. So all that lies before a layer's attention is one kernel (`enter`:
norm, queries, keys and values, their norms and rotary positions) and all that follows it another
(`leave`: output projection, norms, feed-forward). Sums and what lies between are f32, whatever the
weights are stored in.
"""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# ruff: noqa: ANN001, ANN201, ANN202, PLR0913

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numba import njit, prange

from kvproof.lab.attention import threads
from kvproof.lab.models.body import Body
from kvproof.lab.models.matvec import KINDS, ROWS, WIDTH, some_rows
from kvproof.lab.pool.planes import flat

_PARTS = 4  # pieces of a matrix for each thread
_NOTHING = np.zeros(0, np.float32)
_MATRICES = ("q", "k", "v", "o", "gate", "up", "down")


def fits(body: Body, weights: Mapping[str, torch.Tensor]) -> bool:
    """Whether the kernels run this body: no latents, matrices in whole vectors, f32 or bf16."""
    widths = (body.hidden, body.ffn, body.heads * body.head_dim, body.kv_heads * body.head_dim)
    stored = {weights[f"{i}.{m}"].dtype for i in range(body.layers) for m in _MATRICES
              if body.latent is None}  # fmt: skip
    return len(stored) == 1 and stored <= KINDS.keys() and not any(w % WIDTH for w in widths)


class Row:
    """A body's layers as the two kernels see them: flat arrays over the runner's own tensors."""

    def __init__(self, body: Body, weights: Mapping[str, torch.Tensor]) -> None:
        self.body, self.kind = body, KINDS[weights["0.q"].dtype]
        self.layers = [_Layer(weights, i) for i in range(body.layers)]

    def enter(
        self, layer: int, x: np.ndarray[Any, Any], turn: tuple[np.ndarray[Any, Any], ...]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values [1, heads, dim] of the row `x`, positions turned in."""
        body, at = self.body, self.layers[layer]
        q, k, v = (np.empty(n * body.head_dim, np.float32)
                   for n in (body.heads, body.kv_heads, body.kv_heads))  # fmt: skip
        with threads.numba_threads():
            enter = enter_kernel(self.kind, threads.count() > 1)
            enter(x, at.attn_norm, body.eps, at.q, at.k, at.v, at.q_norm, at.k_norm, *turn,
                  q, k, v, threads.count() * _PARTS)  # fmt: skip
        shaped = (torch.from_numpy(t).view(1, -1, body.head_dim) for t in (q, k, v))
        return next(shaped), next(shaped), next(shaped)

    def leave(self, layer: int, x: np.ndarray[Any, Any], attended: torch.Tensor) -> None:
        """Add to `x` what the layer's attention and feed-forward give."""
        body, at = self.body, self.layers[layer]
        given = attended.reshape(-1).numpy()
        with threads.numba_threads():
            leave = leave_kernel(self.kind, gelu if body.gemma else silu, threads.count() > 1)
            hidden, parts = np.empty(body.ffn, np.float32), threads.count() * _PARTS
            leave(x, given, body.eps, at.o, at.attn_post, at.ffn_norm, at.gate, at.up, at.down,
                  at.ffn_post, hidden, parts)  # fmt: skip


class _Layer:
    """Flat arrays of one layer's weights; norms in f32, empty where the body has none."""

    def __init__(self, weights: Mapping[str, torch.Tensor], layer: int) -> None:
        def norm(name: str) -> np.ndarray[Any, Any]:
            found = weights.get(f"{layer}.{name}")
            return _NOTHING if found is None else found.float().numpy()

        self.q, self.k, self.v, self.o, self.gate, self.up, self.down = (
            flat(weights[f"{layer}.{name}"]) for name in _MATRICES
        )
        self.attn_norm, self.ffn_norm = norm("attn_norm"), norm("ffn_norm")
        self.attn_post, self.ffn_post = norm("attn_post_norm"), norm("ffn_post_norm")
        self.q_norm, self.k_norm = norm("q_norm"), norm("k_norm")


@njit(nogil=True)
def normed(x, first, size, weight, eps, out):
    """out[first:first + size] = RMS norm of those numbers of x, times the weight."""
    total = 0.0
    for i in range(first, first + size):
        total += x[i] * x[i]
    factor = np.float32(1.0 / math.sqrt(total / size + eps))
    for i in range(size):
        out[first + i] = weight[i] * (x[first + i] * factor)


@njit(nogil=True)
def turned(x, cos, sin, norm, eps):
    """Norm each head of x (where there is a norm) and turn it by its rotary angles, in place."""
    dim = cos.size
    half = dim // 2
    for start in range(0, x.size, dim):
        if norm.size:
            normed(x, start, dim, norm, eps, x)
        for i in range(half):
            low, high = x[start + i], x[start + half + i]
            x[start + i] = low * cos[i] - high * sin[i]
            x[start + half + i] = high * cos[half + i] + low * sin[half + i]


@lru_cache(maxsize=8)
def enter_kernel(kind: int, parallel: bool) -> Any:
    """enter(x, norm, ...): queries, keys and values of a row, for an element type."""
    rows = some_rows(kind)

    @njit(nogil=True, parallel=parallel)
    def enter(x, norm, eps, wq, wk, wv, q_norm, k_norm, cos, sin, q, k, v, parts):
        h = np.empty_like(x)
        normed(x, 0, x.size, norm, eps, h)
        after_q, after_k = q.size, q.size + k.size
        tiles = (after_k + v.size) // ROWS
        for i in prange(parts):
            first, last = tiles * i // parts * ROWS, tiles * (i + 1) // parts * ROWS
            rows(wq, h, first, min(last, after_q), q)
            rows(wk, h, max(first - after_q, 0), min(last - after_q, k.size), k)
            rows(wv, h, max(first - after_k, 0), last - after_k, v)
        turned(q, cos, sin, q_norm, eps)
        turned(k, cos, sin, k_norm, eps)

    return enter


@njit(nogil=True)
def silu(g):
    """g * sigmoid(g)."""
    return g / (np.float32(1.0) + math.exp(-g))


@njit(nogil=True)
def gelu(g):
    """GELU by its tanh formula."""
    inner = np.float32(0.7978845608028654) * (g + np.float32(0.044715) * g * g * g)
    return np.float32(0.5) * g * (np.float32(1.0) + math.tanh(inner))


@njit(nogil=True)
def add(x, part, norm, eps):
    """x += part, normed first where there is a norm."""
    if norm.size:
        normed(part, 0, part.size, norm, eps, part)
    for i in range(x.size):
        x[i] += part[i]


@lru_cache(maxsize=8)
def leave_kernel(kind: int, curved: Any, parallel: bool) -> Any:
    """leave(x, attended, ...): a layer's end on a row; `curved` is silu or gelu."""
    rows = some_rows(kind)
    spread = njit(nogil=True, parallel=parallel)

    @spread
    def product(weight, x, out, parts):
        tiles = out.size // ROWS
        for i in prange(parts):
            rows(weight, x, tiles * i // parts * ROWS, tiles * (i + 1) // parts * ROWS, out)

    @njit(nogil=True)
    def gated(gate, up, h, first, last, out, raised):
        rows(gate, h, first, last, out)
        rows(up, h, first, last, raised)
        for i in range(first, last):
            out[i] = curved(out[i]) * raised[i]

    @spread
    def leave(x, attended, eps, o, attn_post, norm, gate, up, down, ffn_post, hidden, parts):
        part, h, raised = np.empty_like(x), np.empty_like(x), np.empty_like(hidden)
        product(o, attended, part, parts)
        add(x, part, attn_post, eps)
        normed(x, 0, x.size, norm, eps, h)
        tiles = hidden.size // ROWS
        for i in prange(parts):
            first, last = tiles * i // parts * ROWS, tiles * (i + 1) // parts * ROWS
            gated(gate, up, h, first, last, hidden, raised)
        product(down, hidden, part, parts)
        add(x, part, ffn_post, eps)

    return leave
