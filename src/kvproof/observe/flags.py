"""Flags of a log: the argument dictionaries and configurations that engines print at start."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from kvproof.errors import KvproofError

_OPEN, _CLOSE = "([{<", ")]}>"
_LONGEST = 65_536


def pairs(text: str) -> Iterator[tuple[str, str]]:
    """(key, value) of the outermost `key=value` or `'key': value` items of `text`.

    Reads one pass over at most 65,536 characters and stops where the enclosing bracket closes.
    """
    for item in _items(text[:_LONGEST]):
        for mark in ("=", ":"):
            key, found, value = item.partition(mark)
            name = key.strip().strip("'\"").lstrip("-").replace("-", "_")
            if found and name.isidentifier():
                yield name, value.strip()
                break


def _items(text: str) -> Iterator[str]:
    depth, quote, start, index = 0, "", 0, 0
    for index, char in enumerate(text):
        if quote:
            quote = "" if char == quote and text[index - 1] != "\\" else quote
        elif char in "'\"":
            quote = char
        elif char in _OPEN:
            depth += 1
        elif char in _CLOSE:
            depth -= 1
            if depth < 0:
                yield text[start:index]
                return
        elif char == "," and depth == 0:
            yield text[start:index]
            start = index + 1
    if text[start:]:
        yield text[start : index + 1]


def scalar(text: str) -> Any:
    """The Python value of a printed literal; other text stays text, objects are dropped."""
    short = text.strip()
    if len(short) > 1000:
        return None
    try:
        value = ast.literal_eval(short)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        value = None if any(c in short for c in "<({[") else short.removeprefix("torch.")
    return value if isinstance(value, str | int | float | bool | list | dict) else None


def read_flags(text: str) -> dict[str, Any]:
    """The flags of a printed dictionary, namespace or argument list; None left out."""
    out: dict[str, Any] = {}
    for key, value in pairs(text):
        read = scalar(value)
        if read is not None:
            out[key] = read
    return out


# A log's paths are not opened, and its other machines are not asked for.
_LEFT = ("mmproj", "mmproj_url", "lora", "lora_scaled", "spec_draft_model", "spec_draft_hf", "rpc")


def spoken_flags(engine: str, words: str, program: str = "") -> tuple[str | None, dict[str, Any]]:
    """Model and flags of the rest of a command line; nothing where it can't be read.

    `program` stands before `words` where it takes more than the engine's options.
    """
    from kvproof.engine.command import read_command, read_flags
    from kvproof.engine.shell import simple_commands

    try:
        if program:
            read = read_command(f"{program} {words}")
        else:
            commands = simple_commands(words)
            read = read_flags(engine, commands[0].words if commands else ())
    except KvproofError:
        return None, {}
    flags = read.deployment.flags
    return read.model, {name: value for name, value in flags.items() if name not in _LEFT}
