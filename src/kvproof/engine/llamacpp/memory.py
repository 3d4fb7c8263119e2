"""Memory of a llama.cpp deployment: weights, cache, compute and output buffers, by device."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import msgspec

from kvproof.engine.base import Budget, Deployment, Offload
from kvproof.engine.llamacpp.companions import (
    NONE,
    Companions,
    companions_of,
    draft_flags,
    file_terms,
)
from kvproof.engine.llamacpp.compute import compute_term, device_compute_term, output_term
from kvproof.engine.llamacpp.context import Context, context_of
from kvproof.engine.llamacpp.devices import (
    Placement,
    cache_pieces,
    placement,
    streamed_on_host,
    weight_bytes_by_device,
)
from kvproof.engine.llamacpp.flags import Flags, flags_of
from kvproof.engine.llamacpp.graph import split_bytes
from kvproof.engine.llamacpp.graph.schedule import LEAST_BATCH, Where
from kvproof.engine.llamacpp.layout import Piece, pieces
from kvproof.engine.llamacpp.overrides import HOST
from kvproof.engine.llamacpp.split import where_of
from kvproof.engine.llamacpp.terms import buffer_terms
from kvproof.model.types import Model
from kvproof.terms import Term, total
from kvproof.units import MIB

_STEP = 256
_FIT_MARGIN = 1024 * MIB
# Two channels of 8 bytes at 5,600 million transfers a second (JESD79-5).
_HOST_BANDWIDTH = 2 * 8 * 5_600_000_000
_CONTEXT = (400 * MIB, 200 * MIB, 600 * MIB)


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """The context and placement that start: as asked, or lowered by --fit."""

    flags: Flags
    context: Context
    place: Placement
    where: Where
    buffers: Mapping[int, int] | None
    """Bytes of every device's compute buffer; None without a GPU or a known graph."""
    weights: dict[int, int]
    held: Mapping[int, tuple[Piece, ...]]
    """The cache's tensors by device."""
    gpu_memory: tuple[int, ...]
    """Memory of each GPU; empty without one."""
    lowered: bool
    beside: Companions = NONE
    draft: Settled | None = None
    """The draft model's own context and placement."""


_KEPT: deque[tuple[Model, Deployment, Settled]] = deque(maxlen=4)


def budget_of(model: Model, deployment: Deployment) -> Budget:
    """What the flags allocate. `kv_bytes` is the cache of all devices, exact.

    With a GPU, the terms of each device add up to its memory; what is left free is the last.
    """
    settled = settle(model, deployment)
    kv_bytes = _cache_bytes(model, settled)
    if not settled.gpu_memory:
        terms: tuple[Term, ...] = _one_place(model, settled)
    else:
        terms = tuple(
            term
            for device in settled.place.devices
            for term in device_terms(model, settled, device)
        )
    return Budget(kv_bytes=kv_bytes, interval=(kv_bytes, kv_bytes), terms=terms)


def _cache_bytes(model: Model, settled: Settled) -> int:
    """The cache of the model, and of its draft."""
    size = sum(piece.bytes for parts in settled.held.values() for piece in parts)
    if settled.draft is not None and settled.beside.draft is not None:
        size += _cache_bytes(settled.beside.draft, settled.draft)
    return size


def settle(model: Model, deployment: Deployment) -> Settled:
    """The context that starts; --fit lowers an unnamed context, then the layers on the GPUs.

    A plan asks for the same several times, and a search takes long: the last answers are kept.
    """
    for known, other, settled in tuple(_KEPT):
        if known is model and other is deployment:
            return settled
    settled = _settle(model, deployment)
    _KEPT.append((model, deployment, settled))
    return settled


def _settle(model: Model, deployment: Deployment) -> Settled:
    flags = flags_of(deployment)
    memory = _memories(deployment, flags)
    if len(set(memory)) > 1 and not any(flags.tensor_split):  # layers by what is free
        shares = tuple(float(size - flags.used) for size in memory)
        flags = msgspec.structs.replace(flags, tensor_split=shares)
    asked = _settled(model, flags, memory, companions_of(flags))
    if not memory or not flags.fit or fits(model, asked):
        return asked
    return _fit(model, asked)


def _memories(deployment: Deployment, flags: Flags) -> tuple[int, ...]:
    """Memory of every GPU in order: as given, else by the GPUs' names."""
    if flags.gpu_memory is not None:
        return (flags.gpu_memory,) * (deployment.gpu_count or 1)
    return tuple(kind.memory_bytes for count, kind in deployment.kinds for _ in range(count))


