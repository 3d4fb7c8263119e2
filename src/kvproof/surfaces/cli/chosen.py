"""Which model a command is about: the one that is named, else the pasted command's."""

from __future__ import annotations

from typing import Any

import click

from kvproof.surfaces.cli.options import notes_of, warn

_ABSENT_FILE = "give the file's path, or name its model: kvproof plan MODEL --gpu GPU -- COMMAND"
_DEFAULT_TAG = ":latest"
_OLLAMA, _LATEST = "ollama:", "-latest"


def chosen_model(ctx: click.Context, named: str | None, usage: str) -> Any:
    """The model of MODEL, else `named`; where both are given and differ, a note says which.

    Raises UsageError without either.
    """
    from kvproof.api import load_model
    from kvproof.errors import ModelError, UsageError

    source: str | None = ctx.params["source"]
    asked = source or named
    if asked is None:
        raise UsageError("no model is named", hint=usage)
    refuse_command(asked)
    try:
        model = load_model(asked, offline=ctx.params["offline"])
    except ModelError as error:
        if asked == named and asked.endswith(".gguf"):
            raise ModelError(error.message, hint=_ABSENT_FILE) from None
        if asked.startswith(_OLLAMA):
            raise ModelError(
                error.message, hint=f"{error.hint}, or {_in_catalogue(asked)}"
            ) from None
        raise
    return _beside(ctx, model, named) if source and named and source != named else model


def _in_catalogue(asked: str) -> str:
    """How a model of Ollama's that is not in the store is named by its config instead."""
    from kvproof.model.catalog import find

    name = asked.removeprefix(_OLLAMA)
    last = name.rpartition("/")[2].replace(":", "-").removesuffix(_LATEST)
    known = find(last)
    model = "MODEL" if known is None else known.name
    return f"name its model: kvproof plan {model} --gpu GPU -- ollama run {name}"


def refuse_command(source: str) -> None:
    """Raise UsageError for a command line in the place of a model."""
    from kvproof.engine.command import starts_engine
    from kvproof.engine.shell import simple_commands
    from kvproof.errors import UsageError

    try:
        commands = simple_commands(source) if len(source.split()) > 1 else ()
    except UsageError:
        return  # no words of a shell
    if any(starts_engine(found) for found in commands):
        raise UsageError(
            f"{source[:60]!r} is a command line, not a model",
            hint="put it after --, without quotes: kvproof plan --gpu GPU -- COMMAND",
        )


def _beside(ctx: click.Context, model: Any, named: str) -> Any:
    """The model that is asked about, with the weights that the pasted command's name says.

    A note says that it is not the command's own; weights in GGUF are not those of a config.
    """
    from kvproof.model.load import named_weights

    source = ctx.params["source"]
    said = f"{source} is planned, not the pasted command's {named.removesuffix(_DEFAULT_TAG)}"
    typed = named_weights(model, named)
    file = model.source.origin == "gguf" or source.endswith(".gguf") or ":" in source
    if typed is model and named.endswith(".gguf") and not file:
        said += f": weights of the type that {source} has; give the GGUF file for its quantization"
    ctx.meta["notes"] = (*notes_of(ctx), said)
    warn((said,))
    return model if file else typed
