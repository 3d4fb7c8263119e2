"""Experiment about tensor parallelism: what each process of several keeps of one cache."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from kvproof.lab.experiments import charts
from kvproof.lab.experiments.material import planned_model, smollm
from kvproof.lab.experiments.result import Check, Experiment, rounded
from kvproof.lab.generation import generate
from kvproof.lab.models.runner import Runner
from kvproof.lab.models.sources import Shape, random_body
from kvproof.lab.parallel import PlainRunner, RankResult, Task, run_tasks
from kvproof.model.types import Model

_BLOCK = 16
_VOCAB = 131
_COLUMNS = ("model", "ranks", "KV heads a rank", "planned bytes a rank", "bytes a rank",
            "% of one process's", "all ranks together")  # fmt: skip


class _Case(NamedTuple):
    name: str
    runner: Runner
    model: Model  # as kvproof describes it
    ranks: tuple[int, ...]


def _cases() -> list[_Case]:
    from kvproof.api import load_model

    shape: Shape = {"heads": 8, "head_dim": 64, "hidden": 64, "ffn": 128, "vocab": _VOCAB}
    made: dict[str, Runner] = {}
    for n in (8, 2, 1):
        headed: Shape = {**shape, "kv_heads": n}
        made[f"random, {n} KV head{'s' if n > 1 else ''}"] = random_body("gqa", **headed)
    made["random, MLA"] = random_body("mla", **shape)
    out = [_Case(name, r, load_model(r.body.config), (2, 4)) for name, r in made.items()]
    return [*out, _Case("SmolLM2-135M, 3 KV heads", smollm(), planned_model(), (3,))]


def parallel(*, prompt: int = 24, output: int = 8) -> Experiment:
    """Heads of random bodies over 2 and 4 processes and SmolLM2's over 3: bytes, and tokens."""
    cases, length = _cases(), prompt + output
    asked = [(7 * i + 5) % _VOCAB for i in range(prompt)]
    alone = {
        c.name: generate(PlainRunner(c.runner.body, c.runner.weights), asked, output) for c in cases
    }
    runs = _runs(cases, asked, output)
    rows, checks, apart, wrong, ranks_run = [], [], 0, 0, 0
    for case in cases:
        for ranks in case.ranks:
            planned, results = _planned(case.model, ranks, length), runs[case.name, ranks]
            sizes = [result.cache_bytes for result in results]
            worst = max(sizes, key=lambda size: abs(size - planned))
            apart += sum(size != planned for size in sizes)
            wrong += sum(list(r.tokens) != alone[case.name].tokens for r in results)
            ranks_run += ranks
            checks.append(Check(name=f"{case.name} over {ranks}: bytes a rank", listed=False,
                                predicted=planned, measured=worst))  # fmt: skip
            whole = alone[case.name].cache_bytes
            rows.append((case.name, ranks, _held(case, results[0]), planned, worst,
                         rounded(100 * worst / whole), f"{sum(sizes) / whole:g} x"))  # fmt: skip
    checks += [
        Check(name=f"ranks whose bytes differ, of {ranks_run}", predicted=0, measured=apart,
              unit="rank"),
        Check(name="ranks whose tokens differ from one process", predicted=0, measured=wrong,
              unit="rank"),
    ]  # fmt: skip
    return Experiment(
        name="parallel",
        title="With more ranks than KV heads, the cache is held more than once",
        question=f"Bodies of 8 query heads over 2 and 4 processes, SmolLM2 over 3; {length} tokens "
        "in f32.",
        columns=_COLUMNS,
        rows=tuple(rows),
        checks=tuple(checks),
        chart=_chart(cases, rows, length),
        notes=(
            "Planned by the formula's capacity with tensor_parallel_size; measured by every rank "
            "off the storage behind its own tensors.",
            "A latent is one vector that all heads read: each rank holds all of it.",
        ),
    )


Row = tuple[str, int, str, int, int, float, str]


def _runs(
    cases: list[_Case], asked: list[int], output: int
) -> dict[tuple[str, int], list[RankResult]]:
    """Every case at every number of ranks; processes are started once for each number."""
    wanted: defaultdict[int, list[_Case]] = defaultdict(list)
    for case in cases:
        for ranks in case.ranks:
            wanted[ranks].append(case)
    return {
        (case.name, ranks): results
        for ranks, some in wanted.items()
        for case, results in zip(
            some, run_tasks([_task(c.runner, asked, output) for c in some], ranks), strict=True
        )
    }


def _task(runner: Runner, asked: list[int], output: int) -> Task:
    return Task(runner.body, runner.weights, asked, output)


def _planned(model: Model, ranks: int, length: int) -> int:
    """Bytes a rank that the planner's capacity gives the blocks of `length` tokens."""
    from kvproof.api import capacity
    from kvproof.engine.base import Deployment

    deployment = Deployment("formula", block_size=_BLOCK, kv_cache_dtype="f32",
                            tensor_parallel_size=ranks)  # fmt: skip
    return -(-length // _BLOCK) * capacity(model, deployment, kv_bytes=2**30).bytes_per_block


def _held(case: _Case, result: RankResult) -> str:
    body = case.runner.body
    return "the latent" if body.latent else f"{len(result.kv_heads)} of {body.kv_heads}"


def _chart(cases: list[_Case], rows: list[Row], length: int) -> charts.Spec:
    whole = {case.name: _planned(case.model, 1, length) for case in cases}
    share = "% of the cache on each rank"
    records = [
        {"model": name, "ranks": str(ranks), share: percent, "planned": 100 * planned / whole[name]}
        for name, ranks, _, planned, _, percent, _ in sorted(rows, key=lambda row: row[1])
    ]
    return charts.grouped(records, "model", "ranks", share, "planned")
