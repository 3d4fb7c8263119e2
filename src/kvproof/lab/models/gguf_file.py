"""A GGUF file opened for running: all metadata, a tokenizer's long lists too, and the tensors.

`kvproof.model.gguf` reads the header first and refuses whatever is broken or out of bounds; this
walks the same bytes again and keeps what that passes over. (The gguf package's own reader makes
three objects of every token, which takes minutes for Gemma's 262,144.)
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kvproof.errors import InputError, ModelError, UsageError
from kvproof.model.gguf import TensorInfo, read_file

_STRING, _ARRAY = 8, 9
_TYPES = {0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?",
          10: "<u8", 11: "<i8", 12: "<f8"}  # fmt: skip
_START = 24  # magic, version, number of tensors, number of pairs


class GgufFile:
    """`metadata` by key (lists as Python lists), `tensors` by name."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise UsageError(f"no file {path}", hint="give a .gguf file, or a folder")
        header = read_file(path)
        if header.big_endian or "split.count" in header.metadata:
            raise InputError(f"{path.name}: the lab runs little-endian GGUF files in one piece")
        if header.notes:
            raise ModelError(f"{path.name}: {header.notes[0]}")
        with path.open("rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._at = _START
        self.metadata: dict[str, Any] = {}
        for _ in header.metadata:
            key = self._string()
            self.metadata[key] = self._value(self._number("<I"))
        self.tensors = {tensor.name: tensor for tensor in header.tensors}
        for _ in header.tensors:
            self._string()
            dimensions = self._number("<I")
            self._at += 8 * dimensions + 4 + 8  # sizes, type, offset
        unit = self.metadata.get("general.alignment", 32)
        self._data = -(-self._at // unit) * unit

    def fact(self, key: str, default: Any = None) -> Any:
        """A key of the file's own architecture."""
        return self.metadata.get(f"{self.metadata['general.architecture']}.{key}", default)

    def numbers(self, tensor: TensorInfo) -> torch.Tensor:
        """The tensor in f32, dequantised by the gguf package."""
        import gguf

        kind = gguf.GGMLQuantizationType[tensor.type.name.upper()]
        start = self._data + tensor.offset
        raw = np.frombuffer(self._bytes, np.uint8, tensor.bytes, start)
        if kind in (gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16):
            raw = raw.view(np.float32 if kind.name == "F32" else np.float16)
            return torch.tensor(raw.astype(np.float32)).view(tensor.shape)
        rows = raw.reshape(*tensor.shape[:-1], -1)
        return torch.tensor(gguf.quants.dequantize(rows, kind)).view(tensor.shape)

    def _number(self, form: str) -> int:
        value: int = struct.unpack_from(form, self._bytes, self._at)[0]
        self._at += struct.calcsize(form)
        return value

    def _string(self) -> str:
        length = self._number("<Q")
        self._at += length
        return self._bytes[self._at - length : self._at].decode(errors="replace")

    def _value(self, code: int) -> Any:
        if code == _STRING:
            return self._string()
        if code != _ARRAY:
            return self._many(code, 1)[0]
        inner, count = self._number("<I"), self._number("<Q")
        if inner == _STRING:
            return [self._string() for _ in range(count)]
        return self._many(inner, count)

    def _many(self, code: int, count: int) -> list[Any]:
        kind = np.dtype(_TYPES[code])
        numbers = np.frombuffer(self._bytes, kind, count, self._at)
        self._at += kind.itemsize * count
        return list(numbers.tolist())
