"""The literature's plain formula: no blocks but the ones asked for, no engine's habits.

Memory for the cache is a share of the GPU's, less the weights and a fixed amount of other
memory; sequences are that memory over the bytes of one sequence. Every input can be given:
gpu_memory, memory_share, other_memory, weight_bytes (of all ranks), streamed_weight_bytes,
bandwidth, tensor_parallel_size, kv_cache_dtype, block_size, max_model_len.
"""

from __future__ import annotations

from typing import Any

import msgspec

from kvproof.engine.base import Budget, Cache, CacheRequest, Capacity, Deployment, Group
from kvproof.engine.hooks import Speed, Traits
from kvproof.errors import UsageError, unknown_name
from kvproof.kinds import (
    ConvSlot,
    CrossSlot,
    FullSlot,
    RecurrentSlot,
    Slot,
    Types,
    element_type,
)
from kvproof.model.types import Model
from kvproof.model.weights import weight_bytes
from kvproof.terms import Term
from kvproof.units import parse_bytes, parse_rate, parse_tokens

TRAITS = Traits(refuses_lengths=False, ideal=True, static_caches=True)
_SMALLEST = 2**20
_SOURCE = "plain formula of the literature"


class Flags(msgspec.Struct, frozen=True, kw_only=True):
    """The formula's inputs; None means: from the model or the GPU."""

    gpu_memory: int | None = None
    memory_share: float = 0.9
    other_memory: int = 4 * 10**9
    used: int = 0
    weight_bytes: int | None = None
    streamed_weight_bytes: int | None = None
    bandwidth: float | None = None
    flops: float | None = None
    tensor_parallel_size: int | None = None
    kv_cache_dtype: str | None = None
    block_size: int = 1
    max_model_len: int | None = None


_PARSERS: dict[str, Any] = {
    "gpu_memory": parse_bytes,
    "other_memory": parse_bytes,
    "used": parse_bytes,
    "weight_bytes": parse_bytes,
    "streamed_weight_bytes": parse_bytes,
    "bandwidth": parse_rate,
    "flops": parse_rate,
    "memory_share": float,
    "max_model_len": parse_tokens,
    "tensor_parallel_size": int,
    "block_size": int,
    "kv_cache_dtype": str,
}


def flags_of(deployment: Deployment) -> Flags:
    """The deployment's flags, read and checked."""
    read: dict[str, Any] = {}
    for name, value in deployment.flags.items():
        if name not in _PARSERS:
            raise unknown_name("formula flag", name, list(_PARSERS), see="see docs/formula.md")
        try:
            read[name] = _PARSERS[name](value)
        except (TypeError, ValueError, OverflowError):
            raise UsageError(f"{name}={str(value)[:40]!r} is no number", hint="give one") from None
    flags = Flags(**read)
    if not 0 < flags.memory_share <= 1:
        raise UsageError(
            f"memory_share is {flags.memory_share}", hint="give a share above 0, up to 1"
        )
    if flags.gpu_memory is not None and flags.gpu_memory < _SMALLEST:
        raise UsageError(
            f"gpu_memory is {flags.gpu_memory:,} B", hint="write a unit: 80GB or 80GiB"
        )
    if flags.block_size < 1 or (flags.tensor_parallel_size or 1) < 1:
        raise UsageError("block_size and tensor_parallel_size are at least 1", hint="correct them")
    return flags


def check_flags(deployment: Deployment) -> None:
    """Raise UsageError for an unknown flag or a value out of range."""
    flags_of(deployment)


def types_for(model: Model, deployment: Deployment) -> Types:
    """Element types as given, whatever the checkpoint asks engines for."""
    return types_of(model, flags_of(deployment).kv_cache_dtype)


def streamed_for(model: Model, deployment: Deployment) -> int | None:
    """What a step reads of the weights, where it is given; None: as stored."""
    flags = flags_of(deployment)
    if flags.streamed_weight_bytes is None and not model.tensors:
        return flags.weight_bytes  # no table and no encoder can be told apart
    return flags.streamed_weight_bytes


def speed_for(deployment: Deployment) -> Speed:
    """The speed of one GPU, where it is given."""
    flags = flags_of(deployment)
    return Speed(bandwidth=flags.bandwidth, flops=flags.flops)


