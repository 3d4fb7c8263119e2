"""Whole numbers of a model that no slot states: widths, experts, counts of extra layers."""

from __future__ import annotations

from typing import Any

from kvproof.model.types import Model


def fact(model: Model, gguf_key: str, *names: str) -> int:
    """A whole number of the model: by its GGUF key, or by its names in a config."""
    arch = model.config.get("general.architecture")
    if isinstance(arch, str):
        return _largest(model.config.get(f"{arch}.{gguf_key}"))
    for name in names:
        value = _largest(model.text_config.get(name)) or _largest(model.config.get(name))
        if value:
            return value
    return 0


def facts_by_layer(model: Model, gguf_key: str, *names: str) -> tuple[int, ...]:
    """A whole number of each layer: one for all of them, or the model's own list."""
    arch = model.config.get("general.architecture")
    if isinstance(arch, str):
        value = model.config.get(f"{arch}.{gguf_key}")
    else:
        value = next((found for name in names if (found := model.text_config.get(name))), None)
    if isinstance(value, list | tuple):
        return tuple(_largest(entry) for entry in value)
    return (_largest(value),) * model.layers


def _largest(value: Any) -> int:
    """A number, or the largest of a list of numbers; 0 for anything else."""
    if isinstance(value, list | tuple):
        return max((_largest(entry) for entry in value), default=0)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
