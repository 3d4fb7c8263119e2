"""load: one way in for every source of a model."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from msgspec import structs

from kvproof.errors import (
    HubError,
    HubUnreachedError,
    InputError,
    KvproofError,
    ModelError,
)
from kvproof.model import catalog
from kvproof.model.names import HubName, parse_hub_name
from kvproof.model.types import Model, Source

# Names of Ollama that stand for a hub repository.
_OLLAMAS_HUBS = ("hf.co/", "huggingface.co/")


def load(source: str | PathLike[str] | Mapping[str, Any], *, offline: bool = False) -> Model:
    """The model that `source` describes; see kvproof.load_model.

    Order for a string: an existing path, a catalogue name, a hub name (kvproof.model.names);
    `hf:org/name` asks the hub even for a name that the catalogue holds, and `ollama:NAME` the
    local store of Ollama.
    """
    if isinstance(source, Mapping):
        return _from_dict(source)
    text = str(source).strip() if isinstance(source, str) else str(source)
    if not text:
        raise ModelError("the model's name is empty", hint="give a name, a path or a hub name")
    if isinstance(source, str) and text.startswith("ollama:"):
        return load_ollama(text.removeprefix("ollama:").removeprefix("//"), offline=offline)
    text = text.removeprefix("file://")
    path = _expanded(text)
    if isinstance(source, PathLike) or _is_path(text, path):
        from kvproof.model.formats import read_path

        return read_path(path)
    return _by_name(text, offline=offline)


def load_offline(source: str | Mapping[str, Any]) -> Model | None:
    """What `load` gives without asking the hub, None where that is no model: a draft beside one."""
    try:
        return load(source, offline=True)
    except KvproofError:
        return None


def unread_draft(source: str | Mapping[str, Any]) -> str | None:
    """Why `load_offline` gives no draft, as the start of a sentence; None where it gives one."""
    whose = f"the draft {source[:80]}" if isinstance(source, str) else "the draft's config"
    try:
        load(source, offline=True)
    except (ModelError, InputError) as error:
        return f"{whose} can't be read ({error.message[:160]})"
    except KvproofError:
        return f"{whose} is neither here nor in the catalogue"
    return None


def load_ollama(name: str, *, offline: bool = False) -> Model:
    """Of Ollama's store; a hub model that it has not pulled yet is asked of the hub."""
    from kvproof.model.ollama_store import holds, read_ollama

    hub = name.startswith(_OLLAMAS_HUBS) and not holds(name)
    asked = parse_hub_name(name) if hub else None
    if asked is None:
        return read_ollama(name)
    from kvproof.model.hub import read_hub

    return read_hub(structs.replace(asked, tag=asked.tag or "latest"), offline=offline)


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
    if "://" in text or (text.count("/") >= 2 and text.endswith(".gguf") and _on_hub(text)):
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


def _on_hub(text: str) -> bool:
    return not text.startswith(("/", ".", "~")) and parse_hub_name(text) is not None


def _by_name(name: str, *, offline: bool) -> Model:
    """A model of the catalogue, or of the hub."""
    asked = parse_hub_name(name)
    forced = name.startswith("hf:") or "://" in name
    found = None if forced or "@" in name or ":" in name else catalog.find(name)
    if found is not None:
        return _from_catalog(name, found)
    if asked is None:
        raise catalog.no_such_model(name)
    from kvproof.model.hub import read_hub

    try:
        return read_hub(asked, offline=offline)
    except HubError as error:
        known = None if asked.pinned or name.startswith("hf:") else catalog.find(asked.repo)
        if known is not None:
            model = _from_catalog(asked.repo, known)
            note = f"the catalogue's config is taken, not the hub's ({error.message})"
            return structs.replace(model, notes=(note, *model.notes))
        if (typed := _of_unreached_file(asked, error)) is not None:
            return typed
        if forced or asked.pinned or asked.revision:
            raise
        if offline:
            raise catalog.no_such_model(name) from None
        near = catalog.no_such_model(name).hint or ""
        hint = f"{error.hint}; or, {near}" if near.startswith("did you") else error.hint
        raise HubError(
            f"{name!r} is not in the catalogue, and the hub: {error.message}", hint=hint
        ) from error


def _of_unreached_file(asked: HubName, error: HubError) -> Model | None:
    """The catalogue's model with the type that a tag or a file's name says, the hub out of reach.

    None where the hub was asked and has no such file, and for a name that says no type.
    """
    known = catalog.find(asked.repo) if asked.tag or asked.file else None
    if known is None or not isinstance(error, HubUnreachedError):
        return None
    plain = _from_catalog(asked.repo, known)
    model = named_weights(plain, f"{asked.repo}:{asked.tag}" if asked.tag else str(asked.file))
    note = f"the catalogue's config is taken, not the hub's file ({error.message})"
    return None if model is plain else structs.replace(model, notes=(note, *model.notes))


def _from_catalog(asked: str, found: catalog.Found) -> Model:
    from kvproof.model.read import read_config

    entry = found.entry
    place = entry.source + (f" [{entry.licence}]" if entry.licence else "")
    source = Source(origin="catalog", location=place, note=entry.note or None)
    model = read_config(found.config(), name=asked, source=source)
    if found.packed is not None:
        model = _packed(model, found.packed, asked)
    if found.assumption is None:
        return model
    return structs.replace(model, notes=(found.assumption, *model.notes))


def _packed(model: Model, packing: Mapping[str, Any], name: str) -> Model:
    """`model` with weights in MLX's or a GGUF file's form, as its name says."""
    if packing["quant_method"] == "mlx":
        from kvproof.model.mlx import with_quantization

        return with_quantization(model, packing)
    return named_weights(model, name)


def named_weights(model: Model, name: str) -> Model:
    """`model` with the types that a GGUF file called `name` has, and a note that says so.

    Itself where the name says none, and for a model whose own GGUF file was read.
    """
    from kvproof.model.gguf_named import TYPE_NOTE, named_type, type_note, typed

    if model.source.origin == "gguf" or not model.tensors:
        return model
    kind = named_type(model, name)
    if kind is None:
        return model
    before = tuple(note for note in model.notes if not note.startswith(TYPE_NOTE))
    return structs.replace(typed(model, kind), notes=(*before, type_note(kind, name)))
