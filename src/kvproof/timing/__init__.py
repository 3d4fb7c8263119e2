"""Bytes and operations of a decode step, and the seconds they take."""

from kvproof.timing.recompute import WithoutCache, without_cache
from kvproof.timing.step import Efficiency, StepTime, read_bytes, step_time

__all__ = ["Efficiency", "StepTime", "WithoutCache", "read_bytes", "step_time", "without_cache"]
