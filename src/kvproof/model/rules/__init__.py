"""Fields that a config class computes from others, as one small rule per class.

`before(name, given)` rewrites what was written before nested configs are built; `after(name,
config)` fills computed fields. A rule is looked up by class and then by the classes it derives
from. Seen in: the config classes of transformers 5.24.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvproof.model.classes import class_row

Config = dict[str, Any]
Rule = Callable[[Config], None]


def find_rule(rules: dict[str, Rule], name: str) -> Rule | None:
    """The rule of class `name` or of the nearest class that it derives from."""
    current: str | None = name
    for _ in range(8):
        if current is None:
            return None
        if current in rules:
            return rules[current]
        row = class_row(current)
        current = row.parent if row else None
    return None
