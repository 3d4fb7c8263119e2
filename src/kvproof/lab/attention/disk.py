"""Compiled kernels on disk, so that the next process starts without compiling them again.

numba's own disk cache judges a function by its file's date and by what its closure pickles to: it
would miss a change in an intrinsic, and the kernels close over other kernels, whose identity is new
in each process. Here the key is what the machine code depends on: the text of these modules, the
plan, numba, llvmlite and the processor. Files lie in the user's cache folder (or NUMBA_CACHE_DIR),
never beside the package.
"""

# mypy: disable-error-code="import-not-found, misc"

from __future__ import annotations

import hashlib
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import llvmlite
import numba
from numba.core import caching

from kvproof.lab.pool import planes


def _locator(name: str) -> Any:
    """numba's way to one folder; releases before 0.62 hide its name."""
    return getattr(caching, name, None) or getattr(caching, f"_{name}")


class _Files(caching.CompileResultCacheImpl):
    _locator_classes = (_locator("UserProvidedCacheLocator"), _locator("UserWideCacheLocator"))


class _Kept(caching.FunctionCache):
    """numba's cache of one function, under a key of our own; a file that fails is no file."""

    _impl_class = _Files

    def __init__(self, function: Any, key: str) -> None:
        self._key = key
        super().__init__(function)

    def _index_key(self, sig: Any, codegen: Any) -> tuple[Any, ...]:
        return sig, codegen.magic_tuple(), self._key

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # whatever a damaged file makes unpickling raise
            with suppress(OSError):
                self.flush()
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
    key = hashlib.sha256(_text() + repr(made_for).encode()).hexdigest()
    with suppress(OSError, RuntimeError):
        function._cache = _Kept(function.py_func, key)
    return function
