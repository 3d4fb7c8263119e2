"""The unit that prefixes are matched by (--prefix-match-unit), which has to suit every block.

Source: vLLM 0.32, v1/core/kv_cache_utils.py (resolve_kv_cache_block_sizes).
"""

from __future__ import annotations

from kvproof.engine.vllm.plans import Plan
from kvproof.engine.vllm.specs import FULL_KINDS
from kvproof.errors import UsageError

_UNMATCHED = ("ring",)
"""Kinds whose groups take no part in prefix caching."""
_IN_STEP = "align"
"""The state mode whose blocks can be matched by parts."""


def check_match_unit(plan: Plan) -> None:
    """Raise UsageError for a unit that the start refuses; without prefix caching none is used."""
    settings = plan.settings
    unit = settings.flags.get("prefix_match_unit")
    if unit is None or not settings.prefix_caching:
        return
    if unit < 1:
        raise UsageError(f"prefix_match_unit is {unit}", hint="give 1 or more tokens")
    spans = {
        group.spec.kind: group.spec.block_size
        * (settings.context_ranks if group.spec.kind in FULL_KINDS else 1)
        for group in plan.own
    }
    sizes = sorted({span for kind, span in spans.items() if kind not in _UNMATCHED})
    if len(plan.own) == 1:
        if unit != sizes[0]:
            raise UsageError(
                f"prefix_match_unit {unit} is not the block of {sizes[0]} tokens, which one group "
                "of layers is matched by",
                hint=f"leave it out, or give {sizes[0]}",
            )
        return
    if "state" in spans and settings.state_mode != _IN_STEP:
        return
    if any(size % unit for size in sizes):
        raise UsageError(
            f"prefix_match_unit {unit} does not divide the blocks of "
            f"{', '.join(f'{size:,}' for size in sizes)} tokens",
            hint="give a divisor of all of them",
        )
