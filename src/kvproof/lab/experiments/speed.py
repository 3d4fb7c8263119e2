"""Experiments about time: caching or not, attention designs, bandwidth."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvproof.kinds import FullSlot, LatentSlot, Slot, Types
from kvproof.lab.attention import attend
from kvproof.lab.elements import cache_types
from kvproof.lab.experiments import charts, machine
from kvproof.lab.experiments.machine import best
from kvproof.lab.experiments.material import (
    fill,
    planned_model,
    smollm,
    streamed_bytes,
    text_tokens,
)
from kvproof.lab.experiments.result import Check, Experiment, rounded
from kvproof.lab.generation import Generated, generate
from kvproof.lab.models.body import Body
from kvproof.lab.models.runner import Runner, Step
from kvproof.lab.models.sources import random_body
from kvproof.lab.pool.pool import PagedPool
from kvproof.model.types import Model
from kvproof.timing import without_cache
from kvproof.timing.recompute import WithoutCache
from kvproof.timing.step import Machine, step_time

_PASS = "norms, rotations and attention of many tokens: two operations a parameter leave them out"


def cache_or_not(*, prompt: int = 64, output: int = 24) -> Experiment:
    """Seed 003's comparison at this scale: tokens, operations and seconds of each step."""
    tokens = text_tokens(prompt)
    generate(smollm(), tokens, 2)  # compiles the kernels
    cached, uncached = CountingRunner(smollm()), CountingRunner(smollm())
    kept = generate(cached, tokens, output)
    again = generate(uncached, tokens, output, cache="none")
    plan = without_cache(planned_model(), prompt=prompt, output=output)
    rows = _step_rows(plan, kept, again)
    columns = ("step", "tokens with", "tokens without", "GFLOP with", "GFLOP without", "ms with",
               "ms without", "time ratio")  # fmt: skip
    shown = [
        {"step": i + 1, "ms": 1e3 * run.seconds[i + 1], "way": way}
        for i in range(output - 1)
        for way, run in (("with the cache", kept), ("without", again))
    ]
    return Experiment(
        name="cache_or_not",
        title=f"{output} tokens cost {plan.ratio:,.0f} times the arithmetic without the cache",
        question=f"SmolLM2-135M, {prompt} tokens in, {output} out: what does the cache save?",
        columns=columns,
        rows=rows,
        checks=(*_counts(plan, (kept, again), (cached, uncached)), *_times(plan, kept, again)),
        chart=charts.lines(shown, "step", "ms", "way"),
        notes=(
            "A pass over many tokens reads the weights once, a step with the cache reads them for "
            "one token: time shrinks by less than arithmetic until products, not memory, set it.",
            _at_full_size(),
        ),
    )


