"""GGUF headers: metadata and tensor table of a file, local or remote, without its data.

Format: ggml's docs/gguf.md, versions 2 and 3, either byte order. Long arrays and strings (a
tokenizer's) are passed over, their lengths kept. Whatever a file claims, the work and memory
are bounded: counts are checked against limits and against the bytes that are left.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from kvproof.errors import ModelError
from kvproof.model.byte_source import MAX_HEADER_BYTES, ByteSource, FileBytes
from kvproof.model.ggml_types import GGML_TYPES, REMOVED_TYPES, GgmlType

_MAGIC = b"GGUF"
_MAX_PAIRS = 65_536
_MAX_TENSORS = 65_536
_MAX_NAME = 1_024
_MAX_STRING_ELEMENTS = 4_000_000
_MAX_DIMENSIONS = 4
_MAX_SPLITS = 4_096
_KEPT_ELEMENTS = 8_192
_KEPT_STRINGS = 64
_KEPT_CHARACTERS = 65_536
_KEPT_BYTES = 64 * 2**20

_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_SIZES = {code: struct.calcsize(form) for code, form in _SCALARS.items()}
_TYPE_NAMES = {0: "u8", 1: "i8", 2: "u16", 3: "i16", 4: "u32", 5: "i32", 6: "f32", 7: "bool",
               8: "str", 9: "arr", 10: "u64", 11: "i64", 12: "f64"}  # fmt: skip


class Skipped(msgspec.Struct, frozen=True):
    """A value that was passed over: `length` elements (or characters) of `type`."""

    type: str
    length: int


class TensorInfo(msgspec.Struct, frozen=True):
    """A tensor of the table; `dims` in ggml's order (the row first), `offset` into the data."""

    name: str
    dims: tuple[int, ...]
    type: GgmlType
    offset: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape as torch and numpy write it."""
        return self.dims[::-1]

    @property
    def elements(self) -> int:
        """Numbers in the tensor."""
        return prod(self.dims)

    @property
    def bytes(self) -> int:
        """Exact bytes of the tensor's data."""
        return self.type.bytes(self.elements)


