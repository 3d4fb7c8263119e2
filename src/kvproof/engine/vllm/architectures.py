"""Which releases of vLLM have a class for an architecture, and what the others do.

Releases since 0.7.2 give an unknown architecture to their Transformers backend, which runs what
the installed transformers can and has no layers with states; earlier ones stop.
`data/added.json` has the first release with each (written by `scripts/vllm_registries.py`),
`data/removed.json` the last with those that went.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec

from kvproof.engine.vllm.versions import Rules, Version, parse_version
from kvproof.errors import UsageError
from kvproof.kinds import ConvSlot, IndexerSlot, RecurrentSlot
from kvproof.model.types import Model

_DATA = Path(__file__).with_name("data")
_BACKEND: Version = (0, 7, 2)
"""Since when registry.py sends what it does not know to TransformersModel."""


@cache
def _first_releases() -> dict[str, str]:
    read = (_DATA / "added.json").read_bytes()
    first: dict[str, str] = msgspec.json.decode(read)["first"]
    return first


@cache
def _last_releases() -> dict[str, str]:
    read = (_DATA / "removed.json").read_bytes()
    last: dict[str, str] = msgspec.json.decode(read)["last"]
    return last


def check_architecture(model: Model, rules: Rules) -> None:
    """Raise UsageError for an architecture that the release does not run any more."""
    last = _last_releases().get(model.architecture)
    if last is not None and rules.version[:2] > parse_version(last)[:2]:
        raise UsageError(
            f"vLLM runs {model.architecture} up to {last} only",
            hint=f"name that release: vllm@{last}",
        )


def is_m3(model: Model) -> bool:
    """Whether an indexer picks blocks of plain keys and values: MiniMax-M3."""
    named = "MiniMaxM3" in model.architecture or model.model_type.startswith("minimax_m3")
    return named and any(isinstance(slot, IndexerSlot) for slot in model.slots)


def _comes_later(model: Model, release: str | None) -> str | None:
    """The first release with a class for the model, where `release` is an earlier one."""
    first = _first_releases().get(model.architecture)
    later = first is not None and parse_version(release) < parse_version(first)
    return first if later else None


def _has_states(model: Model) -> bool:
    return any(isinstance(slot, ConvSlot | RecurrentSlot) for slot in model.slots)


def unknown_yet(model: Model, release: str | None) -> str | None:
    """Why a release does not start the model: it has no class for it, nor a way around one."""
    first = _comes_later(model, release)
    around = parse_version(release) >= _BACKEND and not _has_states(model)
    if first is None or around:
        return None
    return f"vLLM {release} has no class for {model.architecture}; the first with it is {first}"


def around_unknown(model: Model, release: str | None) -> str | None:
    """What to say where only the Transformers backend may run the model."""
    first = _comes_later(model, release)
    if first is None or unknown_yet(model, release) is not None:
        return None
    return (
        f"vLLM {release} has no class for {model.architecture} (the first with it is {first}): "
        "it starts only if the Transformers backend takes the model"
    )
