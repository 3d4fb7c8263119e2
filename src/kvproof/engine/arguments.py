"""Arguments of a command line, read the same way for every engine.

An engine says how it spells options (`Grammar`); the loop over the words, what counts when an
option is given twice, environment and configuration files are here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from kvproof.engine.shell import Words
from kvproof.errors import UsageError

_MAX_FILE = 1_000_000
_NUMBER = re.compile(r"-\.?\d")


class Option(msgspec.Struct, frozen=True, kw_only=True):
    """One option as it is written: its name in snake_case, and what its own word holds of it.

    `path` leads into a structured value (`--speculative-config.method`); `value` is what stands
    behind an equals sign; `negated` is the form that switches it off.
    """

    name: str
    word: str
    path: tuple[str, ...] = ()
    value: str | None = None
    negated: bool = False
    note: str | None = None


class Parsed(msgspec.Struct, frozen=True, kw_only=True):
    """What a command line says: the model, the flags in snake_case, the release.

    `ignored` are flags that exist but change nothing that is computed here, `uncomputed` those that
    change what should be; `notes` what the user should know of how it was read.
    """

    model: str | None
    flags: Mapping[str, Any]
    version: str | None = None
    ignored: tuple[str, ...] = ()
    uncomputed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Unfollowed(msgspec.Struct, frozen=True):
    """A variable that changes memory in a way that is not computed: what it does.

    `usual` is the value with which it changes nothing; without one every value does.
    """

    what: str
    usual: str | None = None


def no_words(words: Words) -> Sequence[str]:
    """The environment says nothing."""
    return ()


class Grammar(msgspec.Struct, frozen=True, kw_only=True):
    """How one engine reads its arguments.

    `option` reads a word that starts with a dash (UsageError for an unknown one); `takes` says
    how many of the following words are its values; `read` gives the value of an option that is
    computed with, None for one that is not (`decides`). `model` makes the model's name of the
    options in `model_options` and the words that stand alone. `before` gives words that count
    as if they stood in front: from the environment. `config_options` name a file of options.
    `variables` are variables of the environment that change memory in ways that are not computed;
    what is written again adds to the first for `repeated` options. `uncomputed` are options that
    change memory so, and what each does.
    """

    option: Callable[[str], Option]
    takes: Callable[[Option, Sequence[str]], int]
    decides: Callable[[str], bool]
    read: Callable[[Option, Sequence[str]], Any]
    model: Callable[[Mapping[str, str], Sequence[str]], str | None]
    model_options: tuple[str, ...] = ("model",)
    config_options: tuple[str, ...] = ()
    before: Callable[[Words], Sequence[str]] = no_words
    image: re.Pattern[str] | None = None
    repeated: tuple[str, ...] = ()
    variables: Mapping[str, Unfollowed] = {}
    uncomputed: Mapping[str, str] = {}


class _Reading:
    """What was read so far of one command line."""

    def __init__(self, grammar: Grammar, files: Mapping[str, str]) -> None:
        self.grammar = grammar
        self.files = files
        self.flags: dict[str, Any] = {}
        self.ignored: list[str] = []
        self.uncomputed: list[str] = []
        self.named: dict[str, str] = {}
        self.alone: list[str] = []
        self.notes: list[str] = []
        self.written: dict[str, str] = {}

    def take(self, words: Sequence[str]) -> None:
        """Read `words` in their order."""
        rest = list(words)
        while rest:
            word = rest.pop(0)
            if not is_option(word):
                self.alone.append(word)
                continue
            option = self.grammar.option(word)
            count = 0 if option.value is not None else self.grammar.takes(option, rest)
            values = [rest.pop(0) for _ in range(count)]
            self._keep(option, [option.value] if option.value is not None else values)

    def _keep(self, option: Option, values: list[str]) -> None:
        grammar = self.grammar
        if option.note:
            self.notes.append(option.note)
        if option.name in grammar.config_options and values:
            self._take_file(values[0])
        elif option.name in grammar.model_options:
            if not values:
                raise UsageError(f"{option.word} has no value", hint="name the model behind it")
            self._twice(option, values)
            self.named[option.name] = values[0]
        elif not grammar.decides(option.name):
            self._leave_out(option)
        elif option.path:
            _nest(self.flags, option, values)
        elif option.name in grammar.repeated and option.name in self.flags:
            more = grammar.read(option, values)
            self.flags[option.name] = f"{self.flags[option.name]},{more}"
        else:
            self._twice(option, values)
            self.flags[option.name] = grammar.read(option, values)

    def _leave_out(self, option: Option) -> None:
        """Keep the name of an option that is not computed with; a note where it should be."""
        what = None if option.negated else self.grammar.uncomputed.get(option.name)
        if what is None:
            self.ignored.append(option.name)
        elif option.name not in self.uncomputed:
            self.uncomputed.append(option.name)
            self.notes.append(f"{option.word.partition('=')[0][:60]} {what}: not computed")

    def _twice(self, option: Option, values: Sequence[str]) -> None:
        """A word on an option that is given again with another value: the last one counts."""
        said = " ".join(values) or ("off" if option.negated else "on")
        before = self.written.get(option.name)
        self.written[option.name] = said
        if before is not None and before != said:
            word = option.word.partition("=")[0]
            self.notes.append(
                f"{word[:60]} is given twice, as {before[:60]} and as {said[:60]}: the last counts"
            )

    def _take_file(self, name: str) -> None:
        """Read a YAML file of options; those that are no known options are left aside by name."""
        unknown: list[str] = []
        for words in self._from_file(name):
            try:
                self.grammar.option(words[0])
            except UsageError:
                unknown.append(words[0].lstrip("-").partition("=")[0][:40])
            else:
                self.take(words)
        if unknown:
            self.notes.append(f"left aside from {name[:80]}: {', '.join(unknown[:20])}")

    def _from_file(self, name: str) -> list[list[str]]:
        """The options that a YAML file holds, as words; none, and a note, without the file."""
        base = name.replace("\\", "/").rpartition("/")[2]
        text = self.files.get(base)
        if text is None:
            text = read_small(Path(name))
        if text is None:
            self.notes.append(f"{name[:80]} is not here: what it sets is left out")
            return []
        from kvproof.engine.bounded_yaml import load_yaml

        document = (load_yaml(text) or [None])[0]
        if not isinstance(document, Mapping):
            raise UsageError(f"{name[:80]} holds no options", hint="want a mapping in YAML")
        read = [as_words(str(key), value) for key, value in document.items()]
        return [words for words in read if words]


def parse_words(words: Words, start: int, grammar: Grammar) -> Parsed:
    """What the arguments from word `start` on say, by the engine's own grammar."""
    reading = _Reading(grammar, words.files)
    reading.notes += _variables(words, grammar)
    reading.take(grammar.before(words))
    reading.take(words.words[start:])
    return Parsed(
        model=grammar.model(reading.named, reading.alone),
        flags=reading.flags,
        version=image_version(words, grammar.image),
        ignored=tuple(reading.ignored),
        uncomputed=tuple(reading.uncomputed),
        notes=tuple(dict.fromkeys(reading.notes)),
    )


