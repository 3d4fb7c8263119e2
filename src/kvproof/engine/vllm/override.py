"""--num-gpu-blocks-override: the cache that is allocated, whatever profiling leaves for it.

Profiling runs and prints as without it; the blocks are then as many as asked for. Source: vLLM
0.32, v1/core/kv_cache_utils.py (may_override_num_blocks).
"""

from __future__ import annotations

import msgspec

from kvproof.engine.base import Budget, Deployment
from kvproof.engine.vllm.flags import read_flags
from kvproof.engine.vllm.planner import make_plan
from kvproof.model.types import Model
from kvproof.terms import Term
from kvproof.units import show_bytes

_FLAG = "num_gpu_blocks_override"
_OUTSIDE = ("left unused", "everything else")
"""Memory that nothing is known to hold: beyond the requested share, beside a given cache."""
_SOURCE = "vLLM 0.32, v1/core/kv_cache_utils.py (may_override_num_blocks)"


def allocated_for(
    model: Model, deployment: Deployment, budget: Budget
) -> tuple[Budget, tuple[str, ...]]:
    """The budget with the cache that is allocated, and why vLLM would not start with it.

    A cache larger than what is left for it takes of the memory that is not requested first.
    """
    blocks = read_flags(deployment).get(_FLAG)
    if blocks is None:
        return budget, ()
    wide = max(make_plan(model, deployment).wide)
    size = blocks * wide
    cache = Term(
        name="KV cache",
        value=size,
        unit="B",
        formula=f"{_FLAG}: {blocks:,} blocks x {wide:,} B = {size:,} B",
        source=_SOURCE,
    )
    others = [term for term in budget.terms if term.name not in ("KV cache", "missing")]
    had = sum(int(term.value) for term in budget.terms) - sum(int(t.value) for t in others)
    terms = _balanced([*others, cache], had - size)
    lacking = -sum(int(term.value) for term in terms if term.name == "missing")
    refusal = (
        f"vLLM runs out of memory: {_FLAG} of {blocks:,} blocks takes {show_bytes(size)}, "
        f"{show_bytes(lacking)} more than there is: lower it"
    )
    found = Budget(kv_bytes=size, interval=(size, size), terms=terms)
    return found, (refusal,) if lacking else ()


def _balanced(terms: list[Term], rest: int) -> tuple[Term, ...]:
    """The terms with `rest`, which they lack of the GPU's memory or have too much."""
    if rest >= 0:
        said = f"left for the cache, less the blocks asked for: {rest:,} B"
        free = Term(name="left free", value=rest, unit="B", formula=said, source=_SOURCE)
        return (*terms, free) if rest else tuple(terms)
    outside = sum(int(t.value) for t in terms if t.name in _OUTSIDE)
    taken = min(outside, -rest)
    said = f"{outside:,} B, less {taken:,} B of {_FLAG} = {outside - taken:,} B"
    terms = [
        msgspec.structs.replace(t, value=outside - taken, formula=said) if t.name in _OUTSIDE else t
        for t in terms
    ]
    lacking = rest + taken
    if not lacking:
        return tuple(terms)
    said = f"{-lacking:,} B more are asked for than the GPU has"
    terms.append(Term(name="missing", value=lacking, unit="B", formula=said, source=_SOURCE))
    return tuple(terms)
