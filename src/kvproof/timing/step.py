"""One decode step: what it reads, what it computes, how long the slower of the two takes.

A step of `batch` sequences reads the streamed weights once (of the experts, those that the
batch hits) and every sequence's cache; it multiplies twice per active weight and sequence, and
attends. Its time is the larger of bytes over bandwidth and operations over peak, each divided
by a measured efficiency (1.0 for the literature's roofline).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from kvproof.engine.base import Offload
from kvproof.engine.formula import held_bytes, on_rank
from kvproof.kinds import FullSlot, IndexerSlot, LatentSlot, RecurrentSlot, Slot, Types
from kvproof.model.types import Model
from kvproof.model.weights import expert_bytes, streamed_weight_bytes
from kvproof.terms import Term


class Efficiency(msgspec.Struct, frozen=True, kw_only=True):
    """Shares of the peak that real kernels reach, with where the figures come from."""

    weights: float = 1.0
    attention: float = 1.0
    compute: float = 1.0
    source: str = "roofline: every byte at the full bandwidth, every operation at the peak"


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank offers: bytes a second, operations a second; `ranks` share the work.

    The ranks are `stages` pipeline stages of equal size: a layer's cache lies on one stage, and
    as many batches as there are stages are in flight, so that every stage works.
    `context_ranks` of the ranks that share a layer deal a sequence's positions out among them
    (decode context parallelism): each keeps and reads its part of what grows with the length.
    `copies` of these ranks hold the same cache and deal a step's sequences out (prefill context
    parallelism). `sharing` sets of such ranks deal one set of routed experts out: each reads its
    part of those that the sequences of all hit; `repeating` of them run each sequence alike.
    `offload`: what is read from host memory instead, and ranks that work one after the other.
    """

    bandwidth: float
    flops: float | None
    ranks: int = 1
    stages: int = 1
    context_ranks: int = 1
    copies: int = 1
    sharing: int = 1
    repeating: int = 1
    offload: Offload | None = None

    @property
    def shards(self) -> int:
        """Ranks that share one layer."""
        return self.ranks // self.stages

    def in_flight(self, sequences: float) -> float:
        """Batches that `sequences` are dealt out to: one for each copy's stage, while they last."""
        return min(self.stages * self.copies, max(sequences, 1))

    def hitting(self, sequences: float) -> float:
        """Sets that bring sequences of their own to one set's experts at once."""
        busy = min(self.copies, max(sequences, 1))
        return self.sharing / self.copies * busy / self.repeating

    def speed(self, sequences: int) -> float:
        """Bytes a second of the ranks that read at once."""
        turns = self.offload.turns if self.offload else 1
        return self.bandwidth * self.ranks * self.in_flight(sequences) / self.stages / turns


