"""Write docs/cli.md: the --help of every command, as it is."""

from __future__ import annotations

from pathlib import Path

import click

from kvproof.surfaces.cli import cli

OUT = Path(__file__).resolve().parent.parent / "docs/cli.md"


def pages() -> str:
    """The page: the group's help, then each command's."""
    context = click.Context(cli, info_name="kvproof", terminal_width=92, max_content_width=92)
    parts = ["# The command line\n", _block(cli.get_help(context))]
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        if command is None:
            continue
        inner = click.Context(
            command, info_name=name, parent=context, terminal_width=92, max_content_width=92
        )
        parts.append(f"\n## kvproof {name}\n\n{_block(command.get_help(inner))}")
    return "".join(parts)


def _block(text: str) -> str:
    lines = "\n".join(line.rstrip() for line in text.splitlines())
    return f"\n```\n{lines}\n```\n"


if __name__ == "__main__":
    OUT.write_text(pages())
