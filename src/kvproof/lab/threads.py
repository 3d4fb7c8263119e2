"""How many cores the lab's own kernels and torch may use."""

from __future__ import annotations

import torch


def use_threads(threads: int | None) -> None:
    """Limit torch to `threads` cores; None leaves its own choice."""
    if threads:
        torch.set_num_threads(threads)
