"""From logits to a token: greedy, or drawn at a temperature from the likeliest tokens.

Nucleus sampling (Holtzman et al., 2020): of the tokens in falling probability, the fewest whose
probabilities add up to `top_p` stay.
"""

from __future__ import annotations

import msgspec
import torch

from kvproof.errors import UsageError


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How tokens are drawn; temperature 0 is greedy. The same seed draws the same tokens."""

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.temperature <= 100:
            raise UsageError(f"a temperature of {self.temperature}", hint="use 0 (greedy) to 100")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"a top_p of {self.top_p}", hint="use more than 0, at most 1")


class Sampler:
    """Draws one sequence's tokens, with random numbers of its own."""

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling
        self._random = torch.Generator()
        if sampling.seed is None:
            self._random.seed()
        else:
            self._random.manual_seed(sampling.seed % 2**63)

    def __call__(self, logits: torch.Tensor) -> int:
        """The next token from logits [vocab]."""
        if self.sampling.temperature == 0:
            return int(logits.argmax())
        scaled = logits.double() / self.sampling.temperature
        likely, order = scaled.softmax(-1).sort(descending=True, stable=True)
        reached = likely.cumsum(-1)
        kept = int((reached < self.sampling.top_p * reached[-1]).sum()) + 1
        mark = torch.rand((), generator=self._random, dtype=torch.float64) * reached[kept - 1]
        return int(order[min(int((reached <= mark).sum()), kept - 1)])
