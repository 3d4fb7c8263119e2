"""Pasted command lines to deployments, and the way back. Nothing is ever executed.

`read_command` takes what people paste: `vllm serve ...`, a module call, a `docker run`, a script
with variables and here-documents. Which engine it starts is asked of each reader in turn; an
engine adds its own as `READER` in `kvproof.engine.<name>.command`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

import msgspec

from kvproof.engine.arguments import Grammar, Parsed, is_option, parse_words
from kvproof.engine.base import Deployment, parse_engine
from kvproof.engine.common_flags import named_for
from kvproof.engine.shell import Words, simple_commands
from kvproof.engine.unit_file import as_shell
from kvproof.engine.visible import seen
from kvproof.errors import UsageError
from kvproof.model.types import Model

_ENGINES = ("vllm", "sglang", "tensorrt_llm", "llamacpp", "ollama")
Begins = Callable[[Sequence[str], int], int | None]
"""Where a program's arguments begin, if a word of a command names it; else None."""
_VARIABLE = re.compile(r"[A-Za-z_]\w*=")


class Served(msgspec.Struct, frozen=True):
    """What an engine is told to serve, and a word on what has to be put there."""

    name: str
    note: str = ""


def in_folder(model: Model, _: str | None) -> Served:
    """A local model by its folder or file, another by its name."""
    place = str(model.source.location)
    if model.source.origin == "gguf":
        return Served(place)
    if model.source.origin != "path":
        return Served(model.name)
    return Served(place.rpartition("/")[0] or "." if place.endswith(".json") else place)


class Started(msgspec.Struct, frozen=True):
    """A class of a Python package that starts its engine: what its positional arguments are called,
    and options that come with it.
    """

    positions: tuple[str, ...] = ("model",)
    options: tuple[str, ...] = ()


class Reader(msgspec.Struct, frozen=True):
    """One engine's command lines: `start` finds where its arguments begin (None: not its own).

    `entry` is the command that the images whose names hold one of `images` run by themselves, so
    that only its arguments stand beside them. `offered` gives the flags that say the same to the
    release named (None: the newest), which may have fewer; `later` raises UsageError for options
    that came after it. `together` makes one command of all that start the engine in a text, with
    where its arguments begin and notes; `other_forms` the words of settings that are no command
    (None: they are none of the engine's). `device_option` names the devices it uses, `package` is
    the Python package that is the server, `calls` its classes that start the engine in a script.
    `wrappers` are modules that take the engine's arguments beside their own. `serves` names a
    model, which a pasted command may call otherwise, as the engine takes it (None: it can't be).
    """

    engine: str
    start: Callable[[Words], int | None]
    grammar: Grammar
    render: Callable[[str, Mapping[str, Any]], list[str] | str]
    images: tuple[str, ...] = ()
    entry: tuple[str, ...] = ()
    offered: Callable[[Mapping[str, Any], str | None], Mapping[str, Any]] | None = None
    later: Callable[[Iterable[str], str | None], None] | None = None
    together: Callable[[Sequence[tuple[Words, int]]], tuple[Words, int, tuple[str, ...]]] | None = (
        None
    )
    device_option: str = ""
    package: str = ""
    calls: Mapping[str, Started] = {}
    wrappers: tuple[str, ...] = ()
    other_forms: Callable[[str], Sequence[str] | None] | None = None
    serves: Callable[[Model, str | None], Served | None] = in_folder


def serving(program: str, modules: Collection[str]) -> Begins:
    """Behind `program serve`, or behind `-m` and one of its modules."""

    def begins(words: Sequence[str], at: int) -> int | None:
        name = words[at].rsplit("/", 1)[-1].partition("@")[0]  # uvx vllm@0.11.0 serve
        if name == program and tuple(words[at + 1 : at + 2]) == ("serve",):
            return at + 2
        return at + 1 if words[at] in modules and at and words[at - 1] == "-m" else None

    return begins


def first_start(words: Words, begins: Begins, image: re.Pattern[str] | None = None) -> int | None:
    """Where a program's arguments begin: as `begins` says, else behind an image that runs it.

    `image` matches those whose entry point is the server.
    """
    found = (begins(words.words, at) for at in range(len(words.words)))
    start = next((at for at in found if at is not None), None)
    if start is not None or image is None or words.inner:
        return start
    return next((at + 1 for at, word in enumerate(words.words) if image.search(word)), None)


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """A pasted command: the model it names and the deployment it starts.

    `ignored` are flags that exist but change nothing that is computed here, `uncomputed` those that
    change what should be; `notes` say how the command was read where that is not plain.
    """

    model: str | None
    deployment: Deployment
    ignored: tuple[str, ...] = ()
    uncomputed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def readers() -> tuple[Reader, ...]:
    """The readers of all engines that have one."""
    return tuple(import_module(f"kvproof.engine.{name}.command").READER for name in _ENGINES)


