"""A few tokens from a layer's attention to the next layer's: what a decode step runs.

A torch operation on a few rows costs more in its call than in its arithmetic, and a step of a small
model has hundreds of them. So all that lies between two attentions is one kernel: output
projection, norms and feed-forward of the layer behind, then norm, queries, keys and values of the
layer ahead, with their norms and rotary positions. Its threads take a share of each matrix's rows
and meet before the next one (`attention/crew.py`). Sums and what lies between are f32, whatever
the weights are stored in; a token's numbers do not depend on who else is in the step.

Arrays of tokens are [tokens, numbers].
"""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# ruff: noqa: ANN001, ANN201, ANN202

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch

from kvproof.lab.attention import threads
from kvproof.lab.attention.crew import LINE, begin, end, meet
from kvproof.lab.attention.disk import kept
from kvproof.lab.attention.emit import WIDTH
from kvproof.lab.attention.shapes import entry, kernel
from kvproof.lab.attention.vectors import splat, vadd, vexp, vload, vmax, vmul, vstore
from kvproof.lab.models.body import Body
from kvproof.lab.models.lanes import vdiv
from kvproof.lab.models.matvec import KINDS, share_of, some_rows, text
from kvproof.lab.pool.planes import flat

_NONE = np.zeros(0, np.float32)
_NOTHING = np.zeros((0, 0), np.float32)
_MATRICES = ("q", "k", "v", "o", "gate", "up", "down")
_NORMS = ("attn_norm", "attn_post_norm", "ffn_norm", "ffn_post_norm", "q_norm", "k_norm")

Array = np.ndarray[Any, Any]
Vectors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def fits(body: Body, weights: Mapping[str, torch.Tensor]) -> bool:
    """Whether the kernel runs this body: no latents, matrices in whole vectors, f32 or bf16."""
    widths = (body.hidden, body.ffn, body.heads * body.head_dim)
    stored = {weights[f"{i}.{m}"].dtype for i in range(body.layers) for m in _MATRICES
              if body.latent is None}  # fmt: skip
    return len(stored) == 1 and stored <= KINDS.keys() and not any(w % WIDTH for w in widths)


class Layer(NamedTuple):
    """A layer's weights as flat arrays, norms in f32 (empty where the body has none); its eps."""

    q: Array
    k: Array
    v: Array
    o: Array
    gate: Array
    up: Array
    down: Array
    attn_norm: Array
    attn_post: Array
    ffn_norm: Array
    ffn_post: Array
    q_norm: Array
    k_norm: Array
    eps: np.float32


class Ahead(NamedTuple):
    """What the coming layer is given: room for its vectors (none: no layer comes) and its turn."""

    q: Array
    k: Array
    v: Array
    cos: Array
    sin: Array


class Scratch(NamedTuple):
    """What the threads hand each other, and two copies of each thread's own.

    The layers' rows; a product's numbers; the feed-forward's two; marks to meet by; each thread's
    rows as they grow, and normed.
    """

    rows: Array
    part: Array
    hidden: Array
    raised: Array
    marks: Array
    own: Array
    normed: Array

    @staticmethod
    def of(rows: Array, ffn: int, number: int) -> Scratch:
        """Room for `number` threads beside the rows."""
        count, hidden = rows.shape
        part, gate, up = (np.empty((count, n), np.float32) for n in (hidden, ffn, ffn))
        own, normed = np.empty((2, number, count, hidden), np.float32)
        return Scratch(rows, part, gate, up, np.zeros(LINE * number, np.int64), own, normed)


class Rows:
    """A body's layers as the kernel sees them: flat arrays over the runner's own tensors."""

    def __init__(self, body: Body, weights: Mapping[str, torch.Tensor]) -> None:
        self.body = body
        kind = KINDS[weights["0.q"].dtype]
        self._kernel = between_kernel(kind, gelu if body.gemma else silu)
        self.layers = [_layer(body, weights, i) for i in range(body.layers)]
        self._sizes = [n * body.head_dim for n in (body.heads, body.kv_heads, body.kv_heads)]

    def enter(self, x: Array, turn: tuple[Array, Array]) -> Vectors:
        """Queries, keys and values [tokens, heads, dim] of the first layer for the rows `x`."""
        return self._between(x, _NOTHING, 0, 0, turn)

    def between(
        self, layer: int, x: Array, attended: torch.Tensor, turn: tuple[Array, Array]
    ) -> Vectors:
        """Add to `x` what `layer` gives after its attention; the next layer's vectors.

        After the last layer they are empty.
        """
        last = layer + 1 == len(self.layers)
        given = attended.flatten(1).numpy()
        return self._between(x, given, layer, layer if last else layer + 1, turn, last=last)

    def _between(
        self,
        x: Array,
        attended: Array,
        behind: int,
        ahead: int,
        turn: tuple[Array, Array],
        *,
        last: bool = False,
    ) -> Vectors:
        sizes = [0, 0, 0] if last else self._sizes
        q, k, v = (np.empty((len(x), size), np.float32) for size in sizes)
        scratch = Scratch.of(x, self.body.ffn, threads.count())
        threads.share(self._kernel, attended, self.layers[behind], self.layers[ahead],
                      Ahead(q, k, v, *turn), scratch)  # fmt: skip
        shaped = [torch.from_numpy(t).unflatten(1, (-1, self.body.head_dim)) for t in (q, k, v)]
        return shaped[0], shaped[1], shaped[2]


