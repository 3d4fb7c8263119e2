"""Experiments about what shrinking costs: quantized entries, evicted entries."""

from __future__ import annotations

import torch
from torch.nn.functional import cross_entropy

from kvproof.kinds import Types
from kvproof.lab.attention import View
from kvproof.lab.elements import cache_types
from kvproof.lab.eviction import EvictingStep, Policy, split_heads
from kvproof.lab.experiments.material import (
    planned_block,
    planned_slots,
    smollm,
    text_tokens,
    tokenizer,
)
from kvproof.lab.experiments.result import Check, Experiment, bars, lines
from kvproof.lab.experiments.serving import kl_divergence
from kvproof.lab.generate import pool_for
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


def quantize(*, tokens: int = 384, pairs: tuple[tuple[str, str], ...] = _PAIRS) -> Experiment:
    """Element types of keys and values apart: bytes a token, KL divergence, perplexity."""
    runner, text = smollm(), text_tokens(tokens)
    wanted, _ = _logits(runner, text, cache_types())
    slots, rows, checks = planned_slots(), [], []
    for k, v in pairs:
        types = cache_types(k, v)
        logits, pool = _logits(runner, text, types)
        planned = sum(s.entry_bytes(types) for s in slots)
        positions = pool.groups[0].books.total * pool.block_size
        measured = pool.allocated_bytes / positions
        checks.append(Check(name=f"{k}/{v}: bytes a token", predicted=planned, measured=measured,
                            unit="B/token"))  # fmt: skip
        rows.append((f"{k} / {v}", planned, round(kl_divergence(wanted, logits), 6),
                     round(perplexity(logits, text), 3)))  # fmt: skip
    columns = ("keys / values", "bytes a token", "KL divergence", "perplexity")
    records = [dict(zip(columns, row, strict=True)) for row in rows]
    return Experiment(
        name="quantize",
        title="Eight bits cost little, four bits cost more in keys than in values",
        question=f"SmolLM2-135M on {tokens} tokens of Alice in Wonderland.",
        columns=columns,
        rows=tuple(rows),
        checks=tuple(checks),
        chart=bars(records, "keys / values", "KL divergence"),
        notes=("int8 and int4 keep four bytes of scale per 64 numbers unless named otherwise.",),
    )


_POLICIES: tuple[Policy, ...] = ("window", "sinks", "heavy")


def evict(*, tokens: int = 384, budgets: tuple[int, ...] = (64, 128, 256), chunk: int = 32,
          by_head: bool = True) -> Experiment:  # fmt: skip
    """Policies and budgets: entries kept, perplexity of a text, recall of a needle at its start."""
    text, slots = text_tokens(tokens), planned_slots()
    rows, checks = [], []
    whole, _ = _read(text, None, tokens, chunk, by_head=False)
    rows.append(("none", tokens, tokens, round(whole, 2), _recalls(None, 10_000, chunk)))
    for policy in _POLICIES:
        for budget in budgets:
            heads = by_head and policy == "heavy"
            result, pool = _read(text, policy, budget, chunk, by_head=heads)
            held = [g.books.held * g.block_size for g in pool.groups]
            planned = -(-budget // 16) * planned_block(slots, cache_types(), 16)
            per_slot = [g.books.held * _block_bytes(pool, i) for i, g in enumerate(pool.groups)]
            checks.append(Check(name=f"{policy}, {budget} kept: bytes held", predicted=planned,
                                measured=sum(per_slot)))  # fmt: skip
            rows.append((policy, budget, max(held), round(result, 2),
                         _recalls(policy, budget, chunk)))  # fmt: skip
    columns = ("policy", "budget", "entries held", "perplexity", "needle found")
    records = [dict(zip(columns, row, strict=True)) for row in rows]
    return Experiment(
        name="evict",
        title="What is evicted can't be recalled",
        question=f"SmolLM2-135M, {tokens} tokens in passes of {chunk}; a number told at the start.",
        columns=columns,
        rows=tuple(rows),
        checks=tuple(checks),
        chart=lines(records[1:], "budget", "perplexity", "policy"),
        notes=("Heavy hitters are chosen by head and layer; the others are the same in all.",),
    )


def _block_bytes(pool: PagedPool, group: int) -> int:
    """Bytes of one block of a group, read off its tensors."""
    found = pool.groups[group]
    return sum(t[0].numel() * t.element_size() for t in found.tensors())


def _begin(budget: int, *, by_head: bool) -> EvictingStep:
    slots = smollm().body.slots
    pool = PagedPool(
        split_heads(slots) if by_head else slots, cache_types(), blocks=-(-budget // 16) + 8,
        groups="layer", share_prefixes=False,
    )  # fmt: skip
    return EvictingStep(pool, pool.open()[0], {})


def _feed(step: EvictingStep, tokens: list[int], start: int) -> torch.Tensor:
    step.begin(len(tokens))
    rows = torch.arange(len(tokens))
    return smollm().forward(torch.tensor(tokens), rows + start, step, rows=rows)


def _read(
    text: list[int], policy: Policy | None, budget: int, chunk: int, *, by_head: bool
) -> tuple[float, PagedPool]:
    """Perplexity of a text read in passes, evicting after each."""
    step = _begin(min(budget, len(text)) + chunk, by_head=by_head)
    logits = []
    for start in range(0, len(text), chunk):
        logits.append(_feed(step, text[start : start + chunk], start))
        if policy is not None:
            step.evict(policy, budget)
    return perplexity(torch.cat(logits), text), step.pool


_NEEDLE = "The secret number is 7421."


def _recalls(policy: Policy | None, budget: int, chunk: int) -> str:
    """Whether the model still says the number that stood before a page of text."""
    codes = tokenizer()
    page = codes.decode(text_tokens(300))
    question = "What is the secret number? Answer with the number only."
    tokens = codes.chat([{"role": "user", "content": f"{_NEEDLE}\n\n{page}\n\n{question}"}])
    step = _begin(min(budget, len(tokens) + 32) + chunk, by_head=False)
    logits = torch.zeros(0)
    for start in range(0, len(tokens), chunk):
        logits = _feed(step, tokens[start : start + chunk], start)
        if policy is not None:
            step.evict(policy, budget)
    answer: list[int] = []
    for i in range(12):
        answer.append(int(logits[-1].argmax()))
        logits = _feed(step, answer[-1:], len(tokens) + i)
        if policy is not None:
            step.evict(policy, budget)
    return "yes" if "7421" in codes.decode(answer) else "no"