def entry_point(image: str) -> tuple[str, ...] | None:
    """The command that an image runs by itself; None for images of no engine, or without one."""
    return next((r.entry for r in readers() for sign in r.images if sign in image), None)


def starts_engine(words: Words) -> bool:
    """Whether a simple command starts a known engine."""
    return any(True for _ in _starts([words]))


def read_command(
    command: str, gpu: str | None = None, *, engine: str | None = None, **flags: Any
) -> Command:
    """The model and deployment that `command` starts; `flags` override those it names.

    `engine` (`vllm@0.8.5`) says which release starts it. Raises UsageError for a command of no
    known engine or of another than `engine`, unknown flags and unreadable values.
    """
    from kvproof.engine.python_starts import read_python, read_script

    if (called := read_python(command, gpu, engine=engine, **flags)) is not None:
        return called
    commands = simple_commands(as_shell(command) or command)
    found = list(_starts(commands))
    if not found and (script := read_script(commands, gpu, engine, flags)) is not None:
        return script
    if not found:
        return in_release(_other_form(command, engine, gpu, flags), engine)
    reader = found[0][0]
    own = [(with_container_variables(words, at), at) for by, words, at in found if by is reader]
    words, start = own[0]
    notes: tuple[str, ...] = ()
    if reader.together is not None:
        words, start, notes = reader.together(own)
    read = command_from(reader, words, start, gpu, flags)
    if engine is None and read.deployment.engine.version is None:
        engine = _installed(reader, commands)
        notes += () if engine is None else (f"the text installs {engine}: its rules are used",)
    read = in_release(read, engine)
    count = len(found) - (len(own) - 1 if reader.together is not None else 0)
    if count > 1:
        notes = (f"the text starts {count} servers: the first one is read", *notes)
    return msgspec.structs.replace(read, notes=(*notes, *read.notes))


def installed(text: str, engine: str) -> str | None:
    """The release that a script pins `engine`'s package to, as `vllm@0.8.5`; None without one."""
    try:
        return _installed(_reader_of(engine), simple_commands(text))
    except UsageError:
        return None


def _installed(reader: Reader, commands: Sequence[Words]) -> str | None:
    """The release that the text pins its engine's package to, as `vllm@0.8.5`."""
    if not reader.package:
        return None
    release = r"(?:\[[\w,-]{1,60}\])?(?:==|@)v?(\d[\w.+]{1,40})$"
    pinned = re.compile(reader.package.replace("-", "[-_]") + release, re.IGNORECASE)
    for words in commands:
        for word in words.words:
            if match := pinned.match(word.removeprefix("--with=")):
                return f"{reader.engine}@{match[1]}"
    return None


def _other_form(
    text: str, engine: str | None, gpu: str | None, flags: Mapping[str, Any]
) -> Command:
    """What settings that are no command start. Raises UsageError for text of no known engine."""
    wanted = None if engine is None else parse_engine(engine).name
    for reader in readers():
        if reader.other_forms is None or wanted not in (None, reader.engine):
            continue
        words = reader.other_forms(text)
        if words is not None:
            return command_from(reader, Words(tuple(words)), 0, gpu, flags)
    raise UsageError(
        f"no known engine is started by {' '.join(text.split())[:60]!r}",
        hint="known: " + ", ".join(_ENGINES),
    )


def read_words(words: Words, gpu: str | None = None, **flags: Any) -> Command | None:
    """The deployment of one simple command; None when it starts no known engine."""
    for reader, found, start in _starts([words]):
        return command_from(reader, with_container_variables(found, start), start, gpu, flags)
    return None


def read_flags(engine: str, words: Sequence[str], gpu: str | None = None, **flags: Any) -> Command:
    """The deployment of `engine` (with a version or not) with flags in its own spelling.

    Raises UsageError for an engine without a command line and for unknown flags.
    """
    ref = parse_engine(engine)
    reader = _reader_of(ref.name)
    return _known(command_from(reader, Words(tuple(words)), 0, gpu, flags, version=ref.version))


def render_command(model_name: str, deployment: Deployment) -> str:
    """The command line that starts `deployment` for the model, in the engine's own flags."""
    reader = _reader_of(deployment.engine.name)
    flags: Mapping[str, Any] = deployment.flags
    if reader.offered is not None:
        flags = reader.offered(flags, deployment.engine.version)
    rendered = reader.render(model_name, flags)
    return rendered if isinstance(rendered, str) else shlex.join(rendered)


def served_as(model: Model, engine: str, named: str | None) -> Served | None:
    """What `engine` is told to serve; None where no command of its starts the model.

    `named` is the model as a pasted command calls it.
    """
    reader = next((reader for reader in readers() if reader.engine == engine), None)
    return None if reader is None else reader.serves(model, named)