def types_of(model: Model, dtype: str | None, k: str | None = None, v: str | None = None) -> Types:
    """Element types of keys, values and model-typed states; "auto" and None are the model's."""
    own = element_type(model.dtype)
    both = own if dtype in (None, "auto") else element_type(str(dtype))
    return Types(element_type(k) if k else both, element_type(v) if v else both, own)


def cache(model: Model, request: CacheRequest, version: str | None = None) -> Cache:
    """Bytes by the formula: 2 x layers x KV heads x head size x bytes x tokens, slot by slot.

    A static length reserves that many positions for every sequence.
    """
    types = types_of(model, request.dtype, request.k_dtype, request.v_dtype)
    longest = max(request.lengths, default=0) + request.decode_steps
    if request.static_length is not None and request.static_length < longest:
        raise UsageError(
            f"a static length of {request.static_length:,} can't hold {longest:,} tokens",
            hint="reserve at least the longest sequence",
        )
    sizes, reserved = [], 0
    for slot in model.slots:
        sizes.append(
            sum(
                _slot_bytes(slot, n + request.decode_steps, types, request) for n in request.lengths
            )
        )
        if request.static_length is not None:
            reserved += len(request.lengths) * _slot_bytes(
                slot, request.static_length, types, request
            )
    layers = [0] * model.layers
    for slot, size in zip(model.slots, sizes, strict=True):
        layers[slot.layer] += size
    total = sum(sizes)
    return Cache(
        bytes=total,
        allocated_bytes=reserved if request.static_length is not None else total,
        slots=tuple(sizes),
        layers=tuple(layers),
        terms=sequence_terms(model, types, request.lengths[0] if request.lengths else 0),
    )


def _slot_bytes(slot: Slot, tokens: int, types: Types, request: CacheRequest) -> int:
    if isinstance(slot, CrossSlot) and request.encoder_tokens is not None:
        return slot.bytes(request.encoder_tokens, types)
    return held_bytes(slot, tokens, types)


def held_bytes(slot: Slot, tokens: int, types: Types) -> int:
    """Bytes that a sequence of `tokens` holds in `slot`.

    Cross-attention holds what the encoder or the image made, whatever the sequence's length.
    """
    return slot.bytes((slot.default_tokens or 0) if isinstance(slot, CrossSlot) else tokens, types)


def sequence_terms(model: Model, types: Types, tokens: int) -> tuple[Term, ...]:
    """One term per distinct slot: how its layers' bytes for `tokens` come about."""
    groups: dict[Slot, list[int]] = {}
    for slot in model.slots:
        key = msgspec.structs.replace(slot, layer=0)
        groups.setdefault(key, []).append(slot.layer)
    return tuple(_slot_term(slot, layers, tokens, types) for slot, layers in groups.items())


def _slot_term(slot: Slot, layers: list[int], tokens: int, types: Types) -> Term:
    count, held = len(layers), slot.held(tokens)
    entry, fixed = slot.entry_bytes(types), slot.fixed_bytes(types)
    value = count * slot.bytes(tokens, types)
    if isinstance(slot, FullSlot):
        formula = (
            f"{count} layers x {held:,} positions x {slot.kv_heads} KV heads x "
            f"({slot.k_dim} x {types.k.bits / 8:g} + {slot.v_dim} x {types.v.bits / 8:g} B)"
        )
    elif entry:
        formula = f"{count} layers x {held:,} positions x {entry:,} B"
    else:
        formula = f"{count} layers x {fixed:,} B of fixed state"
    return Term(
        name=f"{slot.kind} layers",
        value=value,
        unit="B",
        formula=f"{formula} = {value:,} B",
        source=_SOURCE,
    )


