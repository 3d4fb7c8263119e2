"""GGUF metadata to a model: slots by llama.cpp's keys, tensors from the file's own table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from kvproof.errors import ModelError
from kvproof.kinds import Slot
from kvproof.model.gguf import GgufHeader, TensorInfo, read_file
from kvproof.model.gguf_arch import check_architecture
from kvproof.model.gguf_equal import equivalent
from kvproof.model.gguf_keys import Keys
from kvproof.model.gguf_slots import slots_of
from kvproof.model.gguf_tensors import with_tensors
from kvproof.model.read import read_config
from kvproof.model.types import Model, Source

# general.file_type of files that are not quantized (llama.h, llama_ftype).
_FILE_TYPES: dict[Any, str] = {0: "f32", 1: "f16", 32: "bf16"}
# What restating can trip over where sizes do not go together; slots do not depend on it.
_ODD_SHAPES = (KeyError, TypeError, ValueError, IndexError, ZeroDivisionError)


def read_metadata(metadata: Mapping[str, Any], *, source: Source) -> Model:
    """The model that a dict of GGUF metadata describes (keys as in the file)."""
    return _model(metadata, (), source=source, notes=())


def read_gguf(path: Path) -> Model:
    """The model of a local GGUF file, split files included."""
    model = read_parsed(read_file(path), source=Source(origin="gguf", location=str(path)))
    return msgspec.structs.replace(model, name=path.name)


def read_parsed(header: GgufHeader, *, source: Source) -> Model:
    """The model of a header that has been read, with the exact bytes of its tensors."""
    if header.metadata.get("general.type", "model") != "model":
        kind = str(header.metadata["general.type"])[:40]
        raise ModelError(
            f"{header.name} holds no model but {kind!r} of {header.tensor_bytes:,} B",
            hint="give the base model's file",
        )
    return _model(header.metadata, header.tensors, source=source, notes=header.notes)


def _model(
    metadata: Mapping[str, Any],
    tensors: tuple[TensorInfo, ...],
    *,
    source: Source,
    notes: tuple[str, ...],
) -> Model:
    keys = Keys(metadata)
    check_architecture(keys.arch)
    slots = slots_of(keys)
    heads = keys.per_layer("attention.head_count", keys.all_layers, 0)
    equal, doubts = _equal_model(keys, slots, tensors, source)
    own = Model(
        name=_name(metadata, keys),
        model_type=equal.model_type if equal else keys.arch,
        architecture=equal.architecture if equal else keys.arch,
        layers=keys.layers,
        hidden_size=keys.positive("embedding_length"),
        attention_heads=max(heads, default=0),
        vocab_size=keys.vocab_size or (equal.vocab_size if equal else 0),
        context=keys.count("context_length", 0) or None,
        dtype=_FILE_TYPES.get(_scalar(metadata.get("general.file_type")), "f16"),
        slots=slots,
        tensors=equal.tensors if equal else (),
        experts=keys.count("expert_count", 0),
        experts_per_token=max(keys.per_layer("expert_used_count", keys.all_layers, 0)),
        source=source,
        config={**(equal.config if equal else {}), **metadata},
        text_config=equal.text_config if equal else {},
        notes=(*notes, *doubts),
    )
    return with_tensors(own, keys, tensors) if tensors else own


def _name(metadata: Mapping[str, Any], keys: Keys) -> str:
    name = metadata.get("general.name")
    return name if isinstance(name, str) and name else keys.arch


def _equal_model(
    keys: Keys, slots: tuple[Slot, ...], tensors: tuple[TensorInfo, ...], source: Source
) -> tuple[Model | None, tuple[str, ...]]:
    """The model of the config the file was made from, where a transformers class has its design."""
    tied = all(tensor.name != "output.weight" for tensor in tensors) if tensors else None
    try:
        config = equivalent(keys, slots, tied=tied)
    except _ODD_SHAPES as error:
        return None, (f"parameters are unknown: odd metadata ({type(error).__name__})",)
    if config is None:
        return None, () if tensors else (
            f"parameters of {keys.arch} are known from its tensors only",
        )
    try:
        model = read_config(config, name=keys.arch, source=source)
    except ModelError as error:
        return None, (f"parameters are unknown: {error.message}",)
    return model, tuple(note for note in model.notes if "unknown" in note and not tensors)


def _scalar(value: Any) -> int | None:
    return value if type(value) is int else None
