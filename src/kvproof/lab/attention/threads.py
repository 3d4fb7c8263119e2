"""How many threads the lab's kernels use: as many as torch was told to."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache

import numba
import torch

from kvproof.lab.attention.crew import Crew

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


@lru_cache(maxsize=4)
def _crew(number: int) -> Crew:
    return Crew(number)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_crew.cache_clear)  # threads do not survive a fork


def share(run: Callable[..., None], *args: object, room: int = 0) -> None:
    """Call run(*args, marks, i, n) on each of n threads, this one being the first (`crew.py`).

    They may use `room` bytes together. A kernel that numba makes parallel itself would be compiled
    a second time for one thread.
    """
    _crew(count()).run(run, args, room)
