"""Plain text for terminals: aligned tables, bars, and colour where it is wanted."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from kvproof.surfaces.terminal import fold, length, width

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


def counted(number: int, word: str) -> str:
    """A number and its word: `1 line`, `2,000 lines`."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def heading(text: str) -> str:
    """A section's title."""
    return paint(text, "bold")


def table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1, prose: bool = False
) -> str:
    """Aligned columns; the first `left` are flush left, the others (figures) flush right.

    `prose`: the last column is text, flush left too.

    Where the terminal is narrower, each row becomes a block of its own: a line per column.
    """
    cells = [list(head), *[list(row) for row in rows]]
    widths = [max(length(row[i]) for row in cells) for i in range(len(head))]
    columns = width()
    if columns is not None and sum(widths) + 2 * len(widths) > columns:
        return _blocks(head, rows)
    lines = []
    for index, row in enumerate(cells):
        parts = [
            _padded(cell, wide, flush_left=i < left or (prose and i == len(row) - 1))
            for i, (cell, wide) in enumerate(zip(row, widths, strict=True))
        ]
        line = "  " + "  ".join(parts).rstrip()
        lines.append(paint(line, "dim") if index == 0 else line)
    return "\n".join(lines)


def _padded(cell: str, wide: int, *, flush_left: bool) -> str:
    room = " " * (wide - length(cell))
    return cell + room if flush_left else room + cell


def _blocks(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows below one another: the first cell leads, the others stand under it with their names."""
    wide = max((length(name) for name in head[1:]), default=0)
    out = []
    for row in rows:
        lines = [f"  {head[0]} {row[0]}" if head[0] else f"  {row[0]}"]
        lines += [
            f"    {name.ljust(wide)}  {cell}".rstrip()
            for name, cell in zip(head[1:], row[1:], strict=True)
            if cell
        ]
        out.append("\n".join(fold(line) for line in lines))
    return "\n".join(out)


def bar(shares: Sequence[tuple[str, float]], wide: int = 60) -> str:
    """One bar whose parts are proportional to `shares`; each is filled with its own sign.

    Largest remainders decide the rounding, so the parts fill `wide` columns exactly, or what
    the terminal has.
    """
    wide = min(wide, (width() or wide + 2) - 2)
    total = sum(share for _, share in shares) or 1.0
    exact = [share / total * wide for _, share in shares]
    cells = [int(x) for x in exact]
    for index in sorted(range(len(cells)), key=lambda i: cells[i] - exact[i])[: wide - sum(cells)]:
        cells[index] += 1
    return "".join(sign * count for (sign, _), count in zip(shares, cells, strict=True))
