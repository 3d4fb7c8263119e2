"""A GGUF file's metadata as llama.cpp's loader prints them: a model's description without its file.

    llama_model_loader: - kv   7:    qwen3moe.block_count u32    = 48
    llama_model_loader: - kv  22:   tokenizer.ggml.tokens arr[str,151936]    = ["!", "#", ...

Values are cut after 40 characters, so of a long list only its length is known; where a list of the
architecture's own is cut, the lines describe no model. Source: llama-model-loader.cpp, since 2023.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

LITERAL = "llama_model_loader: - kv"
_LINE = re.compile(
    r"llama_model_loader: - kv +(\d{1,4}): +([\w.-]{1,120}) +"
    r"(?:arr\[\w{2,8},(\d{1,9})\]|(u8|i8|u16|i16|u32|i32|u64|i64|f32|f64|bool|str)) += (.{1,400})"
)
_MOST = 400
_ARCHITECTURE = "general.architecture"
_NAME = "general.name"
_TOKENS = "tokenizer.ggml.tokens"
_CUT = "..."


class Dump:
    """The lines of one model's loading; of several the first, which is no draft's."""

    def __init__(self) -> None:
        self.first: dict[str, Any] = {}
        self._now = self.first
        self.cut: set[str] = set()

    def add(self, text: str) -> bool:
        """Take a line; whether it was of metadata."""
        found = _LINE.search(text)
        if found is None:
            return False
        number, key, count, kind, value = found.groups()
        if number == "0" and self._now:
            self._now = {}
        if len(self._now) < _MOST:
            self._now.setdefault(key, self._read(key, count, kind, value.strip()))
        return True

    def _read(self, key: str, count: str | None, kind: str | None, value: str) -> Any:
        if kind == "str":
            return value
        if kind == "bool":
            return value == "true"
        if kind is not None:
            return _number(value)
        if key == _TOKENS:
            return int(count or 0)
        entries = [_number(part.strip()) for part in value.strip("[]").split(",")]
        if _CUT in value or None in entries:
            self.cut.add(key)
        return entries

    def described(self) -> Mapping[str, Any] | None:
        """The model's metadata, with the vocabulary's size; None where they are not whole."""
        arch = self.first.get(_ARCHITECTURE)
        if not isinstance(arch, str) or f"{arch}.block_count" not in self.first:
            return None
        own = {key: value for key, value in self.first.items() if key.startswith(f"{arch}.")}
        if None in own.values() or any(key in self.cut for key in own):
            return None
        if tokens := self.first.get(_TOKENS):
            own.setdefault(f"{arch}.vocab_size", tokens)
        named = {_NAME: self.first[_NAME]} if isinstance(self.first.get(_NAME), str) else {}
        return {_ARCHITECTURE: arch, **named, **own}


def _number(text: str) -> int | float | bool | None:
    if text in ("true", "false"):
        return text == "true"
    try:
        return int(text) if re.fullmatch(r"-?\d{1,18}", text) else float(text)
    except ValueError:
        return None
