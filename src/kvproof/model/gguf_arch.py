"""Which GGUF architectures are read, and which one a model is to llama.cpp."""

from __future__ import annotations

import functools
from importlib import resources

import msgspec

from kvproof.errors import ModelError
from kvproof.model.types import Model


class _Table(msgspec.Struct, frozen=True):
    source: str
    read: tuple[str, ...]
    refused: dict[str, str]
    model_types: dict[str, str]
    classes: dict[str, str]
    equal: dict[str, str]


@functools.cache
def _table() -> _Table:
    file = resources.files("kvproof.model").joinpath("data/gguf_architectures.json")
    return msgspec.json.decode(file.read_bytes(), type=_Table)


def known_architectures() -> tuple[str, ...]:
    """Every architecture name that is read."""
    return _table().read


def refused_architectures() -> dict[str, str]:
    """Every architecture name that is refused, and why."""
    return dict(_table().refused)


def check_architecture(name: str) -> None:
    """Raise ModelError for an architecture that is refused or unknown."""
    table = _table()
    if name in table.refused:
        raise ModelError(
            f"the GGUF architecture {name!r} is {table.refused[name]}", hint="give a text model"
        )
    if name in table.read:
        return
    import difflib

    near = difflib.get_close_matches(name, table.read, n=3)
    offer = f"did you mean {', '.join(near)}?" if near else "see docs/formats.md"
    raise ModelError(f"unknown GGUF architecture {name[:40]!r}", hint=offer)


def architecture_of(model: Model) -> str | None:
    """The architecture llama.cpp knows the model by: of its GGUF file, or of its converter."""
    own = model.config.get("general.architecture")
    if isinstance(own, str):
        return own
    table, inner = _table(), model.text_config.get("model_type")
    found = table.classes.get(model.architecture) or table.model_types.get(model.model_type)
    return found or (table.model_types.get(inner) if isinstance(inner, str) else None)


def equal_type(arch: str) -> str | None:
    """The transformers model type of the same design, None where there is none."""
    return _table().equal.get(arch)
