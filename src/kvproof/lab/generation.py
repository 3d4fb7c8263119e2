"""Generation of one sequence with any cache or with none: greedy, or sampled."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import torch

from kvproof.errors import UsageError
from kvproof.kinds import Types
from kvproof.lab.attention import View
from kvproof.lab.elements import cache_types
from kvproof.lab.models.runner import Runner
from kvproof.lab.pool.pool import PagedPool
from kvproof.lab.sampling import Sampler, Sampling
from kvproof.lab.steps import Contiguous, GatheredStep, PagedStep, Static, Uncached, type_name


@dataclass(slots=True)
class Generated:
    """What came out: tokens, the seconds of each pass (the first is the prefill), cache bytes."""

    tokens: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    cached_tokens: int = 0
    cache_bytes: int = 0

    @property
    def decode_seconds(self) -> float:
        """Mean seconds of a decode step."""
        steps = self.seconds[1:]
        return sum(steps) / len(steps) if steps else 0.0


def generate(
    runner: Runner,
    prompt: Sequence[int],
    max_tokens: int = 32,
    *,
    cache: str | PagedPool = "paged",
    types: Types | None = None,
    block_size: int = 16,
    stop: int | None = None,
    sampling: Sampling | None = None,
) -> Generated:
    """`max_tokens` tokens after `prompt` (greedy by default), or fewer when `stop` comes out.

    `cache`: "paged" (a pool just large enough), "contiguous", "static", "none", or a pool of one's
    own whose shared blocks are used. `types` are the paged pool's, by default the weights' type.
    """
    if not prompt or max_tokens < 1:
        raise UsageError("generation needs a prompt and one token or more to make")
    out = Generated()
    if isinstance(cache, PagedPool) or cache == "paged":
        pool = cache if isinstance(cache, PagedPool) else None
        pool = pool or pool_for(runner, len(prompt) + max_tokens, types, block_size)
        return _loop(out, _paged(runner, list(prompt), pool, out), max_tokens, stop, sampling)
    steps = {
        "contiguous": Contiguous,
        "static": lambda: Static(len(prompt) + max_tokens),
        "none": Uncached,
    }
    if cache not in steps:
        raise UsageError(f"unknown cache {cache!r}", hint=f"use paged, {', '.join(steps)}")
    chosen = steps[cache]()
    passes = _plain(runner, list(prompt), chosen, out)
    return _loop(out, passes, max_tokens, stop, sampling)


def pool_for(
    runner: Runner,
    tokens: int,
    types: Types | None = None,
    block_size: int = 16,
    sequences: int = 1,
) -> PagedPool:
    """A pool whose every group holds `sequences` sequences of `tokens` tokens."""
    kind = type_name(runner.dtype)
    blocks = sequences * -(-tokens // block_size)
    chosen = types or cache_types(kind, model=kind)
    return PagedPool(runner.body.slots, chosen, blocks=blocks, block_size=block_size)


def last_logits(runner: Runner, tokens: Sequence[int], start: int, step: object) -> torch.Tensor:
    """Logits [vocab] after the last of `tokens`, the first of which stands at `start`."""
    ids = torch.tensor(tokens, dtype=torch.long)
    positions = torch.arange(start, start + len(tokens))
    rows = torch.tensor([len(tokens) - 1])
    return runner.forward(ids, positions, step, rows=rows)[0]  # type: ignore[arg-type]


Passes = Generator[torch.Tensor, int, None]  # yields logits, is sent the token chosen


def _plain(runner: Runner, tokens: list[int], step: object, out: Generated) -> Passes:
    known = 0
    while True:
        logits = last_logits(runner, tokens[known:], known, step)
        known = 0 if isinstance(step, Uncached) else len(tokens)
        out.cache_bytes = getattr(step, "allocated_bytes", 0)
        tokens.append((yield logits))


def _paged(runner: Runner, tokens: list[int], pool: PagedPool, out: Generated) -> Passes:
    kind = PagedStep if runner.compiled else GatheredStep
    sequence, out.cached_tokens = pool.open(tokens)
    out.cache_bytes = pool.allocated_bytes
    try:
        while True:
            new = tokens[sequence.length :]
            pool.append(sequence, len(new))
            step = kind(View(pool, [sequence], [len(new)]))
            logits = last_logits(runner, new, sequence.length - len(new), step)
            pool.settle(sequence, tokens)
            tokens.append((yield logits))
    finally:
        pool.close(sequence)


def _loop(
    out: Generated, passes: Passes, max_tokens: int, stop: int | None, sampling: Sampling | None
) -> Generated:
    """Let the passes run until there are enough tokens; each pass is timed with its choice."""
    choose = Sampler(sampling or Sampling())
    with closing(passes):
        start = time.perf_counter()
        logits = next(passes)
        while True:
            token = choose(logits)
            out.seconds.append(time.perf_counter() - start)
            out.tokens.append(token)
            if token == stop or len(out.tokens) >= max_tokens:
                return out
            start = time.perf_counter()
            logits = passes.send(token)
