"""The public names: sorted, importable, and nothing else leaks."""

from __future__ import annotations

import subprocess
import sys

import kvproof


def test_every_public_name_is_there() -> None:
    assert kvproof.__all__ == sorted(kvproof.__all__)
    for name in kvproof.__all__:
        assert getattr(kvproof, name) is not None


def test_functions_are_not_hidden_by_modules() -> None:
    for name in ("cache", "plan", "budget", "capacity", "check"):
        assert callable(getattr(kvproof, name))


def test_importing_loads_nothing_heavy() -> None:
    code = (
        "import sys, kvproof; print([m for m in ('numpy', 'click', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
