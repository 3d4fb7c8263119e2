"""Ollama's store: a manifest names a model's layers, a blob holds each; the GGUF is one of them."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import msgspec

from kvproof.errors import ModelError
from kvproof.model.byte_source import FileBytes
from kvproof.model.gguf import read_header
from kvproof.model.gguf_config import read_parsed
from kvproof.model.modelfile import with_settings
from kvproof.model.types import Model, Source

_MODEL_LAYER = "application/vnd.ollama.image.model"
_PARAMETERS = "application/vnd.ollama.image.params"
_DIGEST = re.compile(r"sha256[:-]([0-9a-f]{64})$")
_NAME = re.compile(r"(?:[\w.-]{1,80}/){0,2}[\w.-]{1,80}(?::[\w.-]{1,80})?$")
_MAX_MANIFEST = 2**20


def store_folder() -> Path:
    """Where Ollama keeps its models: OLLAMA_MODELS, else under the home folder."""
    return Path(os.environ.get("OLLAMA_MODELS") or Path.home() / ".ollama" / "models")


def read_ollama(name: str, *, store: Path | None = None) -> Model:
    """The model that Ollama calls `name` (`llama3.2:3b`, `user/model`, a full registry path)."""
    folder = store or store_folder()
    path = manifest_path(name, folder)
    if not path.is_file():
        raise ModelError(f"Ollama's store has no {name[:80]!r}", hint=f"ollama pull {name[:80]}")
    return read_manifest(path)


def holds(name: str, *, store: Path | None = None) -> bool:
    """Whether the local store has the model that Ollama calls `name`."""
    return manifest_path(name, store or store_folder()).is_file()


def manifest_path(name: str, store: Path) -> Path:
    """The manifest's place in the store: registry, namespace, model, tag."""
    if not _NAME.match(name) or ".." in name:
        raise ModelError(f"{name[:80]!r} is no Ollama model name", hint="write llama3.2:3b")
    whole, _, tag = name.partition(":")
    parts = whole.split("/")
    registry = parts.pop(0) if len(parts) == 3 else "registry.ollama.ai"
    space = parts.pop(0) if len(parts) == 2 else "library"
    return store / "manifests" / registry / space / parts[0] / (tag or "latest")


def read_manifest(path: Path) -> Model:
    """The model of a manifest inside a store, with the parameters that its author set."""
    store = _store_of(path)
    layers = _layers(path)
    digest = next((d for kind, d in layers if kind == _MODEL_LAYER), None)
    if digest is None:
        raise ModelError(f"{path} lists no model layer", hint="pull the model again")
    blob = store / "blobs" / f"sha256-{digest}"
    name = f"{path.parent.name}:{path.name}"
    with FileBytes(blob) as source:
        model = read_parsed(
            read_header(source), source=Source(origin="gguf", location=str(blob), note=name)
        )
    return with_settings(msgspec.structs.replace(model, name=name), _parameters(store, layers))


def _store_of(path: Path) -> Path:
    for parent in path.parents:
        if parent.name == "manifests":
            return parent.parent
    raise ModelError(f"{path} lies in no Ollama store", hint="give a path below manifests/")


def _layers(path: Path) -> list[tuple[str, str]]:
    """Media type and digest of every layer."""
    if path.stat().st_size > _MAX_MANIFEST:
        raise ModelError(f"{path} is too large for a manifest", hint="pull the model again")
    try:
        manifest = msgspec.json.decode(path.read_bytes())
        rows: list[Any] = manifest["layers"]
        pairs = [(str(row["mediaType"]), _DIGEST.match(str(row["digest"]))) for row in rows]
    except (msgspec.DecodeError, KeyError, TypeError, RecursionError, UnicodeDecodeError):
        raise ModelError(f"{path} is no Ollama manifest", hint="pull the model again") from None
    return [(kind, match[1]) for kind, match in pairs if match]


def _parameters(store: Path, layers: list[tuple[str, str]]) -> dict[str, Any]:
    """`num_ctx` and the like, as the model's author set them."""
    digest = next((d for kind, d in layers if kind == _PARAMETERS), None)
    if digest is None:
        return {}
    blob = store / "blobs" / f"sha256-{digest}"
    if not blob.is_file() or blob.stat().st_size > _MAX_MANIFEST:
        return {}
    try:
        values = msgspec.json.decode(blob.read_bytes())
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return {}
    return values if isinstance(values, dict) else {}
