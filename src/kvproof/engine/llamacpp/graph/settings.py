"""Single settings of a model: by their GGUF key, or by their name in a config."""

from __future__ import annotations

from typing import Any

from kvproof.model.types import Model


def described_only(model: Model) -> bool:
    """Whether a GGUF file's metadata came without tensors: llama.cpp then makes optional ones."""
    return model.source.origin == "dict" and "general.architecture" in model.config


def raw(model: Model, key: str, name: str) -> Any:
    """The setting as it stands, None where it is missing."""
    arch = model.config.get("general.architecture")
    if isinstance(arch, str):
        return model.config.get(f"{arch}.{key}")
    return model.text_config.get(name)


def flag(model: Model, key: str, name: str) -> bool:
    """Whether the setting is true."""
    return raw(model, key, name) is True


def number(model: Model, key: str, name: str) -> float:
    """The setting as a number, 0 where it is none."""
    value = raw(model, key, name)
    return float(value) if isinstance(value, int | float) else 0.0
