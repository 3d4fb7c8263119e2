"""Sliding pools that follow the requests instead of the full pool.

Source: pool_configurator.py, `compute_swa_request_cap` (0.5.21 on).
"""

from __future__ import annotations

from kvproof.engine.sglang.flags import Flags

_EVICTION = 128
"""Decode steps between two evictions (SGLANG_SWA_EVICTION_INTERVAL)."""


def running_requests(flags: Flags, default: int | None = None) -> int | None:
    """max_running_requests of one attention replica, None where neither given nor defaulted."""
    asked = flags.get("max_running_requests", default)
    return None if asked is None else max(1, int(asked) // flags.replicas)


def request_window_tokens(flags: Flags, window: int, page: int, running: int) -> int:
    """Sliding tokens that `running` requests of one replica hold at worst, in whole pages."""
    drafted = flags.draft_tokens if flags.algorithm != "NONE" else 1
    decoding = page if flags.algorithm == "NONE" else 2 * max(drafted, page)
    held = window + _EVICTION * drafted + page + decoding
    chunks = 1 if flags.get("disable_overlap_schedule") else 2
    return up_to(held * running + chunks * flags.chunked_prefill_size + page, page)


def up_to(tokens: int, page: int) -> int:
    """`tokens` rounded up to whole pages."""
    return -(-tokens // page) * page
