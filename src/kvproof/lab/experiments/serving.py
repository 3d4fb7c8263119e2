"""Experiments about many requests: shared prefixes, preemption, batches."""

from __future__ import annotations

import time

from kvproof.lab.attention import View
from kvproof.lab.batching import Batcher
from kvproof.lab.elements import cache_types
from kvproof.lab.experiments import charts, machine
from kvproof.lab.experiments.material import (
    planned_block,
    planned_model,
    planned_slots,
    smollm,
    streamed_bytes,
    text_tokens,
)
from kvproof.lab.experiments.result import Check, Experiment, rounded
from kvproof.lab.generation import generate, last_logits, pool_for
from kvproof.lab.models.runner import Runner
from kvproof.lab.models.sources import random_body
from kvproof.lab.pool.pool import PagedPool
from kvproof.lab.pool.swap import swap_in, swap_out
from kvproof.lab.pool.tables import Sequence
from kvproof.lab.steps import PagedStep
from kvproof.timing import without_cache
from kvproof.timing.step import Machine, step_time


def prefill_seconds(tokens: int, ceiling: Machine) -> float:
    """The planner's time of one pass over `tokens`: two operations a parameter and token."""
    plan = without_cache(planned_model(), prompt=max(1, tokens - 1), output=2)
    return plan.seconds_last_step_without(ceiling.flops or 1.0)


_PASS = "norms, rotations, attention and small products: what two operations a parameter leave out"


