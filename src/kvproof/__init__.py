"""kvproof: KV-cache arithmetic that equals the engine's own numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvproof.api import budget, cache, capacity, load_model, plan
    from kvproof.engine.base import Deployment
    from kvproof.errors import KvproofError
    from kvproof.model.designs import with_attention
    from kvproof.model.multimodal import media_tokens, total_tokens
    from kvproof.observe.check import check
    from kvproof.observe.read import read_log
    from kvproof.timing import without_cache

__version__ = "0.1.0"

_HOMES = {
    "Deployment": "kvproof.engine.base",
    "KvproofError": "kvproof.errors",
    "budget": "kvproof.api",
    "cache": "kvproof.api",
    "capacity": "kvproof.api",
    "check": "kvproof.observe.check",
    "load_model": "kvproof.api",
    "media_tokens": "kvproof.model.multimodal",
    "total_tokens": "kvproof.model.multimodal",
    "with_attention": "kvproof.model.designs",
    "without_cache": "kvproof.timing",
    "plan": "kvproof.api",
    "read_log": "kvproof.observe.read",
}

__all__ = [
    "Deployment",
    "KvproofError",
    "budget",
    "cache",
    "capacity",
    "check",
    "load_model",
    "media_tokens",
    "plan",
    "read_log",
    "total_tokens",
    "with_attention",
    "without_cache",
]


def __getattr__(name: str) -> Any:
    """Public names are imported when first used, so that `import kvproof` costs nothing."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'kvproof' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
