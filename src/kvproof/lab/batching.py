"""Continuous batching: requests join and leave the running batch at every step.

One step, in order, within the step's budget of tokens:

    1. every running request that makes tokens gets room for its next one; when the pool is full,
       the youngest running request is preempted and goes to the front of the queue
    2. running requests whose prompt is not through yet get a piece of it, as large as the budget
       allows ("chunked prefill"): a long prompt never keeps the others waiting for more than a step
    3. waiting requests are admitted, first come first served, while the pool has room for their
       whole prompt (where windows slide: for one piece of it); nobody overtakes, and none is
       admitted in a step that preempted
    4. one pass over the pieces of prompts, one over the last tokens of the others

Preemption drops the blocks and computes them again ("recompute", what vLLM does), or copies them
to host memory and back ("swap"). Iteration-level scheduling: Yu et al., "Orca", 2022; chunked
prefill: Agrawal et al., "Sarathi-Serve", 2024.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

import torch

from kvproof.errors import UsageError
from kvproof.lab.attention import View
from kvproof.lab.models.runner import Runner
from kvproof.lab.pool.groups import Group
from kvproof.lab.pool.pool import PagedPool
from kvproof.lab.pool.swap import HostCopy, can_swap_in, swap_in, swap_out
from kvproof.lab.pool.tables import Sequence
from kvproof.lab.sampling import Sampler, Sampling
from kvproof.lab.steps import PagedStep

Preemption = Literal["recompute", "swap"]


@dataclass(slots=True, eq=False)
class Request:
    """A prompt and how many tokens are wanted; `tokens` grows as they are made.

    States: waiting (no sequence), running (a sequence), swapped (a host copy), done.
    """

    prompt: list[int]
    max_tokens: int
    stop: int | None = None
    sampler: Sampler = field(default_factory=lambda: Sampler(Sampling()))
    tokens: list[int] = field(default_factory=list)
    sequence: Sequence | None = None
    copy: HostCopy | None = None
    arrived: float = 0.0
    first_token: float | None = None
    finished: float | None = None
    cached_tokens: int = 0
    preemptions: int = 0

    @property
    def done(self) -> bool:
        """Whether all tokens are made or the stop token came."""
        return len(self.tokens) >= self.max_tokens or (
            bool(self.tokens) and self.tokens[-1] == self.stop
        )

    @property
    def text(self) -> list[int]:
        """The whole sequence so far."""
        return self.prompt + self.tokens

    @property
    def pending(self) -> int:
        """Tokens of the text that are not in the cache yet: one when it makes tokens."""
        held = 0 if self.sequence is None else self.sequence.length
        return len(self.prompt) + len(self.tokens) - held

    @property
    def reason(self) -> str:
        """Why it is done: `stop` or `length`."""
        return "stop" if self.tokens[-1:] == [self.stop] else "length"


@dataclass(slots=True)
class Counters:
    """What happened since the batcher was made; bytes are those really copied."""

    steps: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    queried_tokens: int = 0
    hit_tokens: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0
    swapped_bytes: int = 0
    finished: int = 0


@dataclass(slots=True)
class _Plan:
    """How many entries each request has reserved in a step, out of a budget of tokens."""

    budget: int
    counts: dict[Request, int] = field(default_factory=dict)

    @property
    def left(self) -> int:
        return self.budget - sum(self.counts.values())


class Batcher:
    """A queue and a running batch over one pool. Single-threaded: call `step` until it is idle."""

    def __init__(
        self,
        runner: Runner,
        pool: PagedPool,
        *,
        max_sequences: int = 64,
        max_batched_tokens: int = 2048,
        preemption: Preemption = "recompute",
    ) -> None:
        if preemption not in ("recompute", "swap"):
            raise UsageError(f"unknown preemption {preemption!r}", hint="use recompute or swap")
        if max_batched_tokens < 1 or max_sequences < 1:
            raise UsageError("a batch of nothing", hint="one sequence and one token at least")
        self.runner, self.pool = runner, pool
        self.max_sequences, self.max_batched_tokens = max_sequences, max_batched_tokens
        self.preemption = preemption
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.counters = Counters()

    def add(
        self,
        prompt: list[int],
        max_tokens: int,
        *,
        stop: int | None = None,
        sampling: Sampling | None = None,
    ) -> Request:
        """Queue a request. UsageError for one that could never run, even alone."""
        request = Request(list(prompt), max_tokens, stop, Sampler(sampling or Sampling()),
                          arrived=time.perf_counter())  # fmt: skip
        if not prompt or max_tokens < 1:
            raise UsageError("a request needs a prompt and one token or more to make")
        for group in self.pool.groups:
            blocks = self._most(group, len(prompt) + max_tokens - 1)
            if blocks > group.books.total:
                raise UsageError(
                    f"the request needs {blocks} blocks, the pool has {group.books.total}",
                    hint="ask for fewer tokens or make the pool larger",
                )
        self.waiting.append(request)
        return request

    def _most(self, group: Group, tokens: int) -> int:
        """Blocks that a request of `tokens` tokens holds at most in a group.

        Where a window slides: what it sees, the rest of its first block, and one piece.
        """
        if group.is_state:
            return 1
        size = group.block_size
        held = tokens if group.window is None else group.window + size - 2
        return group.blocks_for(min(tokens, held + self.max_batched_tokens))

    @property
    def idle(self) -> bool:
        """Whether nothing waits or runs."""
        return not self.waiting and not self.running

    def step(self) -> list[Request]:
        """Advance every request that can; returns those that finished in this step."""
        plan = _Plan(self.max_batched_tokens)
        before = self.counters.preemptions
        self._plan_running(plan)
        if self.counters.preemptions == before:
            self._admit(plan)
        pieces = [(r, n) for r, n in plan.counts.items() if n > 1]
        singles = [(r, n) for r, n in plan.counts.items() if n == 1]
        for part in (pieces, singles):
            if part:
                self._pass(*map(list, zip(*part, strict=True)))
        self.counters.steps += 1
        finished = [r for r in self.running if r.done]
        for request in finished:
            self._finish(request)
        return finished

    def run(self) -> None:
        """Step until idle."""
        while not self.idle:
            self.step()

    def cancel(self, request: Request) -> None:
        """Drop a request that waits or runs."""
        if request in self.running:
            self._finish(request)
        elif request in self.waiting:
            self.waiting.remove(request)

    def _plan_running(self, plan: _Plan) -> None:
        """Reserve the next token of each request that makes tokens, then pieces of prompts."""
        for request in [r for r in self.running if r.pending == 1]:
            if request.sequence is None or not plan.left:
                continue  # preempted for the sake of an older one
            if self._make_room(request, 1, plan, up_to=request):
                self._reserve(request, 1, plan)
        for request in [r for r in self.running if r not in plan.counts]:
            count = min(request.pending, plan.left)
            if request.sequence is None or count == 0:
                continue
            if self._make_room(request, count, plan, up_to=None):
                self._reserve(request, count, plan)

    def _make_room(
        self, request: Request, count: int, plan: _Plan, *, up_to: Request | None
    ) -> bool:
        """Preempt the youngest without a place in the plan until `count` entries have room.

        `up_to`: the request itself may have to go, as the youngest; with None it rather waits.
        """
        while request.sequence is not None and not self.pool.can_append(request.sequence, count):
            victims = [r for r in self.running if r not in plan.counts]
            if up_to is None and victims[-1] is request:
                return False
            self._preempt(victims[-1])
        return request.sequence is not None

    def _reserve(self, request: Request, count: int, plan: _Plan) -> None:
        if request.sequence is None:
            raise UsageError("only a running request reserves entries")
        if request.pending > 1:
            self.counters.prefill_tokens += count
        self.pool.append(request.sequence, count)
        plan.counts[request] = count

    def _preempt(self, request: Request) -> None:
        sequence = request.sequence
        if sequence is None:
            raise UsageError("only a running request is preempted")
        self.running.remove(request)
        if self.preemption == "swap":
            request.copy = swap_out(self.pool, sequence)
            self.counters.swapped_bytes += request.copy.bytes
        else:
            self.pool.close(sequence)
        request.sequence = None
        request.preemptions += 1
        self.counters.preemptions += 1
        self.waiting.appendleft(request)

    def _admit(self, plan: _Plan) -> None:
        """Move waiting requests to the running batch, with a first piece of their prompt.

        A preempted request that was swapped comes back with its next token, or piece.
        """
        while self.waiting and len(self.running) < self.max_sequences and plan.left:
            request = self.waiting[0]
            if request.copy is not None:
                if not can_swap_in(self.pool, request.copy, more=1):
                    break
                self._swap_back(request, request.copy, plan)
                continue
            sequence, cached = self.pool.open(request.text)
            new = len(request.text) - cached
            if not self._has_room(sequence, new):
                self.pool.close(sequence)
                break
            self._start(request, sequence, cached)
            self._reserve(request, min(new, plan.left), plan)

    def _has_room(self, sequence: Sequence, new: int) -> bool:
        """Whether `new` entries can come: all at once, or by pieces where a window slides."""
        piece = min(new, self.max_batched_tokens)
        return all(
            group.books.can_take(group.needs(table, new if group.window is None else piece))
            for group, table in zip(self.pool.groups, sequence.tables, strict=True)
        )

    def _swap_back(self, request: Request, copy: HostCopy, plan: _Plan) -> None:
        self.waiting.popleft()
        request.sequence, request.copy = swap_in(self.pool, copy), None
        self.counters.swapped_bytes += copy.bytes
        self.running.append(request)
        count = min(request.pending, plan.left)
        fits = self.pool.can_append(request.sequence, count)
        self._reserve(request, count if fits else 1, plan)

    def _start(self, request: Request, sequence: Sequence, cached: int) -> None:
        self.waiting.popleft()
        request.sequence, request.cached_tokens = sequence, cached
        self.running.append(request)
        counters = self.counters
        counters.queried_tokens += len(request.text)
        counters.hit_tokens += cached
        if request.tokens:
            counters.recomputed_tokens += len(request.text) - cached

    def _pass(self, requests: list[Request], counts: list[int]) -> None:
        """One forward pass over the entries these requests have reserved.

        A request whose text is then in the cache gets a token.
        """
        pairs = [(r, r.sequence) for r in requests if r.sequence is not None]
        sequences = [s for _, s in pairs]
        spans = [range(s.length - n, s.length) for s, n in zip(sequences, counts, strict=True)]
        tokens = [r.text[i] for (r, _), span in zip(pairs, spans, strict=True) for i in span]
        positions = torch.tensor([p for span in spans for p in span])
        rows = torch.tensor(counts).cumsum(0) - 1
        step = PagedStep(View(self.pool, sequences, counts))
        logits = self.runner.forward(torch.tensor(tokens), positions, step, rows=rows)
        for (request, sequence), row in zip(pairs, logits, strict=True):
            self.pool.settle(sequence, request.text)
            if request.pending == 0:
                self._take(request, request.sampler(row))

    def _take(self, request: Request, token: int) -> None:
        request.tokens.append(token)
        self.counters.decode_tokens += 1
        if request.first_token is None:
            request.first_token = time.perf_counter()

    def _finish(self, request: Request) -> None:
        self.running.remove(request)
        if request.sequence is not None:
            self.pool.close(request.sequence)
            request.sequence = None
        request.finished = time.perf_counter()
        self.counters.finished += 1
