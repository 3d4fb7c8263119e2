"""systemd units as shell text: what they set, and what they start.

`systemctl edit ollama` writes a part of a unit that only sets variables: Ollama's own unit starts
its server with them.
"""

from __future__ import annotations

import re

_CONTINUED = re.compile(r"\\[ \t]*\r?\n[ \t]*")
_LINE = re.compile(r"[ \t]*(Environment|ExecStart)=[ \t]*(\S.*)", re.IGNORECASE)
_MARKS = "-@:+!"
"""What may stand before a command: systemd.service(5), special executable prefixes."""
_OLLAMA = "OLLAMA_"


def as_shell(text: str) -> str | None:
    """The unit's variables and command as shell text; None for text that is no unit."""
    lines = _CONTINUED.sub(" ", text).splitlines()
    found = [match for line in lines if (match := _LINE.match(line))]
    variables = [f"export {match[2]}" for match in found if match[1].lower() == "environment"]
    starts = [match[2].lstrip(_MARKS) for match in found if match[1].lower() == "execstart"]
    if not starts and any(_OLLAMA in line for line in variables):
        starts = ["ollama serve"]
    return "\n".join([*variables, *starts]) if starts else None
