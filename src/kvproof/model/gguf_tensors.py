"""A model's tensors from the table of its GGUF file: exact bytes, by role and by layer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from kvproof.model.ggml_types import GgmlType
from kvproof.model.gguf import TensorInfo
from kvproof.model.gguf_keys import Keys
from kvproof.model.quantization import Quantization, Scheme
from kvproof.model.tensors import Role, TensorGroup
from kvproof.model.types import Model

_BLOCK = re.compile(r"^(blk|enc\.blk|dec\.blk)\.(\d{1,4})\.(.*)$")
# Tables that are computed from the config and are no parameters.
_COMPUTED = frozenset(
    {"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"}
)
_ROLES: tuple[tuple[str, Role], ...] = (
    ("position_embd", "position"), ("token_types", "embedding"),
    ("per_layer_token_embd", "embedding"),
    ("token_embd_norm", "norm"), ("token_embd", "embedding"), ("output_norm", "norm"),
    ("ffn_gate_inp", "router"), ("exp_probs_b", "router"), ("_shexp", "shared_expert"),
    ("_chexps", "expert"), ("_exps", "expert"), ("norm", "norm"), ("attn", "attention"),
    ("cross_attn", "attention"), ("indexer", "attention"), ("ffn", "mlp"), ("ssm", "mixer"),
    ("time_mix", "mixer"), ("channel_mix", "mixer"), ("shortconv", "mixer"), ("mm.", "projector"),
)  # fmt: skip


class FileQuantization(Quantization, frozen=True, kw_only=True):
    """The type of every tensor of a GGUF file, by the tensor's name."""

    types: Mapping[str, Scheme] = MappingProxyType({})

    def __hash__(self) -> int:
        """Mappings have no hash of their own; equal ones are as long."""
        return hash((self.method, len(self.types)))

    def covers(self, *, linear: bool, role: str) -> bool:
        """The file names the type of every tensor."""
        return True

    def scheme(self, module: str) -> Scheme | None:
        """How the tensor called `module` is stored."""
        return self.types.get(module)


def with_tensors(model: Model, keys: Keys, tensors: tuple[TensorInfo, ...]) -> Model:
    """`model` with the tensors of its file, layers that predict further tokens left out."""
    kept = [t for t in tensors if t.name not in _COMPUTED and _layer(t.name) < keys.layers]
    return msgspec.structs.replace(
        model,
        tensors=_groups(kept),
        quantization=_quantization(kept),
        stored_weight_bytes=sum(tensor.bytes for tensor in tensors),
    )


def _layer(name: str) -> int:
    match = _BLOCK.match(name)
    return int(match[2]) if match else -1


def _template(name: str) -> str:
    match = _BLOCK.match(name)
    return f"{match[1]}.{{}}.{match[3]}" if match else name


def _groups(tensors: list[TensorInfo]) -> tuple[TensorGroup, ...]:
    """Tensors of one name template, shape and type together."""
    found: dict[tuple[str, tuple[int, ...], bool], list[int]] = {}
    for tensor in tensors:
        key = (_template(tensor.name), tensor.shape, tensor.type.name == "F32")
        found.setdefault(key, []).append(_layer(tensor.name))
    tied = not any(tensor.name == "output.weight" for tensor in tensors)
    return tuple(
        TensorGroup(
            name=name,
            shape=shape,
            count=len(layers),
            layers=tuple(sorted(layers)) if layers[0] >= 0 else (),
            role=role_of(name),
            linear=len(shape) >= 2,
            fp32=plain,
            tied=tied and name == "token_embd.weight",
        )
        for (name, shape, plain), layers in found.items()
    )


def role_of(name: str) -> Role:
    """What a tensor does, by its GGUF name."""
    if name.startswith("output."):
        return "head"
    if name.startswith(("v.", "a.")):
        return "vision" if name[0] == "v" else "audio"
    return next((role for part, role in _ROLES if part in name), "other")


def _quantization(tensors: list[TensorInfo]) -> Quantization:
    kinds = {tensor.type for tensor in tensors}
    schemes = {kind: scheme_of(kind) for kind in kinds}
    return FileQuantization(
        method="gguf",
        default=None,
        types={tensor.name: schemes[tensor.type] for tensor in tensors},
    )


def scheme_of(kind: GgmlType) -> Scheme:
    """Blocks of a row as so many scales, which makes odd block sizes whole bytes."""
    return Scheme(
        name=kind.name.lower(), bits=0, group=kind.block, scale_bits=kind.block_bytes * 8,
        source="ggml block formats, ggml-common.h",
    )  # fmt: skip
