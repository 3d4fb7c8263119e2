"""The command that a plan prints: what starts it, under the name that its engine takes."""

from __future__ import annotations

from typing import Any

_NO_COMMAND = ("formula", "transformers")
_PLACEHOLDERS = {
    "llamacpp": (
        "./MODEL.gguf",
        "./MODEL.gguf: the path of its GGUF file, or -hf ORG/NAME-GGUF in place of -m",
    ),
    "ollama": (
        "MODEL",
        "MODEL: its name in Ollama (ollama list), or hf.co/ORG/NAME-GGUF",
    ),
}
"""What stands for the model where only its config is known, which holds no GGUF weights."""
_MOST = 12


def printed(model: Any, deployment: Any, named: str | None, left_out: tuple[str, ...]) -> str:
    """The command's section, with a line on what is not in it; nothing where there is none.

    `named` is the model as a pasted command calls it, `left_out` the pasted flags that change
    nothing here.
    """
    from kvproof.engine.command import gone_flags
    from kvproof.surfaces.text import heading, paint

    name, note = _name(model, deployment.engine.name, named)
    command = _command(model, deployment, name)
    if command is None:
        return ""
    lines = [heading("Command"), f"  {command}"]
    if note:
        lines.append(paint(f"  {note}", "dim"))
    for why, flags in (
        ("left out, without bearing on memory", left_out),
        ("left out, no options of this release", gone_flags(deployment)),
    ):
        if flags:
            lines.append(paint(f"  {why}: {_listed(flags)}", "dim"))
    return "\n".join(lines)


def _listed(flags: tuple[str, ...]) -> str:
    shown = ", ".join(f"--{flag.replace('_', '-')}" for flag in flags[:_MOST])
    return f"{shown}, ..." if len(flags) > _MOST else shown


def _command(model: Any, deployment: Any, name: str) -> str | None:
    """The command line that realises the plan, where the engine has one."""
    from kvproof.engine.command import render_command
    from kvproof.errors import UsageError

    own = deployment.engine.name == "ollama" and "num_ctx" in model.settings
    if deployment.engine.name in _NO_COMMAND or own:
        return None  # a Modelfile's own context can't be overridden on a command line
    try:
        return render_command(name, deployment)
    except UsageError:
        return None


def _name(model: Any, engine: str, named: str | None) -> tuple[str, str]:
    """What the engine is told to serve, and a word on what has to be put there."""
    if engine not in _PLACEHOLDERS:
        return _folder(model), ""
    local = model.source.origin == "gguf"
    if local and (engine == "llamacpp" or model.settings or not model.name.endswith(".gguf")):
        return (str(model.source.location) if engine == "llamacpp" else str(model.name)), ""
    if not local and "general.architecture" in model.config:
        return str(model.name), ""
    if named is not None and _of_gguf(named):
        return named, ""
    if not local and "gguf" in model.name.lower():
        return str(model.name), ""
    return _PLACEHOLDERS[engine]


def _folder(model: Any) -> str:
    """The folder or file of a local model, else its name."""
    if model.source.origin == "gguf":
        return str(model.source.location)
    if model.source.origin != "path":
        return str(model.name)
    place = str(model.source.location)
    return place.rpartition("/")[0] or "." if place.endswith(".json") else place


def _of_gguf(named: str) -> bool:
    """Whether a pasted command's model is one of GGUF weights: a file, a tag, Ollama's name."""
    written = "://" not in named
    return written and (named.endswith(".gguf") or ":" in named or "gguf" in named.lower())
