"""Eviction: which entries to keep when a sequence may hold only so many.

    window        the last ones                              (bounded, forgets the start)
    sinks         the first four and the last ones           (Xiao et al., StreamingLLM, 2023)
    heavy         half the last ones, half those that drew the most attention so far
                                                             (Zhang et al., H2O, 2023)

A pool of one group per slot (`groups="layer"`) keeps different entries in each layer; slots that
were split by head (`split_heads`) in each head of each layer.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Literal

import msgspec
import torch

from kvproof.errors import UsageError
from kvproof.kinds import FullSlot, Slot
from kvproof.lab.attention import View
from kvproof.lab.attention.dense import attend_dense, read_table, visible
from kvproof.lab.models.body import Body
from kvproof.lab.pool.pool import PagedPool
from kvproof.lab.pool.tables import Sequence

Policy = Literal["window", "sinks", "heavy"]
SINKS = 4


def split_heads(slots: Seq[Slot]) -> tuple[Slot, ...]:
    """Each full slot as one slot per KV head, so that heads can keep different entries."""
    out: list[Slot] = []
    for slot in slots:
        if type(slot) is not FullSlot:
            raise UsageError(f"{slot.kind} slots are not split by head")
        out += [msgspec.structs.replace(slot, kv_heads=1)] * slot.kv_heads
    return tuple(out)


def chosen(policy: Policy, entries: int, budget: int, mass: torch.Tensor) -> torch.Tensor:
    """Rising indices of the entries to keep; `mass` is each entry's attention so far."""
    if entries <= budget:
        return torch.arange(entries)
    if policy == "window":
        return torch.arange(entries - budget, entries)
    if policy == "sinks":
        sinks = min(SINKS, budget)
        return torch.cat((torch.arange(sinks), torch.arange(entries - budget + sinks, entries)))
    recent = budget // 2
    ranked = mass[: entries - recent].topk(budget - recent).indices
    return torch.cat((ranked.sort().values, torch.arange(entries - recent, entries)))


class Kept(msgspec.Struct, frozen=True):
    """One slot's entries in its table's order: their attention so far, and their positions."""

    mass: torch.Tensor
    positions: torch.Tensor

    def drew(self, mass: torch.Tensor, end: int) -> Kept:
        """After a pass that ends before position `end`; `mass` is what every entry drew in it."""
        new = len(mass) - len(self.mass)
        before = torch.cat((self.mass, torch.zeros(new)))
        return Kept(before + mass, torch.cat((self.positions, torch.arange(end - new, end))))

    def only(self, entries: torch.Tensor) -> Kept:
        """What is left when `entries` (indices) are."""
        return Kept(self.mass[entries], self.positions[entries])


_NOTHING = Kept(torch.zeros(0), torch.zeros(0, dtype=torch.long))


Part = tuple[int, torch.Tensor, tuple[torch.Tensor, ...]]  # slot, its queries, its vectors


def _by_slot(
    pool: PagedPool, layer: int, q: torch.Tensor, vectors: tuple[torch.Tensor, ...], body: Body
) -> list[Part]:
    """A layer's queries and vectors for each of its slots: one of all heads, or one per head."""
    count = len(pool.slots) // body.layers
    own = zip(*(v.chunk(count, 1) for v in vectors), strict=True)
    return [
        (layer * count + i, queries, parts)
        for i, (queries, parts) in enumerate(zip(q.chunk(count, 1), own, strict=True))
    ]


class SlotsStep:
    """A pass over sequences of a pool whose layers have one slot each, or one per head."""

    def __init__(self, view: View) -> None:
        self.view = view

    def attend(
        self, layer: int, q: torch.Tensor, vectors: tuple[torch.Tensor, ...], body: Body
    ) -> torch.Tensor:
        """Store, then attend, slot by slot."""
        out = []
        for slot, queries, own in _by_slot(self.view.pool, layer, q, vectors, body):
            self.view.write(slot, *own)
            out.append(
                attend_dense(self.view, slot, queries, scale=body.scale, v_dim=body.value_dim)
            )
        return torch.cat(out, 1)


class EvictingStep:
    """A pass of one sequence that also adds up how much attention every entry draws.

    `kept[slot]` follows the slot's table: call `evict` after each pass to cut both.
    """

    def __init__(self, pool: PagedPool, sequence: Sequence) -> None:
        self.pool, self.sequence = pool, sequence
        self.kept: dict[int, Kept] = {}
        self.view: View | None = None

    def begin(self, count: int) -> None:
        """Reserve entries for a pass of `count` tokens."""
        self.pool.append(self.sequence, count)
        self.view = View(self.pool, [self.sequence], [count])

    def attend(
        self, layer: int, q: torch.Tensor, vectors: tuple[torch.Tensor, ...], body: Body
    ) -> torch.Tensor:
        """Plain attention with visible weights, for the layer's slots (one, or one per head)."""
        parts = _by_slot(self.pool, layer, q, vectors, body)
        return torch.cat([self._slot(*part, body) for part in parts], 1)

    def _slot(
        self, slot: int, q: torch.Tensor, vectors: tuple[torch.Tensor, ...], body: Body
    ) -> torch.Tensor:
        if self.view is None:
            raise UsageError("begin the pass first")
        self.view.write(slot, *vectors)
        group, planes = self.view.planes(slot)
        table = group.sources[0]
        k, v = read_table(table, planes, body.value_dim)
        share = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(share, 1), v.repeat_interleave(share, 1)
        scores = torch.einsum("thd,shd->hts", q.float(), k) * body.scale
        mask = visible(group, table.entries, len(q))
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        weights = scores.softmax(-1)
        before = self.kept.get(slot, _NOTHING)
        self.kept[slot] = before.drew(weights.sum((0, 1)), self.sequence.length)
        return torch.einsum("hts,shd->thd", weights, v).to(q.dtype)

    def evict(self, policy: Policy, budget: int) -> None:
        """Cut every slot's table to `budget` entries by the policy."""
        for slot in range(len(self.pool.slots)):
            group, _ = self.pool.home[slot]
            entries = self.sequence.tables[group].entries
            if entries > budget:
                keep = chosen(policy, entries, budget, self.kept[slot].mass)
                self.pool.keep(self.sequence, group, keep)
                self.kept[slot] = self.kept[slot].only(keep)


class SideBySide:
    """A pass of several steps over equally many tokens each, one after the other."""

    def __init__(self, steps: Seq[EvictingStep]) -> None:
        self.steps = steps

    def attend(
        self, layer: int, q: torch.Tensor, vectors: tuple[torch.Tensor, ...], body: Body
    ) -> torch.Tensor:
        """Each step's rows attend over that step's own entries."""
        count = len(self.steps)
        own = zip(q.chunk(count), *(v.chunk(count) for v in vectors), strict=True)
        return torch.cat([
            step.attend(layer, queries, tuple(parts), body)
            for step, (queries, *parts) in zip(self.steps, own, strict=True)
        ])  # fmt: skip
