"""What this machine can do, measured in the same run as what is compared with it."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kvproof.lab.attention import threads
from kvproof.lab.attention.peaks import fma_loop, read_loop
from kvproof.timing.step import Machine


def best(work: Callable[[], Any], rounds: int = 7) -> float:
    """Least seconds of `rounds` runs, after one that warms up."""
    work()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def read_bandwidth(size: int = 1 << 28, rounds: int = 5) -> float:
    """Bytes a second that the kernels' threads read from memory, over `size` bytes."""
    data = np.ones(size // 4, np.float32)
    with threads.numba_threads():
        seconds = best(lambda: read_loop(data, threads.count()), rounds)
    return size / seconds


def fma_peak(rounds: int = 5) -> float:
    """f32 multiply-adds a second of the kernels' threads."""
    steps = 400_000
    with threads.numba_threads():
        count = fma_loop(steps, threads.count())
        seconds = best(lambda: fma_loop(steps, threads.count()), rounds)
    return float(count) / seconds


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
