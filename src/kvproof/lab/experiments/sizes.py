"""Experiments about bytes: what is allocated, and what blocks waste."""

from __future__ import annotations

import subprocess
import sys
from typing import NamedTuple

import torch

from kvproof.kinds import ConvSlot, RecurrentSlot, Slot
from kvproof.lab.attention import attend
from kvproof.lab.attention.dense import attend_dense
from kvproof.lab.attention.paged import can_decode
from kvproof.lab.elements import cache_types
from kvproof.lab.experiments import charts
from kvproof.lab.experiments.machine import best, resident_bytes
from kvproof.lab.experiments.material import fill, planned_block, planned_slots
from kvproof.lab.experiments.result import Check, Experiment, rounded
from kvproof.lab.generation import generate
from kvproof.lab.models.body import Body
from kvproof.lab.models.sources import Shape, random_body, read_body, weights_file
from kvproof.lab.pool.pool import PagedPool

_TYPES = (("f32", "f32"), ("bf16", "bf16"), ("fp8", "fp8"), ("int8", "int8"), ("int4", "int4"),
          ("int8", "int4"))  # fmt: skip


class _Case(NamedTuple):
    name: str
    real: tuple[Slot, ...]  # what the pool is built of
    planned: tuple[Slot, ...]  # what kvproof plans from the model's description


def _cases(model: str | None) -> list[_Case]:
    from kvproof.lab.experiments.material import smollm

    out = [_Case("SmolLM2-135M", smollm().body.slots, planned_slots())]
    if model is not None:
        out.append(_given(model))
    for name, body in _bodies().items():
        out.append(_Case(name, body.slots, planned_slots(body)))
    states: tuple[Slot, ...] = (
        RecurrentSlot(layer=0, shape=(16, 64, 64), mixer="gated_delta", heads=16),
        ConvSlot(layer=0, channels=3072, kernel=4, mixer="gated_delta"),
    )
    return [*out, _Case("recurrent + conv", states, states)]


def _given(model: str) -> _Case:
    """A GGUF file or a name that the lab knows: the slots it runs with, and those planned."""
    from kvproof.api import load_model

    path = weights_file(model)
    body = read_body(path)
    return _Case(body.name, body.slots, load_model(str(path)).slots)


def _bodies() -> dict[str, Body]:
    shape: Shape = {"layers": 4, "heads": 8, "head_dim": 64, "hidden": 64, "ffn": 64, "vocab": 64}
    sliding: Shape = {**shape, "windows": (256, 256, 256, None)}
    return {
        "random MHA": random_body("mha", **shape).body,
        "random MQA": random_body("mqa", **shape).body,
        "random MLA": random_body("mla", **shape).body,
        "random sliding": random_body("gqa", **sliding).body,
    }


def bytes(*, blocks: int = 64, block_size: int = 16, model: str | None = None) -> Experiment:
    """Pools of every kind and element type: the plan's bytes, the tensors' and the process's.

    `model` adds one: a GGUF file, or gemma-3-270m, whose sliding layers have groups of their own.
    """
    rows, checks = [], []
    for case in _cases(model):
        for k, v in _TYPES:
            types = cache_types(k, v)
            pool = PagedPool(case.real, types, blocks=blocks, block_size=block_size)
            planned = blocks * planned_block(case.planned, types, block_size)
            measured = pool.allocated_bytes
            rows.append((case.name, f"{k}/{v}", planned, measured, rounded(measured / planned, 6)))
            checks.append(Check(name=f"{case.name} {k}/{v}", predicted=planned, measured=measured,
                                listed=False))  # fmt: skip
    apart = sum(not check.holds for check in checks)
    checks.append(Check(name=f"pools of the {len(rows)} that differ", predicted=0, measured=apart,
                        unit="pool"))  # fmt: skip
    checks += [*_other_caches(), *_process()]
    columns = ("model", "keys/values", "planned bytes", "bytes of tensors", "ratio")
    records = [
        {"model": m, "keys/values": t, "planned": want / 2**20, "MiB of tensors": got / 2**20}
        for m, t, want, got, _ in rows
    ]
    return Experiment(
        name="bytes",
        title="The pool's tensors are as large as the plan says",
        question=f"What do {blocks} blocks of {block_size} tokens take, by kind and element type?",
        columns=columns,
        rows=tuple(rows),
        checks=tuple(checks),
        chart=charts.grouped(records, "model", "keys/values", "MiB of tensors", "planned"),
        notes=(
            "Planned by kvproof from the model's config or GGUF metadata; measured off the storage "
            "behind the pool's tensors, and off a fresh process's resident memory.",
            "A state of fixed size (recurrent, convolution) has its own type whatever the keys and "
            "values have, so its bars are equal.",
        ),
    )


def _other_caches() -> list[Check]:
    """Contiguous and static caches of a generation against the same arithmetic."""
    runner = random_body("gqa", layers=3, hidden=64, ffn=64, vocab=64)
    prompt, count = list(range(20)), 12
    slots, types = planned_slots(runner.body), cache_types()
    per_token = sum(s.entry_bytes(types) for s in slots)
    held = {"contiguous": len(prompt) + count - 1, "static": len(prompt) + count}
    return [
        Check(
            name=f"{cache} cache of {tokens} tokens",
            predicted=tokens * per_token,
            measured=generate(runner, prompt, count, cache=cache).cache_bytes,
        )
        for cache, tokens in held.items()
    ]


