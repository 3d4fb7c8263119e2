"""Dates: which releases a log can be of, by the wording of its lines.

Every row of the formats names the releases that print it. A log that names no version is of the
releases that print all the lines it holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

import msgspec

from kvproof.engine.release import Release, release_number, shown

_SPAN = re.compile(r"b?(\d+(?:\.\d+){0,2})(?:(\+)|-b?(\d+(?:\.\d+){0,2}))?(?: on \w+)?")


class Wording(msgspec.Struct, frozen=True, kw_only=True):
    """A line's wording: the first and last release that print it, and the words."""

    since: Release | None = None
    until: Release | None = None
    """0.13 stands for all of 0.13.x."""
    words: str = ""


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """The releases that print every line of a log: from `since` to `until`, None if open.

    `because` holds the wordings that set the two ends.
    """

    since: str | None = None
    until: str | None = None
    because: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.since is None and self.until is None:
            return "any release"
        if self.until is None or self.since == self.until:
            return f"{self.since} or later" if self.until is None else str(self.since)
        return f"{self.since or 'the first'} to {self.until}"

    def holds(self, release: str) -> bool:
        """Whether `release` lies within."""
        number = _number(release)
        low = self.since is None or number >= _number(self.since)
        return low and (self.until is None or _before_end(number, _number(self.until)))


@cache
def wording(versions: str, words: str) -> Wording:
    """The wording of a row that `versions` print ("0.6.5-0.10.2", "0.9.1+", "0.6.4", "b5434+")."""
    match = _SPAN.fullmatch(versions)
    if match is None or (match[2] is None and match[3] is None and "." not in versions):
        return Wording()
    if int(match[1].split(".")[0]) > 2000 and not versions.startswith("b"):
        return Wording()  # a year says when, not which release
    until = match[3] if match[3] else None if match[2] else match[1]
    return Wording(since=_number(match[1]), until=_number(until) if until else None, words=words)


def span(wordings: Iterable[Wording]) -> Span:
    """What all the wordings have in common; any release where they contradict each other."""
    found = list(wordings)
    low = max((w for w in found if w.since), key=lambda w: w.since or (), default=None)
    high = min((w for w in found if w.until), key=lambda w: _padded(w.until or ()), default=None)
    since, until = low.since if low else None, high.until if high else None
    if since and until and not _before_end(since, until):
        return Span()
    return Span(
        since=_text(since),
        until=_text(until),
        because=tuple(dict.fromkeys(w.words for w in (low, high) if w is not None)),
    )


def _number(text: str) -> Release:
    return release_number(text) or ()


def _before_end(number: Release, until: Release) -> bool:
    return number[: len(until)] <= until


def _padded(until: Release) -> Release:
    return (*until, 10**6) if len(until) < 3 else until


def _text(release: Release | None) -> str | None:
    return shown(release) if release else None
