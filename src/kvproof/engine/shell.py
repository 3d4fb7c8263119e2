"""Shell text as the simple commands it holds. Nothing is run.

Understood: quotes, comments, operators, redirections, variables that the text itself sets
(`MODEL=x`, `export MODEL=x`, `${MODEL:-default}`), sums (`$((32*1024))`), here-documents as files,
and `bash -c "..."`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import msgspec

from kvproof.engine.arithmetic import worked_out
from kvproof.errors import UsageError

_LONGEST = 20_000
_MOST_WORDS = 2_000
_DEEPEST = 3

_CONTINUED = re.compile(r"[ \t]*[\\^`][ \t]*\r?\n")
_HERE = re.compile(
    r"^(?P<before>[^\n]*?)<<-?[ \t]*(['\"]?)(?P<mark>\w{1,40})\2(?P<after>[^\n]*)\n"
    r"(?P<body>.{0,8000}?)\n[ \t]*(?P=mark)[ \t]*$",
    re.DOTALL | re.MULTILINE,
)
_WINDOWS = re.compile(r"(?:^|\s)\"?(?:\.{1,2}\\|[A-Za-z]:\\)\w")
_TARGET = re.compile(r"(?:>>?|\btee\b(?:\s+-a)?)\s*([^\s<>|&;]+)")
_TOKEN = re.compile(
    r"""(?P<space>[^\S\n]+)
    | (?P<redirect>&>>?|\d*(?:>>|>&|>\||>|<<<|<&|<))
    | (?P<end>\n|&&|\|\||;+|\||&|[()])
    | (?P<single>'[^']*')
    | (?P<double>"(?:[^"\\]|\\.)*")
    | (?P<escape>\\.)
    | (?P<plain>\$\(\([^'"`\n]{1,200}?\)\)|\$\([^()\n]*\)|(?:[^\s'"\\;&|<>()$]|\$(?!\())+|\$)""",
    re.VERBOSE | re.DOTALL,
)
_VARIABLE = re.compile(r"\$(?:\{(\w{1,100})(?::?[-=]([^{}]*))?\}|([A-Za-z_]\w{0,99}))")
_SUM = re.compile(r"\$\(\(([^'\"`\n]{1,200}?)\)\)")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_WRAPPERS = ("env", "sudo", "exec", "nohup", "time", "export", "set", "then", "do", "else")
SHELL = re.compile(r"(?:/\w+)*/?(?:ba|da|z|k)?sh$")
_DASHES = str.maketrans({"\u2014": "--", "\u2013": "--"})


class Words(msgspec.Struct, frozen=True):
    """A simple command: its words, the variables set for it, and the files written before it.

    `inner` is where a script's own words begin, behind those that start its shell: an image's
    entry point does not run then.
    """

    words: tuple[str, ...]
    environment: Mapping[str, str] = {}
    files: Mapping[str, str] = {}
    inner: int = 0


def simple_commands(text: str, environment: Mapping[str, str] | None = None) -> list[Words]:
    """The commands of `text` in their order; bounded in length.

    `environment` are variables that are set before it. Raises UsageError for text that no shell
    would take.
    """
    if len(text) > _LONGEST:
        raise UsageError(
            f"the command has {len(text):,} characters", hint=f"paste at most {_LONGEST:,}"
        )
    files: dict[str, str] = {}
    if _WINDOWS.search(text):
        text = text.replace("\\", "\\\\")  # a backslash parts folders there, it escapes nothing
    plain = _without_documents(text.strip().removeprefix("$ "), files)
    found = list(_commands(plain, dict(environment or {}), files, 0))
    count = sum(len(command.words) for command in found)
    if count > _MOST_WORDS:
        raise UsageError(f"the command has {count:,} words", hint=f"at most {_MOST_WORDS:,}")
    return found


def _without_documents(text: str, files: dict[str, str]) -> str:
    """The text without its here-documents, whose bodies go into `files` by name.

    One that no file takes is what a command reads: its name is empty.
    """

    def keep(match: re.Match[str]) -> str:
        target = _TARGET.search(match["before"] + match["after"])
        files["" if target is None else _name(target[1])] = match["body"]
        return match["before"] + match["after"]

    return _HERE.sub(keep, text) if "<<" in text else text


def _name(path: str) -> str:
    return path.strip("'\"").rpartition("/")[2]


def _commands(
    text: str, variables: dict[str, str], files: Mapping[str, str], depth: int
) -> Iterator[Words]:
    for words in _split(_CONTINUED.sub(" ", text), variables):
        given, rest = _assigned(words)
        if not rest:
            variables.update(given)
            continue
        at = next((i for i, word in enumerate(rest) if _starts_script(rest, i)), None)
        if at is None or depth >= _DEEPEST:
            yield Words(tuple(rest), {**variables, **given}, files)
            continue
        script = rest[at + 1]
        for inner in _commands(script, {**variables, **given}, files, depth + 1):
            yield Words((*rest[:at], *inner.words), inner.environment, files, at + inner.inner)


def _starts_script(words: list[str], at: int) -> bool:
    """Whether word `at` is the `-c` (or `-lc`) of a shell named before, with a script behind it."""
    if not re.match(r"-\w*c$", words[at]) or at + 1 >= len(words) or words[at + 1].isdigit():
        return False
    return any(SHELL.match(word) for word in words[:at])


def _assigned(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """The variables set in front of a command, and its own words."""
    given: dict[str, str] = {}
    for at, word in enumerate(words):
        if _ASSIGNMENT.match(word):
            name, _, value = word.partition("=")
            given[name] = value
        elif word not in _WRAPPERS:
            return given, words[at:]
    return given, []


def _split(text: str, variables: Mapping[str, str]) -> Iterator[list[str]]:
    """The words of each simple command; `variables` may grow between two of them."""
    words: list[str] = []
    at, redirected = 0, False
    while at < len(text):
        kind, token, at = _next(text, at)
        if kind == "end":
            if words:
                yield words
            words, redirected = [], False
        elif kind == "redirect":
            redirected = True
        elif kind == "word":
            pieces, at = _word(text, at - len(token))
            if not redirected:
                words += _expanded(pieces, variables)
            redirected = False
    if words:
        yield words


def _next(text: str, at: int) -> tuple[str, str, int]:
    """(space | end | redirect | word, its first token, the place behind it)."""
    if text[at] == "#":
        stop = text.find("\n", at)
        stop = len(text) if stop < 0 else stop
        return "space", text[at:stop], stop
    match = _TOKEN.match(text, at)
    if match is None:
        raise UsageError("the command can't be split into words", hint="check its quotes")
    kind = str(match.lastgroup)
    return kind if kind in ("space", "end", "redirect") else "word", match[0], match.end()


def _word(text: str, at: int) -> tuple[list[tuple[str, str]], int]:
    """The (kind, text) pieces of the word that begins at `at`, and the place behind it."""
    pieces: list[tuple[str, str]] = []
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise UsageError("the command can't be split into words", hint="check its quotes")
        kind = str(match.lastgroup)
        if kind in ("space", "end", "redirect"):
            break
        pieces.append((kind, match[0]))
        at = match.end()
    return pieces, at


def _expanded(pieces: list[tuple[str, str]], variables: Mapping[str, str]) -> list[str]:
    """The words that one word becomes: an unquoted variable may hold several."""
    out = [""]
    for kind, text in pieces:
        if kind == "single":
            out[-1] += text[1:-1]
        elif kind == "double":
            out[-1] += _filled(re.sub(r"\\([\"\\$`])", r"\1", text[1:-1]), variables)
        elif kind == "escape":
            out[-1] += text[1]
        else:
            filled = _filled(text, variables)
            parts = filled.split() if filled != text else [filled]
            out[-1] += parts[0] if parts else ""
            out += parts[1:]
    first = out[0].translate(_DASHES) if out[0][:1] in ("\u2014", "\u2013") else out[0]
    lone = len(pieces) == 1 and pieces[0][0] == "plain" and not first
    return out[1:] if lone else [first, *out[1:]]


def _filled(text: str, variables: Mapping[str, str]) -> str:
    """Variables filled in and sums worked out; what nothing sets stays as it is written."""

    def value(match: re.Match[str]) -> str:
        given = variables.get(match[1] or match[3])
        if given is None:
            given = match[2]
        return match[0] if given is None else given

    def total(match: re.Match[str]) -> str:
        found = worked_out(match[1], variables)
        return match[0] if found is None else str(found)

    return _VARIABLE.sub(value, _SUM.sub(total, text))
