"""Experiments about time: caching or not, attention designs, bandwidth."""

from __future__ import annotations

import torch

from kvproof.kinds import FullSlot, LatentSlot, Slot
from kvproof.lab.attention import attend
from kvproof.lab.elements import cache_types
from kvproof.lab.experiments.machine import best, read_bandwidth, torch_threads
from kvproof.lab.experiments.material import fill, planned_slots, smollm, text_tokens
from kvproof.lab.experiments.result import Check, Experiment, bars, lines
from kvproof.lab.generate import generate
from kvproof.lab.models.runner import Runner, Step
from kvproof.lab.models.sources import default_weights, random_body
from kvproof.lab.pool.pool import PagedPool


def cache_or_not(*, prompt: int = 64, output: int = 24) -> Experiment:
    """Seed 003's comparison at this scale: tokens through the model, and seconds, at each step."""
    from kvproof.api import load_model
    from kvproof.timing import without_cache

    tokens = text_tokens(prompt)
    generate(smollm(), tokens, 2)  # compiles the kernels
    cached, uncached = CountingRunner(smollm()), CountingRunner(smollm())
    kept = generate(cached, tokens, output)
    again = generate(uncached, tokens, output, cache="none")
    plan = without_cache(load_model(str(default_weights())), prompt=prompt, output=output)
    rows = tuple(
        (i, 1, prompt + i, round(1e3 * a, 2), round(1e3 * b, 2), round(b / a, 1))
        for i, (a, b) in enumerate(zip(kept.seconds[1:], again.seconds[1:], strict=True), start=1)
    )
    checks = (
        Check(name="tokens that differ", predicted=0, unit="token",
              measured=sum(a != b for a, b in zip(kept.tokens, again.tokens, strict=True))),
        Check(name="times the arithmetic of decoding without a cache", unit="1",
              predicted=plan.ratio, measured=uncached.decoded / cached.decoded),
    )  # fmt: skip
    columns = ("step", "tokens with", "tokens without", "ms with", "ms without", "ratio")
    chart = [
        {"step": row[0], "ms": row[3 + i], "way": way}
        for row in rows
        for i, way in enumerate(("with the cache", "without"))
    ]
    times = sum(again.seconds[1:]) / sum(kept.seconds[1:])
    return Experiment(
        name="cache_or_not",
        title=f"{output} tokens cost {plan.ratio:,.0f} times the arithmetic without the cache",
        question=f"SmolLM2-135M, {prompt} tokens in, {output} out: what does the cache save?",
        columns=columns,
        rows=rows,
        checks=checks,
        chart=lines(chart, "step", "ms", "way"),
        notes=(
            f"Measured time ratio {times:.1f}: a pass over many tokens reads the weights once, so "
            "time grows less than arithmetic until the processor, not memory, is the limit.",
        ),
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


def _designs() -> dict[str, Slot]:
    def full(kv_heads: int) -> Slot:
        return FullSlot(layer=0, kv_heads=kv_heads, k_dim=_DIM, v_dim=_DIM)

    latent = LatentSlot(
        layer=0, latent_dim=512, rope_dim=64, heads=_HEADS, nope_dim=_DIM, value_dim=_DIM
    )
    return {"MHA, 32 KV heads": full(32), "GQA, 8 KV heads": full(8), "MQA, 1 KV head": full(1),
            "MLA, 512 + 64": latent}  # fmt: skip


def attention(*, context: int = 8192, dtype: str = "bf16") -> Experiment:
    """The four designs with 32 query heads of 128: bytes per token and layer, and decode time."""
    rows, checks, types = [], [], cache_types(dtype)
    names = {"MHA, 32 KV heads": ("mha", None), "GQA, 8 KV heads": ("gqa", 8),
             "MQA, 1 KV head": ("mqa", 1), "MLA, 512 + 64": ("mla", None)}  # fmt: skip
    for name, slot in _designs().items():
        kind, kv_heads = names[name]
        body = random_body(kind, layers=1, heads=_HEADS, kv_heads=kv_heads, head_dim=_DIM,
                           hidden=32, ffn=32, vocab=32).body  # fmt: skip
        planned = planned_slots(body)[0].entry_bytes(types)
        pool = PagedPool([slot], types, blocks=-(-context // 16), block_size=16)
        held = pool.allocated_bytes // (pool.groups[0].books.total * 16)
        view = fill(pool, 0, context)
        width = 576 if isinstance(slot, LatentSlot) else _DIM
        v_dim = 512 if isinstance(slot, LatentSlot) else _DIM
        q = torch.randn(1, _HEADS, width)
        seconds = best(lambda q=q, view=view, v=v_dim: attend(view, 0, q, scale=0.1, v_dim=v))  # type: ignore[misc]
        rate = context * held / seconds
        rows.append((name, held, round(1e3 * seconds, 3), round(rate / 1e9, 2)))
        checks.append(Check(name=f"{name}: bytes a token", predicted=planned, measured=held,
                            unit="B/token"))  # fmt: skip
    columns = ("design", "bytes per token and layer", "ms per step and layer", "GB/s")
    records = [dict(zip(columns, row, strict=True)) for row in rows]
    return Experiment(
        name="attention",
        title="Sharing keys and values shrinks the cache by 4, 32 and 14 times",
        question=f"{_HEADS} query heads of {_DIM} at {context:,} tokens in {dtype}, one layer.",
        columns=columns,
        rows=tuple(rows),
        checks=tuple(checks),
        chart=bars(records, "design", "bytes per token and layer"),
        notes=(f"{torch_threads()} thread(s).",),
    )


_CONTEXTS = (1024, 2048, 4096, 8192, 16384)
_DTYPES = ("f32", "bf16", "int8:128", "int4:128")


def bandwidth(
    *, contexts: tuple[int, ...] = _CONTEXTS, dtypes: tuple[str, ...] = _DTYPES
) -> Experiment:
    """Decode attention against context: linear, at a share of the measured read bandwidth."""
    slot = _designs()["MHA, 32 KV heads"]
    speed = read_bandwidth()
    rows = []
    for dtype in dtypes:
        for context in contexts:
            pool = PagedPool([slot], cache_types(dtype), blocks=context // 16, block_size=16)
            view, q = fill(pool, 0, context), torch.randn(1, _HEADS, _DIM)
            seconds = best(lambda q=q, view=view: attend(view, 0, q, scale=0.1, v_dim=_DIM))  # type: ignore[misc]
            share = pool.allocated_bytes / seconds / speed
            rows.append((dtype, context, round(1e3 * seconds, 3), round(100 * share, 1)))
    columns = ("type", "context", "ms", "% of read bandwidth")
    records = [dict(zip(columns, row, strict=True)) for row in rows]
    return Experiment(
        name="bandwidth",
        title="Decode time is bytes over bandwidth",
        question="One MHA layer of 32 heads x 128: how does a step grow with the context?",
        columns=columns,
        rows=tuple(rows),
        chart=lines(records, "context", "ms", "type"),
        notes=(
            f"Read bandwidth in this run: {speed / 1e9:.1f} GB/s, {torch_threads()} thread(s).",
        ),
    )
