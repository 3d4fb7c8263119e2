"""Write docs/cli.md: the --help of every command, as it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from kvproof.surfaces.cli import COMMANDS

OUT = Path(__file__).resolve().parent.parent / "docs/cli.md"


def pages() -> str:
    """The page: the group's help, then each command's, as a terminal of 92 columns shows them."""
    parts = ["# The command line\n", _block(_help())]
    parts += [f"\n## kvproof {name}\n{_block(_help(name))}" for name in COMMANDS]
    return "".join(parts)


def _help(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "kvproof", *words, "--help"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COLUMNS": "92"},
    )
    return done.stdout


def _block(text: str) -> str:
    lines = "\n".join(line.rstrip() for line in text.splitlines())
    return f"\n```\n{lines}\n```\n"


if __name__ == "__main__":
    OUT.write_text(pages())
