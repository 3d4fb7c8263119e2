"""Tensor parallelism over processes: each rank holds its share of the heads, and of the cache.

Rank r of n computes query heads [r x heads/n, ...) and the KV heads they read. With fewer KV heads
than ranks each head lives on several ranks, so the cache of all ranks together grows; that is why
8 KV heads on 16 GPUs do not halve the bytes per GPU (seed 000). Latent attention has one vector
that all heads read: heads are shared out, latents and their projection live whole on every rank, so
its cache does not shrink at all. After attention and after the feed-forward the ranks' partial sums
are added (all-reduce over gloo). Megatron-LM, 2019.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from kvproof.errors import UsageError
from kvproof.lab.generation import generate
from kvproof.lab.models.body import Body
from kvproof.lab.models.runner import Runner, Weights


class RankResult(msgspec.Struct, frozen=True):
    """What one rank reports: its KV heads (a latent counts as head 0), bytes, tokens."""

    rank: int
    kv_heads: tuple[int, ...]
    cache_bytes: int
    tokens: tuple[int, ...]


def kv_heads_of(body: Body, rank: int, ranks: int) -> tuple[int, ...]:
    """The KV heads that a rank holds. UsageError unless the heads divide over the ranks."""
    latent = body.latent is not None
    fits = latent or body.kv_heads % ranks == 0 or ranks % body.kv_heads == 0
    if body.heads % ranks or not fits:
        raise UsageError(
            f"{body.heads} query and {body.kv_heads} KV heads do not divide over {ranks} ranks",
            hint="use a number of ranks that divides the query heads",
        )
    if latent:
        return (0,)
    if body.kv_heads >= ranks:
        share = body.kv_heads // ranks
        return tuple(range(rank * share, (rank + 1) * share))
    return (rank * body.kv_heads // ranks,)


class PlainRunner(Runner):
    """A runner without compiled kernels.

    Each process would compile them for itself, for seconds, and they change neither bytes nor
    tokens.
    """

    compiled = False


class ShardedRunner(PlainRunner):
    """One rank's part of a body and its weights: sliced heads and feed-forward, sums of all."""

    def __init__(self, body: Body, weights: Weights, rank: int, ranks: int) -> None:
        heads = body.heads // ranks
        held = heads if body.latent else len(kv_heads_of(body, rank, ranks))
        local = msgspec.structs.replace(body, heads=heads, kv_heads=held, ffn=body.ffn // ranks)
        super().__init__(local, shard(weights, body, rank, ranks))

    def _attention(self, *args: Any) -> torch.Tensor:
        return _add_up(super()._attention(*args))

    def _feed_forward(self, *args: Any) -> torch.Tensor:
        return _add_up(super()._feed_forward(*args))


def _add_up(part: torch.Tensor) -> torch.Tensor:
    total = part.clone()
    dist.all_reduce(total)
    return total


def shard(weights: Weights, body: Body, rank: int, ranks: int) -> dict[str, torch.Tensor]:
    """A rank's slices of the weights; norms, embeddings and latent projections stay whole."""
    if body.ffn % ranks:
        raise UsageError(f"a feed-forward of {body.ffn} does not divide over {ranks} ranks")
    rows = _latent_rows(body, rank, ranks) if body.latent else _head_rows(body, rank, ranks)
    rows["gate"] = rows["up"] = _share(body.ffn, rank, ranks)
    value = body.latent.value_dim if body.latent else body.head_dim
    columns = {"o": _share(body.heads * value, rank, ranks), "down": rows["gate"]}
    out = {}
    for name, tensor in weights.items():
        part = name.rpartition(".")[2]
        if part in rows:
            out[name] = tensor[rows[part]].contiguous()
        elif part in columns:
            out[name] = tensor[:, columns[part]].contiguous()
        else:
            out[name] = tensor
    return out


def _share(count: int, rank: int, ranks: int) -> slice:
    return slice(rank * count // ranks, (rank + 1) * count // ranks)


def _head_rows(body: Body, rank: int, ranks: int) -> dict[str, slice]:
    held, dim = kv_heads_of(body, rank, ranks), body.head_dim
    keys = slice(held[0] * dim, (held[-1] + 1) * dim)
    return {"q": _share(body.heads * dim, rank, ranks), "k": keys, "v": keys}


def _latent_rows(body: Body, rank: int, ranks: int) -> dict[str, slice]:
    """Queries and the two maps between heads and latents, by head."""
    if body.latent is None:
        raise UsageError("this body has no latents")
    width = body.latent.nope_dim + body.latent.rope_dim
    heads = _share(body.heads, rank, ranks)
    return {"q": _share(body.heads * width, rank, ranks), "k_up": heads, "v_up": heads}


class Task(NamedTuple):
    """One greedy generation that all ranks take part in."""

    body: Body
    weights: Weights
    prompt: list[int]
    tokens: int


def run_ranks(runner: Runner, prompt: list[int], count: int, ranks: int) -> list[RankResult]:
    """Generate `count` greedy tokens on `ranks` processes; each rank's own report."""
    return run_tasks([Task(runner.body, runner.weights, prompt, count)], ranks)[0]


def run_tasks(tasks: Sequence[Task], ranks: int) -> list[list[RankResult]]:
    """Each task's reports by rank; the `ranks` processes are started once for all tasks."""
    for task in tasks:
        for rank in range(ranks):
            kv_heads_of(task.body, rank, ranks)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # torch moves what it hands to processes into shared memory. The kernels of the caller's runner
    # hold addresses of the weights, so it is copies that are handed over.
    copies = [t._replace(weights={k: w.clone() for k, w in t.weights.items()}) for t in tasks]
    results = mp.get_context("spawn").SimpleQueue()
    mp.spawn(_rank, (ranks, port, copies, results), nprocs=ranks)
    reports = sorted((results.get() for _ in range(ranks)), key=lambda of_rank: of_rank[0].rank)
    return [list(of_task) for of_task in zip(*reports, strict=True)]


def _rank(rank: int, ranks: int, port: int, tasks: list[Task], results: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks
    )
    try:
        results.put([_report(task, rank, ranks) for task in tasks])
    finally:
        dist.destroy_process_group()


def _report(task: Task, rank: int, ranks: int) -> RankResult:
    runner = ShardedRunner(task.body, task.weights, rank, ranks)
    out = generate(runner, task.prompt, task.tokens)
    held = kv_heads_of(task.body, rank, ranks)
    return RankResult(rank, held, out.cache_bytes, tuple(out.tokens))
