"""Bytes at an offset of a file, local or remote, read piece by piece and never as a whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from kvproof.errors import ModelError

MAX_HEADER_BYTES = 256 * 2**20
_FIRST_RANGE = 2**20
_LARGEST_RANGE = 16 * 2**20


class ByteSource(Protocol):
    """A file whose bytes can be asked for; `size` is None where the far end does not say."""

    name: str
    size: int | None

    def read(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes from `offset`; fewer only where the file ends."""

    def close(self) -> None:
        """Give the file back."""


class FileBytes:
    """A local file, read by seeking."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        try:
            self.size: int | None = path.stat().st_size
            self._file = path.open("rb")
        except OSError as error:
            raise ModelError(
                f"can't open {path}: {error.strerror}", hint="check the path"
            ) from None

    def read(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes from `offset`."""
        self._file.seek(offset)
        return self._file.read(length)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class RangedBytes:
    """A remote file, read by an injected `fetch(offset, length)`; nothing is kept on disk.

    Small reads are served from one buffered range, whose size doubles from 1 to 16 MiB. At most
    `MAX_HEADER_BYTES` are fetched in all.
    """

    def __init__(
        self, name: str, fetch: Callable[[int, int], bytes], size: int | None = None
    ) -> None:
        self.name = name
        self.size = size
        self._fetch = fetch
        self._start = 0
        self._buffer = b""
        self._range = _FIRST_RANGE
        self.fetched = 0

    def read(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes from `offset`."""
        low = offset - self._start
        if not 0 <= low <= low + length <= len(self._buffer):
            self._refill(offset, length)
            low = 0
        return self._buffer[low : low + length]

    def _refill(self, offset: int, length: int) -> None:
        wanted = max(length, self._range)
        if self.size is not None:
            wanted = max(0, min(wanted, self.size - offset))
        if self.fetched + wanted > MAX_HEADER_BYTES:
            raise ModelError(
                f"the header of {self.name} is longer than {MAX_HEADER_BYTES >> 20} MiB",
                hint="refused; is it a model file?",
            )
        self._buffer = self._fetch(offset, wanted) if wanted else b""
        self._start = offset
        self.fetched += len(self._buffer)
        self._range = min(self._range * 2, _LARGEST_RANGE)

    def close(self) -> None:
        """Forget the buffer."""
        self._buffer = b""
