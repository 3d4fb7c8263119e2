"""read_log: the figures of a start-up log, whatever engine printed it and whatever surrounds it.

One pass in bounded memory. Most lines of a long log share no word with the table of formats and
cost no more than being cut into words; a line whose words held nothing before is not searched
again.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator
from os import PathLike
from typing import BinaryIO

from kvproof.errors import InputError
from kvproof.observe.collect import Collector
from kvproof.observe.figures import Log
from kvproof.observe.watch import WORDS, words_of

_CHUNK = 4 * 2**20
_LONGEST_LINE = 65_536
_LARGEST = 4 * 2**30
_MOST_SHAPES = 100_000
_ESCAPES = re.compile(rb"(?:\x1b|\\u001b|\\x1b)\[[0-9;]{0,16}[A-Za-z]")


def read_log(source: str | PathLike[str] | BinaryIO) -> Log:
    """The engine, version, flags and figures that a log states.

    `source`: a path, the text itself (anything with a line break), or a binary stream. Raises
    InputError when it can't be read, is not text, or holds no start-up line of a known engine.
    """
    stream, name = _open(source)
    collector, dull = Collector(), dict[bytes, None]()
    with stream:
        for line in _lines(stream, name):
            collector.lines += 1
            words = words_of(line)
            if WORDS.isdisjoint(words):
                continue
            shape = b" ".join(words)
            if shape in dull:
                continue
            held = collector.line(collector.lines, line, words)
            if not held and len(dull) < _MOST_SHAPES:
                dull[shape] = None
    return collector.finish(name)


def _open(source: str | PathLike[str] | BinaryIO) -> tuple[BinaryIO, str]:
    if not isinstance(source, str | PathLike):
        return source, "the stream"
    text = os.fspath(source)
    if isinstance(source, str) and ("\n" in text or len(text) > 4096):
        return io.BytesIO(text.encode("utf-8", "replace")), "the text"
    try:
        if os.path.isfile(text) and os.path.getsize(text) > _LARGEST:
            raise InputError(f"{text} is larger than 4 GiB", hint="cut it to the start-up")
        return open(text, "rb"), text
    except FileNotFoundError:
        if isinstance(source, str) and " " in text:
            return io.BytesIO(text.encode("utf-8", "replace")), "the text"
        raise InputError(f"no file {text[:200]!r}", hint="give a log's path or its text") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"can't read {text[:200]!r}: {reason}") from None


def _lines(stream: BinaryIO, name: str) -> Iterator[bytes]:
    """The lines of the stream without colours, each cut to a bounded length."""
    rest, total = b"", 0
    while True:
        chunk = stream.read(_CHUNK)
        if not total and b"\0" in chunk[:8192]:
            raise InputError(f"{name} is not a text log", hint="give the engine's printed output")
        total += len(chunk)
        if total > _LARGEST:
            raise InputError(f"{name} is larger than 4 GiB", hint="cut it to the start-up")
        block = rest + chunk
        if b"\x1b" in block or b"1b[" in block:
            block = _ESCAPES.sub(b"", block)
        lines = block.split(b"\n")
        rest = lines.pop()[:_LONGEST_LINE] if chunk else b""
        for line in lines:
            yield line[:_LONGEST_LINE]
        if not chunk:
            return