class StepTime(msgspec.Struct, frozen=True, kw_only=True):
    """A decode step of `batch` sequences; bytes and operations over all ranks.

    `limit` says which of the two takes longer; `seconds` is that one. Over pipeline stages a step
    is one round: each sequence has passed every stage once.
    """

    batch: int
    weight_bytes: int
    kv_bytes: int
    flops: int
    bandwidth_seconds: float
    compute_seconds: float
    seconds: float
    limit: Literal["bandwidth", "compute"]
    efficiency: Efficiency
    terms: tuple[Term, ...]

    @property
    def bytes(self) -> int:
        """All bytes that the step reads."""
        return self.weight_bytes + self.kv_bytes

    @property
    def kv_share(self) -> float:
        """The cache's share of the bytes."""
        return self.kv_bytes / self.bytes if self.bytes else 0.0

    @property
    def tokens_per_second_per_user(self) -> float:
        """Tokens that each sequence gets a second."""
        return 1 / self.seconds if self.seconds else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Tokens of all sequences a second."""
        return self.batch * self.tokens_per_second_per_user


def read_bytes(
    model: Model, tokens: int, types: Types, ranks: int = 1, context_ranks: int = 1
) -> int:
    """Cache bytes that `ranks` GPUs together read for one sequence of `tokens` in a step.

    What is replicated (a latent, heads beyond their count) is read by every rank, and where
    `context_ranks` of them deal the positions out, by each in its part. A layer with an indexer
    reads all index keys but only the chosen positions (`index_topk`).
    """
    chosen = model.text_config.get("index_topk")
    indexed = {slot.layer for slot in model.slots if isinstance(slot, IndexerSlot)}
    parts = (tokens, context_ranks)
    return ranks * sum(
        _slot_read(on_rank(slot, ranks), parts, types, chosen if slot.layer in indexed else None)
        for slot in model.slots
    )


def _slot_read(slot: Slot, parts: tuple[int, int], types: Types, chosen: object) -> int:
    tokens, context_ranks = parts
    if isinstance(chosen, int) and isinstance(slot, FullSlot | LatentSlot):
        tokens = min(tokens, chosen)
        return slot.bytes(-(-tokens // context_ranks), types)
    if context_ranks > 1 and _grows(slot):
        return -(-int(slot.held(tokens)) // context_ranks) * slot.entry_bytes(types)
    return held_bytes(slot, tokens, types)


def _grows(slot: Slot) -> bool:
    """Whether a slot keeps every position: windows and states lie whole on each rank."""
    if isinstance(slot, LatentSlot):
        return slot.window is None
    return slot.kind in ("full", "indexer")


def attention_flops(model: Model, tokens: int) -> int:
    """Operations of one new token's attention over `tokens` cached positions, all layers.

    Scores and the weighted sum each cost two operations per multiply-add.
    """
    return sum(_slot_flops(slot, tokens, model.attention_heads) for slot in model.slots)


def _slot_flops(slot: Slot, tokens: int, heads: int) -> int:
    if isinstance(slot, FullSlot):
        return 2 * heads * (slot.k_dim + slot.v_dim) * int(slot.held(tokens))
    if isinstance(slot, LatentSlot):
        return 2 * heads * (2 * slot.latent_dim + slot.rope_dim) * int(slot.held(tokens))
    if isinstance(slot, RecurrentSlot):
        return 4 * slot.elements
    return 0


def weights_read(
    model: Model,
    batch: float,
    streamed: int | None = None,
    experts: int | None = None,
    *,
    sharing: int = 1,
) -> int:
    """Weight bytes that a step of `batch` sequences reads; sizes that aren't given are as stored.

    Of E experts with k chosen per token a batch hits E x (1 - (1 - k/E)^batch) on average. Of
    `sharing` sets of ranks whose sequences are the batch, one reads its part of those experts.
    """
    total = streamed_weight_bytes(model) if streamed is None else streamed
    if not model.experts or not model.experts_per_token:
        return total
    share = _experts_hit(model, batch)
    held = expert_bytes(model) if experts is None else experts
    return total - round((1 - share / sharing) * held)


def _experts_hit(model: Model, batch: float) -> float:
    """The share of the routed experts that `batch` tokens hit on average."""
    missed = max(0.0, 1 - model.experts_per_token / model.experts)
    return float(1 - missed**batch)


def _rounds_read(
    model: Model, machine: Machine, sequences: float, sizes: tuple[int | None, int | None]
) -> int:
    """Weight bytes that a step reads: every batch in flight reads the weights once."""
    flying, each = machine.in_flight(sequences), machine.sharing
    batch = max(sequences, 1) / flying * machine.hitting(sequences)
    return round(flying * weights_read(model, batch, *sizes, sharing=each))


def _cache_read(
    model: Model, machine: Machine, types: Types, batch: Mapping[int, int]
) -> tuple[int, int]:
    """Cache bytes of a batch's sequences: each position once, and as the ranks read them."""
    sizes = (machine.shards, machine.context_ranks)
    once = sum(count * read_bytes(model, n, types) for n, count in batch.items())
    return once, sum(count * read_bytes(model, n, types, *sizes) for n, count in batch.items())


def _host_read(model: Model, machine: Machine, sequences: int, kv: int) -> tuple[int, int]:
    """Weight and cache bytes that a step reads from host memory."""
    offload = machine.offload
    if offload is None:
        return 0, 0
    flying = machine.in_flight(sequences)
    batch = max(sequences, 1) / flying
    hit = _experts_hit(model, batch) if model.experts and model.experts_per_token else 1.0
    weights = round(flying * (offload.weight_bytes + hit * offload.expert_bytes))
    return weights, round(kv * offload.cache_share)


