"""Count: what one medium occupies. Settings: the numbers a rule reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from kvproof.errors import ModelError

# Settings that a rule counts up to one by one.
_COUNTED = ("min_tiles", "max_tiles", "times")
_MOST_COUNTED = 256


class Count(msgspec.Struct, frozen=True, kw_only=True):
    """Positions of one image, clip or video.

    `tokens` are filled by the encoder; `marks` are special tokens and line breaks that the
    processor writes around and between them. `slots` says that `tokens` are positions of the
    encoder, which cross-attention reads, and no text positions; marks are always text.
    """

    tokens: int
    formula: str
    marks: int = 0
    marks_formula: str = ""
    slots: bool = False


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of one rule for one model: its preprocessor's, then its config's own."""

    model: str
    values: Mapping[str, Any]

    def has(self, name: str) -> bool:
        """Whether the setting is given."""
        return self.values.get(name) is not None

    def whole(self, name: str) -> int:
        """A setting that is a count or a size: the first of a pair, at least 1."""
        value = self.values.get(name)
        if isinstance(value, (list, tuple)) and value:
            value = value[0]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 1 <= value < 2**40:
            raise ModelError(
                f"{self.model}: the media rule needs {name} as a positive number, not {value!r}",
                hint="give the model's preprocessor_config.json",
            )
        if name in _COUNTED and value > _MOST_COUNTED:
            raise ModelError(f"{self.model}: {name} of {value!r} is beyond reason")
        return int(value)

    def number(self, name: str) -> float:
        """A setting that may be a fraction; 0 is allowed."""
        value = self.values.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
            raise ModelError(f"{self.model}: the media rule needs {name} as a number")
        return float(value)

    def flag(self, name: str) -> bool:
        """A setting that is on or off; absent is off."""
        return bool(self.values.get(name))

    def pairs(self, name: str) -> tuple[tuple[int, int], ...]:
        """A setting that is a list of pairs of whole numbers."""
        value = self.values.get(name)
        if not isinstance(value, (list, tuple)) or not 0 < len(value) <= 4096:
            raise ModelError(f"{self.model}: the media rule needs {name} as a list of pairs")
        out = []
        for pair in value:
            good = isinstance(pair, (list, tuple)) and len(pair) == 2
            if not good or not all(isinstance(n, int) and 0 < n < 2**20 for n in pair):
                raise ModelError(f"{self.model}: {name} holds {str(pair)[:40]!r}, which is no pair")
            out.append((pair[0], pair[1]))
        return tuple(out)