def _layer(body: Body, weights: Mapping[str, torch.Tensor], layer: int) -> Layer:
    def norm(name: str) -> Array:
        found = weights.get(f"{layer}.{name}")
        return _NONE if found is None else found.float().numpy()

    matrices = [flat(weights[f"{layer}.{name}"]) for name in _MATRICES]
    return Layer._make([*matrices, *map(norm, _NORMS), np.float32(body.eps)])


@kernel
def normed(x, first, size, weight, eps, out):
    """out[first:first + size] = RMS norm of those numbers of x, times the weight."""
    total = 0.0
    for i in range(first, first + size):
        total += x[i] * x[i]
    factor = np.float32(1.0 / math.sqrt(total / size + eps))
    for i in range(size):
        out[first + i] = weight[i] * (x[first + i] * factor)


@kernel
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


@kernel
def grown(x):
    """e**x by lane, for x up to 87; e**87 beyond, which makes 1 / (1 + e**x) as good as 0."""
    most = splat(np.float32(-87))
    return vexp(vmul(vmax(vmul(x, splat(np.float32(-1))), most), splat(np.float32(-1))))


@kernel
def silu(g):
    """g * sigmoid(g) by lane."""
    one = splat(np.float32(1))
    return vdiv(g, vadd(one, grown(vmul(g, splat(np.float32(-1))))))


@kernel
def gelu(g):
    """GELU by its tanh formula, by lane: g * (1 + tanh(u)) / 2 is g * sigmoid(2u)."""
    cube = vmul(vmul(g, g), vmul(g, splat(np.float32(0.044715))))
    u = vmul(vadd(g, cube), splat(np.float32(-2 * 0.7978845608028654)))
    return vdiv(g, vadd(splat(np.float32(1)), grown(u)))


@kernel
def add(x, part, norm, eps, more):
    """x += part, normed first where there is a norm; `more` is room for that."""
    for r in range(len(x)):
        if norm.size:
            normed(part[r], 0, part.shape[1], norm, eps, more[r])
        for i in range(x.shape[1]):
            x[r, i] += more[r, i] if norm.size else part[r, i]


@kernel
def copy_rows(x, out):
    """out = x; numba's own assignment of arrays takes seconds to compile."""
    for r in range(len(x)):
        for i in range(x.shape[1]):
            out[r, i] = x[r, i]


@kernel
def norm_rows(x, weight, eps, out):
    """Each row's RMS norm."""
    for r in range(len(x)):
        normed(x[r], 0, x.shape[1], weight, eps, out[r])


@lru_cache(maxsize=8)
def leave_kernel(kind: int, curved: Any) -> Any:
    """leave(attended, at, scratch, me, number): what a layer gives after its attention."""
    rows = some_rows(kind)

    @kernel
    def gate(hidden, raised, low, high):
        for r in range(len(hidden)):
            for i in range(low, high, WIDTH):
                at = r * hidden.shape[1] + i
                vstore(hidden, at, vmul(curved(vload(hidden, at)), vload(raised, at)))

    @kernel
    def leave(attended, at, scratch, me, number):
        own, h, part, hidden, raised = (
            scratch.own[me], scratch.normed[me], scratch.part, scratch.hidden, scratch.raised,
        )  # fmt: skip
        first, last = share_of(part.shape[1], me, number)
        rows(at.o, attended, first, last, part)
        meet(scratch.marks, me, number, 1)
        add(own, part, at.attn_post, at.eps, h)
        norm_rows(own, at.ffn_norm, at.eps, h)
        low, high = share_of(hidden.shape[1] // WIDTH, me, number)
        low, high = low * WIDTH, high * WIDTH
        rows(at.gate, h, low, high, hidden)
        rows(at.up, h, low, high, raised)
        gate(hidden, raised, low, high)
        meet(scratch.marks, me, number, 2)
        rows(at.down, hidden, first, last, part)
        meet(scratch.marks, me, number, 3)
        add(own, part, at.ffn_post, at.eps, h)

    return leave


@lru_cache(maxsize=2)
def enter_kernel(kind: int) -> Any:
    """enter(at, ahead, scratch, me, number): queries, keys and values of a layer."""
    rows = some_rows(kind)

    @kernel
    def enter(at, ahead, scratch, me, number):
        own, h = scratch.own[me], scratch.normed[me]
        norm_rows(own, at.attn_norm, at.eps, h)
        for weight, out in ((at.q, ahead.q), (at.k, ahead.k), (at.v, ahead.v)):
            first, last = share_of(out.shape[1], me, number)
            rows(weight, h, first, last, out)
        meet(scratch.marks, me, number, 4)
        for r in range(me, len(own), number):
            turned(ahead.q[r], ahead.cos[r], ahead.sin[r], at.q_norm, at.eps)
            turned(ahead.k[r], ahead.cos[r], ahead.sin[r], at.k_norm, at.eps)

    return enter


@lru_cache(maxsize=8)
def between_kernel(kind: int, curved: Any) -> Any:
    """between(attended, behind, at, ...): see the module; `curved` is silu or gelu.

    Each thread keeps rows of its own, so that the layers' are read and written without waiting.
    """
    leave, enter = leave_kernel(kind, curved), enter_kernel(kind)

    @entry
    def between(attended, behind, at, ahead, scratch, marks, me, number):
        ticket = begin(marks, me)
        x, own = scratch.rows, scratch.own[me]
        copy_rows(x, own)
        if attended.size:
            leave(attended, behind, scratch, me, number)
        if ahead.q.size:
            enter(at, ahead, scratch, me, number)
        if me == 0:
            copy_rows(own, x)
        end(marks, me, number, ticket)

    return kept(between, kind, curved.py_func.__name__, text())
