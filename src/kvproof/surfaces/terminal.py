"""What the terminal can show: its width, its colours, and which signs."""

from __future__ import annotations

import codecs
import os
import re
import sys
import textwrap
import unicodedata
from typing import Any

_ESCAPES = re.compile(r"\x1b\[\d{1,3}m")
# Signs that the program prints, and what stands for them where only ASCII is shown.
_PLAIN = {
    "█": "#", "▓": "%", "▒": "=", "░": "-", "▞": "x", "▚": "o", "╱": "/", "╲": "\\", "·": ".",
    "µ": "u", "×": "x", "–": "-", "—": "--", "…": "...", "≥": ">=", "≤": "<=", "→": "->",
}  # fmt: skip
_NARROWEST, _WIDEST = 20, 10_000
_PLAIN_LOCALES = ("C", "POSIX")
# What Python itself puts into LC_CTYPE under such a locale (PEP 538).
_COERCED = ("C.UTF-8", "C.utf8", "UTF-8")
_CODEC = "kvproof_plain"


def width() -> int | None:
    """Columns to keep within: COLUMNS, else the terminal's own; None for a pipe or a file."""
    given = os.environ.get("COLUMNS", "")
    if given.isdigit() and int(given) > 0:
        return max(_NARROWEST, min(int(given), _WIDEST))
    try:
        if sys.stdout is None or not sys.stdout.isatty():
            return None
        return max(_NARROWEST, os.get_terminal_size(sys.stdout.fileno()).columns)
    except (OSError, ValueError):
        return None


def length(text: str) -> int:
    """Columns that a text takes: colours take none."""
    return len(_ESCAPES.sub("", text))


def fold(text: str) -> str:
    """The text with lines that are too long broken between words, further lines indented."""
    columns = width()
    if columns is None:
        return text
    return "\n".join(_folded(line, columns) for line in text.split("\n"))


def _folded(line: str, columns: int) -> str:
    if length(line) <= columns or "\x1b" in line:
        return line
    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.fill(
        line.strip(),
        columns,
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def plain_only(stream: Any) -> bool:
    """Whether a stream shows nothing beyond ASCII: by its encoding, or a locale that says so."""
    try:
        if codecs.lookup(stream.encoding or "ascii").name in ("ascii", _CODEC):
            return True
    except LookupError:
        return True
    if os.environ.get("PYTHONIOENCODING") or os.environ.get("PYTHONUTF8"):
        return False
    names = [os.environ.get(name, "") for name in ("LC_ALL", "LC_CTYPE", "LANG")]
    if names[2] in _PLAIN_LOCALES and names[1] in _COERCED:
        names[1] = ""
    return next((name for name in names if name), "") in _PLAIN_LOCALES


def prepare_streams() -> None:
    """Make both streams print what they can: signs they lack are replaced, never an error.

    Python and click take ASCII for a mistake and write UTF-8 instead; an encoding of another
    name is left alone.
    """
    codecs.register(_find_codec)
    codecs.register_error(_CODEC, _replaced)
    for stream in (sys.stdout, sys.stderr):
        change: Any = getattr(stream, "reconfigure", None)
        if change is None:
            continue
        change(errors=_CODEC)
        if plain_only(stream):
            change(encoding=_CODEC)


def _find_codec(name: str) -> codecs.CodecInfo | None:
    if name != _CODEC:
        return None

    def decode(data: Any, errors: str = "strict") -> tuple[str, int]:
        return codecs.ascii_decode(data, errors)

    return codecs.CodecInfo(_encode, decode, name=_CODEC, incrementalencoder=_Encoder)


class _Encoder(codecs.IncrementalEncoder):
    """Text as ASCII, sign by sign."""

    def encode(self, input: str, final: bool = False) -> bytes:
        return _encode(input)[0]


def _encode(text: str, errors: str = "strict") -> tuple[bytes, int]:
    plain = "".join(sign if sign.isascii() else _stands_for(sign) for sign in text)
    return plain.encode("ascii"), len(text)


def _stands_for(sign: str) -> str:
    """What is printed in place of a sign that can't be."""
    base = unicodedata.normalize("NFKD", sign).encode("ascii", "ignore").decode()
    return _PLAIN.get(sign) or base or "?"


def _replaced(error: UnicodeError) -> tuple[str, int]:
    """What stands for signs that a stream of a narrower encoding lacks."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(_stands_for, error.object[error.start : error.end])), error.end


def json_for_stream(text: str) -> str:
    """JSON text that standard output can take: signs it lacks as escapes, so that it stays JSON."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        text.encode("ascii" if encoding == _CODEC else encoding)
    except (UnicodeEncodeError, LookupError):
        return "".join(sign if sign.isascii() else _escape(sign) for sign in text)
    return text


def _escape(sign: str) -> str:
    """A sign as JSON escapes it: in two halves beyond the first 65,536."""
    raw = sign.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{raw[i]:02x}{raw[i + 1]:02x}" for i in range(0, len(raw), 2))
