"""max_model_len where it is not given: what vLLM derives from the config.

Source: vLLM 0.32, config/model.py (_get_and_verify_max_len).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvproof.engine.vllm.versions import Rules
from kvproof.kinds import SlidingSlot
from kvproof.model.types import Model

_NO_LENGTH = 2048
_SCALED_ALREADY = (
    "su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling",
)  # fmt: skip
"""Rotary types whose max_position_embeddings holds the scaled length."""


def derived_length(model: Model, flags: Mapping[str, Any], rules: Rules) -> int:
    """The longest request that vLLM takes when max_model_len is left out."""
    own = model.context
    window = _window(model) if flags.get("disable_sliding_window") else None
    if window is not None and (own is None or window < own):
        own = window
    if own is None:
        return _NO_LENGTH
    rotary = [(_type(part), part) for part in _rotary(model.text_config)]
    if rules.short_longrope and any(kind in ("su", "longrope") for kind, _ in rotary):
        original = model.text_config.get("original_max_position_embeddings")
        return int(original) if original else own
    factor = 1.0
    for kind, part in rotary:
        if kind not in _SCALED_ALREADY and "gemma3" not in model.model_type:
            factor = float(part.get("factor") or factor)
    return int(own * factor)


def _window(model: Model) -> int | None:
    windows = [slot.window for slot in model.slots if isinstance(slot, SlidingSlot)]
    return windows[0] if windows else None


def _rotary(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The rotary settings of a config, one for each type of layer where there are several."""
    for key in ("rope_parameters", "rope_scaling"):
        found = config.get(key)
        if isinstance(found, Mapping):
            parts = [part for part in found.values() if isinstance(part, Mapping)]
            yield from parts or [found]
            return


def _type(part: Mapping[str, Any]) -> str:
    return str(part.get("rope_type") or part.get("type") or "default")
