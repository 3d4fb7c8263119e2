"""Decode attention against this machine's roofline and against torch: prints every ratio.

    python benchmarks/lab_attention.py [--designs MHA-32,...] [--types f32,...]
        [--contexts 8192,32768] [--batches 1,8] [--threads 1,2] [--sweeps] [--without-torch]

Roofline of a shape: the larger of its bytes over the read bandwidth, and its multiply-adds plus
one conversion per stored number (bf16, int8, int4) over the peak rate of f32 multiply-adds. Both
ceilings are measured for every row, in turns with the kernel and with torch, by the same vector
code, the bandwidth on memory as large as the cache (up to 1 GiB). int8 and int4 multiply pairs of
16-bit integers, which this peak does not know: where arithmetic limits, they may pass 100 %.
Exponentials are in neither side: the kernels' own cost.

Every contender runs for 50 ms in its turn, and the least time counts: a decode step calls the
kernel once a layer, so from the second layer on its threads are awake and its code is in the
caches. A turn ends with torch and then a pause: torch's threads look for work for milliseconds
after a call, and would take a core from whoever comes next. A row is measured three times in new
memory, and the best of each contender counts: which pages a virtual machine gets makes up to a
fifth.

torch is scaled_dot_product_attention on the same shape and threads: in f32 against f32 caches,
else in bf16; for MLA it gets the latents as one KV head, and takes a second or more a call there:
`--without-torch` leaves it out. `--sweeps` prints, in place of the table, how time depends on the
block's size and on the context.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from functools import partial, reduce
from typing import NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention

from kvproof.kinds import FullSlot, LatentSlot, Slot
from kvproof.lab.attention import View, attend
from kvproof.lab.elements import cache_types
from kvproof.lab.experiments.machine import in_turns, multiplies, reads
from kvproof.lab.pool.pool import PagedPool

HEADS, DIM, LATENT, ROPE = 32, 128, 512, 64
TYPES = ("f32", "bf16", "int8", "int4")
PART = 1024  # positions written at a time
PAUSE = 0.02  # seconds after which torch's threads sleep
STAY = 0.05  # seconds of a contender's turn
PLACES = 3  # times that a row is measured, in new memory each
LARGEST_READ = 1 << 30  # bytes; beyond, bandwidth does not change


class Design(NamedTuple):
    name: str
    slot: Slot
    width: int
    v_dim: int
    kv_heads: int


class Case(NamedTuple):
    """One row of the table."""

    design: Design
    type: str
    threads: int
    batch: int
    context: int
    block_size: int = 16

    @property
    def positions(self) -> int:
        return self.batch * self.context

    @property
    def macs(self) -> int:
        return self.positions * HEADS * (self.design.width + self.design.v_dim)


class Measured(NamedTuple):
    seconds: float
    size: int
    torch: float
    bandwidth: float
    peak: float

    def share(self, case: Case) -> float:
        """Of the roofline; see the module's text."""
        design = case.design
        read = design.width + (0 if design.name.startswith("MLA") else design.v_dim)
        converted = case.positions * design.kv_heads * read if case.type != "f32" else 0
        roof = max(self.size / self.bandwidth, (case.macs + converted) / self.peak)
        return roof / self.seconds


def designs() -> list[Design]:
    out = []
    for name, kv_heads in (("MHA-32", 32), ("GQA-8", 8), ("MQA-1", 1)):
        slot = FullSlot(layer=0, kv_heads=kv_heads, k_dim=DIM, v_dim=DIM)
        out.append(Design(name, slot, DIM, DIM, kv_heads))
    latent = LatentSlot(
        layer=0, latent_dim=LATENT, rope_dim=ROPE, heads=HEADS, nope_dim=DIM, value_dim=DIM
    )
    return [*out, Design("MLA-576", latent, LATENT + ROPE, LATENT, 1)]


def grouped(case: Case) -> str:
    wide = 64 if case.design.name.startswith("MLA") else 128
    return f"{case.type}:{wide}" if case.type.startswith("int") else case.type


