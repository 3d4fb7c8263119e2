"""Whole numbers of a model that no slot states: widths, experts, counts of extra layers."""

from __future__ import annotations

from kvproof.model.types import Model, largest


def fact(model: Model, gguf_key: str, *names: str) -> int:
    """A whole number of the model: by its GGUF key, or by its names in a config."""
    arch = model.config.get("general.architecture")
    if isinstance(arch, str):
        return largest(model.config.get(f"{arch}.{gguf_key}"))
    return model.number(*names)


def facts_by_layer(model: Model, gguf_key: str, *names: str) -> tuple[int, ...]:
    """A whole number of each layer: one for all of them, or the model's own list."""
    arch = model.config.get("general.architecture")
    if isinstance(arch, str):
        value = model.config.get(f"{arch}.{gguf_key}")
    else:
        value = next((found for name in names if (found := model.text_config.get(name))), None)
    if isinstance(value, list | tuple):
        return tuple(largest(entry) for entry in value)
    return (largest(value),) * model.layers
