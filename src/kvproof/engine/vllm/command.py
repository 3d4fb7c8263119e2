"""vLLM's command lines: `vllm serve`, the server's module, and the official image."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from kvproof.engine.command import Parsed, Reader, Words
from kvproof.engine.vllm.flags import flag_type, is_switch, known_flags, read_value
from kvproof.errors import UsageError, unknown_name

_MODULES = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.api_server")
_IMAGE = re.compile(r"(?:^|/)vllm-openai(?:-rocm)?(?::v?(\d[\w.+-]*))?$")
_SHORT = {
    "tp": "tensor_parallel_size", "pp": "pipeline_parallel_size", "dp": "data_parallel_size",
    "dcp": "decode_context_parallel_size", "pcp": "prefill_context_parallel_size",
    "q": "quantization", "sc": "speculative_config", "cc": "compilation_config",
    "O": "optimization_level", "ac": "attention_config", "n": "nnodes", "r": "node_rank",
}  # fmt: skip
_NOT_ON_COMMAND_LINE = ("usage_context", "device", "model", "used")
_HEADS = ("vllm",)


def _start(words: Words) -> int | None:
    for i, word in enumerate(words.words):
        if word.rsplit("/", 1)[-1] in _HEADS and words.words[i + 1 : i + 2] == ("serve",):
            return i + 2
        if word in _MODULES and i and words.words[i - 1] == "-m":
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
        if not word.startswith("-") or len(word) == 1:
            model = word if model is None else model
            continue
        name, path, value = _split(word)
        name, value = _positive(name, value)
        if value is None and _takes_value(name, rest):
            value = rest.pop(0)
        _store(flags, ignored, name, path, value)
    backend = words.environment.get("VLLM_ATTENTION_BACKEND")
    if backend and "attention_backend" not in flags:
        flags["attention_backend"] = backend
    return Parsed(
        model=flags.pop("model", None) or model,
        flags=flags,
        version=_image_version(words),
        ignored=tuple(ignored),
    )


def _image_version(words: Words) -> str | None:
    for word in words.words:
        match = _IMAGE.search(word)
        if match and match[1]:
            return match[1]
    return None


def _split(word: str) -> tuple[str, tuple[str, ...], str | None]:
    """(flag in snake_case, dotted path into its JSON, value after =) of one option word."""
    body, equals, value = word.lstrip("-").partition("=")
    head, *path = body.split(".")
    single = not word.startswith("--")
    if single and head[:1] == "O" and head[1:].isdigit():
        return "optimization_level", (), head[1:]
    name = _SHORT.get(head, head) if single else head
    return name.replace("-", "_"), tuple(path), value if equals else None


def _positive(name: str, value: str | None) -> tuple[str, str | None]:
    """`--no-x` as x with the value false."""
    if name.startswith("no_") and name not in known_flags() and name[3:] in known_flags():
        return name[3:], "false"
    return name, value


def _takes_value(name: str, rest: list[str]) -> bool:
    if not rest:
        return False
    following = rest[0]
    if flag_type(name) == "bool":
        return following.lower() in ("true", "false")
    if is_switch(name):
        return following.lower() in ("true", "false")
    return not following.startswith("-") or bool(re.match(r"-\d", following))


def _store(
    flags: dict[str, Any], ignored: list[str], name: str, path: tuple[str, ...], value: str | None
) -> None:
    kind = flag_type(name)
    if kind is None:
        if name not in known_flags():
            raise unknown_name("vLLM flag", f"--{name.replace('_', '-')}", _spelled(), see=_SEE)
        ignored.append(name)
        return
    if kind == "bool" and value is None:
        value = "true"
    if value is None:
        raise UsageError(f"--{name.replace('_', '-')} has no value", hint=_SEE)
    if path and kind == "json":
        _nest(flags.setdefault(name, {}), path, value)
    else:
        flags[name] = read_value(name, value)


_SEE = "see vllm serve --help"


def _spelled() -> list[str]:
    return [f"--{name.replace('_', '-')}" for name in known_flags()]


def _nest(target: dict[str, Any], path: tuple[str, ...], value: str) -> None:
    for key in path[:-1]:
        target = target.setdefault(key.replace("-", "_"), {})
    target[path[-1].replace("-", "_")] = int(value) if value.isdigit() else value


def _render(model: str, flags: Mapping[str, Any]) -> list[str]:
    words = ["vllm", "serve", model]
    for name, value in flags.items():
        if name in _NOT_ON_COMMAND_LINE or value is None:
            continue
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            words.append(option if value else f"--no-{name.replace('_', '-')}")
        elif isinstance(value, Mapping):
            words += [option, msgspec.json.encode(value).decode()]
        elif str(value).startswith("-"):
            words.append(f"{option}={value}")
        else:
            words += [option, str(value)]
    return words


READER = Reader(engine="vllm", start=_start, parse=_parse, render=_render)
