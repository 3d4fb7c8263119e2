"""What helps where an engine has no memory left for a cache: its own flags, by what they free."""

from __future__ import annotations

from kvproof.engine.base import parse_engine
from kvproof.engine.hooks import traits
from kvproof.planning import Plan
from kvproof.units import show_bytes

_OTHERS = "other processes"
"""The term of memory that is in use before the start."""


def way_out(plan: Plan) -> list[str]:
    """What to do about memory that is missing; nothing where none is.

    Flags are named where they free more than is missing; else only fewer weights help.
    """
    lacking = -sum(int(t.value) for t in plan.budget.terms if t.name == "missing")
    if lacking <= 0:
        return []
    values = {term.name: int(term.value) for term in plan.budget.terms}
    reliefs = [
        (values[name], words)
        for name, words in traits(parse_engine(plan.engine).name).reliefs
        if values.get(name, 0) > 0
    ]
    missing = f"  {show_bytes(lacking)} are missing on each GPU"
    others = values.get(_OTHERS, 0)
    if others > lacking:
        return [f"{missing}: others hold {show_bytes(others)} of it."]
    smaller = "take a smaller model or one in fewer bits"
    spread = f"spread the weights over more of them (--tp), or {smaller}"
    fewer = f"{smaller}, or a larger slice" if ":" in str(plan.gpu) else spread
    if sum(size for size, _ in reliefs) <= lacking:
        return [f"{missing}: {fewer}."]
    named = ", ".join(words.format(show_bytes(size)) for size, words in sorted(reliefs)[::-1])
    return [f"{missing}, and a cache on top: {named} give some; otherwise {fewer}."]


def verdict(plan: Plan) -> str:
    """How sure it is that a start fails that has an error."""
    if plan.budget.kv_bytes > 0:
        return "Does not fit at full length"
    most = plan.budget.interval[1]
    if most <= 0:
        return "Does not start"
    return f"Probably does not start, {show_bytes(most)} of cache at the most"
