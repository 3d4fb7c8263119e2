"""Options that came with a later release than the one a command names.

An engine's `data/came.json` dates every option that is not as old as the oldest release read
(written by `scripts/dated_flags.py`). A release between the last without one and the first with it
may have it, and so may a development build what the next release has.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path

import msgspec

from kvproof.engine.release import is_development, padded, post_number, release_number
from kvproof.errors import UsageError


class Dates(msgspec.Struct, frozen=True):
    """The options of the engine called `title`, dated by the table at `path`."""

    title: str
    path: Path
    otherwise: tuple[str, ...] = ()
    """Options of the table that earlier releases read too, under another name."""

    def lacks(self, name: str, version: str | None) -> bool:
        """Whether the release (None: the newest) has surely not yet the option."""
        release = release_number(version)
        row = _table(self.path).get(name)
        if row is None or release is None or is_development(version) or name in self.otherwise:
            return False
        without = padded(release_number(row[0]) or ())
        return (padded(release), post_number(version)) <= (without, 0)

    def refuse_later(self, names: Iterable[str], version: str | None) -> None:
        """Raise UsageError where the release has not yet one of the options."""
        later = [
            f"--{name.replace('_', '-')} (from {_table(self.path)[name][1]} on)"
            for name in dict.fromkeys(names)
            if self.lacks(name, version)
        ]
        if later:
            raise UsageError(
                f"{self.title} {version} has no {', '.join(later)}",
                hint="it would not start: leave out what it does not have, or name a later release",
            )


@cache
def _table(path: Path) -> dict[str, tuple[str, str]]:
    """Options, the last release without each, and the first with it."""
    rows: dict[str, tuple[str, str]] = msgspec.json.decode(path.read_bytes())["came"]
    return rows
