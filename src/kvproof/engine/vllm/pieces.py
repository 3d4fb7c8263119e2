"""A rank's tensors as the engine's classes hold them: parts of one product fused, scales apart.

What counts here is the size of each allocation; the sums are kvproof.engine.vllm.rank_weights'.
Source: vLLM 0.32, model_executor/layers/linear.py (QKVParallelLinear, MergedColumnParallelLinear)
and quantization/ (weights and scales are parameters of their own; gptq_marlin.py drops zero
points and the order of columns).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from kvproof.model.quantization import Scheme
from kvproof.model.tensors import TensorGroup
from kvproof.model.types import Model
from kvproof.model.weights import matrix_bytes, stored_bytes

_FUSED = (
    (("q_proj", "k_proj", "v_proj"), "qkv"),
    (("gate_proj", "up_proj"), "gate_up"),
    (("q_a_proj", "kv_a_proj_with_mqa"), "qkv_a"),
    (("in_proj_qkv", "in_proj_z"), "in_proj_qkvz"),
    (("in_proj_b", "in_proj_a"), "in_proj_ba"),
)


class Piece(msgspec.Struct, frozen=True):
    """Tensors of one name on one rank: bytes of weights, scales, zero points, rest; how many."""

    name: str
    layers: tuple[int, ...]
    parts: tuple[float, ...]
    each: int


def piece_of(model: Model, group: TensorGroup, size: float) -> Piece:
    """A group of which the rank holds `size` bytes in all."""
    each = max(1, group.count // max(1, len(group.layers)))
    one = size / (each * max(1, len(group.layers)))
    parts = tuple(one * share for share in _shares(model, group))
    return Piece(_fused(group.name), group.layers, parts, each)


def tensor_sizes(pieces: Iterable[Piece], part: range) -> list[int]:
    """Bytes of every tensor, in the order of making: those outside layers, then layer by layer."""
    merged = list(_merged(pieces))
    out = [size for piece in merged if not piece.layers for size in _sizes(piece)]
    for layer in part:
        for piece in merged:
            if layer in piece.layers:
                out += _sizes(piece)
    return out


def _merged(pieces: Iterable[Piece]) -> Iterator[Piece]:
    found: dict[tuple[str, tuple[int, ...], int], Piece] = {}
    for piece in pieces:
        key = (piece.name, piece.layers, piece.each)
        old = found.get(key)
        if old is not None:
            both = zip(old.parts, piece.parts, strict=True)
            piece = msgspec.structs.replace(old, parts=tuple(a + b for a, b in both))
        found[key] = piece
    return iter(found.values())


def _sizes(piece: Piece) -> list[int]:
    return [round(size) for size in piece.parts if size >= 1] * piece.each


def _fused(name: str) -> str:
    stem, _, last = name.rpartition(".")
    base, _, own = stem.rpartition(".")
    for parts, whole in _FUSED:
        if own in parts:
            return f"{base}.{whole}.{last}"
    return name


def symmetric_gptq(model: Model) -> bool:
    """Whether the checkpoint is GPTQ's with zero points that say nothing: Marlin drops them."""
    section = model.config.get("quantization_config")
    symmetric = section.get("sym", True) if isinstance(section, Mapping) else True
    return model.quantization is not None and model.quantization.method == "gptq" and symmetric


def bytes_without_zeros(model: Model, group: TensorGroup) -> int:
    """Bytes of a group without its zero points and the order of its columns."""
    scheme = scheme_of(model, group)
    if scheme is None:
        return stored_bytes(model, group)
    bare = msgspec.structs.replace(scheme, zero_bits=0, column_bytes=0)
    less = matrix_bytes(scheme, group.shape) - matrix_bytes(bare, group.shape)
    return stored_bytes(model, group) - group.count * less


def _shares(model: Model, group: TensorGroup) -> tuple[float, ...]:
    """Which parts of a group's bytes are weights, scales, zero points and the small rest."""
    scheme = scheme_of(model, group)
    rows, columns = (1, *group.shape)[-2:]
    whole = scheme.bytes(rows, columns) if scheme is not None else 0
    if scheme is None or not whole:
        return 1.0, 0.0, 0.0, 0.0
    plain = msgspec.structs.replace(scheme, tensor_bytes=0, column_bytes=0)
    bare = msgspec.structs.replace(plain, scale_bits=0, zero_bits=0)
    scaled = msgspec.structs.replace(plain, zero_bits=0)
    steps = [part.bytes(rows, columns) for part in (bare, scaled, plain)]
    if symmetric_gptq(model):
        steps, whole = [steps[0], steps[1], steps[1]], steps[1]
    ends = [0, *steps, whole]
    return tuple((end - start) / whole for start, end in itertools.pairwise(ends))


def scheme_of(model: Model, group: TensorGroup) -> Scheme | None:
    """How the first layer of a group is stored; None where it stays unquantized."""
    own = model.quantization
    if own is None or not own.covers(linear=group.linear, role=group.role):
        return None
    layer = str(group.layers[0]) if group.layers else "0"
    return own.scheme(group.name.replace("{}", layer, 1).replace("{}", "0"))