def step_time(
    model: Model,
    machine: Machine,
    types: Types,
    batch: Mapping[int, int],
    *,
    streamed: int | None = None,
    experts: int | None = None,
    efficiency: Efficiency | None = None,
) -> StepTime:
    """A decode step over a `batch` of {cached tokens: how many sequences have that many}.

    `streamed` and `experts`: bytes of the weights in memory, of all that is streamed and of the
    routed experts; as the checkpoint stores them where they aren't given.
    """
    efficiency = efficiency or Efficiency()
    sequences = sum(batch.values())
    weights = _rounds_read(model, machine, sequences, (streamed, experts))
    speed = machine.speed(sequences)
    once, kv = _cache_read(model, machine, types, batch)
    dense = 2 * model.active_parameters * sequences
    flops = dense + sum(count * attention_flops(model, n) for n, count in batch.items())
    host = _host_read(model, machine, sequences, kv)
    reading = (weights - host[0]) / (speed * efficiency.weights)
    reading += (kv - host[1]) / (speed * efficiency.attention)
    on_host = _host_term(machine, host, efficiency)
    reading += on_host.value if on_host else 0.0
    peak = machine.flops * speed / machine.bandwidth if machine.flops else None
    computing = flops / (peak * efficiency.compute) if peak else 0.0
    return StepTime(
        batch=sequences,
        weight_bytes=weights,
        kv_bytes=kv,
        flops=flops,
        bandwidth_seconds=reading,
        compute_seconds=computing,
        seconds=max(reading, computing),
        limit="bandwidth" if reading >= computing else "compute",
        efficiency=efficiency,
        terms=_terms(
            (weights, once, kv), host, (speed, int(machine.in_flight(sequences))),
            (reading, flops, computing), efficiency,
        )
        + ((on_host,) if on_host else ()),
    )  # fmt: skip


def _host_term(machine: Machine, host: tuple[int, int], eff: Efficiency) -> Term | None:
    """The time that host memory takes; part of the reading."""
    size, offload = sum(host), machine.offload
    if not size or offload is None:
        return None
    seconds = size / (offload.bandwidth * eff.weights)
    return Term(
        name="reading, host",
        value=seconds,
        unit="s",
        formula=f"weights {host[0]:,} B + cache {host[1]:,} B, / ({offload.bandwidth:.4g} B/s x "
        f"{eff.weights:g}) = {seconds:.4g} s",
        source=offload.source,
    )


def _terms(
    read: tuple[int, int, int],
    host: tuple[int, int],
    pace: tuple[float, int],
    work: tuple[float, int, float],
    eff: Efficiency,
) -> tuple[Term, ...]:
    (weights, once, kv), (reading, flops, computing) = read, work
    (speed, flying), behind = pace, " + host" if sum(host) else ""
    copies = f" {once:,} B + {kv - once:,} B that GPUs hold more than once" if kv > once else ""
    passes = f", {flying} batches in flight" if flying > 1 else ""
    return (
        Term(
            name="weights read",
            value=weights,
            unit="B",
            formula=f"streamed weights{passes} = {weights:,} B",
            source="tensor shapes; embedding tables are looked up, not streamed",
        ),
        Term(
            name="KV read",
            value=kv,
            unit="B",
            formula=f"cache of all sequences{copies} = {kv:,} B",
            source="slots of the model",
        ),
        Term(
            name="reading",
            value=reading,
            unit="s",
            formula=f"{weights - host[0]:,} B / ({speed:.4g} B/s x {eff.weights:g}) + "
            f"{kv - host[1]:,} B / ({speed:.4g} B/s x {eff.attention:g}){behind} = "
            f"{reading:.4g} s",
            source=eff.source,
        ),
        Term(
            name="computing",
            value=computing,
            unit="s",
            formula=f"{flops:.4g} FLOP at {eff.compute:g} of the peak = {computing:.4g} s",
            source=eff.source,
        ),
    )


def crossover_tokens(
    model: Model,
    types: Types,
    streamed: int | None = None,
    experts: int | None = None,
    *,
    machine: Machine | None = None,
    context: int = 4096,
) -> float | None:
    """Cached tokens in a batch of sequences of `context` at which KV reads equal weight reads.

    Both depend on the batch: a larger one hits more experts, and a window or state is read for
    each sequence. None where nothing is cached.
    """
    machine = machine or Machine(bandwidth=1.0, flops=None)
    each = read_bytes(model, context, types, machine.shards, machine.context_ranks)
    if not each:
        return None

    sizes = (
        streamed_weight_bytes(model) if streamed is None else streamed,
        expert_bytes(model) if experts is None else experts,
    )  # once: each names every matrix of a mixed checkpoint

    def weights(sequences: float) -> int:
        return _rounds_read(model, machine, sequences, sizes)

    # Weight reads rise ever slower with the batch, so beyond one sequence they meet once.
    low, high = 1.0, max(1.0, weights(float(2**40)) / each)
    if weights(low) <= each:
        return context * weights(low) / each
    for _ in range(64):
        middle = (low + high) / 2
        low, high = (low, middle) if middle * each >= weights(middle) else (middle, high)
    return context * high
