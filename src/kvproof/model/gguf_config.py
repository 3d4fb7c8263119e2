"""GGUF metadata to a model: slots by llama.cpp's keys, tensors from the file's own table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvproof.errors import ModelError
from kvproof.model.gguf import GgufHeader, TensorInfo, read_file
from kvproof.model.gguf_arch import check_architecture
from kvproof.model.gguf_keys import Keys
from kvproof.model.gguf_slots import slots_of
from kvproof.model.types import Model, Source


def read_metadata(metadata: Mapping[str, Any], *, source: Source) -> Model:
    """The model that a dict of GGUF metadata describes (keys as in the file)."""
    return _model(metadata, (), source=source, notes=())


def read_gguf(path: Path) -> Model:
    """The model of a local GGUF file, split files included."""
    return read_parsed(read_file(path), source=Source(origin="gguf", location=str(path)))


def read_parsed(header: GgufHeader, *, source: Source) -> Model:
    """The model of a header that has been read, with the exact bytes of its tensors."""
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
    heads = keys.per_layer("attention.head_count", keys.all_layers, 0)
    name = metadata.get("general.name")
    return Model(
        name=name if isinstance(name, str) and name else keys.arch,
        model_type=keys.arch,
        architecture=keys.arch,
        layers=keys.layers,
        hidden_size=keys.positive("embedding_length"),
        attention_heads=max(heads, default=0),
        vocab_size=keys.vocab_size,
        context=keys.count("context_length", 0) or None,
        dtype="f16",
        slots=slots_of(keys),
        tensors=(),
        experts=keys.count("expert_count", 0),
        experts_per_token=max(keys.per_layer("expert_used_count", keys.all_layers, 0)),
        stored_weight_bytes=sum(t.bytes for t in tensors) or None,
        source=source,
        config=dict(metadata),
        notes=notes,
    )
