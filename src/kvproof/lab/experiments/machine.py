"""What this machine can do, measured in the same run as what is compared with it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kvproof.lab.attention import threads
from kvproof.lab.attention.peaks import fma_loop, read_loop, read_two_loop
from kvproof.timing.step import Machine

_TURNS = 7
_AHEAD = (0, 4096)  # numbers asked for before they are read
_STEPS = 1_000_000


def once(work: Callable[[], Any]) -> float:
    """Seconds of one run."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def best(work: Callable[[], Any], rounds: int = 7) -> float:
    """Least seconds of `rounds` runs, after one that warms up."""
    work()
    return min(once(work) for _ in range(rounds))


def in_turns(
    works: Mapping[str, Callable[[], Any]], seconds: float = 1.0, stay: float = 0.0
) -> dict[str, float]:
    """Least seconds of each work, run in turns for `seconds` and at least seven times.

    On a shared machine memory and cores are at times half as fast: what is to be compared has to
    see the same moments. In its turn a work runs for `stay` seconds: from the second time on its
    threads are awake and its code is in the caches, as in a decode step from the second layer on.
    """
    found = dict.fromkeys(works, math.inf)
    for work in works.values():
        work()
    end, turns = time.perf_counter() + seconds, 0
    while turns < _TURNS or time.perf_counter() < end:
        for name, work in works.items():
            begun = time.perf_counter()
            found[name] = min(found[name], once(work))
            while time.perf_counter() < begun + stay:
                found[name] = min(found[name], once(work))
        turns += 1
    return found


def reads(size: int) -> dict[str, Callable[[], Any]]:
    """Ways to read `size` bytes of memory with the kernels' threads; the fastest is the ceiling."""
    data = np.ones(size // 4, np.float32)

    def read(ahead: int) -> None:
        with threads.numba_threads():
            read_loop(data, threads.count(), ahead)

    def read_two() -> None:
        with threads.numba_threads():
            read_two_loop(data, threads.count())

    return {f"read {ahead}": partial(read, ahead) for ahead in _AHEAD} | {"read two": read_two}


def multiplies() -> float:
    """Run _STEPS of multiply-adds on every thread; how many numbers that were."""
    with threads.numba_threads():
        return float(fma_loop(_STEPS, threads.count()))


def read_bandwidth(size: int = 1 << 28) -> float:
    """Bytes a second that the kernels' threads read from memory, over `size` bytes."""
    return size / min(in_turns(reads(size), 0.0).values())


def fma_peak() -> float:
    """f32 multiply-adds a second of the kernels' threads."""
    return multiplies() / in_turns({"multiply": multiplies})["multiply"]


def matmul_rate(size: int = 1024, rounds: int = 5) -> float:
    """Operations a second of torch's f32 matrix product, two for each multiply-add."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    return 2 * size**3 / best(lambda: a @ b, rounds)


def kernels() -> Machine:
    """The decode kernels' roofline, as the planner's time model takes it."""
    return _kernels(torch_threads())


def whole() -> Machine:
    """A whole model's roofline: weights come from memory, products go through torch."""
    return _whole(torch_threads())


@lru_cache(maxsize=4)
def _kernels(threads: int) -> Machine:
    return Machine(bandwidth=_bandwidth(threads), flops=2 * fma_peak())


@lru_cache(maxsize=4)
def _whole(threads: int) -> Machine:
    return Machine(bandwidth=_bandwidth(threads), flops=matmul_rate())


@lru_cache(maxsize=4)
def _bandwidth(threads: int) -> float:
    """Measured once a process and number of threads."""
    return read_bandwidth()


def said(machine: Machine) -> str:
    """The ceilings in a sentence, with the threads."""
    flops = (machine.flops or 0.0) / 1e9
    return (
        f"Measured in this run: {machine.bandwidth / 1e9:.1f} GB/s read from memory, "
        f"{flops:.0f} GFLOP/s in f32, {torch_threads()} thread(s)."
    )


def resident_bytes() -> int | None:
    """Resident memory of this process, or None where /proc does not tell."""
    status = Path("/proc/self/status")
    if not status.exists():
        return None
    for line in status.read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return None


def torch_threads() -> int:
    """Threads that torch and the kernels use."""
    return int(torch.get_num_threads())
