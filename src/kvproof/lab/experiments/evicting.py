"""Experiment about entries that are dropped: what is still predicted, and what is still found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import torch

from kvproof.errors import UsageError
from kvproof.lab.attention import View
from kvproof.lab.elements import cache_types
from kvproof.lab.eviction import (
    SINKS,
    EvictingStep,
    Policy,
    SideBySide,
    SlotsStep,
    split_heads,
)
from kvproof.lab.experiments import charts
from kvproof.lab.experiments.material import planned_block, planned_slots, smollm, text_tokens
from kvproof.lab.experiments.needles import Needle, Page, page
from kvproof.lab.experiments.quality import perplexity
from kvproof.lab.experiments.result import Check, Experiment, rounded
from kvproof.lab.pool.pool import PagedPool

_POLICIES: tuple[Policy, ...] = ("window", "sinks", "heavy")
_BLOCK = 16
_COLUMNS = ("policy", "entries kept", "planned bytes", "bytes held", "perplexity",
            "planned % of needles held", "% of needles held", "numbers found")  # fmt: skip


class Bound(msgspec.Struct, frozen=True):
    """How a text is read: in passes of `chunk` tokens, cut to `budget` entries after each."""

    policy: Policy | None
    budget: int
    chunk: int
    by_head: bool

    def begin(self, questions: int) -> EvictingStep:
        """An empty sequence in a pool for this reading and so many questions after it."""
        slots = smollm().body.slots
        heads = self.by_head and self.policy == "heavy"
        pool = PagedPool(
            split_heads(slots) if heads else slots, cache_types(),
            blocks=-(-(self.budget + self.chunk) // _BLOCK) + 4 * questions + 1, block_size=_BLOCK,
            groups="layer", share_prefixes=False,
        )  # fmt: skip
        return EvictingStep(pool, pool.open()[0])

    def kept(self, length: int) -> set[int] | None:
        """The positions of `length` that stay; None where that depends on the text."""
        if self.policy is None or length <= self.budget:
            return set(range(length))
        if self.policy == "heavy":
            return None
        sinks = min(SINKS, self.budget) if self.policy == "sinks" else 0
        return {*range(sinks), *range(length - self.budget + sinks, length)}


def evict(*, tokens: int = 640, budgets: tuple[int, ...] = (80, 160, 320), chunk: int = 32,
          needles: int = 24, by_head: bool = True) -> Experiment:  # fmt: skip
    """Policies and budgets: bytes kept, perplexity of a text, recall of numbers told in a page.

    UsageError for a budget that cuts nothing.
    """
    if max(budgets) >= tokens:
        raise UsageError(
            f"a budget of {max(budgets)} entries keeps all of {tokens} tokens",
            hint="give budgets below the length of the text",
        )
    told = page(tokens, needles)
    bounds = [Bound(policy, n, chunk, by_head) for policy in _POLICIES for n in budgets]
    answers = [*_rows([Bound(None, tokens, tokens, by_head)], told), *_rows(bounds, told)]
    rows, recalled = [row for _, row, _ in answers], answers[0][-1]
    checks = [check for bound, row, _ in answers for check in _checks(bound, row, told, recalled)]
    return Experiment(
        name="evict",
        title="Sinks and heavy hitters save the perplexity, not what was evicted",
        question=f"SmolLM2-135M reads {tokens} tokens in passes of {chunk}: a text, then a page "
        f"with {needles} numbers in it.",
        columns=_COLUMNS,
        rows=tuple(rows),
        checks=tuple(checks),
        chart=_chart(rows, needles),
        notes=(
            "A number is found when each of its four digits is the model's first choice after the "
            "sentence it was told in; guessing finds one in 10,000.",
            f"Heavy hitters are chosen by {'head' if by_head else 'layer'}; what they keep depends "
            "on the text, so nothing is predicted for them.",
        ),
    )


_HELD = "predicted: digits still held, of the numbers that the whole cache finds"
Row = tuple[str | int | float | None, ...]


Answer = tuple[Bound, Row, frozenset[int]]  # with the needles that were found


def _rows(bounds: Sequence[Bound], told: Page) -> list[Answer]:
    """What each of the bounds (which read in the same passes) keeps, predicts and finds."""
    text = text_tokens(len(told.tokens))
    readings = [(_held_bytes(step.pool), perplexity(logits, text))
                for step, logits in read(bounds, text)]  # fmt: skip
    pages = read(bounds, told.tokens, len(told.needles))
    return [
        _answer(bound, told, step, *reading)
        for bound, (step, _), reading in zip(bounds, pages, readings, strict=True)
    ]


def _answer(bound: Bound, told: Page, step: EvictingStep, held: int, surprise: float) -> Answer:
    """The row of a bound after its cache, `step`, has read the page."""
    found = _found(step, told.needles)
    planned = -(-bound.budget // _BLOCK) * planned_block(planned_slots(), cache_types(), _BLOCK)
    kept = bound.kept(len(told.tokens))
    wanted = None if kept is None else _percent([len(kept & n.places) for n in told.needles], told)
    row = (bound.policy or "none", bound.budget, planned, held, round(surprise, 2), wanted,
           _percent([_entries(step, n) for n in told.needles], told),
           len(found))  # fmt: skip
    return bound, row, found


def read(
    bounds: Sequence[Bound], tokens: Sequence[int], questions: int = 0
) -> list[tuple[EvictingStep, torch.Tensor]]:
    """The cache of each bound after reading, and the logits of every token (none with questions).

    All read in the same passes: a product over many rows takes a fraction of its time over few.
    """
    steps, logits = [bound.begin(questions) for bound in bounds], []
    for start in range(0, len(tokens), bounds[0].chunk):
        piece = tokens[start : start + bounds[0].chunk]
        for step in steps:
            step.begin(len(piece))
        places = torch.arange(start, start + len(piece)).repeat(len(steps))
        rows = torch.arange(0 if questions else len(places))
        flat = torch.tensor(piece).repeat(len(steps))
        got = smollm().forward(flat, places, SideBySide(steps), rows=rows)
        logits.append(got.unflatten(0, (len(steps), -1)))
        for step, bound in zip(steps, bounds, strict=True):
            if bound.policy is not None:
                step.evict(bound.policy, bound.budget)
    return list(zip(steps, torch.cat(logits, 1), strict=True))


def _percent(entries: Sequence[float], told: Page) -> float:
    """Entries of needles that are held, as a share of all entries of needles."""
    return rounded(100 * sum(entries) / sum(len(n.places) for n in told.needles), 4)


def _entries(step: EvictingStep, needle: Needle) -> float:
    """How many entries of a needle the cache holds, on average over its slots."""
    tables = [kept.positions for kept in step.kept.values()]
    inside = [((t >= needle.start) & (t < needle.end)).sum().item() for t in tables]
    return float(sum(inside)) / len(tables)


def _found(step: EvictingStep, needles: Sequence[Needle]) -> frozenset[int]:
    """Which numbers are said after their cues; each is asked of a fork, all in one pass."""
    pool, start = step.pool, step.sequence.length
    asked = [[*n.cue, *n.number] for n in needles]
    forks = [pool.fork(step.sequence) for _ in needles]
    for fork, tokens in zip(forks, asked, strict=True):
        pool.append(fork, len(tokens))
    counts = [len(tokens) for tokens in asked]
    flat = torch.tensor([token for tokens in asked for token in tokens])
    positions = torch.cat([torch.arange(start, start + count) for count in counts])
    view = SlotsStep(View(pool, forks, counts))
    logits = smollm().forward(flat, positions, view, rows=torch.arange(len(flat)))
    for fork in forks:
        pool.close(fork)
    said = [part.argmax(-1).tolist() for part in logits.split(counts)]
    return frozenset(
        i for i, n in enumerate(needles) if tuple(said[i][len(n.cue) - 1 : -1]) == n.number
    )


def _checks(bound: Bound, row: Row, told: Page, recalled: frozenset[int]) -> list[Check]:
    name, budget, planned, held, _, wanted, entries, found = row
    size = Check(name=f"{name}, {budget} kept: bytes held", listed=False,
                 predicted=float(planned or 0), measured=float(held or 0))  # fmt: skip
    kept = bound.kept(len(told.tokens))
    if kept is None:
        return [size]
    held_check = Check(name=f"{name}, {budget} kept: entries of needles", listed=False, unit="%",
                       predicted=float(wanted or 0), measured=float(entries or 0))  # fmt: skip
    reach = sum(n.digits <= kept for i, n in enumerate(told.needles) if i in recalled)
    numbers = Check(name=f"{name}, {budget} kept: numbers", unit=f"of {len(told.needles)}",
                    predicted=reach, measured=int(found or 0), tolerance=None,
                    because=_HELD if reach != found else "")  # fmt: skip
    return [size, held_check, numbers] if bound.policy else [size, held_check]


def _held_bytes(pool: PagedPool) -> int:
    """Bytes of the blocks that are held, each read off its tensors."""
    return sum(
        group.books.held * sum(t[0].numel() * t.element_size() for t in group.tensors())
        for group in pool.groups
    )


def _chart(rows: Sequence[Row], needles: int) -> dict[str, Any]:
    """Perplexity and recall by budget, the run without eviction as a line of its own."""
    found = f"numbers found, of {needles}"
    records = [
        {"policy": row[0], "entries kept": row[1], "perplexity": row[4], found: row[-1]}
        for row in rows
    ]
    whole, kept = records[0], records[1:]
    budgets = sorted({int(r["entries kept"] or 0) for r in kept})
    shown = [*kept, *({**whole, "policy": "nothing evicted", "entries kept": n} for n in budgets)]
    return charts.above(
        charts.lines(shown, "entries kept", "perplexity", "policy", scales=("log2", "linear")),
        charts.lines(shown, "entries kept", found, "policy", scales=("log2", "linear")),
    )