def _settled(
    model: Model,
    flags: Flags,
    memory: tuple[int, ...],
    beside: Companions,
    *,
    lowered: bool = False,
    near: Settled | None = None,
    guess: bool = False,
) -> Settled:
    """`near`: a neighbour, whose weights hold where its layers lie alike.

    A `guess` takes the neighbour's buffers too, and is made again without them.
    """
    place = placement(model, flags, len(memory))
    context = context_of(model, flags)
    if loses_flash(flags, place, context):
        context = context_of(model, msgspec.structs.replace(flags, flash_attn="off"))
    held = cache_pieces(pieces(model, context), place)
    same = near is not None and near.place == place
    where = near.where if near and (same or guess) else where_of(model, flags, place)
    buffers = near.buffers if near and guess else None
    if buffers is None and memory:
        buffers = split_bytes(model, context, where)
    return Settled(
        flags=flags,
        context=context,
        place=place,
        where=where,
        buffers=buffers,
        held=held,
        weights=near.weights if near and same else weight_bytes_by_device(model, place),
        gpu_memory=memory,
        lowered=lowered,
        beside=beside,
        draft=_settled(beside.draft, draft_flags(flags, context), memory, NONE)
        if beside.draft is not None else None,
    )  # fmt: skip


def loses_flash(flags: Flags, place: Placement, context: Context) -> bool:
    """Whether `auto` ends without flash attention though the engine has it.

    llama.cpp tries a token of every sequence: a batch of 32 and more is computed on the GPU even
    for layers on the host, and attention that is not where its layer is counts as not supported
    (llama-context.cpp, resolve_fused_ops, b11549).
    """
    moved = bool(place.gpus) and flags.op_offload and HOST in place.layers
    asked = flags.flash_attn == "auto" and context.flash and context.v.block == 1
    return asked and moved and context.sequences >= LEAST_BATCH


def lowered_note(model: Model, deployment: Deployment, fitted: str) -> tuple[str, ...]:
    """What is started in place of what was asked, by what (`fitted`); nothing where that fits."""
    settled = settle(model, deployment)
    if not settled.lowered:
        return ()
    parts = []
    if not flags_of(deployment).ctx_size:
        parts.append(f"a context of {settled.context.cells:,} tokens")
    here = sum(device != HOST for device in settled.place.layers)
    if here < model.layers:
        parts.append(f"{here} of {model.layers} layers on the GPU")
    return (f"what fits is started ({fitted}): {' and '.join(parts)}",) if parts else ()


def offload_of(model: Model, deployment: Deployment) -> Offload | None:
    """What a step reads from host memory, and GPUs that wait for each other; None for neither."""
    settled = settle(model, deployment)
    place = settled.place
    if not place.gpus:
        return None
    rest, experts = streamed_on_host(model, place)
    on_host = sum(piece.bytes for piece in settled.held[HOST])
    whole = sum(piece.bytes for parts in settled.held.values() for piece in parts)
    used = {device for device in (*place.layers, place.output) if device != HOST}
    turns = 1 if place.sharded else max(len(used), 1)
    if not (rest or experts or on_host) and turns == 1:
        return None
    gpu, given = deployment.accelerator, settled.flags.host_bandwidth
    unified = gpu.memory_bandwidth if gpu is not None and gpu.unified_memory else None
    return Offload(
        weight_bytes=rest,
        expert_bytes=experts,
        cache_share=on_host / whole if whole else 0.0,
        bandwidth=float(given or unified or _HOST_BANDWIDTH),
        turns=turns,
        source="host_bandwidth as given" if given else "memory shared with the GPU" if unified
        else "host memory: two channels of DDR5-5600 assumed, give host_bandwidth",
    )  # fmt: skip


def fits(model: Model, settled: Settled) -> bool:
    """Whether every GPU keeps the margin that --fit leaves free."""
    return all(left_free(model, settled, gpu) >= _FIT_MARGIN for gpu in range(settled.place.gpus))


def left_free(model: Model, settled: Settled, device: int) -> int:
    """Bytes of a GPU that nothing takes; negative when it is too small."""
    used = total(_used(model, settled, device))
    return int(settled.gpu_memory[device] - used)


