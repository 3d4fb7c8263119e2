"""Plain text for terminals: aligned tables, bars, and colour where it is wanted."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


def colour_wanted() -> bool:
    """Whether standard output takes colour: NO_COLOR and FORCE_COLOR first, else a terminal."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return sys.stdout is not None and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def paint(text: str, style: str) -> str:
    """`text` in a style, when colour is wanted."""
    return f"\x1b[{_CODES[style]}m{text}\x1b[0m" if colour_wanted() else text


def heading(text: str) -> str:
    """A section's title."""
    return paint(text, "bold")


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """Aligned columns; the first `left` are flush left, the others (figures) flush right."""
    cells = [list(head), *[list(row) for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    lines = []
    for index, row in enumerate(cells):
        parts = [
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        line = "  " + "  ".join(parts).rstrip()
        lines.append(paint(line, "dim") if index == 0 else line)
    return "\n".join(lines)


def bar(shares: Sequence[tuple[str, float]], width: int = 60) -> str:
    """One bar whose parts are proportional to `shares`; each is filled with its own sign.

    Largest remainders decide the rounding, so the parts fill the width exactly.
    """
    total = sum(share for _, share in shares) or 1.0
    exact = [share / total * width for _, share in shares]
    cells = [int(x) for x in exact]
    for index in sorted(range(len(cells)), key=lambda i: cells[i] - exact[i])[: width - sum(cells)]:
        cells[index] += 1
    return "".join(sign * count for (sign, _), count in zip(shares, cells, strict=True))