def on_rank(slot: Slot, ranks: int) -> Slot:
    """The share of `slot` that one of `ranks` tensor-parallel GPUs holds.

    Heads are split while they last and replicated beyond; a latent has one head and is whole
    on every rank.
    """
    if isinstance(slot, FullSlot | CrossSlot):
        return msgspec.structs.replace(slot, kv_heads=max(1, -(-slot.kv_heads // ranks)))
    if isinstance(slot, ConvSlot):
        return msgspec.structs.replace(slot, channels=-(-slot.channels // ranks))
    if isinstance(slot, RecurrentSlot):
        first = -(-slot.shape[0] // ranks)
        return msgspec.structs.replace(slot, shape=(first, *slot.shape[1:]))
    return slot


def budget(model: Model, deployment: Deployment) -> Budget:
    """memory x share - weights / ranks - other, per GPU; exact in its own terms."""
    flags, ranks = flags_of(deployment), ranks_for(deployment)
    memory = _memory(deployment, flags)
    usable = int(memory * flags.memory_share)
    weights = flags.weight_bytes if flags.weight_bytes is not None else weight_bytes(model)
    share = -(-weights // ranks)
    kv = max(0, usable - share - flags.other_memory - flags.used)
    given = "given" if flags.weight_bytes is not None else "tensor shapes of the architecture"
    terms = [
        _term("left unused", memory - usable, f"{memory:,} B x (1 - {flags.memory_share:g})"),
        _term("weights", share, f"{weights:,} B / {ranks} GPU", given),
        _term("other memory", flags.other_memory, "activations, graphs, workspace: a fixed amount"),
        *([_term("other processes", flags.used, "as given")] if flags.used else []),
        _term(
            "KV cache",
            kv,
            f"{memory:,} x {flags.memory_share:g} - {share:,} - {flags.other_memory:,}"
            + (f" - {flags.used:,}" if flags.used else ""),
        ),
    ]
    missing = memory - sum(int(term.value) for term in terms)
    if missing < 0:
        terms.append(_term("missing", missing, "the weights do not fit in the usable memory"))
    return Budget(kv_bytes=kv, interval=(kv, kv), terms=tuple(terms))


def _term(name: str, value: int, formula: str, source: str = _SOURCE) -> Term:
    return Term(name=name, value=value, unit="B", formula=f"{formula} = {value:,} B", source=source)


def _memory(deployment: Deployment, flags: Flags) -> int:
    if flags.gpu_memory is not None:
        return flags.gpu_memory
    if deployment.accelerator is None:
        raise UsageError("no GPU is named", hint="give gpu=... or gpu_memory=...")
    return deployment.accelerator.memory_bytes


def ranks_for(deployment: Deployment) -> int:
    """GPUs that share one copy of the model: tensor_parallel_size, else all GPUs named."""
    flags = flags_of(deployment)
    return flags.tensor_parallel_size or deployment.gpu_count or 1


def capacity(model: Model, deployment: Deployment, kv_bytes: int) -> Capacity:
    """kv_bytes over the bytes of a sequence; `block_size` rounds lengths up to whole blocks."""
    flags, ranks = flags_of(deployment), ranks_for(deployment)
    types = types_of(model, flags.kv_cache_dtype)
    slots = tuple(on_rank(slot, ranks) for slot in model.slots)
    length = flags.max_model_len or model.context or 4096
    size = flags.block_size

    def sequence_bytes(tokens: int) -> int:
        padded = -(-tokens // size) * size
        return sum(held_bytes(slot, padded, types) for slot in slots)

    growing = [slot for slot in slots if not isinstance(slot, CrossSlot)]
    entry = max(1, sum(slot.entry_bytes(types) for slot in growing))
    whole = sequence_bytes(length)
    concurrency = kv_bytes / whole if whole else 0.0
    fits = whole <= kv_bytes
    return Capacity(
        num_blocks=kv_bytes // (entry * size),
        block_size=size,
        bytes_per_block=entry * size,
        groups=_groups(slots, types, length, size),
        blocks_per_sequence=-(-length // size),
        tokens=int(concurrency * length),
        max_concurrency=concurrency,
        max_model_len=length,
        fits=fits,
        error=None
        if fits
        else f"a sequence of {length:,} tokens needs {whole:,} B of {kv_bytes:,} B",
        usable_blocks=kv_bytes,
        held_in="B",
        blocks_held=sequence_bytes,
    )


def _groups(slots: tuple[Slot, ...], types: Types, length: int, size: int) -> tuple[Group, ...]:
    kinds: dict[str, list[Slot]] = {}
    for slot in slots:
        if slot.kind != "shared":
            kinds.setdefault(slot.kind, []).append(slot)
    return tuple(
        Group(
            kind=kind,
            layers=len(members),
            block_size=size,
            page_bytes=members[0].entry_bytes(types) * size or members[0].fixed_bytes(types),
            blocks_per_sequence=-(-int(members[0].held(length)) // size)
            if members[0].entry_bytes(types)
            else 1,
        )
        for kind, members in kinds.items()
    )
