"""Ollama's Modelfile: the model it starts FROM, and the PARAMETERs it sets."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec import structs

from kvproof.errors import ModelError
from kvproof.model.types import Model

_LONGEST = 1_000_000
_LINE = re.compile(r"\s*(FROM|PARAMETER)\s+(\S.*)$", re.IGNORECASE)
_FIRST = re.compile(r"\A(?:\s*(?:#[^\n]*)?\n)*\s*FROM\s+\S", re.IGNORECASE)
# Parameters that are lists: the last one would hide the others, and none decides memory.
_LISTS = ("stop",)


def is_modelfile(path: Path) -> bool:
    """Whether a file is a Modelfile: by its name, or by beginning with FROM."""
    if path.suffix or path.stat().st_size > _LONGEST:
        return path.name.lower().startswith("modelfile")
    with path.open("rb") as file:
        head = file.read(4096).decode("utf-8", errors="replace")
    return path.name.lower().startswith("modelfile") or _FIRST.match(head) is not None


def read_modelfile(
    path: Path, read_path: Callable[[Path], Model], read_name: Callable[[str], Model]
) -> Model:
    """The model of a Modelfile: a file or folder beside it, else a name of Ollama's store.

    Raises ModelError when it names no model.
    """
    if path.stat().st_size > _LONGEST:
        raise ModelError(f"{path} is too large for a Modelfile", hint="give the real one")
    base, parameters = parse_modelfile(path.read_text(encoding="utf-8", errors="replace"))
    if base is None:
        raise ModelError(f"{path} has no FROM", hint="name the model in its FROM line")
    near = path.parent / Path(base).expanduser()
    model = read_path(near) if near.exists() or base.endswith(".gguf") else read_name(base)
    return with_settings(model, parameters)


def parse_modelfile(text: str) -> tuple[str | None, dict[str, str]]:
    """(what follows FROM, the parameters); quoted blocks are passed over."""
    base: str | None = None
    parameters: dict[str, str] = {}
    quoted = False
    for line in text.splitlines():
        match = None if quoted else _LINE.match(line)
        quoted ^= line.count('"""') % 2 == 1
        if match is None:
            continue
        if match[1].upper() == "FROM":
            base = base or match[2].strip().strip("\"'")
            continue
        name, _, value = match[2].strip().partition(" ")
        parameters[name.lower()] = value.strip().strip("\"'")
    return base, parameters


def with_settings(model: Model, parameters: Mapping[str, Any]) -> Model:
    """The model with the settings that its author chose for it, and a word on its context."""
    chosen = {str(k): v for k, v in parameters.items() if k not in _LISTS}
    said = f"its author set num_ctx to {str(chosen.get('num_ctx'))[:20]} for Ollama"
    return structs.replace(
        model,
        settings={**model.settings, **chosen},
        notes=(*model.notes, said) if "num_ctx" in chosen else model.notes,
    )
