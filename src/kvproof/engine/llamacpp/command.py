"""llama.cpp's command lines: `llama-server` and its kin, and the official images."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from kvproof.engine.command import Parsed, Reader, Words
from kvproof.engine.llamacpp.flags import canonical_flag, is_read
from kvproof.errors import UsageError

_PROGRAMS = ("llama-server", "llama-cli", "llama-bench", "llama-completion", "server", "main")
_IMAGE = re.compile(r"(?:^|/)llama\.cpp:(?:server|full|light)(?:-[a-z0-9.]+)?(?:-(b\d+))?$")
_MODEL_FLAGS = ("model", "hf_repo", "model_url", "docker_repo")


def _start(words: Words) -> int | None:
    for i, word in enumerate(words.words):
        name = word.rsplit("/", 1)[-1].removesuffix(".exe")
        if name.startswith("llama-") and name in _PROGRAMS:
            return i + 1
        if name in _PROGRAMS and word.startswith("./"):
            return i + 1
        if _IMAGE.search(word):
            return i + 1
    return None


def _parse(words: Words, start: int) -> Parsed:
    flags: dict[str, Any] = {}
    ignored: list[str] = []
    model: str | None = None
    rest = list(words.words[start:])
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            model = model or word
            continue
        written, equals, given = word.partition("=")
        name, negated = canonical_flag(written)
        value: str | None = given if equals else None
        if value is None and rest and _is_value(rest[0]):
            value = rest.pop(0)
        if name in _MODEL_FLAGS:
            model = value or model
        elif is_read(name):
            flags[name] = _value(negated, value)
        else:
            ignored.append(name)
    return Parsed(model=model, flags=flags, version=_version(words), ignored=tuple(ignored))


def _is_value(word: str) -> bool:
    return not word.startswith("-") or bool(re.match(r"-\d", word))


def _value(negated: bool, value: str | None) -> Any:
    if negated:
        return False
    if value is None:
        return True
    return int(value) if re.fullmatch(r"-?\d{1,9}", value) else value


def _version(words: Words) -> str | None:
    for word in words.words:
        match = _IMAGE.search(word)
        if match and match[1]:
            return match[1]
    return None


def _render(model: str, flags: Mapping[str, Any]) -> list[str]:
    """`llama-server` with the flags; settings of the C API alone have no spelling there."""
    words = ["llama-server", "-m" if model.endswith(".gguf") else "-hf", model]
    for name, value in flags.items():
        key, negated = canonical_flag(name)
        if key == "used":
            continue
        if key in ("n_outputs_max", "n_rs_seq", "gpu_memory", "host_memory"):
            raise UsageError(f"{key} is no flag of llama-server", hint="leave it out")
        option = f"--{key.replace('_', '-')}"
        if isinstance(value, bool) and key != "flash_attn":
            words.append(option if value is not negated else f"--no-{key.replace('_', '-')}")
        else:
            words += [option, _spelled(value)]
    return words


def _spelled(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


READER = Reader(engine="llamacpp", start=_start, parse=_parse, render=_render)
