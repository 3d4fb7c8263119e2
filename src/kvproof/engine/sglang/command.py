"""SGLang's command lines: the server's module, `sglang serve`, and the official images."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from kvproof.engine.command import Parsed, Reader, Words
from kvproof.engine.sglang.flags import canonical_flag, is_read, known_flags
from kvproof.errors import unknown_name

_MODULES = ("sglang.launch_server", "sglang.srt.entrypoints.http_server")
_IMAGE = re.compile(r"(?:^|/)sglang(?::v?(\d+\.\d+[\w.]*)(?:-[\w.-]+)?|:[\w.-]+)?$")
_MODEL_FLAGS = ("model_path", "model")
_SWITCHES = (
    "trust_remote_code", "language_only", "language_model_only", "skip_tokenizer_init",
    "skip_server_warmup", "allow_auto_truncate", "delete_ckpt_after_loading", "is_embedding",
    "log_requests", "show_time_cost", "prefill_only_disable_kv_cache", "use_mla",
)  # fmt: skip


def _start(words: Words) -> int | None:
    for i, word in enumerate(words.words):
        if word in _MODULES and i and words.words[i - 1] == "-m":
            return i + 1
        if word.rsplit("/", 1)[-1] == "sglang" and words.words[i + 1 : i + 2] == ("serve",):
            return i + 2
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
        written, equals, given = word.lstrip("-").partition("=")
        name = written.replace("-", "_")
        if name not in known_flags():
            raise unknown_name("SGLang flag", word, _spelled(), see="see launch_server --help")
        values = [given] if equals else _values(name, rest)
        if name in _MODEL_FLAGS:
            model = values[0] if values else model
        elif is_read(name):
            flags[canonical_flag(name)] = _value(values)
        else:
            ignored.append(name)
    return Parsed(model=model, flags=flags, version=_version(words), ignored=tuple(ignored))


def _values(name: str, rest: list[str]) -> list[str]:
    """The words after an option up to the next one; switches take none."""
    out: list[str] = []
    if is_switch(name):
        return out
    while rest and (not rest[0].startswith("-") or re.match(r"-\d", rest[0])):
        out.append(rest.pop(0))
    return out


def is_switch(name: str) -> bool:
    """Whether an option stands alone on the command line."""
    return name.startswith(("enable_", "disable_")) or name in _SWITCHES


def _value(values: list[str]) -> Any:
    if not values:
        return True
    first = values[0]
    if len(values) > 1:
        return values
    if re.fullmatch(r"-?\d{1,15}", first):
        return int(first)
    return float(first) if re.fullmatch(r"\d{0,9}\.\d{1,15}", first) else first


def _version(words: Words) -> str | None:
    for word in words.words:
        match = _IMAGE.search(word)
        if match and match[1]:
            return match[1]
    return None


def _spelled() -> list[str]:
    return [f"--{name.replace('_', '-')}" for name in sorted(known_flags())]


def _render(model: str, flags: Mapping[str, Any]) -> list[str]:
    """The module's call with the flags in SGLang's own names."""
    words = ["python", "-m", "sglang.launch_server", "--model-path", model]
    for name, value in flags.items():
        if value is None or value is False or name in ("used", "gpu_memory"):
            continue
        words.append(f"--{canonical_flag(name).replace('_', '-')}")
        if isinstance(value, list | tuple):
            words += [str(part) for part in value]
        elif value is not True:
            words.append(str(value))
    return words


READER = Reader(engine="sglang", start=_start, parse=_parse, render=_render)