def gone_flags(deployment: Deployment) -> tuple[str, ...]:
    """The flags that the release has no more and that nothing else says on its command line."""
    offered = _reader_of(deployment.engine.name).offered
    if offered is None:
        return ()
    flags, version = dict(deployment.flags), deployment.engine.version
    kept = offered(flags, version)

    def changes(name: str) -> bool:
        rest = {other: value for other, value in flags.items() if other != name}
        return offered(rest, version) != kept

    return tuple(name for name in flags if name not in kept and not changes(name))


def in_release(command: Command, engine: str | None) -> Command:
    """The command as `engine`, with or without a release, runs it; as it stands for None.

    Raises UsageError where the command starts another engine, and for options that came later.
    """
    if engine is None:
        return _known(command)
    ref, given = parse_engine(engine), command.deployment
    if ref.name != given.engine.name:
        raise UsageError(
            f"the command starts {given.engine.name}, not {ref.name}",
            hint="leave --engine out, or paste that engine's command",
        )
    if ref.version is None or ref.version == given.engine.version:
        return _known(command)
    released = Deployment(str(ref), given.gpu, **given.flags)
    notes = command.notes
    if given.engine.version is not None:
        notes = (*notes, f"the rules of {ref} are used, not of the command's {given.engine}")
    return _known(msgspec.structs.replace(command, deployment=released, notes=notes))


def _known(command: Command) -> Command:
    """The command, unless its release has not yet one of its options, nor says it otherwise."""
    engine, flags = command.deployment.engine, command.deployment.flags
    reader = _reader_of(engine.name)
    if reader.later is not None:
        said = flags if reader.offered is None else reader.offered(flags, engine.version)
        reader.later((*said, *command.ignored, *command.uncomputed), engine.version)
    return command


def _reader_of(engine: str) -> Reader:
    for reader in readers():
        if reader.engine == engine:
            return reader
    raise UsageError(f"{engine} has no command line here", hint="known: " + ", ".join(_ENGINES))


def _starts(commands: Sequence[Words]) -> Iterator[tuple[Reader, Words, int]]:
    """Each command that starts an engine, with its reader and where its arguments begin."""
    known = readers()
    for words in commands:
        for reader in known:
            start = reader.start(words)
            if start is not None:
                yield reader, words, start
                break


def command_from(
    reader: Reader,
    words: Words,
    start: int,
    gpu: str | None,
    own: Mapping[str, Any],
    *,
    version: str | None = None,
) -> Command:
    """What an engine's arguments from word `start` on say; `own` overrides their flags."""
    words, beside = _without_wrapper(reader, words, start)
    parsed: Parsed = parse_words(words, start, reader.grammar)
    release = version or parsed.version
    engine = f"{reader.engine}@{release}" if release else reader.engine
    given = named_for(reader.engine, own)
    device = parsed.flags.get(reader.device_option)
    gpu, chosen = seen(gpu, words, start, None if device is None else str(device))
    return Command(
        model=parsed.model,
        deployment=Deployment(engine, gpu, **{**parsed.flags, **given}),
        ignored=parsed.ignored,
        uncomputed=parsed.uncomputed,
        notes=(*beside, *parsed.notes, *chosen, *_overridden(parsed.flags, given)),
    )


def _without_wrapper(reader: Reader, words: Words, start: int) -> tuple[Words, tuple[str, ...]]:
    """A wrapper's command without the options that are not the engine's, and a word on them."""
    wrapper = words.words[start - 1] if start else ""
    if wrapper not in reader.wrappers:
        return words, ()
    kept, own, keeps = list(words.words[:start]), [], True
    for word in words.words[start:]:
        if is_option(word):
            keeps = _is_whole_option(reader, word)
            own += [] if keeps else [word.partition("=")[0][:60]]
        if keeps:
            kept.append(word)
    said = (f"left aside, {wrapper}'s own: {', '.join(own[:20])}",) if own else ()
    return msgspec.structs.replace(words, words=tuple(kept)), said


def _is_whole_option(reader: Reader, word: str) -> bool:
    """Whether the engine has the option, written out."""
    try:
        return reader.grammar.option(word).note is None
    except UsageError:
        return False


def _overridden(parsed: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """A word on each flag of the command in whose place another value was given."""
    return [
        f"the command's {name} of {str(parsed[name])[:40]} is not used: {str(value)[:40]} was given"
        for name, value in given.items()
        if name in parsed and parsed[name] != value
    ]


def with_container_variables(words: Words, start: int) -> Words:
    """The command with the variables that `docker run -e NAME=value` sets before its arguments."""
    found = dict(words.environment)
    before = words.words[:start]
    for at, word in enumerate(before):
        option, equals, value = word.partition("=")
        if option == "--env" and equals:
            pair = value
        elif word in ("-e", "--env", "-x") and at + 1 < len(before):
            pair = before[at + 1]
        else:
            continue
        if _VARIABLE.match(pair):
            name, _, text = pair.partition("=")
            found[name] = text
    return msgspec.structs.replace(words, environment=found)
