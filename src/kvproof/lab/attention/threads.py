"""How many threads the lab's kernels use: as many as torch was told to."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

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
