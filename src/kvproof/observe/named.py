"""The model that a log names: never a file that the log points at.

Logs come from other machines and other people. A path in one names a model by its last part at
most: that is looked for in the catalogue, and what was assumed is said.
"""

from __future__ import annotations

import os
import re

import msgspec

_CACHED = re.compile(r"models--([\w.-]{1,96}?)--([\w.-]{1,96}?)(?=[/\\]|$)")
_DRIVE = re.compile(r"[A-Za-z]:[\\/]|\\\\")


class Named(msgspec.Struct, frozen=True, kw_only=True):
    """What to load (None: nothing can be had by that name), and what has to be said of it."""

    source: str | None
    assumption: str | None = None
    warning: str | None = None


def model_of(name: str) -> Named:
    """What the name that a log prints stands for."""
    from kvproof.model import catalog

    cached = _CACHED.search(name)
    if cached is not None:
        repo = f"{cached[1]}/{cached[2]}"
        return Named(source=repo, assumption=f"the log names the hub's cache: {repo}")
    if not _is_path(name):
        return Named(source=name)
    last = re.split(r"[\\/]", name.rstrip("\\/"))[-1]
    found = None if last.endswith(".gguf") else catalog.find(last)
    if found is not None:
        said = f"the log's {name[:80]} is taken for {found.name}, by its last part"
        return Named(source=found.name, assumption=said)
    return Named(
        source=None,
        warning=(
            f"the log names its model by a path, {name[:80]}, which is not opened: name the model "
            "(--model)"
        ),
    )


def _is_path(name: str) -> bool:
    """Whether `name` is written like a path, or is one here."""
    if name.startswith(("/", ".", "~", "file:", "ollama:")) or _DRIVE.match(name):
        return True
    if name.endswith((".gguf", ".json", ".safetensors")) or "\\" in name:
        return True
    return os.path.lexists(name)