def _process(blocks: int = 2048) -> list[Check]:
    """Growth of a fresh process's resident memory while it makes and fills a pool.

    A process of its own, for this one may reuse memory that it has freed before.
    """
    command = f"from kvproof.lab.experiments.sizes import growth; print(growth({blocks}))"
    run = subprocess.run(
        [sys.executable, "-c", command], capture_output=True, text=True, check=True
    )
    if run.stdout.strip() == "None":
        return []
    slots, types = planned_slots(_bodies()["random MHA"]), cache_types("bf16")
    planned = blocks * planned_block(slots, types, 16)
    return [
        Check(name="growth of a process", predicted=planned, measured=int(run.stdout),
              tolerance=0.01, because="whole pages of 4 KiB, and Python's own objects")
    ]  # fmt: skip


def growth(blocks: int) -> int | None:
    """Bytes of resident memory that making and filling a pool of `blocks` blocks adds."""
    slots, types = _bodies()["random MHA"].slots, cache_types("bf16")
    PagedPool(slots, types, blocks=1, block_size=16)
    before = resident_bytes()
    pool = PagedPool(slots, types, blocks=blocks, block_size=16)
    for group in pool.groups:
        for tensor in group.tensors():
            tensor.fill_(1)
    after = resident_bytes()
    return None if before is None or after is None else after - before


def blocks(
    *, context: int = 4096, sizes: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256)
) -> Experiment:
    """Entries that blocks waste, and the time of attention, by block size."""
    slot = random_body("gqa", layers=1, heads=8, kv_heads=2, head_dim=64).body.slots[0]
    lengths = [
        int(n) for n in torch.randint(1, context, (32,), generator=torch.Generator().manual_seed(3))
    ]
    rows: list[tuple[int | float | str, ...]] = []
    checks = []
    for size in sizes:
        planned, wasted = _planned_waste(slot, lengths, size), _wasted(slot, lengths, size)
        checks.append(Check(name=f"entries wasted, blocks of {size}", predicted=planned,
                            measured=wasted, unit="token", listed=False))  # fmt: skip
        seconds, how = _attention_seconds(slot, context, size)
        share = 100 * wasted / (wasted + sum(lengths))
        rows.append((size, planned, wasted, rounded(share), -(-context // size),
                     rounded(1e6 * seconds), how))  # fmt: skip
    checks += _bounds(sizes, rows, len(lengths))
    columns = ("block size", "planned waste", "wasted entries", "waste %", "table entries",
               "attention µs", "path")  # fmt: skip
    records = [dict(zip(columns, row, strict=True)) for row in rows]
    for record, row in zip(records, rows, strict=True):
        record["planned %"] = rounded(100 * float(row[1]) / (float(row[1]) + sum(lengths)))
    gathered = "gather" in {record["path"] for record in records}
    return Experiment(
        name="blocks",
        title="Larger blocks waste more, smaller ones cost more look-ups",
        question=f"32 sequences of up to {context:,} tokens; attention at {context:,} tokens.",
        columns=columns,
        rows=tuple(rows),
        checks=tuple(checks),
        chart=charts.above(
            charts.lines(records, "block size", "waste %", predicted="planned %",
                         scales=("log2", "linear")),
            charts.lines(records, "block size", "attention µs", "path" if gathered else None,
                         scales=("log2", "log")),
        ),
        notes=("The others are gathered first.",) if gathered else (),
    )  # fmt: skip


def _planned_waste(slot: Slot, lengths: list[int], size: int) -> int:
    """Entries that the formula's capacity holds beyond the sequences' own, in blocks of `size`."""
    from kvproof.api import capacity, load_model
    from kvproof.engine.base import Deployment

    model = load_model(random_body("gqa", layers=1, heads=8, kv_heads=2, head_dim=64).body.config)
    deployment = Deployment(engine="formula", block_size=size, kv_cache_dtype="bf16")
    held = capacity(model, deployment, kv_bytes=2**40).blocks_held
    entry = slot.entry_bytes(cache_types("bf16"))
    return sum(held(n) // entry - n for n in lengths)


def _wasted(slot: Slot, lengths: list[int], size: int) -> int:
    """Entries of the blocks that a real pool has handed out, beyond the sequences' own."""
    need = sum(-(-n // size) for n in lengths)
    pool = PagedPool([slot], cache_types("bf16"), blocks=need, block_size=size)
    for n in lengths:
        pool.append(pool.open()[0], n)
    return pool.groups[0].books.held * size - sum(lengths)


def _bounds(
    sizes: tuple[int, ...], rows: list[tuple[int | float | str, ...]], count: int
) -> list[Check]:
    """What the waste can be at most, and is on average: half a block a sequence."""
    size, wasted = sizes[-1], float(rows[-1][2])
    return [
        Check(name=f"entries wasted a sequence, blocks of {size}", predicted=(size - 1) / 2,
              measured=rounded(wasted / count), unit="token", tolerance=None,
              because=f"half a block on average, {size - 1} at most; {count} sequences are few")
    ]  # fmt: skip


def _attention_seconds(slot: Slot, context: int, size: int) -> tuple[float, str]:
    pool = PagedPool([slot], cache_types("bf16"), blocks=-(-context // size), block_size=size)
    view = fill(pool, 0, context)
    q = torch.randn(1, 8, 64)
    if can_decode(view, 0):
        return best(lambda: attend(view, 0, q, scale=0.125, v_dim=64)), "kernel"
    return best(lambda: attend_dense(view, 0, q, scale=0.125, v_dim=64), rounds=3), "gather"
