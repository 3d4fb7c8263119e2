"""load: one way in for every source of a model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import msgspec

from kvproof.errors import HubError, ModelError
from kvproof.model import catalog
from kvproof.model.types import Model, Source

_HUB_ID = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}(/[\w./-]{1,200}\.gguf)?$")


def load(source: str | PathLike[str] | Mapping[str, Any], *, offline: bool = False) -> Model:
    """The model that `source` describes; see kvproof.load_model.

    Order for a string: an existing path, a catalogue name, a hub id; `hf:org/name` asks the hub
    even for a name that the catalogue holds, and `ollama:NAME` the local store of Ollama.
    """
    if isinstance(source, Mapping):
        return _from_dict(source)
    if isinstance(source, str) and source.startswith("ollama:"):
        from kvproof.model.ollama_store import read_ollama

        return read_ollama(source.removeprefix("ollama:"))
    path = _expanded(source)
    if isinstance(source, PathLike) or _is_path(str(source), path):
        from kvproof.model.formats import read_path

        return read_path(path)
    return _by_name(str(source), offline=offline)


def _expanded(source: str | PathLike[str]) -> Path:
    """The path that `source` means, its ~ resolved where there is a home."""
    try:
        return Path(source).expanduser()
    except (RuntimeError, ValueError):
        return Path(source)


def _is_path(text: str, path: Path) -> bool:
    """Whether `text` means a file or folder: it exists, or it is written like one."""
    try:
        if path.exists():
            return True
    except (OSError, ValueError):
        raise ModelError(f"{text[:80]!r} is no usable path", hint="check the name") from None
    if _HUB_ID.match(text) and text.count("/") == 2 and text.endswith(".gguf"):
        return False  # a file of a hub repository
    return text.endswith((".json", ".gguf", ".safetensors")) or text.startswith(
        ("/", "./", "../", "~")
    )


def _from_dict(config: Mapping[str, Any]) -> Model:
    source = Source(origin="dict", location="a parsed config")
    if "general.architecture" in config:
        from kvproof.model.gguf_config import read_metadata

        return read_metadata(config, source=source)
    from kvproof.model.formats import read_any_config

    name = config.get("_name_or_path")
    return read_any_config(
        config, name=name if isinstance(name, str) and name else "model", source=source
    )


def _by_name(name: str, *, offline: bool) -> Model:
    forced = name.startswith("hf:")
    name = name.removeprefix("hf:")
    found = None if forced else catalog.find(name)
    if found is not None:
        return _from_catalog(name, found)
    if not _HUB_ID.match(name):
        raise catalog.no_such_model(name)
    from kvproof.model.hub import read_hub

    try:
        return read_hub(name, offline=offline)
    except HubError as error:
        if offline and not forced:
            raise catalog.no_such_model(name) from None
        if forced:
            raise
        raise HubError(
            f"{name!r} is not in the catalogue, and the hub: {error.message}", hint=error.hint
        ) from error


def _from_catalog(asked: str, found: catalog.Found) -> Model:
    from kvproof.model.read import read_config

    entry = found.entry
    place = entry.source + (f" [{entry.licence}]" if entry.licence else "")
    source = Source(origin="catalog", location=place, note=entry.note or None)
    model = read_config(found.config(), name=asked, source=source)
    if found.assumption is None:
        return model
    return msgspec.structs.replace(model, notes=(found.assumption, *model.notes))
