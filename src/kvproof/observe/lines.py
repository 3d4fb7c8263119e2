"""Lines: a log's bytes as plain lines, whatever file, encoding or wrapping they came in.

Gzip and UTF-16 are undone, colours removed, lines that a container runtime wrote as JSON objects
unpacked, and what a progress bar overwrote with carriage returns is taken as lines of its own.
Everything is bounded: the log's length, each line's, and what is held at once.
"""

from __future__ import annotations

import codecs
import gzip
import io
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from os import PathLike
from typing import BinaryIO, cast

import msgspec

from kvproof.errors import InputError

_CHUNK = 4 * 2**20
LONGEST_LINE = 65_536
_LARGEST = 4 * 2**30
_HEAD = 4096
_ESCAPES = re.compile(
    rb"(?:\x1b|\\u001b|\\x1b|\\033)(?:\[[0-9;:?]{0,32}[A-Za-z]|\][^\x07\x1b\n]{0,200}(?:\x07|\x1b\\))"
)
_PACKED = (
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ", "xz"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"PK\3\4", "zip"),
)
# Programs whose printed command lines are read (`watch`).
_STARTED = re.compile(
    rb"\b(?:vllm serve|sglang\.(?:launch_server|bench_\w{1,40})|sglang serve|trtllm-serve"
    rb"|llama-(?:server|cli|completion))\b"
)
# Where runtimes put the text: Docker, Kubernetes collectors, journald, cloud loggers.
_TEXT_KEYS = ("log", "message", "MESSAGE", "msg", "textPayload", "line", "text", "body", "event")


def open_log(source: str | PathLike[str] | BinaryIO) -> tuple[BinaryIO, str]:
    """A binary stream of `source` and its name for messages; text is anything with a line break."""
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
        raise InputError(
            f"can't read {text[:200]!r}: {reason}", hint="give a log's path or its text"
        ) from None


def lines_of(stream: BinaryIO, name: str) -> Iterator[bytes]:
    """The lines of the stream without colours, each cut to a bounded length."""
    rest, total = b"", 0
    for chunk in _chunks(stream, name):
        total += len(chunk)
        if total > _LARGEST:
            raise InputError(f"{name} is larger than 4 GiB", hint="cut it to the start-up")
        block = rest + chunk
        if b"\x1b" in block or b"1b[" in block or b"033[" in block:
            block = _ESCAPES.sub(b"", block)
        lines = block.split(b"\n")
        last = lines.pop()[:LONGEST_LINE]
        if chunk:
            rest = last
        elif last:
            lines.append(last)
        for line in lines:
            yield line[:LONGEST_LINE]


def whole_commands(lines: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Each line and how many it was: a server's command that goes on behind a backslash is one."""
    begun, count = b"", 0
    for line in lines:
        begun, count = begun + line, count + 1
        part = begun.rstrip(b"\r \t")
        ends = not part.endswith(b"\\") or len(part) >= LONGEST_LINE
        if ends or (count == 1 and not _STARTED.search(part)):
            yield count, begun[:LONGEST_LINE]
            begun, count = b"", 0
        else:
            begun = part[:-1] + b" "
    if count:
        yield count, begun


def searchable(line: bytes) -> bytes:
    """The line as words are looked for in it: a JSON object's escapes are no letters of words."""
    if line[:1] == b"{" and b'"MESSAGE":[' in line.replace(b" ", b""):
        return b" ".join(parts_of(line))
    if line[:1] == b"{" and b"\\" in line:
        return line.replace(b"\\n", b" ").replace(b"\\t", b" ").replace(b"\\r", b" ")
    return line


def parts_of(line: bytes) -> tuple[bytes, ...]:
    """The plain lines that a line holds: one, unless something was overwritten in place or a JSON
    object holds several."""
    if line[:1] == b"{":
        held = _unpacked(line)
        if held is not None:
            return held
    if b"\r" in line:
        return tuple(part for part in line.split(b"\r") if part)
    return (line,)


def _unpacked(line: bytes) -> tuple[bytes, ...] | None:
    """The text in a line that is a JSON object; None for other lines."""
    try:
        fields = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    if not isinstance(fields, dict):
        return None
    for key in _TEXT_KEYS:
        value = fields.get(key)
        if isinstance(value, list) and value and all(_is_byte(x) for x in value):
            value = bytes(value).decode("utf-8", "replace")  # journald's form of coloured text
        if isinstance(value, str):
            text = _ESCAPES.sub(b"", value.encode("utf-8", "replace"))
            return tuple(part[:LONGEST_LINE] for part in text.splitlines()) or (b"",)
    return None


def _is_byte(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 256


def _chunks(stream: BinaryIO, name: str) -> Iterator[bytes]:
    """The stream's bytes as UTF-8 in pieces, an empty one last."""
    head = stream.read(_HEAD) or b""
    packed = next((kind for mark, kind in _PACKED if head.startswith(mark)), None)
    if packed:
        raise InputError(f"{name} is packed with {packed}", hint="unpack it, or pack it with gzip")
    if head.startswith(b"\x1f\x8b"):
        unzipped = gzip.GzipFile(fileobj=cast(BinaryIO, _Joined(head, stream)))
        stream = cast(BinaryIO, unzipped)
        head = _read(stream, _HEAD, name)
    encoding = _encoding(head)
    text = head.lstrip(b"\0")  # a rotated log begins with a hole
    if encoding is None and text.count(b"\0") > 0.1 * len(text):
        raise InputError(f"{name} is not a text log", hint="give the engine's printed output")
    decode = codecs.getincrementaldecoder(encoding)("replace") if encoding else None
    piece = head
    while piece:
        yield decode.decode(piece).encode("utf-8", "replace") if decode else piece
        piece = _read(stream, _CHUNK, name)
    if decode:
        yield decode.decode(b"", final=True).encode("utf-8", "replace") + b"\n"
    yield b""


def _read(stream: BinaryIO, size: int, name: str) -> bytes:
    try:
        return stream.read(size) or b""
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(
            f"{name} can't be read to its end: {str(error)[:80]}", hint="unpack what is left of it"
        ) from None


def _encoding(head: bytes) -> str | None:
    """The encoding of UTF-16 text (a PowerShell redirection) or UTF-8 with a mark, else None."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    if head.startswith(codecs.BOM_UTF8):
        return "utf-8-sig"
    half = len(head) // 2
    for first, encoding in ((1, "utf-16-le"), (0, "utf-16-be")):
        zeros, others = head[first::2].count(0), head[1 - first :: 2].count(0)
        if half >= 8 and zeros > 0.7 * half and not others:
            return encoding
    return None


class _Joined(io.RawIOBase):
    """A stream with the bytes already read from it put back in front."""

    def __init__(self, head: bytes, stream: BinaryIO) -> None:
        self._head, self._stream = head, stream

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if self._head:
            most = size if size >= 0 else len(self._head)
            out, self._head = self._head[:most], self._head[most:]
            return out
        return self._stream.read(size if size >= 0 else _CHUNK) or b""
