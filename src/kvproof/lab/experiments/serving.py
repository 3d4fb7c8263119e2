"""Experiments about many requests: shared prefixes, preemption, batches."""

from __future__ import annotations

import time

import torch

from kvproof.lab.attention import View
from kvproof.lab.batching import Batcher
from kvproof.lab.elements import cache_types
from kvproof.lab.experiments.material import planned_block, planned_slots, smollm, text_tokens
from kvproof.lab.experiments.result import Check, Experiment, lines
from kvproof.lab.generate import generate, last_logits, pool_for
from kvproof.lab.models.runner import Runner
from kvproof.lab.models.sources import random_body
from kvproof.lab.pool.pool import PagedPool
from kvproof.lab.pool.swap import swap_in, swap_out
from kvproof.lab.pool.tables import Sequence
from kvproof.lab.steps import PagedStep


def prefix(*, length: int = 256, shared: tuple[int, ...] = (0, 64, 128, 192, 255)) -> Experiment:
    """The second of two prompts that begin alike: how much of its prefill is saved."""
    runner, rows, checks = smollm(), [], []
    first = text_tokens(length)
    generate(runner, first[:32], 2)
    for count in shared:
        pool = pool_for(runner, length + 16, sequences=2)
        second = first[:count] + [t + 1 for t in first[count:]]
        alone = generate(runner, second, 2).tokens
        generate(runner, first, 2, cache=pool)
        again = generate(runner, second, 2, cache=pool)
        planned = min(count, length - 1) // pool.block_size * pool.block_size
        checks += [
            Check(name=f"{count} shared: tokens found", predicted=planned,
                  measured=again.cached_tokens, unit="token"),
            Check(name=f"{count} shared: tokens that differ", predicted=0, unit="token",
                  measured=sum(a != b for a, b in zip(alone, again.tokens, strict=True))),
        ]  # fmt: skip
        rows.append((count, again.cached_tokens, length - again.cached_tokens,
                     round(1e3 * again.seconds[0], 1)))  # fmt: skip
    columns = ("shared tokens", "found", "computed", "prefill ms")
    records = [dict(zip(columns, row, strict=True)) for row in rows]
    return Experiment(
        name="prefix",
        title="A shared beginning is computed once",
        question=f"Two prompts of {length} tokens to SmolLM2-135M; blocks of 16 are shared whole.",
        columns=columns,
        rows=tuple(rows),
        checks=tuple(checks),
        chart=lines(records, "shared tokens", "prefill ms"),
    )


def _prefilled(runner: Runner, pool: PagedPool, tokens: list[int]) -> tuple[Sequence, float]:
    sequence, _ = pool.open()
    pool.append(sequence, len(tokens))
    start = time.perf_counter()
    step = PagedStep(View(pool, [sequence], [len(tokens)]))
    last_logits(runner, tokens, 0, step)
    return sequence, time.perf_counter() - start


