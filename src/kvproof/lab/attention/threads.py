"""How many threads the lab's kernels use: as many as torch was told to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache

import numba
import torch

# numba's own work queue: its threads sleep between calls; OpenMP's would spin against torch's.
numba.config.THREADING_LAYER = "workqueue"
_LOCK = threading.Lock()


def count() -> int:
    """Threads of the next kernel."""
    wanted: int = min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS)
    return max(1, wanted)


@contextmanager
def numba_threads() -> Iterator[None]:
    """Run kernels in the body: one caller at a time, for the work queue is not reentrant."""
    with _LOCK:
        numba.set_num_threads(count())
        yield


@lru_cache(maxsize=1)
def _helpers(number: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(number, "kvproof-kernel")


def share(run: Callable[..., None], *args: object) -> None:
    """Call run(*args, i, n) on each of n threads, this one being the first; the GIL is free.

    A kernel that numba makes parallel itself would be compiled a second time for one thread.
    """
    number = count()
    helpers = [_helpers(number - 1).submit(run, *args, i, number) for i in range(1, number)]
    run(*args, 0, number)
    for helper in helpers:
        helper.result()
