"""What decides an Ollama runner, in the forms people hold it in, as one command.

A server's environment, a Modelfile that is created and then run, and the options of a request
belong together: `ollama run` alone knows the model's name and nothing else. The forms are read as
text; nothing is run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from kvproof.engine.ollama.flags import NAMES, TO_LLAMACPP
from kvproof.engine.shell import Words, simple_commands
from kvproof.errors import UsageError
from kvproof.model.modelfile import parse_modelfile

_PREFIX = "OLLAMA_"
_IN_MODELFILES = "it is a PARAMETER of a Modelfile"
_NO_VARIABLES = {
    "num_ctx": "its variable is OLLAMA_CONTEXT_LENGTH", "num_gpu": _IN_MODELFILES,
    "num_batch": _IN_MODELFILES, "main_gpu": _IN_MODELFILES,
}  # fmt: skip
"""Settings that people write as variables, and what Ollama takes (envconfig/config.go)."""
_SERVES = ("serve", "start")
_RUNS = ("run", "launch", "pull", "show")
_FILE = ("-f", "--file")
_MODELFILE = "Modelfile"
_LONGEST = 1_000_000
_EACH = re.IGNORECASE | re.MULTILINE
_LINES = re.compile(
    r"^[ \t]*(?:FROM(?![ \t]+[\w.]+[ \t]+import\b)|PARAMETER|/set[ \t]+parameter)[ \t]+\S", _EACH
)
_SET = re.compile(r"^[ \t]*/set[ \t]+parameter[ \t]+(\w{1,40})[ \t]+(\S{1,80})[ \t]*$", _EACH)
_PAIR = re.compile(r"(\w{1,40})=([^\s,;]{1,80})$")
_BODY = re.compile(r"(?:-d|--data(?:-raw|-binary)?|--json)$")


def together(starts: Sequence[tuple[Words, int]]) -> tuple[Words, int, tuple[str, ...]]:
    """One command for all of Ollama's in a text, where its arguments begin, and notes.

    The environment is that of the server, if the text starts one; the model and its options are
    those of the last one run, by the Modelfile that the text creates it from.
    """
    notes: list[str] = []
    served = [words for words, at in starts if _verb(words, at) in (*_SERVES, None)]
    runs = [(words, at) for words, at in starts if _verb(words, at) in _RUNS]
    made = {name: file for words, at in starts for name, file in _created(words, at)}
    options: list[str] = []
    last, begin = runs[-1] if runs else starts[-1]
    words = list(last.words)
    name = next((word for word in words[begin + 1 :] if not word.startswith("-")), None)
    if not runs and made:
        name = next(reversed(made))
        words, begin = ["ollama", "run", name], 1
    if name in made:
        base, options = _modelfile(
            made[name], {k: v for w, _ in starts for k, v in w.files.items()}
        )
        words[words.index(name)] = base or name
    environment = {k: v for row in served or [last] for k, v in row.environment.items()}
    wrong = [key for key in environment if _PREFIX in key and _bare(key) in _NO_VARIABLES]
    notes += [f"Ollama reads no {key}: {_NO_VARIABLES[_bare(key)]}" for key in wrong]
    if not served and any(key.startswith(_PREFIX) for key in environment):
        notes.append("OLLAMA_ variables are the server's: they are read as set for ollama serve")
    before = [word for row in served if row is not last for word in row.words]  # name a release
    whole = (*before, *words[:begin], *options, *words[begin:])
    joined = Words(whole, environment, last.files, last.inner and len(before) + last.inner)
    return joined, len(before) + begin, tuple(notes)


def other_forms(text: str) -> list[str] | None:
    """The words of `ollama run` that settings in another form stand for; None where it is none.

    A Modelfile or its path, `/set parameter` lines, a request or its options in JSON,
    `num_ctx=8192`.
    """
    for read in (_from_lines, _from_json, _from_pairs, _from_request, _from_path):
        found = read(text)
        if found is not None:
            name, options = found
            return [*options, "run", *([name] if name else [])]
    return None


Found = tuple[str | None, list[str]]
"""The model that is named, if any, and the options as words."""


def _bare(key: str) -> str:
    return key.removeprefix(_PREFIX).lower()


def _verb(words: Words, at: int) -> str | None:
    """The verb of one command; None where an image starts its server."""
    verb = next(iter(words.words[at : at + 1]), None)
    return verb if verb in (*_SERVES, *_RUNS, "create") else None


def _created(words: Words, at: int) -> Iterator[tuple[str, str]]:
    """The name that `ollama create` makes, and the file it is made from."""
    if _verb(words, at) != "create":
        return
    rest = list(words.words[at + 1 :])
    file = next((rest[i + 1] for i, word in enumerate(rest[:-1]) if word in _FILE), _MODELFILE)
    file = next((word.partition("=")[2] for word in rest if word.startswith("--file=")), file)
    name = next((word for word in rest if not word.startswith("-") and word != file), None)
    if name is not None:
        yield name, file


def _modelfile(place: str, files: Mapping[str, str]) -> Found:
    """What a Modelfile of the text, or one that lies here, says.

    Raises UsageError for one that is nowhere.
    """
    text = files.get(place.rpartition("/")[2])
    text = _small(place) if text is None else text
    if text is None:
        raise UsageError(
            f"{place[:80]} is not here", hint="paste it too: cat > Modelfile <<EOF ..."
        )
    return _said(text)


def _said(text: str) -> Found:
    base, parameters = parse_modelfile(text)
    return base, _options(parameters)


def _options(given: Mapping[str, Any]) -> list[str]:
    """Options as words; those that Ollama does not have raise UsageError when they are read."""
    return [
        f"--{name.replace('_', '-')}={value}" for name, value in given.items() if name != "stop"
    ]


def _from_lines(text: str) -> Found | None:
    if not _LINES.search(text) or "ollama " in text:
        return None
    base, options = _said(text)
    return base, [*options, *_options(dict(_SET.findall(text)))]


def _from_json(text: str) -> Found | None:
    if not text.lstrip().startswith("{"):
        return None
    try:
        body = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    inner = body.get("options", {} if "model" in body else body)
    if not isinstance(inner, dict):
        raise UsageError(
            "options of the request is no object", hint='{"options": {"num_ctx": 8192}}'
        )
    name = body.get("model")
    return (name if isinstance(name, str) else None), _options(inner)


def _from_pairs(text: str) -> Found | None:
    pairs = [_PAIR.match(part) for part in re.split(r"[\s,;]+", text.strip())]
    found = {match[1]: match[2] for match in pairs if match}
    if len(found) < len(pairs) or not any(name in (*NAMES, *TO_LLAMACPP) for name in found):
        return None
    return None, _options(found)


def _from_request(text: str) -> Found | None:
    """The body of a request that curl sends."""
    if "curl" not in text:
        return None
    for command in simple_commands(text):
        for word, body in zip(command.words, command.words[1:], strict=False):
            if _BODY.match(word) and (found := _from_json(body)) is not None:
                return found
    return None


def _from_path(text: str) -> Found | None:
    said = _small(text.strip()) if "\n" not in text and _MODELFILE.lower() in text.lower() else None
    return None if said is None else _said(said)


def _small(place: str) -> str | None:
    """A small local text file; None where there is none."""
    try:
        path = Path(place).expanduser()
        if not path.is_file() or path.stat().st_size > _LONGEST:
            return None
        return path.read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError, RuntimeError):
        return None
