"""How much of the logs' figures `kvproof.read_log` finds."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kvproof
from kvproof.errors import InputError


def leaves(
    tree: dict[str, Any], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], float]]:
    """Every number of a nested record with its path."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, (*path, key))
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield (*path, key), value


def is_printed(value: float, text: str) -> bool:
    """Whether the number stands in the text."""
    plain = text.replace(",", "")
    return any(abs(float(n) - value) < 1e-9 for n in re.findall(r"-?\d+(?:\.\d+)?", plain))


def read(folder: Path) -> tuple[int, int, list[str]]:
    """Figures found, figures that stand in the lines, and the names of those not found."""
    total, found, missed = 0, 0, []
    for name in ("engine_startups", "local_startups"):
        for line in (folder / "logs" / f"{name}.jsonl").read_text().splitlines():
            record = json.loads(line)
            text = "\n".join(record["lines"]) + "\n"
            try:
                seen = dict(leaves(kvproof.read_log(text).observed))
            except InputError:
                seen = {}
            for path, value in leaves(record["observed"]):
                if not is_printed(value, text):
                    continue
                total += 1
                if abs(seen.get(path, 1e99) - value) <= max(0.006, 1e-6 * abs(value)):
                    found += 1
                else:
                    missed.append(f"{record['id']} {'.'.join(path)}")
    return found, total, missed


def reading_section(folder: Path) -> str:
    """The section of the page."""
    found, total, missed = read(folder)
    return "\n\n".join(
        [
            "## Figures read from logs",
            f"**{found} of {total}** figures that the records note and that stand in their lines "
            f"are found under the same name ({100 * found / total:.1f} %). Not found: "
            f"{', '.join(missed)}: counts that the line states for another thing (a context "
            "length that is also the number of cells, sequences that are also streams).",
        ]
    )