class GgufHeader(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a GGUF file (or all files of a split one) says before its data."""

    name: str
    version: int
    big_endian: bool
    metadata: dict[str, Any]
    tensors: tuple[TensorInfo, ...]
    notes: tuple[str, ...] = ()

    @property
    def tensor_bytes(self) -> int:
        """Exact bytes of all tensors' data, padding between them left out."""
        return sum(tensor.bytes for tensor in self.tensors)


def read_file(path: Path) -> GgufHeader:
    """The header of a local GGUF file; of a split one, the headers of all its files."""
    return read_split(path.name, lambda name: FileBytes(path.with_name(name)))


def read_split(name: str, open_file: Callable[[str], ByteSource]) -> GgufHeader:
    """The header of the file called `name`, joined with those of the other files of a split.

    `open_file` gives the bytes of a file of the same folder by its name.
    """
    first = _read_named(name, open_file)
    count = first.metadata.get("split.count", 1)
    if not isinstance(count, int) or not 0 <= count <= _MAX_SPLITS:
        raise ModelError(f"{name}: split.count is {str(count)[:40]!r}", hint="a broken GGUF file")
    if count <= 1:
        return first
    parts = [first if part == name else _read_named(part, open_file)
             for part in split_names(name, count)]  # fmt: skip
    tensors = tuple(tensor for part in parts for tensor in part.tensors)
    _refuse_doubles(name, tensors)
    return GgufHeader(
        name=name,
        version=parts[0].version,
        big_endian=parts[0].big_endian,
        metadata=parts[0].metadata,
        tensors=tensors,
        notes=tuple(note for part in parts for note in part.notes),
    )


def split_names(name: str, count: int) -> list[str]:
    """The file names of a GGUF split into `count` files, of which `name` is one."""
    stem, _, tail = name.rpartition("-of-")
    prefix, _, index = stem.rpartition("-")
    if tail != f"{count:05d}.gguf" or len(index) != 5 or not index.isdigit():
        raise ModelError(
            f"{name} is one of {count} files but is not named so",
            hint=f"name it NAME-00001-of-{count:05d}.gguf, beside the others",
        )
    return [f"{prefix}-{part:05d}-of-{count:05d}.gguf" for part in range(1, count + 1)]


def _read_named(name: str, open_file: Callable[[str], ByteSource]) -> GgufHeader:
    source = open_file(name)
    try:
        return read_header(source)
    finally:
        source.close()


def read_header(source: ByteSource) -> GgufHeader:
    """The header of one GGUF file. Raises ModelError for anything that is none."""
    cursor = _Cursor(source)
    version = cursor.start()
    tensor_count, pair_count = cursor.scalar("Q"), cursor.scalar("Q")
    cursor.limit("tensors", tensor_count, _MAX_TENSORS, 24)
    cursor.limit("metadata pairs", pair_count, _MAX_PAIRS, 13)
    metadata: dict[str, Any] = {}
    for _ in range(pair_count):
        key = cursor.text(_MAX_NAME, "a metadata key")
        if key in metadata:
            cursor.fail(f"the key {key[:60]!r} occurs twice")
        metadata[key] = cursor.value(key)
    tensors = tuple(_read_tensor(cursor) for _ in range(tensor_count))
    _refuse_doubles(source.name, tensors)
    return GgufHeader(
        name=source.name,
        version=version,
        big_endian=cursor.order == ">",
        metadata=metadata,
        tensors=tensors,
        notes=_cut_short(source, cursor.offset, metadata, tensors),
    )


def _read_tensor(cursor: _Cursor) -> TensorInfo:
    name = cursor.text(_MAX_NAME, "a tensor name")
    count = cursor.scalar("I")
    if not 0 < count <= _MAX_DIMENSIONS:
        cursor.fail(f"the tensor {name[:60]!r} has {count:,} dimensions")
    dims = tuple(cursor.scalar("Q") for _ in range(count))
    number, offset = cursor.scalar("I"), cursor.scalar("Q")
    kind = GGML_TYPES.get(number)
    if kind is None:
        known = REMOVED_TYPES.get(number)
        cursor.fail(f"the tensor {name[:60]!r} has the "
                    + (f"removed type {known}" if known else f"unknown type {number}"))  # fmt: skip
    if prod(dims) >= 2**63 or offset >= 2**63:
        cursor.fail(f"the tensor {name[:60]!r} has an impossible size or offset")
    if dims[0] % kind.block:
        cursor.fail(f"the tensor {name[:60]!r} has rows of {dims[0]}, no multiple of {kind.block}")
    return TensorInfo(name, dims, kind, offset)


def _refuse_doubles(name: str, tensors: tuple[TensorInfo, ...]) -> None:
    seen: set[str] = set()
    for tensor in tensors:
        if tensor.name in seen:
            raise ModelError(f"{name}: the tensor {tensor.name[:60]!r} occurs twice", hint="broken")
        seen.add(tensor.name)


def _cut_short(
    source: ByteSource, end: int, metadata: dict[str, Any], tensors: tuple[TensorInfo, ...]
) -> tuple[str, ...]:
    """A note when the file ends before the data of its last tensor."""
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 0 < alignment <= 2**20:
        raise ModelError(
            f"{source.name}: general.alignment is {str(alignment)[:40]!r}", hint="broken"
        )
    data = -(-end // alignment) * alignment
    needed = max((tensor.offset + tensor.bytes for tensor in tensors), default=0)
    if source.size is None or data + needed <= source.size or not tensors:
        return ()
    missing = data + needed - source.size
    return (f"{source.name} ends {missing:,} bytes too early: an incomplete download",)


class _Cursor:
    """A place in a header that moves forward, with the limits of what it may cost."""

    def __init__(self, source: ByteSource) -> None:
        self.source = source
        self.offset = 0
        self.order = "<"
        self._kept = 0
        self._strings = 0

    def fail(self, what: str) -> NoReturn:
        """Raise the one error line for a broken file."""
        raise ModelError(f"{self.source.name}: {what}", hint="not a sound GGUF file")

    def start(self) -> int:
        """Check the magic, settle the byte order, return the version."""
        magic = self.source.read(0, 8)
        if magic[:4] != _MAGIC or len(magic) < 8:
            self.fail("it does not start as a GGUF file does")
        self.offset = 8
        version = int.from_bytes(magic[4:], "little")
        if version & 0xFFFF == 0:
            self.order = ">"
            version = int.from_bytes(magic[4:], "big")
        if version not in (2, 3):
            self.fail(f"GGUF version {version} (known: 2 and 3)")
        return version

    def take(self, length: int) -> bytes:
        """The next `length` bytes."""
        out = self.source.read(self.offset, length)
        if len(out) != length:
            self.fail("it ends inside its header")
        self.offset += length
        if self.offset > MAX_HEADER_BYTES:
            self.fail(f"its header is longer than {MAX_HEADER_BYTES >> 20} MiB")
        return out

    def skip(self, length: int, what: str) -> None:
        """Pass over `length` bytes without reading them."""
        self.left(length, what)
        self.offset += length

    def left(self, length: int, what: str) -> None:
        """Fail unless `length` more bytes can follow."""
        end = self.offset + length
        if end > MAX_HEADER_BYTES or (self.source.size is not None and end > self.source.size):
            self.fail(f"{what} would take {length:,} bytes, more than there are")

    def limit(self, what: str, count: int, most: int, each: int) -> None:
        """Fail when a count is beyond the limit or beyond what the file can hold."""
        if count > most:
            self.fail(f"it claims {count:,} {what} (at most {most:,} are read)")
        self.left(count * each, f"{count:,} {what}")

    def scalar(self, form: str) -> Any:
        """One number of struct's `form`."""
        return struct.unpack(self.order + form, self.take(struct.calcsize(form)))[0]

    def text(self, most: int, what: str) -> str:
        """A string of at most `most` bytes."""
        length = self.scalar("Q")
        if length > most:
            self.fail(f"{what} of {length:,} bytes")
        self.keep(length)
        return self.take(length).decode("utf-8", "replace")

    def keep(self, length: int) -> None:
        """Count bytes that stay in memory."""
        self._kept += length
        if self._kept > _KEPT_BYTES:
            self.fail("its metadata is too large to keep")

    def value(self, key: str) -> Any:
        """The value of `key`: a number, text, tuple, or what was skipped."""
        code = self.scalar("I")
        if code in _SCALARS:
            return self._number(code)
        if code == _STRING:
            return self._string(key)
        if code == _ARRAY:
            return self._array(key)
        self.fail(f"the key {key[:60]!r} has the unknown type {code}")

    def _number(self, code: int) -> Any:
        if code == _BOOL:
            return self.take(1) != b"\0"
        return self.scalar(_SCALARS[code])

    def _string(self, key: str) -> str | Skipped:
        length = self.scalar("Q")
        if length <= _KEPT_CHARACTERS:
            self.keep(length)
            return self.take(length).decode("utf-8", "replace")
        self.skip(length, f"the text of {key[:60]!r}")
        return Skipped("str", length)

    def _array(self, key: str) -> tuple[Any, ...] | Skipped:
        code, count = self.scalar("I"), self.scalar("Q")
        if code == _ARRAY:
            self.fail(f"the key {key[:60]!r} holds an array of arrays")
        if code == _STRING:
            return self._strings_of(key, count)
        if code not in _SCALARS:
            self.fail(f"the key {key[:60]!r} holds an array of the unknown type {code}")
        size = count * _SIZES[code]
        if count > _KEPT_ELEMENTS:
            self.skip(size, f"the array of {key[:60]!r}")
            return Skipped(_TYPE_NAMES[code], count)
        self.left(size, f"the array of {key[:60]!r}")
        self.keep(size * 8)
        raw = self.take(size)
        if code == _BOOL:
            return tuple(byte != 0 for byte in raw)
        return struct.unpack(f"{self.order}{count}{_SCALARS[code]}", raw)

    def _strings_of(self, key: str, count: int) -> tuple[str, ...] | Skipped:
        self._strings += count
        if self._strings > _MAX_STRING_ELEMENTS:
            self.fail(f"the key {key[:60]!r} holds {count:,} strings")
        self.left(count * 8, f"{count:,} strings of {key[:60]!r}")
        if count <= _KEPT_STRINGS:
            return tuple(
                self.text(_KEPT_CHARACTERS, f"a string of {key[:60]!r}") for _ in range(count)
            )
        self._pass_strings(key, count)
        return Skipped("str", count)

    def _pass_strings(self, key: str, count: int) -> None:
        """Walk over `count` strings, a window of the file at a time."""
        order = "little" if self.order == "<" else "big"
        window, place = b"", 0
        for _ in range(count):
            if place + 8 > len(window):
                self.offset += place
                window, place = self.source.read(self.offset, 2**20), 0
                if len(window) < 8:
                    self.fail("it ends inside its header")
            length = int.from_bytes(window[place : place + 8], order)  # type: ignore[arg-type]
            place += 8 + length
            if place > len(window):
                self.left(place, f"a string of {key[:60]!r}")
                self.offset += place
                window, place = b"", 0
        self.offset += place
