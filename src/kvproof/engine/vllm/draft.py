"""Draft models: what speculative decoding adds to the cache.

Source: vLLM 0.32, config/speculative.py and v1/worker/gpu/spec_decode; the planner's own runs
(scripts/oracle_vllm.py) confirm EAGLE heads, MTP modules and draft models.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from kvproof.engine.vllm.flags import asked_backend, speculation_of
from kvproof.errors import UsageError
from kvproof.model.load import load_offline, unread_draft
from kvproof.model.types import Model


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """A speculative method: tokens drafted a step, and decoder layers with a cache it adds.

    `model` is the draft's own model where its config can be read; its layers are `layers` then.
    """

    method: str = ""
    tokens: int = 0
    layers: int = 0
    model: Model | None = None
    kv_dtype: str | None = None
    """The type of its cache where that is not the target's."""
    backend: str | None = None
    """Its attention backend where that is not the target's; a model by itself has none."""


_HEADS = ("eagle", "eagle3", "dspark")
_DSPARK_LAYERS = 3


def read_draft(model: Model, flags: Mapping[str, Any]) -> Draft:
    """The draft that the flags ask for.

    Its layers are those of its own config; where that is not at hand they have the shape of the
    target's attention.
    """
    config = speculation_of(flags)
    if not config:
        return Draft()
    found = _read(model, config)
    backend = asked_backend({"attention_backend": config.get("attention_backend")})
    return msgspec.structs.replace(
        found,
        kv_dtype=config.get("kv_cache_dtype"),
        backend=None if found.method == "draft_model" else backend,
    )


def _read(model: Model, config: Mapping[str, Any]) -> Draft:
    method = str(config.get("method") or ("draft_model" if config.get("model") else ""))
    tokens = int(config.get("num_speculative_tokens") or 1)
    if method.endswith("mtp"):
        return Draft(method="mtp", tokens=tokens, layers=model.predicting_layers or 1)
    own = _own_model(config.get("model"))
    if own is not None:
        return Draft(method=method, tokens=tokens, layers=own.layers, model=own)
    if method not in _HEADS:
        return Draft(method=method, tokens=tokens)
    layers = 1
    if method == "dspark":
        layers = int(model.text_config.get("n_mtp_layers") or _DSPARK_LAYERS)
    return Draft(method=method, tokens=tokens, layers=layers)


def draft_notes(model: Model, flags: Mapping[str, Any]) -> list[str]:
    """A word on a draft model whose config is not at hand or can't be read."""
    named = speculation_of(flags).get("model")
    draft = read_draft(model, flags)
    said = unread_draft(named) if draft.model is None and named is not None else None
    if said is None:
        return []
    what = "its layers and weights are not counted"
    if draft.layers:
        what = "its layers are taken for ones like the model's last"
    return [f"{said}: {what}"]


def _own_model(source: object) -> Model | None:
    """The draft's model, from a folder, a parsed config or a name that needs no network."""
    if source is None:
        return None
    if not isinstance(source, str | Mapping):
        raise UsageError(
            f"speculative_config's model is {str(source)[:40]!r}, no name",
            hint="give a name or a path",
        )
    return load_offline(source)
