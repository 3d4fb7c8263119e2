"""max_model_len where it is not given: what vLLM derives from the config.

Source: vLLM 0.32, config/model.py (_get_and_verify_max_len); YaRN before 0.30 by 0.6.6 to 0.29.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvproof.engine.vllm.variables import AS_FLAGS
from kvproof.engine.vllm.versions import Rules
from kvproof.kinds import SlidingSlot
from kvproof.model.overrides import factor_of, rotary_parts
from kvproof.model.types import Model

_NO_LENGTH = 2048
_SCALED_ALREADY = (
    "su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling",
)  # fmt: skip
"""Rotary types whose max_position_embeddings holds the scaled length; YaRN's since 0.30."""


def derived_length(model: Model, flags: Mapping[str, Any], rules: Rules) -> int:
    """The longest request that vLLM takes when max_model_len is left out."""
    own = model.context
    window = _window(model) if flags.get("disable_sliding_window") else None
    if window is not None and (own is None or window < own):
        own = window
    if own is None:
        return _NO_LENGTH
    rotary = list(rotary_parts(model.text_config))
    if rules.short_longrope and any(kind in ("su", "longrope") for kind, _ in rotary):
        original = model.text_config.get("original_max_position_embeddings")
        return int(original) if original else own
    factor = 1.0
    for kind, part in rotary if "gemma3" not in model.model_type else ():
        if kind == "yarn" and not rules.yarn_is_scaled:
            own = int(part.get("original_max_position_embeddings") or own)
        elif kind in _SCALED_ALREADY:
            continue
        factor = factor_of(part) or factor
    return int(own * factor)


def too_long(model: Model, flags: Mapping[str, Any], rules: Rules) -> str | None:
    """What vLLM says of a max_model_len beyond the one it derives; None where it is not."""
    asked = flags.get("max_model_len")
    own = derived_length(model, flags, rules)
    if not isinstance(asked, int) or asked <= max(own, _model_max_length(model)):
        return None
    variable = AS_FLAGS["allow_long_max_model_len"]
    return (
        f"vLLM refuses max_model_len {asked:,}: the config gives {own:,}; "
        f"{variable}=1 or a longer max_position_embeddings (--hf-overrides) lets it through"
    )


def _model_max_length(model: Model) -> int:
    """model_max_length, up to which a longer request is taken; 0 without one."""
    value = model.text_config.get("model_max_length")
    return value if isinstance(value, int) else 0


def _window(model: Model) -> int | None:
    windows = [slot.window for slot in model.slots if isinstance(slot, SlidingSlot)]
    return windows[0] if windows else None
