"""The state pool of hybrid models: how many slots it gets beside the attention pool.

Source: `handle_max_mamba_cache` (model_runner.py up to 0.5.6, model_runner_kv_cache_mixin.py to
0.5.15, mem_cache/kv_cache_configurator.py after); memory_pool.py always allocates one slot more.
"""

from __future__ import annotations

import msgspec

from kvproof.engine.sglang.flags import Flags
from kvproof.engine.sglang.pools import Pools
from kvproof.engine.sglang.windows import running_requests
from kvproof.kinds import ConvSlot, RecurrentSlot
from kvproof.model.types import Model

_RATIO = 0.9
_UNCACHED, _DRAFTING = 512, 48
"""Slots without prefix cache and limit; max_running_requests with a draft and no limit."""


class States(msgspec.Struct, frozen=True, kw_only=True):
    """Slots of the pool, the bytes that sizing takes for them, and those that are allocated."""

    slots: int = 0
    counted: int = 0
    allocated: int = 0
    drafted: int = 0
    """Bytes of states kept for each draft token, in both figures above."""


def state_pool(model: Model, available: int, flags: Flags, pools: Pools) -> States:
    """The pool when `available` bytes are left for states and cache together.

    Given outright, one a running request without prefix caching, or solved so that states and
    cache stand in mamba_full_memory_ratio (0.9).
    """
    if not pools.state:
        return States()
    pad = int(flags.rules.state_padding)
    drafts = flags.draft_tokens if flags.algorithm != "NONE" else 0
    kind = flags.rules.draft_states
    slots = _given(model, flags)
    ratio = float(flags.get("mamba_full_memory_ratio", _RATIO))
    share = ratio / (1 + ratio)
    running = running_requests(flags, _DRAFTING) or 1
    each = drafts if kind == "each" else 0
    before = pools.state * running * drafts if kind == "before" else 0
    if slots is None:
        budget = max(0, available - before) * share
        joint = drafts / slots_a_request(model, flags) if kind == "joint" else 0
        held = budget - pad * pools.state * (1 + (drafts if kind == "joint" else 0))
        slots = max(0, int(held // (pools.state * (1 + joint + each))))
    drafted = before
    if kind == "joint" and drafts:
        drafted = pools.state * drafts * (_verifying(model, flags, slots, running) + pad)
    drafted += slots * each * pools.state
    counted = (slots + pad) * pools.state + drafted
    return States(
        slots=slots,
        counted=counted,
        allocated=counted + (0 if pad else pools.state),
        drafted=drafted,
    )


def slots_a_request(model: Model, flags: Flags) -> int:
    """State slots that a running request needs at most."""
    if uncached(model, flags):
        return 1
    strategy = flags.get("mamba_radix_cache_strategy", "auto")
    if strategy == "auto":
        strategy = "extra_buffer" if flags.rules.extra_buffer else "no_buffer"
    if strategy == "no_buffer":
        return 3
    single = strategy == "extra_buffer_lazy" or bool(flags.get("disable_overlap_schedule"))
    return 4 if single else 5


def uncached(model: Model, flags: Flags) -> bool:
    """Whether prefixes are not cached: by flag, or because the release can't for these states."""
    if flags.get("disable_radix_cache") or flags.rules.states_uncached == "all":
        return True
    return flags.rules.states_uncached == "mamba2" and _is_mamba2(model)


def _is_mamba2(model: Model) -> bool:
    """Falcon-H1 and Nemotron-H, not the delta rule: the states' convolution has groups."""
    kinds = [s for s in model.slots if isinstance(s, ConvSlot | RecurrentSlot)]
    return bool(kinds) and model.architecture.startswith(("FalconH1", "NemotronH"))


def _given(model: Model, flags: Flags) -> int | None:
    """Slots that do not depend on memory; None: solved."""
    fixed = flags.get("max_mamba_cache_size")
    if fixed is None and uncached(model, flags):
        fixed = flags.get("max_running_requests", _UNCACHED if flags.rules.states_512 else None)
    return None if fixed is None else max(1, int(fixed) // flags.replicas)


def _verifying(model: Model, flags: Flags, slots: int, running: int) -> int:
    """Requests whose draft tokens keep states."""
    if uncached(model, flags) and flags.get("max_mamba_cache_size") is None:
        return slots
    return min(running, slots // slots_a_request(model, flags))
