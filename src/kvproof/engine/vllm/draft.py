"""Draft models: what speculative decoding adds to the cache.

Source: vLLM 0.32, config/speculative.py and v1/spec_decode; log265 confirms one layer for an
EAGLE head. No planner run has confirmed the others (docs/accuracy.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from kvproof.model.types import Model


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """A speculative method: tokens drafted a step, and decoder layers with a cache it adds."""

    method: str = ""
    tokens: int = 0
    layers: int = 0


_LIKE_TARGET = (
    "mtp", "eagle", "eagle3", "dspark", "deepseek_mtp", "ernie_mtp", "qwen3_next_mtp",
)  # fmt: skip
_MTP_KEYS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")
_DSPARK_LAYERS = 3


def read_draft(model: Model, flags: Mapping[str, Any]) -> Draft:
    """The draft that the flags ask for; its layers have the shape of the target's attention."""
    config = flags.get("speculative_config")
    if not config:
        return Draft()
    method = str(config.get("method") or ("draft_model" if config.get("model") else ""))
    tokens = int(config.get("num_speculative_tokens") or 1)
    if method not in _LIKE_TARGET:
        return Draft(method=method, tokens=tokens)
    kind = "mtp" if method.endswith("mtp") else method
    layers = 1
    if kind == "mtp":
        layers = next((int(model.text_config[k]) for k in _MTP_KEYS if model.text_config.get(k)), 1)
    if kind == "dspark":
        layers = int(model.text_config.get("n_mtp_layers") or _DSPARK_LAYERS)
    return Draft(method=kind, tokens=tokens, layers=layers)