def filled(case: Case) -> tuple[View, int]:
    """A full pool, and its bytes; the sequences' blocks are interleaved, as in a live server."""
    pool = PagedPool(
        [case.design.slot], cache_types(grouped(case)),
        blocks=-(-case.positions // case.block_size), block_size=case.block_size,
        share_prefixes=False,
    )  # fmt: skip
    sequences = [pool.open()[0] for _ in range(case.batch)]
    numbers: dict[tuple[int, ...], torch.Tensor] = {}
    left = case.context
    while left:
        count = min(left - 1, PART) or 1
        for sequence in sequences:
            pool.append(sequence, count)
        view = View(pool, sequences, [count] * case.batch)
        shapes = [(count * case.batch, p.heads, p.dim) for p in view.planes(0)[1]]
        for shape in shapes:
            numbers.setdefault(shape, torch.randn(shape))
        view.write(0, *(numbers[shape] for shape in shapes))
        left -= count
    return view, pool.allocated_bytes


def theirs(case: Case) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    dtype = torch.float32 if case.type == "f32" else torch.bfloat16
    q = torch.randn(case.batch, HEADS, 1, case.design.width, dtype=dtype)
    k = torch.randn(case.batch, case.design.kv_heads, case.context, case.design.width, dtype=dtype)
    latent = case.design.name.startswith("MLA")
    return q, k, k[..., : case.design.v_dim] if latent else torch.randn_like(k)


def ours(case: Case, view: View) -> Callable[[], object]:
    q, v_dim = torch.randn(case.batch, HEADS, case.design.width), case.design.v_dim
    return lambda: attend(view, 0, q, scale=0.05, v_dim=v_dim)


def torchs(case: Case) -> Callable[[], object]:
    given = theirs(case)
    return lambda: scaled_dot_product_attention(*given, enable_gqa=True)


def measure(case: Case, with_torch: bool = True) -> Measured:
    """The best of PLACES times, of each contender and ceiling."""
    torch.set_num_threads(case.threads)
    return reduce(better, (placed(case, with_torch) for _ in range(PLACES)))


def better(one: Measured, two: Measured) -> Measured:
    return Measured(
        min(one.seconds, two.seconds), one.size, min(one.torch, two.torch),
        max(one.bandwidth, two.bandwidth), max(one.peak, two.peak),
    )  # fmt: skip


def placed(case: Case, with_torch: bool) -> Measured:
    """One row, in memory of its own."""
    view, size = filled(case)
    works = {"ours": ours(case, view), "peak": multiplies} | reads(span := min(size, LARGEST_READ))
    ways = [name for name in works if name.startswith("read")]
    if with_torch:
        works["torch"] = torchs(case)
    works["pause"] = partial(time.sleep, PAUSE)
    found, numbers = in_turns(works, stay=STAY), multiplies()
    bandwidth = span / min(found[name] for name in ways)
    return Measured(
        found["ours"], size, found.get("torch", math.inf), bandwidth, numbers / found["peak"]
    )


def times(found: Measured) -> str:
    """torch's time in ours; a dash where torch was left out."""
    return f"{found.torch / found.seconds:.2f}" if math.isfinite(found.torch) else "-"


HEAD = (
    f"{'design':9}{'type':6}{'thr':>4}{'batch':>6}{'context':>8}{'ms':>9}{'GB/s':>7}{'read':>7}"
    f"{'GMAC/s':>8}{'peak':>7}{'roofline':>10}{'x torch':>9}{'x bf16':>8}"
)


def table(cases: list[Case], with_torch: bool) -> None:
    print(HEAD, flush=True)
    shares, bf16 = [], {}
    for case in cases:
        found = measure(case, with_torch)
        shares.append(found.share(case))
        same = case._replace(type="bf16")
        if case.type == "bf16":
            bf16[same] = found.seconds
        against = f"{bf16[same] / found.seconds:8.2f}" if same in bf16 else f"{'':8}"
        print(
            f"{case.design.name:9}{case.type:6}{case.threads:4}{case.batch:6}{case.context:8}"
            f"{found.seconds * 1e3:9.3f}{found.size / found.seconds / 1e9:7.1f}"
            f"{found.bandwidth / 1e9:7.1f}{case.macs / found.seconds / 1e9:8.1f}"
            f"{found.peak / 1e9:7.1f}{100 * shares[-1]:9.0f}%"
            f"{times(found):>9}{against}",
            flush=True,
        )
    print(
        f"share of the roofline: least {100 * min(shares):.0f}%, "
        f"{sum(s >= 0.8 for s in shares)} of {len(shares)} shapes at 80% or more"
    )


def sweeps(design: Design, types: list[str], threads: int) -> None:
    """Nanoseconds a position by block size at 8k, and by context at blocks of 16."""
    sizes, contexts = (1, 4, 8, 16, 32, 64, 128, 256), (2048, 4096, 8192, 16384, 32768)
    for name in types:
        base = Case(design, name, threads, 1, 8192)
        by_size = [measure(base._replace(block_size=n), False).seconds / 8192 for n in sizes]
        by_context = [measure(base._replace(context=n), False).seconds / n for n in contexts]
        print(f"{design.name} {name}, ns a position")
        print(
            "  block  "
            + "".join(f"{n}: {t * 1e9:.0f}  " for n, t in zip(sizes, by_size, strict=True))
        )
        print(
            "  context  "
            + "".join(f"{n}: {t * 1e9:.0f}  " for n, t in zip(contexts, by_context, strict=True))
        )


def whole_numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--designs", type=lambda t: t.split(","), default=None)
    parser.add_argument("--types", type=lambda t: t.split(","), default=list(TYPES))
    parser.add_argument("--contexts", type=whole_numbers, default=[8192, 32768])
    parser.add_argument("--batches", type=whole_numbers, default=[1, 8])
    parser.add_argument("--threads", type=whole_numbers, default=[1, 2])
    parser.add_argument("--sweeps", action="store_true")
    parser.add_argument("--without-torch", action="store_true")
    options = parser.parse_args()
    chosen = [d for d in designs() if options.designs is None or d.name in options.designs]
    if options.sweeps:
        for design in chosen:
            sweeps(design, options.types, options.threads[0])
        return
    cases = [
        Case(design, name, threads, batch, context)
        for design in chosen
        for context in options.contexts
        for batch in options.batches
        for threads in options.threads
        for name in options.types
    ]
    table(cases, not options.without_torch)


if __name__ == "__main__":
    main()
