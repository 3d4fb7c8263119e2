"""Options that came with a later release than the one a command names.

`data/came.json` dates every engine argument that is not as old as the oldest release read (written
by `scripts/vllm_flags.py`). A release between the last without one and the first with it may have
it, and so may a development build what the next release has.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path

import msgspec

from kvproof.engine.release import is_development, padded, release_number
from kvproof.errors import UsageError

# `-O3` is read as this option; until 0.11 it set the level of --compilation-config.
_OTHERWISE = ("optimization_level",)
_DATA = Path(__file__).with_name("data") / "came.json"


@cache
def _came() -> dict[str, tuple[str, str]]:
    """Options, the last release without each, and the first with it."""
    rows: dict[str, list[str]] = msgspec.json.decode(_DATA.read_bytes())["came"]
    return {
        name: (without, first) for name, (without, first) in rows.items() if name not in _OTHERWISE
    }


def refuse_later(names: Iterable[str], version: str | None) -> None:
    """Raise UsageError where the release (None: the newest) has not yet one of the options."""
    release = release_number(version)
    if release is None or is_development(version):
        return
    later = [
        f"{_spelled(name)} (from {_came()[name][1]} on)"
        for name in dict.fromkeys(names)
        if name in _came() and padded(release) <= padded(release_number(_came()[name][0]) or ())
    ]
    if later:
        raise UsageError(
            f"vLLM {version} has no {', '.join(later)}",
            hint="it would not start: leave out what it does not have, or name a later release",
        )


def _spelled(name: str) -> str:
    return f"--{name.replace('_', '-')}"
