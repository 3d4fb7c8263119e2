"""Safetensors headers: exact bytes by type and by tensor, without reading any weight.

Format: eight bytes of length, then that many of JSON: name -> dtype, shape, data_offsets. Files
are local or remote (an injected ranged reader); a sharded checkpoint is joined by its index.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import msgspec

from kvproof.errors import ModelError
from kvproof.model.byte_source import ByteSource, FileBytes

# What a Git LFS pointer begins with, where a file was not fetched.
POINTER = b"version https://git-lfs"
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_MAX_HEADER = 100 * 10**6  # the format's own limit
_MAX_TENSORS = 2_000_000
_MAX_INDEX_BYTES = 256 * 2**20
_MAX_FILES = 4_096
_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8, "U16": 16, "I16": 16, "F16": 16, "BF16": 16, "U32": 32, "I32": 32, "F32": 32,
    "U64": 64, "I64": 64, "F64": 64, "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip


class StoredTensor(msgspec.Struct, frozen=True):
    """A tensor of a checkpoint: its type as the file names it, its shape and exact bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int

    @property
    def elements(self) -> int:
        """Numbers in the tensor, as its shape counts them (packed ones count once a pack)."""
        return prod(self.shape)


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """All tensors of a checkpoint; a tensor that stands in two files counts once."""

    tensors: tuple[StoredTensor, ...]
    files: tuple[str, ...]

    @property
    def bytes(self) -> int:
        """Exact bytes of all tensors."""
        return sum(tensor.bytes for tensor in self.tensors)

    @property
    def bytes_by_type(self) -> dict[str, int]:
        """Exact bytes of the tensors of each type."""
        out: dict[str, int] = {}
        for tensor in self.tensors:
            out[tensor.dtype] = out.get(tensor.dtype, 0) + tensor.bytes
        return out


def read_folder(folder: Path) -> Checkpoint | None:
    """The checkpoint in a local folder: by its index, one file, or every shard; None without."""
    index = folder / INDEX
    if index.is_file():
        if index.stat().st_size > _MAX_INDEX_BYTES:
            raise ModelError(f"{index} is too large for an index", hint="give the real one")
        raw = index.read_bytes()
        found = read_files(index_files(raw, str(index)), lambda name: FileBytes(folder / name))
        check_index(found, raw, str(index))
        return found
    names = tuple(sorted(path.name for path in folder.glob("*.safetensors")))
    if SINGLE in names:
        names = (SINGLE,)
    if not names:
        return None
    return read_files(names, lambda name: FileBytes(folder / name))


def read_files(names: tuple[str, ...], open_file: Callable[[str], ByteSource]) -> Checkpoint:
    """The checkpoint whose files are `names`, each opened by `open_file`."""
    if len(names) > _MAX_FILES:
        raise ModelError(f"a checkpoint of {len(names):,} files", hint="refused")
    found: dict[str, StoredTensor] = {}
    for name in names:
        source = open_file(name)
        try:
            for tensor in read_header(source):
                found.setdefault(tensor.name, tensor)
        finally:
            source.close()
    return Checkpoint(tensors=tuple(found.values()), files=names)


def index_files(raw: bytes, where: str) -> tuple[str, ...]:
    """The file names of a `model.safetensors.index.json`, each once."""
    index = _decode(raw, where)
    names = index.get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(v, str) for v in names.values()):
        raise ModelError(f"{where} has no weight_map", hint="give a checkpoint's own index")
    files = tuple(dict.fromkeys(names.values()))
    for name in files:
        if "/" in name or "\\" in name or name.startswith("."):
            raise ModelError(f"{where} names the file {name[:60]!r}", hint="files lie beside it")
    return files


def check_index(checkpoint: Checkpoint, raw: bytes, where: str) -> None:
    """Raise ModelError where the index names a tensor that the files do not hold."""
    held = {tensor.name for tensor in checkpoint.tensors}
    absent = [name for name in _decode(raw, where).get("weight_map", {}) if name not in held]
    if absent:
        raise ModelError(
            f"{where} names {len(absent):,} tensors that its files do not hold, "
            f"{absent[0][:80]!r} the first",
            hint="download the checkpoint again",
        )


def read_header(source: ByteSource) -> tuple[StoredTensor, ...]:
    """The tensors of one file. Raises ModelError for anything that is no safetensors file."""
    start = source.read(0, len(POINTER))
    if start == POINTER:
        raise ModelError(f"{source.name} is a Git LFS pointer, not the file", hint="git lfs pull")
    if len(start) < 8:
        raise _broken(source.name, "it is too short")
    length = int.from_bytes(start[:8], "little")
    if length > _MAX_HEADER:
        raise _broken(source.name, f"it claims a header of {length:,} bytes")
    raw = source.read(8, length)
    if len(raw) < length:
        raise _broken(source.name, f"it ends inside its header of {length:,} bytes")
    header = _decode(raw, source.name)
    if len(header) > _MAX_TENSORS:
        raise _broken(source.name, f"it holds {len(header):,} tensors")
    rows = [(name, row) for name, row in header.items() if name != "__metadata__"]
    tensors = tuple(_tensor(name, row, source.name) for name, row in rows)
    _check_layout(sorted(_place(row) for _, row in rows), source, 8 + length)
    return tensors


def _place(row: dict[str, Any]) -> tuple[int, int]:
    """Where a tensor's bytes begin and end, behind the header."""
    return row["data_offsets"][0], row["data_offsets"][1]


def _check_layout(places: list[tuple[int, int]], source: ByteSource, header: int) -> None:
    """Raise ModelError unless the tensors fill the file behind its header, byte by byte.

    The format wants it so: no overlap, no hole, nothing behind the last one.
    """
    end = 0
    for start, stop in places:
        if start != end:
            what = "overlap" if start < end else "leave a hole"
            raise _broken(source.name, f"its tensors {what} at byte {min(start, end):,}")
        end = stop
    if source.size is None or source.size == header + end:
        return
    there = source.size - header
    if there < end:
        raise ModelError(
            f"{source.name} is cut short: its tensors need {end:,} bytes, {there:,} are there",
            hint="download it again",
        )
    raise _broken(source.name, f"{there - end:,} bytes follow its last tensor")


def _tensor(name: str, row: Any, where: str) -> StoredTensor:
    if not isinstance(row, dict):
        raise _broken(where, f"the tensor {name[:60]!r} is no object")
    dtype: Any = row.get("dtype")
    shape: Any = row.get("shape")
    offsets: Any = row.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in _BITS:
        raise _broken(where, f"the tensor {name[:60]!r} has the unknown type {str(dtype)[:20]!r}")
    if not _counts(shape) or not _counts(offsets) or len(offsets) != 2:
        raise _broken(where, f"the tensor {name[:60]!r} has no sound shape or offsets")
    size = offsets[1] - offsets[0]
    if size < 0 or size != -(-prod(shape) * _BITS[dtype] // 8):
        raise _broken(where, f"the tensor {name[:60]!r} takes {size:,} bytes, unlike its shape")
    return StoredTensor(name, dtype, tuple(shape), size)


def _counts(value: Any) -> bool:
    """Whether `value` is a short list of sane whole numbers."""
    return (
        isinstance(value, list)
        and len(value) <= 16
        and all(type(n) is int and 0 <= n < 2**62 for n in value)
    )


def _decode(raw: bytes, where: str) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise _broken(where, "its JSON can't be read") from None
    if not isinstance(value, dict):
        raise _broken(where, "its JSON is no object")
    return value


def _broken(where: str, what: str) -> ModelError:
    return ModelError(f"{where}: {what}", hint="not a sound safetensors file")
