"""Element types of the cache by release: which an engine's option takes, from when to when.

Each engine keeps its own table (`CacheType` rows, the sources that were read beside it); here is
what is said when a release does not have what is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from kvproof.engine.release import Release, is_development, padded, release_number, shown
from kvproof.errors import UsageError, unknown_name

_MOST_NAMED = 9


class CacheType(msgspec.Struct, frozen=True):
    """One choice of an engine's option: from release `since` to release `until`, both included.

    `until` None: it is still there. Not `computed`: its layout is not known here.
    """

    name: str
    since: Release = (0,)
    until: Release | None = None
    computed: bool = True

    def within(self, release: Release | None) -> bool:
        """Whether `release` (None: the newest) has it."""
        if release is None:
            return self.until is None
        return release >= self.since and (self.until is None or release <= self.until)


class Option(msgspec.Struct, frozen=True, kw_only=True):
    """An engine's option for the cache's type: how the engine is called, what it takes and when."""

    engine: str
    flag: str
    types: tuple[CacheType, ...]
    prefix: str = ""
    """What stands before a release's number: `b` for llama.cpp's builds."""


def has_type(option: Option, name: str, version: str | None) -> bool:
    """Whether `version` (None: the newest) takes the cache type `name`."""
    release = _release(version)
    return any(row.name == name and row.within(release) for row in option.types)


def check_type(option: Option, name: str, version: str | None) -> None:
    """Raise UsageError where `version` (None: the newest) has no cache type `name`.

    A build between two releases may have what the next one brings.
    """
    release = _release(version)
    rows = [row for row in option.types if row.name == name]
    if not rows:
        known = _known(option.types, release)
        kind = f"{option.engine} {option.flag}"
        raise unknown_name(kind, name, known, see=f"known: {', '.join(known)}")
    if not any(row.within(release) for row in rows):
        raise _absent(option, rows, release, version)
    if not any(row.computed for row in rows):
        since = f"{option.prefix}{shown(rows[0].since)}"
        raise UsageError(
            f"{option.engine} has {option.flag} {name} since {since}, but what it takes is not "
            "computed here",
            hint=f"computed: {', '.join(_known(option.types, release))}",
        )


def _release(version: str | None) -> Release | None:
    """The release by which choices are dated: for a build after it, the next one."""
    number = release_number(version)
    if number is not None and len(number) > 1 and is_development(version):
        return padded((number[0], number[1] + 1))
    return None if number is None else padded(number)


def _absent(
    option: Option, rows: Sequence[CacheType], release: Release | None, version: str | None
) -> UsageError:
    """Why a release lacks a type that another one has."""
    first, last = rows[0], rows[-1]
    called = version or "of today"
    if release is not None and release < first.since:
        when = f"{option.prefix}{shown(first.since)} is the first that has it"
    else:
        when = f"{option.prefix}{shown(last.until or ())} was the last that had it"
    known = _known(option.types, release)
    return UsageError(
        f"{option.engine} {called} has no {option.flag} {first.name}: {when}",
        hint=f"name such a release, or one of {', '.join(known[:_MOST_NAMED])}",
    )


def _known(types: Iterable[CacheType], release: Release | None) -> list[str]:
    """The types that `release` has and that are computed here."""
    return [row.name for row in types if row.computed and row.within(release)]
