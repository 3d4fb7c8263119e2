"""Observe: what engines print and servers report, held against predictions; what was learned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvproof.observe.check import Report, check
    from kvproof.observe.figures import Figure, Log
    from kvproof.observe.probing.probe import Probe, probe
    from kvproof.observe.read import read_log

_HOMES = {
    "Figure": "kvproof.observe.figures",
    "Log": "kvproof.observe.figures",
    "Probe": "kvproof.observe.probing.probe",
    "Report": "kvproof.observe.check",
    "check": "kvproof.observe.check",
    "probe": "kvproof.observe.probing.probe",
    "read_log": "kvproof.observe.read",
}

__all__ = ["Figure", "Log", "Probe", "Report", "check", "probe", "read_log"]


def __getattr__(name: str) -> Any:
    """Names are imported when first used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'kvproof.observe' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
