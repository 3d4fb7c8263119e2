"""The command that a plan prints: what starts it, under the name that its engine takes."""

from __future__ import annotations

from typing import Any

_MOST = 12


def printed(
    model: Any,
    deployment: Any,
    named: str | None,
    *,
    ignored: tuple[str, ...],
    uncomputed: tuple[str, ...],
) -> str:
    """The command's section, with a line on what is not in it; nothing where there is none.

    `named` is the model as a pasted command calls it, `ignored` the pasted flags that change
    nothing here, `uncomputed` those that change what is not computed.
    """
    from kvproof.engine.command import gone_flags, render_command, served_as
    from kvproof.errors import UsageError
    from kvproof.surfaces.text import heading, paint

    served = served_as(model, deployment.engine.name, named)
    if served is None:
        return ""
    try:
        command = render_command(served.name, deployment)
    except UsageError:
        return ""  # a flag that has no spelling there
    # A here-document ends at a line that holds its mark alone: such a command stands at the margin.
    margin = "" if "<<" in command else "  "
    lines = [heading("Command"), *(f"{margin}{line}" for line in command.splitlines())]
    if served.note:
        lines.append(paint(f"  {served.note}", "dim"))
    for why, flags in (
        ("left out, without bearing on memory", ignored),
        ("left out, and not computed", uncomputed),
        ("left out, no options of this release", gone_flags(deployment)),
    ):
        if flags:
            lines.append(paint(f"  {why}: {_listed(flags)}", "dim"))
    return "\n".join(lines)


def _listed(flags: tuple[str, ...]) -> str:
    shown = ", ".join(f"--{flag.replace('_', '-')}" for flag in flags[:_MOST])
    return f"{shown}, ..." if len(flags) > _MOST else shown