def preempt(*, lengths: tuple[int, ...] = (64, 128, 256, 512)) -> Experiment:
    """A paused sequence: its blocks copied out and in, against its tokens computed again."""
    runner, rows, checks = smollm(), [], []
    slots, types = planned_slots(), cache_types()
    for length in lengths:
        pool = PagedPool(runner.body.slots, types, blocks=2 * (length // 16 + 1), block_size=16)
        sequence, seconds = _prefilled(runner, pool, text_tokens(length))
        start = time.perf_counter()
        copy = swap_out(pool, sequence)
        out = time.perf_counter()
        swap_in(pool, copy)
        end = time.perf_counter()
        planned = -(-length // 16) * planned_block(slots, types, 16)
        checks.append(Check(name=f"bytes of {length} tokens", predicted=planned,
                            measured=copy.bytes))  # fmt: skip
        rows += [
            (length, "swap out + in", copy.bytes, round(1e3 * (end - start), 2)),
            (length, "recompute", 0, round(1e3 * seconds, 2)),
        ]
        del out
    columns = ("tokens", "way", "bytes copied each way", "ms")
    records = [dict(zip(columns, row, strict=True)) for row in rows]
    return Experiment(
        name="preempt",
        title="Swapping costs bytes, recomputing costs arithmetic",
        question="SmolLM2-135M in f32: what does pausing a sequence of n tokens cost?",
        columns=columns,
        rows=tuple(rows),
        checks=(*checks, *_preempted_tokens()),
        chart=lines(records, "tokens", "ms", "way"),
        notes=("Host memory is this machine's own memory here; on a GPU the copy crosses a link.",),
    )


def _preempted_tokens() -> list[Check]:
    """Batched runs in a pool that is too small, both ways, against one-by-one generation."""
    runner = random_body("gqa", heads=4, kv_heads=2, head_dim=32, hidden=64, vocab=211)
    asked = [[(7 * i + j) % 211 for j in range(20 + i)] for i in range(6)]
    alone = [generate(runner, p, 30).tokens for p in asked]
    checks = []
    for way in ("recompute", "swap"):
        pool = PagedPool(runner.body.slots, cache_types(), blocks=8, block_size=16)
        batcher = Batcher(runner, pool, preemption=way)
        requests = [batcher.add(p, 30) for p in asked]
        batcher.run()
        wrong = sum(r.tokens != want for r, want in zip(requests, alone, strict=True))
        name = f"{way}: sequences that differ, {batcher.counters.preemptions} preemptions"
        checks.append(Check(name=name, predicted=0, measured=wrong, unit="sequence"))
    return checks


def batch(*, prompt: int = 48, output: int = 16, fits: int = 6,
          offered: tuple[int, ...] = (1, 2, 4, 6, 8)) -> Experiment:  # fmt: skip
    """More and more requests at once, into a pool that holds `fits` of them."""
    runner, rows, checks = smollm(), [], []
    blocks = fits * -(-(prompt + output - 1) // 16)
    generate(runner, text_tokens(8), 2)
    for count in offered:
        pool = PagedPool(runner.body.slots, cache_types(), blocks=blocks, block_size=16,
                         share_prefixes=False)  # fmt: skip
        batcher = Batcher(runner, pool)
        text = text_tokens(prompt * count)
        requests = [batcher.add(text[prompt * i : prompt * (i + 1)], output) for i in range(count)]
        start, most = time.perf_counter(), 0
        while not batcher.idle:
            batcher.step()
            most = max(most, pool.groups[0].books.held)
        seconds = time.perf_counter() - start
        latency = sum((r.finished or 0) - r.arrived for r in requests) / count
        rows.append((count, round(count * output / seconds, 1), round(latency, 2),
                     batcher.counters.preemptions, most))  # fmt: skip
        if count <= fits:
            planned = count * -(-(prompt + output - 1) // 16)
            checks.append(Check(name=f"{count} requests: blocks held at the end", unit="1",
                                predicted=planned, measured=most))  # fmt: skip
            checks.append(Check(name=f"{count} requests: preemptions", predicted=0, unit="1",
                                measured=batcher.counters.preemptions))  # fmt: skip
    columns = ("requests", "tokens/s", "mean latency s", "preemptions", "most blocks held")
    records = [dict(zip(columns, row, strict=True)) for row in rows]
    return Experiment(
        name="batch",
        title="A batch shares the weights' read until the pool is full",
        question=f"SmolLM2-135M, {prompt} tokens in, {output} out, a pool for {fits} requests.",
        columns=columns,
        rows=tuple(rows),
        checks=tuple(checks),
        chart=lines(records, "requests", "tokens/s"),
    )


def kl_divergence(wanted: torch.Tensor, got: torch.Tensor) -> float:
    """Mean KL divergence in nats of rows of logits from the wanted ones."""
    p, q = wanted.log_softmax(-1), got.log_softmax(-1)
    return float((p.exp() * (p - q)).sum(-1).mean())