def prefix(*, length: int = 256, shared: tuple[int, ...] = (0, 64, 128, 192, 255)) -> Experiment:
    """The second of two prompts that begin alike: how much of its prefill is saved."""
    runner, rows, checks, ceiling = smollm(), [], [], machine.whole()
    first, differ = text_tokens(length), 0
    generate(runner, first[:32], 2)
    for count in shared:
        pool = pool_for(runner, length + 16, sequences=2)
        second = first[:count] + [t + 1 for t in first[count:]]
        alone = generate(runner, second, 2).tokens
        generate(runner, first, 2, cache=pool)
        again = generate(runner, second, 2, cache=pool)
        planned = min(count, length - 1) // pool.block_size * pool.block_size
        differ += sum(a != b for a, b in zip(alone, again.tokens, strict=True))
        checks.append(Check(name=f"{count} shared: tokens found", predicted=planned, unit="token",
                            measured=again.cached_tokens, listed=False))  # fmt: skip
        rows.append((count, planned, again.cached_tokens, length - again.cached_tokens,
                     rounded(1e3 * prefill_seconds(length - planned, ceiling)),
                     rounded(1e3 * again.seconds[0])))  # fmt: skip
    whole, last = rows[0], rows[-1]
    checks += [
        Check(name="found, over all rows", predicted=sum(r[1] for r in rows), unit="token",
              measured=sum(r[2] for r in rows)),
        Check(name="tokens that differ from a run alone", predicted=0, measured=differ,
              unit="token"),
        Check(name="a prefill of nothing shared", predicted=whole[4], measured=whole[5], unit="ms",
              tolerance=None, because=_PASS),
        Check(name=f"share left with {last[0]} shared", predicted=rounded(last[3] / length),
              measured=rounded(last[5] / whole[5]), unit="1", tolerance=None,
              because="a short pass still reads all the weights"),
    ]  # fmt: skip
    columns = ("shared tokens", "planned", "found", "computed", "predicted ms", "prefill ms")
    records = [dict(zip(columns, row, strict=True)) for row in rows]
    return Experiment(
        name="prefix",
        title="A shared beginning is computed once",
        question=f"Two prompts of {length} tokens to SmolLM2-135M; blocks of 16 are shared whole.",
        columns=columns,
        rows=tuple(rows),
        checks=tuple(checks),
        chart=charts.lines(records, "shared tokens", "prefill ms", predicted="predicted ms"),
        notes=(machine.said(ceiling),),
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
    ceiling = machine.whole()
    rows: list[tuple[int | float | str, ...]] = []
    checks = []
    _paused(min(lengths))  # compiles and warms up
    for length in lengths:
        planned, copied, swap, again = _paused(length)
        checks.append(Check(name=f"bytes of {length} tokens", predicted=planned, measured=copied))
        moved = 4 * planned / ceiling.bandwidth
        rows += [
            (length, "swap out + in", copied, rounded(1e3 * moved), rounded(1e3 * swap)),
            (length, "recompute", 0, rounded(1e3 * prefill_seconds(length, ceiling)),
             rounded(1e3 * again)),
        ]  # fmt: skip
    checks += [_paused_time(row) for row in rows[-2:]]
    columns = ("tokens", "way", "bytes copied each way", "predicted ms", "ms")
    records = [dict(zip(columns, row, strict=True)) for row in rows]
    return Experiment(
        name="preempt",
        title="Swapping costs bytes, recomputing costs arithmetic",
        question="SmolLM2-135M in f32: what does pausing a sequence of n tokens cost?",
        columns=columns,
        rows=tuple(rows),
        checks=(*checks, *_preempted_tokens()),
        chart=charts.lines(records, "tokens", "ms", "way", predicted="predicted ms",
                           scales=("log2", "log")),
        notes=(
            "Host memory is this machine's own memory here; on a GPU the copy crosses a link.",
            machine.said(ceiling),
        ),
    )  # fmt: skip


def _paused_time(row: tuple[int | float | str, ...]) -> Check:
    length, way, _, wanted, took = row
    copied = "each way reads and writes the bytes once; small copies pay for each block's call"
    return Check(name=f"{way}, {length} tokens", predicted=float(wanted), measured=float(took),
                 unit="ms", tolerance=None,
                 because=_PASS if way == "recompute" else copied)  # fmt: skip


_ROUNDS = 5  # swaps, of which the fastest counts: each takes but milliseconds


def _paused(length: int) -> tuple[int, int, float, float]:
    """Planned and copied bytes of a sequence, and the seconds of both ways to pause it."""
    runner, types = smollm(), cache_types()
    pool = PagedPool(runner.body.slots, types, blocks=2 * (length // 16 + 1), block_size=16)
    sequence, again = _prefilled(runner, pool, text_tokens(length))
    swaps = []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        copy = swap_out(pool, sequence)
        sequence = swap_in(pool, copy)
        swaps.append(time.perf_counter() - start)
    swap = min(swaps)
    return -(-length // 16) * planned_block(planned_slots(), types, 16), copy.bytes, swap, again


def _preempted_tokens() -> list[Check]:
    """Batched runs in a pool that is too small, both ways, against one-by-one generation."""
    runner = random_body("gqa", heads=4, kv_heads=2, head_dim=32, hidden=64, vocab=211)
    asked = [[(7 * i + j) % 211 for j in range(20 + i)] for i in range(4)]
    alone = [generate(runner, p, 16).tokens for p in asked]
    checks = []
    for way in ("recompute", "swap"):
        pool = PagedPool(runner.body.slots, cache_types(), blocks=6, block_size=16)
        batcher = Batcher(runner, pool, preemption=way)
        requests = [batcher.add(p, 16) for p in asked]
        batcher.run()
        wrong = sum(r.tokens != want for r, want in zip(requests, alone, strict=True))
        times = batcher.counters.preemptions
        word = "preemption" if times == 1 else "preemptions"
        name = f"{way}: sequences that differ after {times} {word}"
        checks.append(Check(name=name, predicted=0, measured=wrong, unit="sequence"))
    return checks


def batch(*, prompt: int = 32, output: int = 12, fits: int = 6,
          offered: tuple[int, ...] = (1, 2, 4, 6, 8)) -> Experiment:  # fmt: skip
    """More and more requests at once, into a pool that holds `fits` of them."""
    runner, ceiling = smollm(), machine.whole()
    each = -(-(prompt + output - 1) // 16)
    rows: list[tuple[int | float, ...]] = []
    checks = [_planned_fit(fits, each, prompt + output - 1)]
    for count in offered:
        pool = PagedPool(runner.body.slots, cache_types(), blocks=fits * each, block_size=16,
                         share_prefixes=False)  # fmt: skip
        _served(Batcher(runner, pool), min(count, fits), 2, 2)  # compiles for so many rows
        seconds, step, latency, most, paused = _served(Batcher(runner, pool), count, prompt, output)
        wanted = _batch_seconds(count, prompt, output, fits, ceiling)
        step_wanted = _step_seconds(min(count, fits), prompt + output // 2, ceiling)
        rows.append((count, rounded(1e3 * step_wanted), rounded(1e3 * step),
                     rounded(count * output / wanted), rounded(count * output / seconds),
                     rounded(latency), paused, most))  # fmt: skip
        blocks = min(count, fits) * each
        checks.append(Check(name=f"{count} at once: most blocks held", unit="block",
                            predicted=blocks, measured=most))  # fmt: skip
        if count <= fits:
            checks.append(Check(name=f"{count} at once: preemptions", predicted=0, unit="1",
                                measured=paused))  # fmt: skip
    checks += [check for row in (rows[0], rows[-1]) for check in _batch_times(row)]
    columns = ("requests", "predicted step ms", "step ms", "predicted tokens/s", "tokens/s",
               "mean latency s", "preemptions", "most blocks held")  # fmt: skip
    records = [dict(zip(columns, row, strict=True)) for row in rows]
    return Experiment(
        name="batch",
        title="A batch shares the weights' read until the pool is full",
        question=f"SmolLM2-135M, {prompt} tokens in, {output} out, a pool for {fits} requests.",
        columns=columns,
        rows=tuple(rows),
        checks=tuple(checks),
        chart=charts.above(
            charts.lines(records, "requests", "tokens/s", predicted="predicted tokens/s"),
            charts.lines(records, "requests", "mean latency s"),
        ),
        notes=(machine.said(ceiling),),
    )


def _batch_times(row: tuple[int | float, ...]) -> list[Check]:
    """Estimates of a row: its fullest decode step, and the whole run's throughput."""
    count, step_wanted, step, wanted, measured, *_ = row
    return [
        Check(name=f"{int(count)} at once: a full step", predicted=step_wanted, measured=step,
              unit="ms", tolerance=None, because=_CALLS),
        Check(name=f"{int(count)} at once: tokens a second", predicted=wanted, measured=measured,
              unit="1/s", tolerance=None, because=_READING),
    ]  # fmt: skip


_CALLS = "the slower of bytes and products, each at its peak; overlap is partial, calls come on top"
_READING = "prompts at a large product's rate, which short ones miss; beyond the pool also waiting"


def _planned_fit(fits: int, each: int, tokens: int) -> Check:
    """How many requests the planner's capacity says the pool's bytes hold."""
    from kvproof.api import capacity
    from kvproof.engine.base import Deployment

    size = fits * each * planned_block(planned_slots(), cache_types(), 16)
    deployment = Deployment("formula", block_size=16, kv_cache_dtype="f32")
    planned = capacity(planned_model(), deployment, kv_bytes=size).sequences(tokens)
    return Check(name=f"requests of {tokens} tokens that the pool holds", predicted=planned,
                 measured=fits, unit="1")  # fmt: skip


def _served(
    batcher: Batcher, count: int, prompt: int, output: int
) -> tuple[float, float, float, int, int]:
    """Seconds until all are done, of a decode step, mean latency, most blocks held, preemptions.

    The step is the middle one of those in which the most requests ran and no prompt was read.
    """
    text = text_tokens(prompt * count)
    requests = [batcher.add(text[prompt * i : prompt * (i + 1)], output) for i in range(count)]
    start, most, steps = time.perf_counter(), 0, []
    while not batcher.idle:
        read, made, begun = *_counted(batcher), time.perf_counter()
        batcher.step()
        now_read, now_made = _counted(batcher)
        if now_read == read:
            steps.append((now_made - made, time.perf_counter() - begun))
        most = max(most, batcher.pool.groups[0].books.held)
    seconds = time.perf_counter() - start
    fullest = sorted(took for made, took in steps if made == max(steps)[0])
    latency = sum((r.finished or 0) - r.arrived for r in requests) / count
    return seconds, fullest[len(fullest) // 2], latency, most, batcher.counters.preemptions


def _counted(batcher: Batcher) -> tuple[int, int]:
    """Tokens of prompts read, and tokens made, so far."""
    return batcher.counters.prefill_tokens, batcher.counters.decode_tokens


def _batch_seconds(count: int, prompt: int, output: int, fits: int, ceiling: Machine) -> float:
    """The planner's time for `count` requests, at most `fits` of them at once."""
    seconds, left = prefill_seconds(prompt * count, ceiling), count
    while left > 0:
        running = min(left, fits)
        seconds += (output - 1) * _step_seconds(running, prompt + output // 2, ceiling)
        left -= running
    return seconds


def _step_seconds(running: int, tokens: int, ceiling: Machine) -> float:
    """The planner's decode step: weights read once, `running` caches of `tokens`, or products."""
    streamed, batch = streamed_bytes(smollm()), {tokens: running}
    return step_time(planned_model(), ceiling, cache_types(), batch, streamed=streamed).seconds
