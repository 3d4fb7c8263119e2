"""Every error kvproof raises on purpose, and the exit status each one means.

KvproofError            one clear line: what is wrong, where, what to do
├── UsageError          wrong use: an unknown name, flag or unit (status 2)
├── ModelError          a model's description can't be read or lacks a fact (status 2)
├── InputError          another input file (log, trace) is not what it should be (status 2)
└── HubError            the hub or the network did not give what was asked for (status 3)
"""

from __future__ import annotations

import functools

# What a name must share with one that is offered in its place, and how far behind the best.
_LEAST_ALIKE, _ALIKE_WITHIN = 0.6, 0.2


class KvproofError(Exception):
    """One line that says what is wrong and where; `hint` says what to do about it."""

    exit_status = 2

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message


class UsageError(KvproofError):
    """A name, flag, unit or combination that kvproof does not know."""


class ModelError(KvproofError):
    """A model's description is unreadable, hostile, or lacks a fact that is needed."""


class InputError(KvproofError):
    """A log, trace, manifest or other input file is not what it should be."""


class HubError(KvproofError):
    """The hub or the network did not give what was asked for."""

    exit_status = 3


class HubUnreachedError(HubError):
    """The hub could not be asked at all: no network, or told not to."""


def unknown_name(kind: str, name: str, known: list[str], *, see: str) -> UsageError:
    """A `UsageError` for an unknown `kind` of name that offers the nearest known ones."""
    near = _nearest(name, tuple(known))
    offer = f"did you mean {', '.join(near)}? " if near else ""
    return UsageError(f"unknown {kind} {name[:80]!r}", hint=f"{offer}{see}")


_LOOK_ALIKE = str.maketrans("oil", "011")


def _bare(name: str) -> str:
    """A name as it is compared: dashes in front say nothing, letters that look like digits are."""
    return name.lower().lstrip("-").translate(_LOOK_ALIKE)


@functools.lru_cache(maxsize=256)
def _nearest(name: str, known: tuple[str, ...]) -> list[str]:
    """Up to three of `known` like `name`, none much less than the first."""
    import difflib

    bare, asked = {_bare(k): k for k in known}, _bare(name)
    found = difflib.get_close_matches(asked, list(bare), n=3, cutoff=_LEAST_ALIKE)
    alike = [difflib.SequenceMatcher(None, key, asked).ratio() for key in found]
    return [
        bare[key]
        for key, share in zip(found, alike, strict=True)
        if share >= alike[0] - _ALIKE_WITHIN
    ]