def _variables(words: Words, grammar: Grammar) -> list[str]:
    """A word on each variable of the command that changes memory and is not followed."""
    return [
        f"{name}={value[:40]} {row.what}: not computed"
        for name, row in grammar.variables.items()
        if (value := words.environment.get(name)) and value != row.usual
    ]


def is_option(word: str) -> bool:
    """Whether a word begins an option: a dash that begins no number."""
    return word.startswith("-") and len(word) > 1 and not _NUMBER.match(word)


def values_ahead(rest: Sequence[str]) -> int:
    """How many words follow before the next option."""
    return next((i for i, word in enumerate(rest) if is_option(word)), len(rest))


def one_value(rest: Sequence[str]) -> int:
    """1 where a value follows, else 0."""
    return min(1, values_ahead(rest))


def number_or_text(values: Sequence[str]) -> Any:
    """The value of an option: True without one, a number where it is one, several as a list."""
    if not values:
        return True
    if len(values) > 1:
        return list(values)
    text = values[0]
    if re.fullmatch(r"-?\d{1,15}", text):
        return int(text)
    return float(text) if re.fullmatch(r"\d{0,9}\.\d{1,15}", text) else text


def image_version(words: Words, image: re.Pattern[str] | None) -> str | None:
    """The release that an image's tag names."""
    for word in words.words if image is not None else ():
        match = image.search(word) if image is not None else None
        if match and match[1]:
            return match[1]
    return None


def by_prefix(name: str, known: Sequence[str]) -> str | None:
    """The one known option that `name` begins, as argparse completes it; None without one."""
    found = [other for other in known if other.startswith(name)]
    return found[0] if len(found) == 1 and len(name) >= 4 else None


def as_words(key: str, value: Any) -> list[str]:
    """One entry of a configuration file as the words of its option."""
    option = f"--{key.strip().lstrip('-')}"
    if isinstance(value, Mapping):
        return [f"{option}={msgspec.json.encode(typed(value)).decode()}"]
    if isinstance(value, list):
        return [option, *(str(part) for part in value)] if value else []
    text = str(value)
    if text.lower() in ("true", ""):
        return [option]
    return [] if text.lower() in ("false", "null", "none", "~") else [f"{option}={text}"]


def typed(value: Any) -> Any:
    """A tree of texts with numbers and truth values as such."""
    if isinstance(value, Mapping):
        return {str(k): typed(v) for k, v in value.items()}
    if isinstance(value, list):
        return [typed(v) for v in value]
    text = str(value)
    plain = {"true": True, "false": False, "null": None, "~": None, "": None}
    return plain[text.lower()] if text.lower() in plain else number_or_text([text])


def _nest(flags: dict[str, Any], option: Option, values: Sequence[str]) -> None:
    """Put a value into the structured flag that a dotted option names."""
    if not values:
        raise UsageError(f"{option.word[:60]} has no value", hint="write it behind the option")
    target = flags.setdefault(option.name, {})
    for key in option.path[:-1]:
        target = target.setdefault(key.replace("-", "_"), {}) if isinstance(target, dict) else {}
    if not isinstance(target, dict):
        raise UsageError(f"{option.word[:60]} is given twice", hint="give it once")
    target[option.path[-1].replace("-", "_")] = typed(values[0])


def read_small(path: Path) -> str | None:
    """A small local text file; None where there is none."""
    try:
        if not path.is_file() or path.stat().st_size > _MAX_FILE:
            return None
        return path.read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):
        return None
