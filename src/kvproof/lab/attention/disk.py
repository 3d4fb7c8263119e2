"""Compiled kernels on disk, so that the next process starts without compiling them again.

numba's own disk cache judges a function by its file's date and by what its closure pickles to: it
would miss a change in an intrinsic, and the kernels close over other kernels, whose identity is new
in each process. Here the key is what the machine code depends on: the text of these modules, the
plan, numba, llvmlite and the processor. Files lie in the user's cache folder (or NUMBA_CACHE_DIR),
never beside the package.

numba numbers a function's files and keeps an index of them, which processes that compile at once
write over each other: one then loads the other's kernel. Here a key has a file of its own, which
starts with a digest of the rest and of the key, and is replaced whole.
"""

# mypy: disable-error-code="import-not-found, misc"

from __future__ import annotations

import hashlib
import os
import pickle
import tempfile
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import llvmlite
import numba
from numba.core import caching
from numba.core.serialize import dumps

from kvproof.lab.pool import planes


def _locator(name: str) -> Any:
    """numba's way to one folder; releases before 0.62 hide its name."""
    return getattr(caching, name, None) or getattr(caching, f"_{name}")


class _Files(caching.CompileResultCacheImpl):
    _locator_classes = (_locator("UserProvidedCacheLocator"), _locator("UserWideCacheLocator"))


class _OneEach:
    """A file for each key in a folder; one that its digest does not fit is no file."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def load(self, key: Any) -> Any:
        """What was saved under `key`, or None."""
        name = _digest(repr(key).encode())
        with suppress(OSError):
            held = (self._folder / f"{name.hex()}.kernel").read_bytes()
            if held[:32] == _digest(name + held[32:]):
                return pickle.loads(held[32:])
        return None

    def save(self, key: Any, data: Any) -> None:
        """Keep `data` under `key`, in place of what was there. Raises OSError."""
        name, held = _digest(repr(key).encode()), dumps(data)
        handle, path = tempfile.mkstemp(dir=self._folder)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_digest(name + held) + held)
            os.replace(path, self._folder / f"{name.hex()}.kernel")
        except OSError:
            with suppress(OSError):
                os.unlink(path)
            raise

    def flush(self) -> None:
        """Nothing: other processes read these files."""


def _digest(held: bytes) -> bytes:
    return hashlib.sha256(held).digest()


class _Kept(caching.FunctionCache):
    """numba's cache of one function, under a key of our own."""

    _impl_class = _Files

    def __init__(self, function: Any, key: str) -> None:
        self._key = key
        super().__init__(function)
        self._cache_file = _OneEach(self._cache_path)

    def _index_key(self, sig: Any, codegen: Any) -> tuple[Any, ...]:
        return sig, codegen.magic_tuple(), self._key

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # whatever another release's file makes unpickling raise
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        with suppress(OSError):
            super().save_overload(sig, data)


@lru_cache(maxsize=1)
def _text() -> bytes:
    """A digest of all that kernels are made of."""
    digest = hashlib.sha256(f"{numba.__version__} {llvmlite.__version__}".encode())
    for path in [*sorted(Path(__file__).parent.glob("*.py")), Path(planes.__file__)]:
        digest.update(path.read_bytes())
    return digest.digest()


def kept(function: Any, *made_for: object) -> Any:
    """The compiled function `function`, kept on disk for what it was `made_for`.

    Where no folder can be written it is compiled in each process, as without this.
    """
    key = _digest(
        _text()
        + repr((function.py_func.__module__, function.py_func.__qualname__, made_for)).encode()
    ).hex()
    with suppress(OSError, RuntimeError):
        function._cache = _Kept(function.py_func, key)
    return function
