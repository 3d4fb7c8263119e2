"""Experiment about entries of fewer bits: what they save, and what they cost in quality."""

from __future__ import annotations

import torch
from torch.nn.functional import cross_entropy

from kvproof.kinds import Types
from kvproof.lab.attention import View, attend
from kvproof.lab.elements import cache_types
from kvproof.lab.experiments import charts
from kvproof.lab.experiments.machine import best
from kvproof.lab.experiments.material import (
    fill,
    planned_slots,
    smollm,
    text_tokens,
)
from kvproof.lab.experiments.result import Check, Experiment, rounded
from kvproof.lab.generation import pool_for
from kvproof.lab.models.runner import Runner
from kvproof.lab.pool.pool import PagedPool
from kvproof.lab.steps import PagedStep

_PAIRS = (("f32", "f32"), ("bf16", "bf16"), ("fp8", "fp8"), ("int8", "int8"), ("int4", "int8"),
          ("int8", "int4"), ("int4", "int4"), ("int4:32", "int4:32"))  # fmt: skip


def _logits(runner: Runner, tokens: list[int], types: Types) -> tuple[torch.Tensor, PagedPool]:
    """Logits after every token when all of them read the cache in these types."""
    pool = pool_for(runner, len(tokens), types)
    sequence, _ = pool.open()
    pool.append(sequence, len(tokens))
    step = PagedStep(View(pool, [sequence], [len(tokens)]))
    rows = torch.arange(len(tokens))
    return runner.forward(torch.tensor(tokens), rows, step, rows=rows), pool


def perplexity(logits: torch.Tensor, tokens: list[int]) -> float:
    """e to the mean negative log-likelihood of each token after the ones before it."""
    return float(cross_entropy(logits[:-1], torch.tensor(tokens[1:])).exp())


def kl_divergence(wanted: torch.Tensor, got: torch.Tensor) -> float:
    """Mean KL divergence in nats of rows of logits from the wanted ones."""
    p, q = wanted.log_softmax(-1), got.log_softmax(-1)
    return float((p.exp() * (p - q)).sum(-1).mean())


def quantize(*, tokens: int = 256, pairs: tuple[tuple[str, str], ...] = _PAIRS,
             context: int = 4096) -> Experiment:  # fmt: skip
    """Element types of keys and values apart: bytes a token, KL divergence, perplexity, speed."""
    runner, text = smollm(), text_tokens(tokens)
    wanted, _ = _logits(runner, text, cache_types())
    slots, rows, checks = planned_slots(), [], []
    for k, v in pairs:
        types = cache_types(k, v)
        logits, pool = _logits(runner, text, types)
        planned = sum(s.entry_bytes(types) for s in slots)
        measured = pool.allocated_bytes / (pool.groups[0].books.total * pool.block_size)
        checks.append(Check(name=f"{k}/{v}: bytes a token", predicted=planned, measured=measured,
                            unit="B/token", listed=False))  # fmt: skip
        moved = max(0.0, rounded(kl_divergence(wanted, logits)))
        rows.append((f"{k} / {v}", planned, rounded(measured, 6), moved,
                     round(perplexity(logits, text), 2),
                     _microseconds(runner, types, context)))  # fmt: skip
    columns = ("keys / values", "planned bytes a token", "bytes a token", "KL divergence (nats)",
               "perplexity", "attention µs")  # fmt: skip
    records = [dict(zip(columns, row, strict=True)) for row in rows]
    return Experiment(
        name="quantize",
        title="Eight bits cost little, four bits cost more in keys than in values",
        question=f"SmolLM2-135M on {tokens} tokens of Alice in Wonderland.",
        columns=columns,
        rows=tuple(rows),
        checks=(*checks, _total(checks, "pairs of types")),
        chart=charts.above(
            charts.bars(records, "keys / values", "bytes a token",
                        predicted="planned bytes a token", form=",~r"),
            charts.bars(records, "keys / values", "KL divergence (nats)"),
            charts.bars(records, "keys / values", "perplexity"),
        ),
        notes=(
            "int8 and int4 keep four bytes of scale per 64 numbers unless named otherwise.",
            "KL divergence: how far the next-token distributions move from those with an f32 "
            f"cache; attention: one layer's decode step at {context:,} tokens.",
        ),
    )  # fmt: skip


def _total(checks: list[Check], what: str) -> Check:
    """How many of the checks that the table shows already do not hold: one line for all."""
    apart = sum(not check.holds for check in checks)
    return Check(name=f"{what} whose bytes differ, of {len(checks)}", predicted=0, measured=apart,
                 unit="1")  # fmt: skip


def _microseconds(runner: Runner, types: Types, context: int) -> float:
    """One layer's decode attention over random entries of these types."""
    body = runner.body
    pool = PagedPool([body.slots[0]], types, blocks=-(-context // 16), block_size=16)
    view, q = fill(pool, 0, context), torch.randn(1, body.heads, body.head_dim)
    seconds = best(lambda: attend(view, 0, q, scale=body.scale, v_dim=body.value_dim), rounds=5)
    return rounded(1e6 * seconds)
