"""Continuous batching: requests join and leave the running batch at every step.

One step, in order:

    1. every running request gets room for its next token; when the pool is full, the youngest
       running request is preempted and goes to the front of the queue
    2. waiting requests are admitted, first come first served, while the pool has room for their
       prompt and the step's token budget lasts; nobody overtakes
    3. one pass over the admitted prompts, one over the running requests' last tokens

Preemption drops the blocks and computes them again ("recompute", what vLLM does), or copies them
to host memory and back ("swap"). Iteration-level scheduling: Yu et al., "Orca", 2022.
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
from kvproof.lab.pool.pool import PagedPool
from kvproof.lab.pool.swap import HostCopy, can_swap_in, swap_in, swap_out
from kvproof.lab.pool.tables import Sequence
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
        self.runner, self.pool = runner, pool
        self.max_sequences, self.max_batched_tokens = max_sequences, max_batched_tokens
        self.preemption = preemption
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.counters = Counters()

    def add(self, prompt: list[int], max_tokens: int, *, stop: int | None = None) -> Request:
        """Queue a request. UsageError for one that could never run, even alone."""
        request = Request(list(prompt), max_tokens, stop, arrived=time.perf_counter())
        if not prompt or max_tokens < 1:
            raise UsageError("a request needs a prompt and one token or more to make")
        blocks = -(-(len(prompt) + max_tokens - 1) // self.pool.block_size)
        smallest = min(g.books.total for g in self.pool.groups if not g.is_state)
        if blocks > smallest and any(g.window is None for g in self.pool.groups):
            raise UsageError(
                f"the request needs {blocks} blocks, the pool has {smallest}",
                hint="ask for fewer tokens or make the pool larger",
            )
        self.waiting.append(request)
        return request

    @property
    def idle(self) -> bool:
        """Whether nothing waits or runs."""
        return not self.waiting and not self.running

    def step(self) -> list[Request]:
        """Advance every request that can; returns those that finished in this step."""
        self._make_room()
        admitted = self._admit()
        decoding = [r for r in self.running if r not in admitted]
        if admitted:
            self._pass(admitted, [len(r.text) - r.cached_tokens for r in admitted])
        if decoding:
            self._pass(decoding, [1] * len(decoding))
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

    def _make_room(self) -> None:
        """Reserve the next token of each running request, oldest first."""
        for request in list(self.running):
            if request.sequence is None:
                continue  # preempted for the sake of an older one
            while not self.pool.can_append(request.sequence, 1):
                victim = self.running[-1]
                self._preempt(victim)
                if victim is request:
                    break
            if request.sequence is not None:
                self.pool.append(request.sequence, 1)

    def _preempt(self, request: Request) -> None:
        sequence = request.sequence
        if sequence is None:
            raise UsageError("only a running request is preempted")
        self.running.remove(request)
        if self.preemption == "swap":
            # room for its next token may be reserved already; nothing is written there yet
            surplus = sequence.length - (len(request.text) - 1)
            if surplus > 0:
                self.pool.shorten(sequence, surplus)
            request.copy = swap_out(self.pool, sequence)
            self.counters.swapped_bytes += request.copy.bytes
        else:
            self.pool.close(sequence)
        request.sequence = None
        request.preemptions += 1
        self.counters.preemptions += 1
        self.waiting.appendleft(request)

    def _admit(self) -> list[Request]:
        """Move waiting requests to the running batch; returns those whose prompt is to be computed.

        A preempted request that was swapped comes back with its next token only.
        """
        admitted: list[Request] = []
        budget = self.max_batched_tokens - len(self.running)
        while self.waiting and len(self.running) < self.max_sequences:
            request = self.waiting[0]
            if request.copy is not None:
                if not can_swap_in(self.pool, request.copy, spare=1):
                    break
                self._swap_back(request, request.copy)
                budget -= 1
                continue
            sequence, cached = self.pool.open(request.text)
            new = len(request.text) - cached
            over = new > budget and bool(self.running or admitted)
            if over or not self.pool.can_append(sequence, new):
                self.pool.close(sequence)
                break
            self.pool.append(sequence, new)
            self._start(request, sequence, cached)
            admitted.append(request)
            budget -= new
        return admitted

    def _swap_back(self, request: Request, copy: HostCopy) -> None:
        self.waiting.popleft()
        request.sequence, request.copy = swap_in(self.pool, copy), None
        self.counters.swapped_bytes += copy.bytes
        self.pool.append(request.sequence, 1)
        self.running.append(request)

    def _start(self, request: Request, sequence: Sequence, cached: int) -> None:
        self.waiting.popleft()
        request.sequence, request.cached_tokens = sequence, cached
        self.running.append(request)
        counters, new = self.counters, len(request.text) - cached
        counters.queried_tokens += len(request.text)
        counters.hit_tokens += cached
        counters.prefill_tokens += new
        if request.tokens:
            counters.recomputed_tokens += new

    def _pass(self, requests: list[Request], counts: list[int]) -> None:
        """One forward pass over the entries these requests have reserved; one token for each."""
        pairs = [(r, r.sequence) for r in requests if r.sequence is not None]
        sequences = [s for _, s in pairs]
        tokens = [t for (r, _), n in zip(pairs, counts, strict=True) for t in r.text[-n:]]
        spans = [range(s.length - n, s.length) for s, n in zip(sequences, counts, strict=True)]
        positions = torch.tensor([p for span in spans for p in span])
        rows = torch.tensor(counts).cumsum(0) - 1
        step = PagedStep(View(self.pool, sequences, counts))
        logits = self.runner.forward(torch.tensor(tokens), positions, step, rows=rows)
        for (request, sequence), token in zip(pairs, logits.argmax(-1).tolist(), strict=True):
            self.pool.settle(sequence, request.text)
            self._take(request, token)

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
