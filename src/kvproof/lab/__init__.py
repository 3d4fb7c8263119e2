"""The lab: a real KV cache on the CPU, small enough to read, that measures what the plan predicts.

Needs the extra [lab]: `pip install "kvproof[lab]"`. Start reading at `pool/blocks.py` (who holds a
block), then `pool/planes.py` (the bytes of a block), `pool/pool.py` (sequences over both),
`attention/` (reading blocks in place) and `generation.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvproof.lab.batching import Batcher
    from kvproof.lab.elements import cache_types, grouped
    from kvproof.lab.generation import generate
    from kvproof.lab.models.convert import to_gqa
    from kvproof.lab.models.sources import load, random_body
    from kvproof.lab.paged_cache import PagedCache
    from kvproof.lab.pool.pool import PagedPool

_HOMES = {
    "Batcher": "kvproof.lab.batching",
    "PagedCache": "kvproof.lab.paged_cache",
    "PagedPool": "kvproof.lab.pool.pool",
    "cache_types": "kvproof.lab.elements",
    "generate": "kvproof.lab.generation",
    "grouped": "kvproof.lab.elements",
    "load": "kvproof.lab.models.sources",
    "random_body": "kvproof.lab.models.sources",
    "to_gqa": "kvproof.lab.models.convert",
}

__all__ = [
    "Batcher",
    "PagedCache",
    "PagedPool",
    "cache_types",
    "generate",
    "grouped",
    "load",
    "random_body",
    "to_gqa",
]


def __getattr__(name: str) -> Any:
    """Public names are imported when first used; a missing extra is one clear error."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'kvproof.lab' has no attribute {name!r}")
    from importlib import import_module

    from kvproof.errors import UsageError

    try:
        return getattr(import_module(home), name)
    except ModuleNotFoundError as error:
        if error.name in ("torch", "transformers", "gguf", "numba", "numpy"):
            raise UsageError(
                f"the lab needs {error.name}", hint='pip install "kvproof[lab]"'
            ) from None
        raise
