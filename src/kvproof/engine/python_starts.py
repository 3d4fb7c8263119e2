"""Python scripts and snippets that start an engine, as deployments. Nothing is ever executed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from kvproof.engine.arguments import is_option, read_small
from kvproof.engine.base import parse_engine
from kvproof.engine.command import Command, Reader, command_from, in_release, readers
from kvproof.engine.python_calls import Call, as_options, calls_in
from kvproof.engine.shell import Words
from kvproof.errors import UsageError

_PYTHON = re.compile(r"python[\d.]{0,6}$")


def read_python(
    text: str,
    gpu: str | None = None,
    *,
    engine: str | None = None,
    options: Sequence[str] = (),
    **flags: Any,
) -> Command | None:
    """What the first call in a Python text that starts a known engine starts; None without one.

    `options` are words that a script is started with. Raises UsageError as `read_command` does.
    """
    names = {name for reader in readers() for name in reader.calls}
    wanted = None if engine is None else parse_engine(engine).name
    calls = [(call, _called(call, wanted)) for call in calls_in(text, names, options)]
    found = [(call, reader) for call, reader in calls if reader is not None]
    if not found:
        return None
    call, reader = found[0]
    words, left = _call_words(reader, call)
    read = command_from(reader, Words(words), 0, gpu, flags)
    notes = read.notes
    if left:
        notes = (*notes, f"left aside from {call.name}(...): {', '.join(left)}")
    if len(found) > 1:
        notes = (f"the text starts {len(found)} engines: the first one is read", *notes)
    return in_release(msgspec.structs.replace(read, notes=notes), engine)


def _called(call: Call, wanted: str | None) -> Reader | None:
    """Whose class it is: by the package, else the wanted engine's, else the first of that name."""
    own = [
        reader
        for reader in readers()
        if call.name in reader.calls and call.package in ("", reader.package.replace("-", "_"))
    ]
    return next((reader for reader in own if reader.engine == wanted), own[0] if own else None)


def _call_words(reader: Reader, call: Call) -> tuple[tuple[str, ...], list[str]]:
    """The call as an engine's words, and what it says beside: unknown values, other options."""
    started = reader.calls[call.name]
    given = {**dict(zip(started.positions, call.positions, strict=False)), **call.keywords}
    words, left = list(started.options), [f"{name[:60]} (not known)" for name in call.unknown]
    for option in as_options(given):
        try:
            reader.grammar.option(option[0])
        except UsageError:
            if not option[0].startswith("--no-"):
                left.append(option[0].lstrip("-").partition("=")[0].replace("-", "_")[:60])
        else:
            words += option
    return tuple(words), left


def read_script(
    commands: Sequence[Words], gpu: str | None, engine: str | None, flags: Mapping[str, Any]
) -> Command | None:
    """What a Python script that a text runs starts; None where it runs none.

    Raises UsageError for a script that is not here, or calls no engine.
    """
    missing = ""
    for words in commands:
        for name, text, options in _scripts(words):
            read = None
            if text is not None:
                read = read_python(text, gpu, engine=engine, options=options, **flags)
            if read is not None:
                return read
            missing = missing or f"{name[:80]} {'is not here' if text is None else 'calls none'}"
    if not missing:
        return None
    raise UsageError(
        f"no known engine is started: {missing}",
        hint="paste the call (LLM(model=...)) or the engine's own command",
    )


def _scripts(words: Words) -> Iterator[tuple[str, str | None, Sequence[str]]]:
    """Python that a command runs: its name, its text (None: not here), the words behind it."""
    for at, word in enumerate(words.words):
        base, rest = word.replace("\\", "/").rpartition("/")[2], words.words[at + 1 :]
        if base.endswith(".py"):
            yield word, words.files.get(base) or read_small(Path(word)), rest
        elif _PYTHON.match(base):
            behind = [part for part in rest if not is_option(part) or part in ("-c", "-")]
            if behind[:1] == ["-c"] and len(behind) > 1:
                yield "the text behind -c", behind[1], ()
            elif not behind or behind[0] == "-":
                yield "its standard input", words.files.get(""), ()
