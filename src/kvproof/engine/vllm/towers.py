"""Towers that --limit-mm-per-prompt and --language-model-only leave out, and what they save.

Source: vLLM 0.32, model_executor/models/interfaces.py (_mark_tower_model): a tower is not loaded
when the limits of all its modalities are 0; config/multimodal.py (get_limit_per_prompt): a limit
that is not given is no 0. config/model.py: with all limits 0 a model is served as text alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from kvproof.engine.vllm.versions import Rules, Version, parse_version
from kvproof.model.types import Model

_DATA = Path(__file__).with_name("data") / "towers.json"
_PICTURES, _SOUND = ("image", "video"), ("audio",)


@cache
def _table() -> dict[str, Any]:
    raw: dict[str, Any] = msgspec.json.decode(_DATA.read_bytes())
    return raw


def drops_tower(model: Model, flags: Mapping[str, Any], rules: Rules, role: str) -> bool:
    """Whether the tensors of `role` (vision, audio, projector) are not loaded."""
    if flags.get("language_model_only"):
        return True
    return rules.version >= _since(model) and closed(model, flags, role)


def closed(model: Model, flags: Mapping[str, Any], role: str) -> bool:
    """Whether nothing that goes through a tower of `role` may be sent; a projector has them all."""
    if flags.get("language_model_only"):
        return True
    modalities = _modalities(model, role) if role != "projector" else _all_modalities(model)
    return all(limit_of(flags, name) == 0 for name in modalities)


def limit_of(flags: Mapping[str, Any], modality: str) -> int | None:
    """Items of a modality that a prompt may hold; None without a limit."""
    return _count((flags.get("limit_mm_per_prompt") or {}).get(modality))


def text_only(model: Model, flags: Mapping[str, Any]) -> bool:
    """Whether a model with towers is served as text alone."""
    return closed(model, flags, "projector")


def profiles_towers(model: Model, flags: Mapping[str, Any]) -> bool:
    """Whether a start runs the towers to see what they take (gpu_model_runner.py, profile_run)."""
    return not (flags.get("skip_mm_profiling") or text_only(model, flags))


def _all_modalities(model: Model) -> tuple[str, ...]:
    own = {group.role for group in model.tensors}
    heard = "audio" in own or isinstance(model.config.get("audio_config"), Mapping)
    seen = "vision" in own or "vision_config" in model.config or not heard
    return (
        *(_modalities(model, "vision") if seen else ()),
        *(_modalities(model, "audio") if heard else ()),
    )


def _modalities(model: Model, role: str) -> tuple[str, ...]:
    """What goes through a tower."""
    if model.architecture in _table()["joint"]:
        return (*_PICTURES, *_SOUND)
    if role == "audio":
        return _SOUND
    listed = _table()["vision"].items()
    return next(((name,) for name, classes in listed if model.architecture in classes), _PICTURES)


def _since(model: Model) -> Version:
    """The first release that does not load the model's closed towers."""
    dated: Mapping[str, str] = _table()["since"]
    kind = str(model.config.get("model_type", ""))
    return parse_version(dated[max((p for p in dated if kind.startswith(p)), key=len)])


def _count(limit: Any) -> int | None:
    """A limit: a number, or options with its count; None without either."""
    value = limit.get("count") if isinstance(limit, Mapping) else limit
    try:
        return None if value is None else int(value)
    except (TypeError, ValueError):
        return None
