"""Pasted command lines to deployments, and the way back. Nothing is ever executed.

`read_command` takes what people paste: `vllm serve ...`, a module call, a `docker run`, with
environment variables in front and lines continued. Which engine it starts is asked of each
reader in turn; an engine adds its own as `READER` in `kvproof.engine.<name>.command`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import msgspec

from kvproof.engine.base import Deployment, parse_engine
from kvproof.errors import UsageError

_LONGEST = 20_000
_MOST_WORDS = 2_000
_ENGINES = ("vllm", "sglang", "tensorrt_llm", "llamacpp", "ollama")
_OPERATORS = frozenset({"&&", "||", "|", ";", "&", ">", ">>", "<", "2>&1", "2>", "&>"})
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")


class Words(msgspec.Struct, frozen=True):
    """A command line after splitting: its words, and the environment set in front of it."""

    words: tuple[str, ...]
    environment: Mapping[str, str]


class Parsed(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader makes of a command: the model, the flags in snake_case, the release."""

    model: str | None
    flags: Mapping[str, Any]
    version: str | None = None
    ignored: tuple[str, ...] = ()


class Reader(msgspec.Struct, frozen=True):
    """One engine's command lines: `start` finds where its arguments begin (None: not its own)."""

    engine: str
    start: Callable[[Words], int | None]
    parse: Callable[[Words, int], Parsed]
    render: Callable[[str, Mapping[str, Any]], list[str]]


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """A pasted command: the model it names and the deployment it starts.

    `ignored` are flags that exist but change nothing that is computed here.
    """

    model: str | None
    deployment: Deployment
    ignored: tuple[str, ...] = ()


def readers() -> tuple[Reader, ...]:
    """The readers of all engines that have one."""
    found = []
    for name in _ENGINES:
        module = f"kvproof.engine.{name}.command"
        try:
            found.append(import_module(module).READER)
        except ModuleNotFoundError as error:
            if error.name not in (module, f"kvproof.engine.{name}"):
                raise
    return tuple(found)


def read_command(command: str, gpu: str | None = None, **flags: Any) -> Command:
    """The model and deployment that `command` starts; `flags` override those it names.

    Raises UsageError for a command of no known engine, unknown flags and unreadable values.
    """
    words = split_command(command)
    for reader in readers():
        start = reader.start(words)
        if start is None:
            continue
        parsed = reader.parse(words, start)
        engine = f"{reader.engine}@{parsed.version}" if parsed.version else reader.engine
        deployment = Deployment(engine, gpu, **{**parsed.flags, **flags})
        return Command(model=parsed.model, deployment=deployment, ignored=parsed.ignored)
    known = ", ".join(reader.engine for reader in readers())
    raise UsageError(
        f"no known engine is started by {command.strip()[:60]!r}", hint=f"known: {known}"
    )


def read_flags(engine: str, words: Sequence[str], gpu: str | None = None, **flags: Any) -> Command:
    """The deployment of `engine` (with a version or not) with flags in its own spelling.

    Raises UsageError for an engine without a command line and for unknown flags.
    """
    ref = parse_engine(engine)
    for reader in readers():
        if reader.engine == ref.name:
            parsed = reader.parse(Words(tuple(words), {}), 0)
            version = ref.version or parsed.version
            name = f"{ref.name}@{version}" if version else ref.name
            deployment = Deployment(name, gpu, **{**parsed.flags, **flags})
            return Command(model=parsed.model, deployment=deployment, ignored=parsed.ignored)
    raise UsageError(
        f"{ref.name} has no command line here",
        hint="known: " + ", ".join(reader.engine for reader in readers()),
    )


def render_command(model_name: str, deployment: Deployment) -> str:
    """The command line that starts `deployment` for the model, in the engine's own flags."""
    for reader in readers():
        if reader.engine == deployment.engine.name:
            return shlex.join(reader.render(model_name, deployment.flags))
    raise UsageError(
        f"{deployment.engine.name} has no command line here",
        hint="known: " + ", ".join(reader.engine for reader in readers()),
    )


def split_command(command: str) -> Words:
    """The words of a command line up to the first shell operator; bounded in length."""
    if len(command) > _LONGEST:
        raise UsageError(
            f"the command has {len(command):,} characters", hint=f"paste at most {_LONGEST:,}"
        )
    text = re.sub(r"\\\s*\n", " ", command.strip().removeprefix("$ "))
    try:
        words = shlex.split(text, comments=True)
    except ValueError as error:
        raise UsageError(
            f"the command can't be split into words ({error})", hint="check its quotes"
        ) from None
    if len(words) > _MOST_WORDS:
        raise UsageError(f"the command has {len(words):,} words", hint=f"at most {_MOST_WORDS:,}")
    return _without_shell(words)


def _without_shell(words: Sequence[str]) -> Words:
    environment: dict[str, str] = {}
    kept: list[str] = []
    for word in words:
        if not kept and _ASSIGNMENT.match(word):
            name, _, value = word.partition("=")
            environment[name] = value
        elif not kept and word in ("env", "sudo", "exec", "nohup", "time"):
            continue
        elif word in _OPERATORS:
            if kept:
                break
        else:
            kept.append(word)
    return Words(tuple(kept), environment)
