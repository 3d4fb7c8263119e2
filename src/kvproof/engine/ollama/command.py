"""Ollama's command lines: `ollama serve` and `ollama run` with the environment in front."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvproof.engine.command import Parsed, Reader, Words
from kvproof.engine.ollama.flags import NAMES, TO_LLAMACPP

_PREFIX = "OLLAMA_"


def _start(words: Words) -> int | None:
    for i, word in enumerate(words.words):
        if word.rsplit("/", 1)[-1] == "ollama" or word.startswith("ollama/ollama"):
            return i + 1
    return None


def _parse(words: Words, start: int) -> Parsed:
    """The model of `run`; flags come from OLLAMA_ variables, in front or as `-e NAME=value`."""
    known = {*NAMES, *TO_LLAMACPP}
    flags: dict[str, Any] = {}
    ignored: list[str] = []
    settings = dict(words.environment)
    settings |= dict(w.split("=", 1) for w in words.words if w.startswith(_PREFIX) and "=" in w)
    for name, value in settings.items():
        key = name.removeprefix(_PREFIX).lower()
        if not name.startswith(_PREFIX):
            continue
        if key in known:
            flags[key] = value
        else:
            ignored.append(name)
    rest = [word for word in words.words[start:] if not word.startswith("-")]
    model = rest[1] if len(rest) > 1 and rest[0] in ("run", "pull", "show") else None
    return Parsed(model=model, flags=flags, ignored=tuple(ignored))


def _render(model: str, flags: Mapping[str, Any]) -> list[str]:
    """The server's environment and the model; options of a request belong into a Modelfile."""
    settings = [
        f"{_PREFIX}{('context_length' if k == 'num_ctx' else k).upper()}={v}"
        for k, v in flags.items()
    ]
    return [*settings, "ollama", "run", model]


READER = Reader(engine="ollama", start=_start, parse=_parse, render=_render)