def _fit(model: Model, asked: Settled) -> Settled:
    """Lower the context to what fits, then the layers on the GPUs, as llama.cpp's fit does."""
    flags, best = asked.flags, asked
    if not flags.ctx_size:
        least = max(flags.fit_ctx, _STEP)
        steps = (-(-least // _STEP), asked.context.cells // _STEP)
        best = _largest(model, asked, "ctx_size", steps, _STEP)
    if fits(model, best) or flags.n_gpu_layers is not None:
        return best
    return _largest(model, best, "n_gpu_layers", (0, model.layers), 1)


def _largest(
    model: Model, settled: Settled, flag: str, steps: tuple[int, int], unit: int
) -> Settled:
    """The same with the largest value of `flag` that fits, of so many steps of `unit`.

    A graph takes long and changes little, so the search takes a neighbour's buffers and its end is
    made anew until it stays.
    """

    def made(step: int, near: Settled, *, guess: bool = False) -> Settled:
        flags = msgspec.structs.replace(settled.flags, **{flag: step * unit})
        return _settled(model, flags, settled.gpu_memory, settled.beside, lowered=True,
                        near=near, guess=guess)  # fmt: skip

    best = near = made(steps[0], settled)
    known, top = {steps[0]}, steps[1]
    while True:
        low, high = steps[0], top
        while low < high:
            middle = (low + high + 1) // 2
            enough = fits(model, made(middle, near, guess=True))
            low, high = (middle, high) if enough else (low, middle - 1)
        if low in known:
            return best
        known.add(low)
        near = made(low, near)
        if fits(model, near):
            best = near
        else:
            top = low - 1


def device_terms(model: Model, settled: Settled, device: int) -> tuple[Term, ...]:
    """The terms of one device; a GPU's end with what is left free."""
    used = _used(model, settled, device)
    if device == HOST:
        return used
    left = left_free(model, settled, device)
    return (*used, _left_term(settled, device, left))


def _used(model: Model, settled: Settled, device: int) -> tuple[Term, ...]:
    place, context = settled.place, settled.context
    name = _name(place, device)
    parts = settled.held[device]
    weights = _weights_term(settled.weights[device], name)
    cache = buffer_terms(parts, place=name)
    if device == HOST:
        logits = msgspec.structs.replace(output_term(model, context), name=f"output buffer{name}")
        work: tuple[Term, ...] = (_compute(model, settled, device, name), logits)
    else:
        work = (_compute(model, settled, device, name), _context_term(name))
        if settled.flags.used:
            work = (*work, _others_term(name, settled.flags.used))
    return (*weights, *cache, *_beside(settled, device, name), *work)


def _beside(settled: Settled, device: int, name: str) -> tuple[Term, ...]:
    """What is loaded beside the model on one device; files go to the first GPU."""
    projector_here = 0 if settled.flags.mmproj_offload and settled.place.gpus else HOST
    adapters_here = 0 if settled.place.gpus else HOST
    here = {"projector": projector_here, "adapter": adapters_here}
    files = tuple(file for file in settled.beside.files if here[file[0]] == device)
    terms = file_terms(msgspec.structs.replace(settled.beside, files=files), name)
    draft = settled.beside.draft
    if draft is None or settled.draft is None:
        return terms
    own = msgspec.structs.replace(
        settled.draft, flags=msgspec.structs.replace(settled.draft.flags, used=0)
    )
    drawn = [t for t in _used(draft, own, device) if not t.name.startswith("GPU context")]
    return (*terms, *(msgspec.structs.replace(t, name=f"draft {t.name}") for t in drawn))


def _one_place(model: Model, settled: Settled) -> tuple[Term, ...]:
    """Everything in one memory: the terms when no GPU is named."""
    weights = sum(settled.weights.values())
    return (
        *_weights_term(weights, ""),
        *buffer_terms(pieces(model, settled.context)),
        *_beside_in_one(settled),
        compute_term(model, settled.context),
        output_term(model, settled.context),
    )


def _beside_in_one(settled: Settled) -> tuple[Term, ...]:
    terms = file_terms(settled.beside, "")
    draft = settled.beside.draft
    if draft is None or settled.draft is None:
        return terms
    own = _one_place(draft, settled.draft)
    return (*terms, *(msgspec.structs.replace(t, name=f"draft {t.name}") for t in own))


def _name(place: Placement, device: int) -> str:
    if device == HOST:
        return ", host"
    return f", GPU {device}" if place.gpus > 1 else ""


def _weights_term(size: int, place: str) -> tuple[Term, ...]:
    if not size:
        return ()
    formula = f"tensors on this device: {size:,} B"
    source = "tensor table of the file, or shapes and types of the config"
    return (Term(name=f"weights{place}", value=size, unit="B", formula=formula, source=source),)


def _compute(model: Model, settled: Settled, device: int, name: str) -> Term:
    term = device_compute_term(model, settled.context, settled.where, device, settled.buffers)
    return msgspec.structs.replace(term, name=f"compute buffer{name}")


def _context_term(place: str) -> Term:
    value, low, high = _CONTEXT
    return Term(
        name=f"GPU context{place}", value=value, unit="B",
        formula=f"driver and kernels = {value:,} B",
        source="estimate: 200 to 600 MiB a process", low=low, high=high,
    )  # fmt: skip


def _others_term(place: str, used: int) -> Term:
    return Term(
        name=f"other processes{place}", value=used, unit="B",
        formula=f"in use before the start = {used:,} B",
        source="as given",
    )  # fmt: skip


def _left_term(settled: Settled, device: int, left: int) -> Term:
    memory = settled.gpu_memory[device]
    return Term(
        name=f"left free{_name(settled.place, device)}",
        value=left,
        unit="B",
        formula=f"{memory:,} B - the terms above = {left:,} B",
        source="driver's total memory",
    )
