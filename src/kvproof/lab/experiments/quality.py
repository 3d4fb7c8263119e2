"""Experiments about what shrinking costs: quantized entries, evicted entries."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import cross_entropy

from kvproof.kinds import Types
from kvproof.lab.attention import View, attend
from kvproof.lab.elements import cache_types
from kvproof.lab.eviction import EvictingStep, Policy, split_heads
from kvproof.lab.experiments import charts
from kvproof.lab.experiments.machine import best
from kvproof.lab.experiments.material import (
    fill,
    planned_block,
    planned_slots,
    smollm,
    text_tokens,
    tokenizer,
)
from kvproof.lab.experiments.result import Check, Experiment, rounded
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


_POLICIES: tuple[Policy, ...] = ("window", "sinks", "heavy")


_DEPTHS = (0.0, 0.5, 1.0)  # where in the page the number is told


def evict(*, tokens: int = 320, budgets: tuple[int, ...] = (48, 96, 192), chunk: int = 32,
          by_head: bool = True) -> Experiment:  # fmt: skip
    """Policies and budgets: bytes kept, perplexity of a text, recall of needles at three depths."""
    text, slots = text_tokens(tokens), planned_slots()
    block = planned_block(slots, cache_types(), 16)
    rows: list[tuple[str | int | float | None, ...]] = []
    checks = []
    whole, pool = _read(text, None, tokens, chunk, by_head=False)
    told = [_recalls(None, 10_000, chunk, depth) for depth in _DEPTHS]
    rows.append(("none", tokens, -(-tokens // 16) * block, _held_bytes(pool), round(whole, 2),
                 len(_DEPTHS), sum(told)))  # fmt: skip
    for policy in _POLICIES:
        for budget in budgets:
            heads = by_head and policy == "heavy"
            result, pool = _read(text, policy, budget, chunk, by_head=heads)
            found = [_recalls(policy, budget, chunk, depth) for depth in _DEPTHS]
            reach = None if policy == "heavy" else sum(_in_reach(budget, d) for d in _DEPTHS)
            row = (policy, budget, -(-budget // 16) * block, _held_bytes(pool), round(result, 2),
                   reach, sum(found))  # fmt: skip
            rows.append(row)
            checks += _evict_checks(row)
    columns = ("policy", "budget", "planned bytes", "bytes held", "perplexity", "needles in reach",
               "needles found")  # fmt: skip
    records = [dict(zip(columns, row, strict=True)) for row in rows]
    return Experiment(
        name="evict",
        title="What is evicted can't be recalled",
        question=f"SmolLM2-135M, {tokens} tokens in passes of {chunk}; a number told at the start, "
        "in the middle and at the end of a page.",
        columns=columns,
        rows=tuple(rows),
        checks=tuple(checks),
        chart=_evict_chart(records, whole, sum(told)),
        notes=(
            "Heavy hitters are chosen by head and layer when the text is read, in all heads alike "
            "when the number is asked for; what they keep depends on the text, so nothing is "
            "predicted for them.",
        ),
    )


def _evict_checks(row: tuple[str | int | float | None, ...]) -> list[Check]:
    policy, budget, planned, held, _, reach, found = row
    checks = [Check(name=f"{policy}, {budget} kept: bytes held", listed=False,
                    predicted=float(planned or 0), measured=float(held or 0))]  # fmt: skip
    if reach is not None:
        because = "in reach is not yet recalled: a small model misses some"
        checks.append(Check(name=f"{policy}, {budget} kept: needles", unit="of 3", tolerance=None,
                            predicted=float(reach), measured=float(found or 0),
                            because=because if reach != found else ""))  # fmt: skip
    return checks


def _evict_chart(records: list[dict[str, Any]], whole: float, told: int) -> dict[str, Any]:
    """Perplexity and recall by budget, the run without eviction as a line of its own."""
    budgets = [r["budget"] for r in records[1:]]
    ends = {"policy": "nothing evicted", "perplexity": whole, "needles found": told}
    rest = [{**ends, "budget": n} for n in sorted(set(budgets))]
    shown = [*records[1:], *rest]
    return charts.above(
        charts.lines(shown, "budget", "perplexity", "policy", scales=("log2", "linear")),
        charts.lines(shown, "budget", "needles found", "policy", scales=("log2", "linear")),
    )


def _held_bytes(pool: PagedPool) -> int:
    """Bytes of the blocks that are held, each read off its tensors."""
    return sum(g.books.held * _block_bytes(pool, i) for i, g in enumerate(pool.groups))


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


_NUMBER = "7421"
_ANSWER = 10


def _asked(depth: float) -> list[int]:
    """A page of text with the number told at a depth of it, and the question, as a chat."""
    codes = tokenizer()
    page = text_tokens(220)
    cut = round(depth * len(page))
    first, rest = codes.decode(page[:cut]), codes.decode(page[cut:])
    question = "What is the secret number? Answer with the number only."
    told = f"{first}\n\nThe secret number is {_NUMBER}.\n\n{rest}\n\n{question}".strip()
    return codes.chat([{"role": "user", "content": told}])


def _in_reach(budget: int, depth: float) -> bool:
    """Whether the last `budget` positions still hold the number when it is to be said."""
    tokens, number = _asked(depth), tokenizer().encode(_NUMBER)
    size = len(number)
    at = next(i for i in range(len(tokens)) if tokens[i : i + size] == number)
    return at >= len(tokens) + size - budget


def _recalls(policy: Policy | None, budget: int, chunk: int, depth: float) -> bool:
    """Whether the model still says the number, read with this policy and budget."""
    tokens = _asked(depth)
    step = _begin(min(budget, len(tokens) + 2 * _ANSWER) + chunk, by_head=False)
    logits = torch.zeros(0)
    for start in range(0, len(tokens), chunk):
        logits = _feed(step, tokens[start : start + chunk], start)
        if policy is not None:
            step.evict(policy, budget)
    answer: list[int] = []
    for i in range(_ANSWER):
        answer.append(int(logits[-1].argmax()))
        logits = _feed(step, answer[-1:], len(tokens) + i)
        if policy is not None:
            step.evict(policy, budget)
    return _NUMBER in tokenizer().decode(answer)
