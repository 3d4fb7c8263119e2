"""Memory of a llama.cpp deployment: weights, cache, compute and output buffers, by device."""

from __future__ import annotations

from kvproof.engine.base import Budget, Deployment
from kvproof.engine.llamacpp.compute import compute_term, output_term
from kvproof.engine.llamacpp.context import context_of
from kvproof.engine.llamacpp.flags import flags_of
from kvproof.engine.llamacpp.layout import pieces
from kvproof.engine.llamacpp.terms import buffer_terms
from kvproof.model.types import Model


def budget_of(model: Model, deployment: Deployment) -> Budget:
    """What the flags allocate. `kv_bytes` is the cache of all devices, exact."""
    flags = flags_of(deployment)
    context = context_of(model, flags)
    parts = pieces(model, context)
    total = sum(piece.bytes for piece in parts)
    terms = (*buffer_terms(parts), compute_term(model, context), output_term(model, context))
    return Budget(kv_bytes=total, interval=(total, total), terms=terms)