def _step_rows(
    plan: WithoutCache, kept: Generated, again: Generated
) -> tuple[tuple[int | float, ...], ...]:
    """About ten of the steps, the first and the last among them."""
    steps = len(kept.seconds) - 1
    chosen = sorted({1, *range(0, steps + 1, max(1, steps // 8)), steps} - {0})
    each = plan.flops_per_step / 1e9
    return tuple(
        (i, 1, plan.prompt + i, rounded(each), rounded(each * (plan.prompt + i)),
         rounded(1e3 * kept.seconds[i]), rounded(1e3 * again.seconds[i]),
         rounded(again.seconds[i] / kept.seconds[i]))
        for i in chosen
    )  # fmt: skip


def _counts(
    plan: WithoutCache,
    runs: tuple[Generated, Generated],
    runners: tuple[CountingRunner, CountingRunner],
) -> tuple[Check, ...]:
    differ = sum(a != b for a, b in zip(runs[0].tokens, runs[1].tokens, strict=True))
    with_, without = (runner.decoded for runner in runners)
    return (
        Check(name="tokens that differ", predicted=0, measured=differ, unit="token"),
        Check(name="tokens through the model with the cache", unit="token",
              predicted=plan.flops_with // plan.flops_per_step, measured=with_),
        Check(name="tokens through the model without", unit="token",
              predicted=plan.flops_without // plan.flops_per_step, measured=without),
        Check(name="times the arithmetic without", predicted=plan.ratio,
              measured=without / with_, unit="1"),
    )  # fmt: skip


def _times(plan: WithoutCache, kept: Generated, again: Generated) -> tuple[Check, ...]:
    ceiling = machine.whole()
    step = step_time(
        planned_model(), ceiling, cache_types(), {plan.prompt: 1}, streamed=streamed_bytes(smollm())
    )
    last = plan.seconds_last_step_without(ceiling.flops or 1.0)
    because = "weights over the read bandwidth; the runner's own calls come on top"
    return (
        Check(name="a step with the cache", predicted=rounded(1e3 * step.seconds), unit="ms",
              measured=rounded(1e3 * kept.decode_seconds), tolerance=None, because=because),
        Check(name="the last step without", predicted=rounded(1e3 * last), unit="ms",
              measured=rounded(1e3 * again.seconds[-1]), tolerance=None, because=_PASS),
    )  # fmt: skip


def _at_full_size() -> str:
    """The seed's own case by the same rule: Llama 3.1 8B, 1,000 tokens in, 500 out."""
    from kvproof.api import load_model

    plan = without_cache(
        load_model("meta-llama/Llama-3.1-8B", offline=True), prompt=1000, output=500
    )
    return (
        f"The same rule at full size: {plan.prompt:,} tokens in and {plan.output} out of Llama 3.1 "
        f"8B are {plan.flops_with / 1e12:.0f} TFLOP with the cache and "
        f"{plan.flops_without / 1e12:,.0f} without, {plan.ratio:,.0f} times as many."
    )


class CountingRunner(Runner):
    """A runner that counts the tokens that go through the model after the first pass."""

    def __init__(self, runner: Runner) -> None:
        super().__init__(runner.body, runner.weights)
        self.decoded = 0
        self._started = False

    def forward(
        self, tokens: torch.Tensor, positions: torch.Tensor, step: Step, *, rows: torch.Tensor
    ) -> torch.Tensor:
        """The pass itself, counted."""
        self.decoded += len(tokens) if self._started else 0
        self._started = True
        return super().forward(tokens, positions, step, rows=rows)


_HEADS, _DIM = 32, 128
# name -> (kind of body, KV heads)
_DESIGNS: dict[str, tuple[str, int | None]] = {
    "MHA, 32 KV heads": ("mha", None),
    "GQA, 8 KV heads": ("gqa", 8),
    "MQA, 1 KV head": ("mqa", 1),
    "MLA, 512 + 64": ("mla", None),
}


def design_body(kind: str, kv_heads: int | None) -> Body:
    """One layer of 32 query heads of 128; all but its attention is as small as can be."""
    return random_body(kind, layers=1, heads=_HEADS, kv_heads=kv_heads, head_dim=_DIM,
                       hidden=32, ffn=32, vocab=32).body  # fmt: skip


def _slot(name: str) -> Slot:
    """The slot that the pool is built of."""
    kind, kv_heads = _DESIGNS[name]
    if kind == "mla":
        return LatentSlot(layer=0, latent_dim=512, rope_dim=64, heads=_HEADS, nope_dim=_DIM,
                          value_dim=_DIM)  # fmt: skip
    count = {"mha": _HEADS, "mqa": 1}.get(kind) or kv_heads or 1
    return FullSlot(layer=0, kv_heads=count, k_dim=_DIM, v_dim=_DIM)


def _planned(name: str) -> Model:
    from kvproof.api import load_model

    return load_model(design_body(*_DESIGNS[name]).config)


def decode_seconds(pool: PagedPool, slot: Slot, context: int, rounds: int = 7) -> float:
    """The decode kernel's time over `context` random entries of the pool's only slot."""
    view = fill(pool, 0, context)
    width, v_dim = (576, 512) if isinstance(slot, LatentSlot) else (_DIM, _DIM)
    q = torch.randn(1, _HEADS, width)
    return best(lambda: attend(view, 0, q, scale=0.1, v_dim=v_dim), rounds)


def roofline_seconds(model: Model, ceiling: Machine, types: Types, context: int) -> float:
    """The planner's step without weights: attention's bytes or operations, whichever is longer."""
    return step_time(model, ceiling, types, {context: 1}, streamed=0).seconds


def attention(*, context: int = 8192, dtype: str = "bf16") -> Experiment:
    """The four designs with 32 query heads of 128: bytes per token and layer, and decode time."""
    rows, checks, types, ceiling = [], [], cache_types(dtype), machine.kernels()
    for name in _DESIGNS:
        slot, model = _slot(name), _planned(name)
        planned = model.slots[0].entry_bytes(types)
        pool = PagedPool([slot], types, blocks=-(-context // 16), block_size=16)
        held = pool.allocated_bytes // (pool.groups[0].books.total * 16)
        seconds = decode_seconds(pool, slot, context)
        wanted = roofline_seconds(model, ceiling, types, context)
        rows.append((name, planned, held, rounded(1e3 * wanted), rounded(1e3 * seconds),
                     rounded(context * held / seconds / 1e9)))  # fmt: skip
        checks.append(Check(name=f"{name}: bytes a token", predicted=planned, measured=held,
                            unit="B/token", listed=False))  # fmt: skip
        checks.append(Check(name=f"{name}: a step", predicted=rounded(1e3 * wanted), unit="ms",
                            measured=rounded(1e3 * seconds), tolerance=None,
                            because=_limit(model, ceiling, types, context)))  # fmt: skip
    columns = ("design", "planned bytes a token", "bytes a token", "predicted ms", "ms", "GB/s")
    records = [dict(zip(columns, row, strict=True)) for row in rows]
    first, *others = [row[2] for row in rows]
    times = "{}, {} and {}".format(*(f"{first / other:.3g}" for other in others))
    return Experiment(
        name="attention",
        title=f"Sharing keys and values shrinks the cache {times} times",
        question=f"{_HEADS} query heads of {_DIM} at {context:,} tokens in {dtype}, one layer.",
        columns=columns,
        rows=tuple(rows),
        checks=tuple(checks),
        chart=charts.above(
            charts.bars(records, "design", "bytes a token", predicted="planned bytes a token"),
            charts.bars(records, "design", "ms", predicted="predicted ms"),
        ),
        notes=(machine.said(ceiling),),
    )


def _limit(model: Model, ceiling: Machine, types: Types, context: int) -> str:
    """What the planner says sets the time, in numbers."""
    step = step_time(model, ceiling, types, {context: 1}, streamed=0)
    if step.limit == "bandwidth":
        return f"{step.kv_bytes:,} B over {ceiling.bandwidth / 1e9:.1f} GB/s"
    flops = (ceiling.flops or 1.0) / 1e9
    return f"{step.flops:,} operations over {flops:.0f} GFLOP/s: the reads are hidden behind them"


_CONTEXTS = (1024, 2048, 4096, 8192)
_DTYPES = ("f32", "bf16", "int8:128", "int4:128")


def bandwidth(
    *, contexts: tuple[int, ...] = _CONTEXTS, dtypes: tuple[str, ...] = _DTYPES
) -> Experiment:
    """Decode attention against context: linear, at a share of the measured read bandwidth."""
    design, ceiling = "MHA, 32 KV heads", machine.kernels()
    slot, model = _slot(design), _planned(design)
    rows: list[tuple[str | int | float, ...]] = []
    checks = []
    for dtype in dtypes:
        types, seconds = cache_types(dtype), []
        for context in contexts:
            pool = PagedPool([slot], types, blocks=context // 16, block_size=16)
            seconds.append(decode_seconds(pool, slot, context))
            step = step_time(model, ceiling, types, {context: 1}, streamed=0)
            wanted = step.kv_bytes / ceiling.bandwidth
            name = f"{dtype} at {context:,}: bytes read"
            checks.append(Check(name=name, predicted=step.kv_bytes, listed=False,
                                measured=pool.allocated_bytes))  # fmt: skip
            took, share = rounded(1e3 * seconds[-1]), round(100 * wanted / seconds[-1], 1)
            rows.append((dtype, context, step.kv_bytes, rounded(1e3 * wanted), took, share))
        checks += [*_at_longest(rows[-1]), _linear(dtype, contexts, seconds)]
    columns = ("type", "context", "bytes read", "predicted ms", "ms", "% of read bandwidth")
    records = [dict(zip(columns, row, strict=True)) for row in rows]
    return Experiment(
        name="bandwidth",
        title="Decode time is bytes over bandwidth",
        question="One MHA layer of 32 heads x 128: how does a step grow with the context?",
        columns=columns,
        rows=tuple(rows),
        checks=tuple(checks),
        chart=charts.lines(records, "context", "ms", "type", predicted="predicted ms"),
        notes=(
            "Predicted: the planned bytes over the measured bandwidth, for every type alike.",
            "Above 100 %: the entries of short contexts stay in the processor's caches.",
            machine.said(ceiling),
        ),
    )


def _at_longest(row: Sequence[str | int | float]) -> list[Check]:
    dtype, context, _, wanted, took, share = row
    rest = "sums, the softmax and look-ups" if dtype == "f32" else "widening the numbers, mostly"
    because = f"{share} % of the read bandwidth; the rest: {rest}"
    return [Check(name=f"{dtype} at {context:,}", predicted=float(wanted), measured=float(took),
                  unit="ms", tolerance=None, because=because)]  # fmt: skip


def _linear(dtype: str, contexts: Sequence[int], seconds: Sequence[float]) -> Check:
    """Growth of the time from the middle context to the last, against that of the bytes."""
    (start, first), (end, last) = list(zip(contexts, seconds, strict=True))[-2:]
    return Check(name=f"{dtype}: growth from {start:,} to {end:,}", predicted=end / start,
                 measured=rounded(last / first), unit="x", tolerance=None,
                 because="time grows as the bytes do")  # fmt: skip
