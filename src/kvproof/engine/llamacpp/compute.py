"""The compute and output buffers."""

from __future__ import annotations

from kvproof.engine.llamacpp.context import Context
from kvproof.model.types import Model
from kvproof.terms import Term


def compute_term(model: Model, context: Context) -> Term:
    """Estimate."""
    return Term(name="compute buffer", value=0, unit="B", formula="", source="")


def output_term(model: Model, context: Context) -> Term:
    """Exact."""
    value = context.sequences * model.vocab_size * 4
    return Term(
        name="output buffer",
        value=value,
        unit="B",
        formula=f"{context.sequences} sequences x {model.vocab_size:,} logits x 4 B",
        source="llama_context::output_reserve",
    )
