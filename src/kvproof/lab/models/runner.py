"""Runner: the forward pass, written once for every attention design and every cache.

It knows nothing of caches: each layer hands its new keys and values to a `Step`, which stores them
wherever it wants and answers with what attention over everything stored gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch.nn.functional import gelu, silu

from kvproof.lab.models import row
from kvproof.lab.models.body import Body, Latent
from kvproof.lab.models.matvec import FEW, linear

Weights = Mapping[str, torch.Tensor]
Turn = tuple[torch.Tensor, torch.Tensor]  # cosines and sines of the rotary angles


class Step(Protocol):
    """One pass of new tokens through all layers, as a cache sees it."""

    def attend(
        self, layer: int, q: torch.Tensor, vectors: tuple[torch.Tensor, ...], body: Body
    ) -> torch.Tensor:
        """Store the layer's new `vectors` [tokens, heads, dim]; attention of `q` over all stored.

        `vectors` are keys and values, or one tensor of latents.
        """


class Runner:
    """A body with weights. Names of weights are those of Hugging Face's Llama and DeepSeek.

    A few tokens go through the kernels of `row`, many go through torch. What layers add up in stays
    f32 whatever the weights are, for its numbers are the largest and rounding it twice a
    layer costs more accuracy than all else.
    """

    compiled = True  # False: torch alone, layer by layer, with nothing to compile

    def __init__(self, body: Body, weights: Weights) -> None:
        self.body, self.weights = body, weights
        self.dtype = weights["embed"].dtype
        width = body.latent.rope_dim if body.latent else body.head_dim
        steps = torch.arange(0, width, 2, dtype=torch.int64).float() / width
        local = body.gemma.local_theta if body.gemma else body.theta
        self._frequencies = {True: 1.0 / local**steps, False: 1.0 / body.theta**steps}
        self._rows: row.Rows | None = None
        if self.compiled and row.fits(body, weights):
            self._rows = row.Rows(body, weights)

    def forward(
        self, tokens: torch.Tensor, positions: torch.Tensor, step: Step, *, rows: torch.Tensor
    ) -> torch.Tensor:
        """Logits [rows, vocab] of the chosen rows of `tokens` (flat over sequences)."""
        with torch.inference_mode():
            x = self.weights["embed"][tokens].float()
            if self.body.gemma is not None:
                x = x * self.body.hidden**0.5
            turns = {local: self._turn(positions, local=local) for local in self._locals()}
            if len(tokens) <= FEW and self._rows is not None:
                x = self._by_rows(x, turns, step, self._rows)
            else:
                for layer in range(self.body.layers):
                    x = self._layer(layer, x, turns[self._is_local(layer)], step)
            x = self._norm(x[rows], "norm")
            head = self.weights["embed" if self.body.tied else "head"]
            return self._times(x, head).float()

    def _by_rows(
        self, x: torch.Tensor, turns: dict[bool, Turn], step: Step, kernels: row.Rows
    ) -> torch.Tensor:
        wide = x.clone().numpy()
        flat = {local: tuple(t.float().flatten(1).numpy() for t in turn)
                for local, turn in turns.items()}  # fmt: skip
        turns_of = [flat[self._is_local(layer)] for layer in range(self.body.layers)]
        q, k, v = kernels.enter(wide, turns_of[0])
        for layer in range(self.body.layers):
            vectors = (k.to(self.dtype), v.to(self.dtype))
            attended = step.attend(layer, q, vectors, self.body)
            turn = turns_of[min(layer + 1, self.body.layers - 1)]
            q, k, v = kernels.between(layer, wide, attended, turn)
        return torch.from_numpy(wide)

    def _layer(self, layer: int, x: torch.Tensor, turn: Turn, step: Step) -> torch.Tensor:
        part = self._attention(layer, self._norm(x, f"{layer}.attn_norm"), turn, step)
        x = x + self._after(part, f"{layer}.attn_post_norm")
        part = self._feed_forward(layer, self._norm(x, f"{layer}.ffn_norm"))
        return x + self._after(part, f"{layer}.ffn_post_norm")

    def _after(self, part: torch.Tensor, name: str) -> torch.Tensor:
        return self._norm(part, name) if self.body.gemma is not None else part

    def _is_local(self, layer: int) -> bool:
        """Whether the layer turns positions by the local base: Gemma's sliding layers."""
        return self.body.gemma is not None and self.body.window(layer) is not None

    def _locals(self) -> set[bool]:
        return {self._is_local(layer) for layer in range(self.body.layers)}

    def _attention(self, layer: int, x: torch.Tensor, turn: Turn, step: Step) -> torch.Tensor:
        body = self.body
        if body.latent is not None:
            return self._latent_attention(layer, x, turn, step, body.latent)
        q = self._project(x, layer, "q", body.heads)
        k = self._project(x, layer, "k", body.kv_heads)
        v = self._project(x, layer, "v", body.kv_heads)
        if body.gemma is not None:
            q, k = self._norm(q, f"{layer}.q_norm"), self._norm(k, f"{layer}.k_norm")
        out = step.attend(layer, rotate(q, turn), (rotate(k, turn), v), body)
        return self._times(out.flatten(1), self.weights[f"{layer}.o"])

    def _latent_attention(
        self,
        layer: int,
        x: torch.Tensor,
        turn: Turn,
        step: Step,
        latent: Latent,
    ) -> torch.Tensor:
        """MLA in absorbed form: queries move into the latent space, no key is ever expanded."""
        q = self._project(x, layer, "q", self.body.heads)
        q_nope, q_rope = q.split((latent.nope_dim, latent.rope_dim), -1)
        q_latent = torch.einsum("thn,hnl->thl", q_nope, self.weights[f"{layer}.k_up"])
        down = self._times(x, self.weights[f"{layer}.kv_down"])
        squeezed, k_rope = down.split((latent.latent_dim, latent.rope_dim), -1)
        squeezed = self._norm(squeezed, f"{layer}.kv_norm")
        entry = torch.cat((squeezed[:, None], rotate(k_rope[:, None], turn)), -1)
        out = step.attend(
            layer, torch.cat((q_latent, rotate(q_rope, turn)), -1), (entry,), self.body
        )
        values = torch.einsum("thl,hvl->thv", out, self.weights[f"{layer}.v_up"])
        return self._times(values.flatten(1), self.weights[f"{layer}.o"])

    def _times(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """x @ weight.T."""
        return linear(x, weight) if self.compiled else torch.nn.functional.linear(x, weight)

    def _project(self, x: torch.Tensor, layer: int, name: str, heads: int) -> torch.Tensor:
        return self._times(x, self.weights[f"{layer}.{name}"]).unflatten(-1, (heads, -1))

    def _feed_forward(self, layer: int, x: torch.Tensor) -> torch.Tensor:
        weights = self.weights
        gate = self._times(x, weights[f"{layer}.gate"])
        gate = silu(gate) if self.body.gemma is None else gelu(gate, approximate="tanh")
        return self._times(gate * self._times(x, weights[f"{layer}.up"]), weights[f"{layer}.down"])

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.body.eps)
        return (self.weights[name] * wide).to(self.dtype)

    def _turn(self, positions: torch.Tensor, *, local: bool) -> Turn:
        angles = positions[:, None].float() * self._frequencies[local]
        angles = torch.cat((angles, angles), -1)[:, None]
        return angles.cos().to(self.dtype), angles.sin().to(self.dtype)


def rotate(x: torch.Tensor, turn: Turn) -> torch.Tensor:
    """Rotary positions (Su et al., 2021) on [tokens, heads, dim], halves paired as in Llama."""
    low, high = x.chunk(2, -1)
    return x * turn[0] + torch.cat((-high, low), -1) * turn[1]
