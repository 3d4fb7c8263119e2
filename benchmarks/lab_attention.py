"""Decode attention against this machine's roofline and against torch: prints every ratio.

    python benchmarks/lab_attention.py [--contexts 8192,32768] [--batches 1,8] [--threads 1,2]

Roofline of a shape: the larger of its bytes over the read bandwidth, and its multiply-adds plus
one conversion per stored number (bf16, int8, int4) over the peak rate of multiply-adds. Both
ceilings are measured here, in the same run, by the same vector code. torch is
scaled_dot_product_attention on the same shape and threads: in f32 against f32 caches, else in bf16;
for MLA it gets the latents as one KV head.
"""

from __future__ import annotations

import argparse
import math
from typing import NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention

from kvproof.kinds import FullSlot, LatentSlot, Slot
from kvproof.lab.attention import View, attend
from kvproof.lab.elements import cache_types
from kvproof.lab.experiments.machine import best, fma_peak, read_bandwidth
from kvproof.lab.pool.pool import PagedPool

HEADS, DIM, LATENT, ROPE = 32, 128, 512, 64
TYPES = ("f32", "bf16", "int8", "int4")


class Design(NamedTuple):
    name: str
    slot: Slot
    width: int
    v_dim: int
    kv_heads: int


def designs() -> list[Design]:
    out = []
    for name, kv_heads in (("MHA-32", 32), ("GQA-8", 8), ("MQA-1", 1)):
        slot = FullSlot(layer=0, kv_heads=kv_heads, k_dim=DIM, v_dim=DIM)
        out.append(Design(name, slot, DIM, DIM, kv_heads))
    latent = LatentSlot(
        layer=0, latent_dim=LATENT, rope_dim=ROPE, heads=HEADS, nope_dim=DIM, value_dim=DIM
    )
    return [*out, Design("MLA-576", latent, LATENT + ROPE, LATENT, 1)]


def filled(design: Design, name: str, batch: int, context: int) -> tuple[View, int]:
    """A full pool, and its bytes; the sequences' blocks are interleaved, as in a live server."""
    pool = PagedPool(
        [design.slot], cache_types(name), blocks=batch * (context // 16), block_size=16,
        share_prefixes=False,
    )  # fmt: skip
    sequences = [pool.open()[0] for _ in range(batch)]
    left = context
    while left:
        count = min(left - 1, 1024) or 1
        view = None
        for sequence in sequences:
            pool.append(sequence, count)
        view = View(pool, sequences, [count] * batch)
        _, planes = view.planes(0)
        view.write(0, *(torch.randn(count * batch, p.heads, p.dim) for p in planes))
        left -= count
    return view, pool.allocated_bytes


def torch_seconds(design: Design, dtype: torch.dtype, batch: int, context: int) -> float:
    q = torch.randn(batch, HEADS, 1, design.width, dtype=dtype)
    k = torch.randn(batch, design.kv_heads, context, design.width, dtype=dtype)
    v = k[..., : design.v_dim] if design.width != design.v_dim else torch.randn_like(k)
    return best(lambda: scaled_dot_product_attention(q, k, v, enable_gqa=True), rounds=3)


def group(name: str, design: Design) -> str:
    wide = 64 if design.name.startswith("MLA") else 128
    return f"{name}:{wide}" if name.startswith("int") else name


def roofline(
    design: Design, name: str, size: int, positions: int, ceilings: tuple[float, float]
) -> float:
    """Seconds that the shape takes at best; see the module's text."""
    bandwidth, peak = ceilings
    numbers = (
        positions * design.kv_heads * (design.width + (0 if "MLA" in design.name else design.v_dim))
    )
    work = positions * HEADS * (design.width + design.v_dim)
    return max(size / bandwidth, (work + (numbers if name != "f32" else 0)) / peak)


def measure(threads: int, batch: int, context: int) -> list[float]:
    torch.set_num_threads(threads)
    ceilings = (read_bandwidth(), fma_peak())
    print(f"\n{threads} thread(s), batch {batch}, context {context:,}: read bandwidth "
          f"{ceilings[0] / 1e9:.1f} GB/s, peak {ceilings[1] / 1e9:.1f} GMAC/s")  # fmt: skip
    print(f"{'design':9}{'type':6}{'ms':>9}{'GB/s':>8}{'GMAC/s':>8}{'roofline':>10}"
          f"{'x torch':>9}{'x bf16':>8}")  # fmt: skip
    shares = []
    for design in designs():
        baseline = {
            d: torch_seconds(design, d, batch, context) for d in (torch.float32, torch.bfloat16)
        }
        bf16 = math.nan
        for name in TYPES:
            view, size = filled(design, group(name, design), batch, context)
            q = torch.randn(batch, HEADS, design.width)
            seconds = best(lambda v=view, q=q, d=design: attend(v, 0, q, scale=0.05, v_dim=d.v_dim))
            bf16 = seconds if name == "bf16" else bf16
            positions = batch * context
            share = roofline(design, name, size, positions, ceilings) / seconds
            shares.append(share)
            theirs = baseline[torch.float32 if name == "f32" else torch.bfloat16]
            macs = positions * HEADS * (design.width + design.v_dim)
            print(f"{design.name:9}{name:6}{seconds * 1e3:9.3f}{size / seconds / 1e9:8.1f}"
                  f"{macs / seconds / 1e9:8.1f}{100 * share:9.0f}%{theirs / seconds:9.2f}"
                  f"{bf16 / seconds:8.2f}", flush=True)  # fmt: skip
            del view
    return shares


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--contexts", type=numbers, default=[8192, 32768])
    parser.add_argument("--batches", type=numbers, default=[1, 8])
    parser.add_argument("--threads", type=numbers, default=[1, 2])
    options = parser.parse_args()
    shares = [
        share
        for threads in options.threads
        for batch in options.batches
        for context in options.contexts
        for share in measure(threads, batch, context)
    ]
    print(f"\nshare of the roofline: least {100 * min(shares):.0f}%, "
          f"{sum(s >= 0.8 for s in shares)} of {len(shares)} shapes at 80% or more")  # fmt: skip


if __name__ == "__main__":
    main()
