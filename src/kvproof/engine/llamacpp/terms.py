"""Terms of the context's buffers: pieces added up by buffer and device."""

from __future__ import annotations

from collections.abc import Iterable

from kvproof.engine.llamacpp.layout import Piece
from kvproof.terms import Term

SOURCE = "llama.cpp b11549, llama-kv-cache.cpp and llama-memory-recurrent.cpp"


def buffer_terms(pieces: Iterable[Piece], *, place: str = "") -> tuple[Term, ...]:
    """One exact term per buffer, in the order in which the buffers first occur."""
    buffers: dict[str, list[Piece]] = {}
    for piece in pieces:
        buffers.setdefault(piece.buffer, []).append(piece)
    return tuple(
        Term(
            name=f"{name}{place}",
            value=sum(piece.bytes for piece in parts),
            unit="B",
            formula=_formula(parts),
            source=SOURCE,
        )
        for name, parts in buffers.items()
    )


def _formula(parts: list[Piece]) -> str:
    """Tensors of one size as a product, different sizes as a sum of products."""
    counts: dict[str, int] = {}
    for piece in parts:
        counts[piece.formula] = counts.get(piece.formula, 0) + 1
    rows = [f"{count} layers x {formula}" for formula, count in counts.items()]
    return (
        " + ".join(rows) if len(rows) <= 4 else f"{len(parts)} layers' tensors, {len(rows)} sizes"
    )
