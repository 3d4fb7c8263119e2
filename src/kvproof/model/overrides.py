"""A model with parts of its config replaced, as engines' own options do, and how far it reaches.

vLLM's --hf-overrides and SGLang's --json-model-override-args name keys of config.json; a key of a
nested config is reached through its parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import structs

from kvproof.model.checks import ROTARY
from kvproof.model.read import read_config
from kvproof.model.types import Model

_COUNTS = ("num_hidden_layers", "n_layer", "num_layers")
_BY_FACTOR = ("linear", "dynamic")
_MOST_FACTOR = 1e6
"""A larger factor is no sense: it would stretch the shortest of models to billions of tokens."""
_SCALED_ALREADY = ("gemma3",)
"""Model types whose max_position_embeddings hold the scaled length of a linear factor."""


def overridden(model: Model, overrides: Mapping[str, Any]) -> Model:
    """`model` read again with `overrides` in its config; as it is where it was read of no config.

    Raises ModelError where no model comes of it.
    """
    if not overrides:
        return model
    if not model.config or "general.architecture" in model.config:
        note = f"not followed, {model.name} has no config.json: {', '.join(overrides)[:200]}"
        return structs.replace(model, notes=(*model.notes, note))
    plain = msgspec.json.decode(msgspec.json.encode(model.config))
    found = read_config(_merged(plain, overrides), name=model.name, source=model.source)
    return structs.replace(found, stored_weight_bytes=model.stored_weight_bytes, notes=model.notes)


def _merged(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Nested configs are gone into; rotary settings are replaced, whichever name they go by.

    Of lists with an entry for each layer, those of the layers that are left are kept: transformers
    keeps them whole under `config.update`, and engines read the first of them.
    """
    out = _shortened(config, overrides)
    for key, value in overrides.items():
        own = out.get(key)
        if key in ROTARY:
            out = {k: v for k, v in out.items() if k not in ROTARY} | {ROTARY[0]: value}
        elif isinstance(own, Mapping) and isinstance(value, Mapping):
            out[key] = _merged(own, value)
        else:
            out[key] = value
    return out


def _shortened(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """`config` with its lists of all layers cut to the fewer that `overrides` ask for."""
    for name in _COUNTS:
        whole, asked = config.get(name), overrides.get(name)
        if isinstance(whole, int) and type(asked) is int and 0 < asked < whole:
            return {key: value[:asked] if isinstance(value, list) and len(value) == whole else value
                    for key, value in config.items()}  # fmt: skip
    return dict(config)


def rotary_parts(config: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(type, settings) of a config's rotary embedding, one for each type of layer."""
    for key in ROTARY:
        found = config.get(key)
        if isinstance(found, Mapping):
            parts = [part for part in found.values() if isinstance(part, Mapping)]
            for part in parts or [found]:
                yield str(part.get("rope_type") or part.get("type") or "default"), part
            return


def factor_of(part: Mapping[str, Any]) -> float | None:
    """The factor of one rotary setting; None where it has none that makes sense."""
    factor = part.get("factor")
    if not isinstance(factor, int | float) or isinstance(factor, bool):
        return None
    return float(factor) if 0 < factor <= _MOST_FACTOR else None


def trained_length(model: Model) -> int | None:
    """How many tokens the model reaches: as trained, or as its rotary embedding is scaled to.

    YaRN reaches its factor times the original length, other scalings theirs times the config's.
    """
    longest = model.context
    if longest is None:
        return None
    scaled = model.model_type.startswith(_SCALED_ALREADY)
    for kind, part in rotary_parts(model.text_config):
        factor = factor_of(part)
        if factor is None or scaled:
            continue
        original = part.get("original_max_position_embeddings")
        if kind == "yarn" and isinstance(original, int):
            longest = max(longest, int(original * factor))
        elif kind in _BY_FACTOR:
            longest = max(longest, int((model.context or 0) * factor))
    return longest
