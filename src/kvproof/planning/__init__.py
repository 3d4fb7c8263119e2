"""Model + deployment + contexts: budget, capacity, sequences, step time, what limits."""

from kvproof.planning.plan import Plan, PlanRow, make_plan

__all__ = ["Plan", "PlanRow", "make_plan"]
