"""A pool of SGLang's that a cap on its tokens made smaller than the share of the memory.

SGLang leaves 1 - mem_fraction_static of what was free before the weights; where far more is left
once the pools are there, --max-total-tokens bounds them, whether the log prints that flag or not.
"""

from __future__ import annotations

from kvproof.hardware import Accelerator
from kvproof.observe.figures import Log
from kvproof.units import GIB

_LEAST_SHARE = 0.5
"""No default of mem_fraction_static comes near it."""
_NEAR = 0.8
"""A share that is taken by less than this part of it was not what bounded the pools."""


def token_cap(log: Log, gpu: Accelerator | None) -> tuple[int, str] | None:
    """The tokens that max_total_tokens must have allowed, and why; None where nothing says so."""
    tokens, left = log.get("kv_cache_tokens"), log.all("avail_mem_after")
    if log.engine != "sglang" or tokens is None or not left or "max_total_tokens" in log.flags:
        return None
    before = log.smallest("avail_mem_before") or log.smallest("avail_mem_start")
    whole = before.value if before is not None else gpu.memory_bytes if gpu is not None else 0
    most = max(figure.value for figure in left)
    given = log.flags.get("mem_fraction_static")
    share = float(given) if isinstance(given, int | float) else None
    if not whole or 1 - most / whole >= (_LEAST_SHARE if share is None else _NEAR * share):
        return None
    return int(tokens.value), (
        f"max_total_tokens is taken for {int(tokens.value):,}: {most / GIB:.2f} of "
        f"{whole / GIB:.2f} GiB are left beside the pools"
    )
