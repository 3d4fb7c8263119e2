"""What a llama.cpp context holds: cells, and how many sequences of a length run in them."""

from __future__ import annotations

from functools import partial

import msgspec

from kvproof.engine.base import Capacity, Deployment, Group
from kvproof.engine.llamacpp.context import Context, context_of
from kvproof.engine.llamacpp.flags import Flags
from kvproof.engine.llamacpp.layout import Piece, pieces
from kvproof.engine.llamacpp.memory import Settled, left_free, settle
from kvproof.engine.llamacpp.terms import buffer_terms
from kvproof.errors import UsageError
from kvproof.kinds import ConvSlot, RecurrentSlot, SharedSlot
from kvproof.model.types import Model
from kvproof.units import show_bytes

_STEP = 256


def capacity_of(model: Model, deployment: Deployment, kv_bytes: int) -> Capacity:
    """The context under the flags, when `kv_bytes` hold it and every GPU has room.

    When the context length is not given, --fit (on by default) lowers it to what fits, but not
    below fit_ctx; a context that is too large does not fit, and `error` says by how much.
    """
    settled = settle(model, deployment)
    flags, context = settled.flags, settled.context
    parts = pieces(model, context)
    needed = sum(piece.bytes for piece in parts)
    if needed > kv_bytes and not flags.ctx_size and flags.fit:
        context = _fitted(model, flags, context, kv_bytes)
        parts = pieces(model, context)
        needed = sum(piece.bytes for piece in parts)
    error = _shortage(model, settled)
    if needed > kv_bytes:
        error = (
            f"the flags allocate {show_bytes(needed)} for {context.cells:,} cells, "
            f"more than the {show_bytes(kv_bytes)} there are"
        )
    return _capacity(model, context, parts, error)


def _shortage(model: Model, settled: Settled) -> str | None:
    """What a GPU lacks, None when all have room."""
    for gpu in range(settled.place.gpus):
        left = left_free(model, settled, gpu)
        if left < 0:
            memory = show_bytes(settled.gpu_memory[gpu])
            return (
                f"GPU {gpu} lacks {show_bytes(-left)} (it has {memory}): lower ctx_size or "
                "n_gpu_layers, or quantize the cache"
            )
    return None


def _fitted(model: Model, flags: Flags, context: Context, kv_bytes: int) -> Context:
    """The longest context whose buffers take at most `kv_bytes`, of at least fit_ctx cells."""
    low, high = max(flags.fit_ctx, 1), max(context.cells, flags.fit_ctx)
    best = _with_cells(model, flags, low)
    while low < high:
        middle = -(-(low + high) // 2 // _STEP) * _STEP
        middle = min(max(middle, low + 1), high)
        trial = _with_cells(model, flags, middle)
        if sum(piece.bytes for piece in pieces(model, trial)) <= kv_bytes:
            best, low = trial, middle
        else:
            high = middle - 1
    return best


def _with_cells(model: Model, flags: Flags, cells: int) -> Context:
    return context_of(model, msgspec.structs.replace(flags, ctx_size=cells))


def _capacity(
    model: Model, context: Context, parts: tuple[Piece, ...], error: str | None
) -> Capacity:
    longest = context.sequence_cells
    usable = context.sequence_cells * context.streams
    groups = _groups(model, context, parts)
    return Capacity(
        num_blocks=usable,
        block_size=1,
        bytes_per_block=sum(group.layers * group.page_bytes for group in groups),
        groups=groups,
        blocks_per_sequence=longest,
        tokens=usable,
        max_concurrency=usable / longest,
        max_model_len=longest,
        fits=error is None,
        error=error,
        terms=buffer_terms(parts),
        usable_blocks=usable if error is None else 0,
        held_in="cells",
        max_num_seqs=context.sequences,
        blocks_held=partial(
            _cells_held, context.streams == 1 and context.sequences > 1, context.sequence_cells
        ),
    )


def _cells_held(own: bool, stream: int, length: int) -> int:
    """Cells a sequence of `length` occupies: its own, or a whole stream.

    More than there are when it is too long for a stream.
    """
    if length < 0:
        raise UsageError("a length is negative", hint="give tokens")
    if length > stream:
        return 2**62
    return max(length, 1) if own else stream


def _groups(model: Model, context: Context, parts: tuple[Piece, ...]) -> tuple[Group, ...]:
    """Layers by kind of slot: bytes of one cell (of one state for recurrent layers)."""
    found: dict[tuple[str, int], set[int]] = {}
    sizes: dict[int, int] = {}
    for piece in parts:
        sizes[piece.slot] = sizes.get(piece.slot, 0) + piece.bytes
    cells = context.sequence_cells * context.streams
    for index, slot in enumerate(model.slots):
        if isinstance(slot, SharedSlot) or not sizes.get(index):
            continue
        fixed = isinstance(slot, ConvSlot | RecurrentSlot)
        page = sizes[index] // (context.sequences * context.planes if fixed else cells)
        found.setdefault((slot.kind, page), set()).add(slot.layer)
    return tuple(
        Group(
            kind=kind,
            layers=len(layers),
            block_size=1,
            page_bytes=page,
            blocks_per_sequence=1 if kind in ("conv", "recurrent") else context.sequence_cells,
        )
        for (kind, page), layers in found.items()
    )
