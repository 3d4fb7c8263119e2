"""Numbers of releases: the one reader of what engines, images and people write for a version.

`0.11.2+rhai1`, `v0.18.1.dev8`, `0.5.4.post3`, `1.3.0rc5`, `b11549`: a build, pre-release or post
release belongs to its base release.
"""

from __future__ import annotations

import re

Release = tuple[int, ...]
"""A release by its parts as far as they are written: (0, 11, 2), (0, 20), (11549,)."""

_PART = r"\.(\d{1,6})(?![\dx])"
_RELEASE = re.compile(rf"[bv]?(\d{{1,6}})(?!\d|\.\d+x)(?:{_PART})?(?:{_PART})?")
_POST = re.compile(r"\.post(\d{1,4})\b")


def release_number(text: str | None) -> Release | None:
    """The base release that `text` begins with, up to three parts; None where it begins with none.

    `0.2x` names a family of releases and no release; `0.6.x` is 0.6.
    """
    match = _RELEASE.match(text.strip()) if text else None
    return tuple(int(part) for part in match.groups() if part) if match else None


def padded(number: Release) -> tuple[int, int, int]:
    """`number` with zeros for the parts that are not written."""
    major, minor, patch = (*number, 0, 0)[:3]
    return major, minor, patch


def post_number(text: str | None) -> int:
    """Which post release of its base `text` names; 0 without one."""
    match = _POST.search(text or "")
    return int(match[1]) if match else 0


def is_development(text: str | None) -> bool:
    """Whether `text` names a build between two releases, which may hold what the next one has."""
    return "dev" in (text or "")


def shown(number: Release) -> str:
    """The release as it is written."""
    return ".".join(str(part) for part in number)
