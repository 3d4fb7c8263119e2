"""kvproof plan: the main question."""

from __future__ import annotations

from typing import Any

import click

from kvproof.surfaces.cli.media import (
    contexts_with,
    media_document,
    media_options,
    media_terms,
    media_text,
    with_media,
)
from kvproof.surfaces.cli.options import (
    TOKEN_LIST,
    EngineCommand,
    deployment_of,
    deployment_options,
    inputs_of,
    notes_of,
    output_options,
    warn,
)


@click.command(cls=EngineCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("source", metavar="MODEL", required=False)
@deployment_options
@click.option(
    "--contexts",
    type=TOKEN_LIST,
    default="4k,8k,32k,128k",
    show_default=True,
    help="Context lengths: a list or a doubling range (4k..128k).",
)
@click.option("--fresh", is_flag=True, help="Leave aside what check --learn kept.")
@media_options
@output_options
@click.pass_context
def plan(ctx: click.Context, /, source: str | None, **values: Any) -> int:
    """How many users of MODEL fit, how fast it decodes, and what limits.

    MODEL is a catalogue name, a hub id, a folder, a config.json or a .gguf file. The engine's own
    flags come after --, in its own spelling, or a whole command line is pasted there.
    """
    from kvproof.api import load_model
    from kvproof.api import plan as make
    from kvproof.errors import ModelError, UsageError

    named, deployment = deployment_of(ctx)
    if source and named and source != named:
        warn((_instead(source, named),))
    source = source or named
    if source is None:
        raise UsageError("no model is named", hint="kvproof MODEL --gpu GPU")
    nowhere = deployment.accelerator is None and "device" not in deployment.flags
    if nowhere and not values.get("gpu_memory"):
        raise UsageError("no GPU is named", hint="add --gpu H100-80GB (kvproof gpus lists them)")
    try:
        model = load_model(source, offline=values["offline"])
    except ModelError as error:
        if source == named and source.endswith(".gguf"):
            raise ModelError(error.message, hint=_ABSENT_FILE) from None
        raise
    media = media_terms(model, values)
    contexts = contexts_with(ctx, media, values["contexts"]) if media else values["contexts"]
    model = with_media(model, media)
    learned = None if values["fresh"] else _learned(model, deployment)
    answer = make(model, deployment, contexts, overheads=learned)
    _print(ctx, (model, deployment, answer, media))
    return 0 if answer.fits and answer.capacity.error is None else 1


_ABSENT_FILE = "give the file's path, or name its model: kvproof plan MODEL --gpu GPU -- COMMAND"


def _instead(source: str, named: str) -> str:
    """A word on the model that is planned; a file's own quantization is not taken from its name."""
    said = f"{source} is planned, not the pasted command's {named}"
    if not named.endswith(".gguf") or source.endswith(".gguf"):
        return said
    return f"{said}: weights of the type that {source} has; give the file for its quantization"


def _learned(model: Any, deployment: Any) -> Any:
    """What was learned of the engine on this GPU; None without a store."""
    from kvproof.observe.place import default_path

    if deployment.accelerator is None or not default_path().exists():
        return None
    from kvproof.observe.store import overheads

    name, gpu, release = (
        deployment.engine.name,
        deployment.accelerator.name,
        deployment.engine.version,
    )
    return overheads(name, gpu, model.name, release=release)


def _print(ctx: click.Context, found: tuple[Any, Any, Any, tuple[Any, ...]]) -> None:
    values, (model, deployment, answer, media) = ctx.params, found
    if values["chart"]:
        from kvproof.surfaces.charts import plan_chart, save

        save(plan_chart(answer), values["chart"])
    if values["as_json"]:
        from kvproof.surfaces.document import document, plain

        result = {**plain(answer), "media": media_document(media)} if media else answer
        click.echo(
            document(
                "plan",
                inputs=inputs_of(ctx, model),
                result=result,
                assumptions=_assumptions(answer),
                warnings=(*notes_of(ctx), *answer.warnings),
            )
        )
        return
    from kvproof.engine.base import served_model
    from kvproof.engine.stored_types import types_of
    from kvproof.surfaces.show import terms_text

    parts = _parts(model, deployment, answer, explain=values["explain"])
    if media:
        contexts = [row.context for row in answer.rows]
        types = types_of(served_model(model, deployment), deployment)
        parts.insert(2, media_text(model, media, contexts, types))
        if values["explain"]:
            parts.append(terms_text("Media, term by term", media))
    click.echo("\n\n".join(parts))
    warn((*_learned_notes(answer), *answer.warnings))


def _learned_notes(answer: Any) -> tuple[str, ...]:
    """What was learned, where it moves the plan's cache."""
    from kvproof.engine.overheads import learned_note

    note = learned_note(answer.budget.terms)
    return (note,) if note is not None else ()


def _assumptions(answer: Any) -> tuple[str, ...]:
    return (
        *_learned_notes(answer),
        "all sequences have reached the context length named in their row",
        "a decode step reads the streamed weights once and every sequence's cache",
        *sorted(_sources(answer)),
    )


def _served_name(model: Any, engine: str) -> str:
    """What an engine is told to serve: the folder or file of a local model, else its name."""
    if model.source.origin == "gguf" and engine != "ollama":
        return str(model.source.location)
    if model.source.origin != "path":
        return str(model.name)
    place = str(model.source.location)
    return place.rpartition("/")[0] or "." if place.endswith(".json") else place


def _command(model: Any, deployment: Any) -> str | None:
    """The command line that realises the plan, where the engine has one."""
    from kvproof.engine.command import render_command
    from kvproof.errors import UsageError

    own = deployment.engine.name == "ollama" and "num_ctx" in model.settings
    if deployment.engine.name in ("formula", "transformers") or own:
        return None  # a Modelfile's own context can't be overridden on a command line
    try:
        return render_command(_served_name(model, deployment.engine.name), deployment)
    except UsageError:
        return None


def _sources(answer: Any) -> set[str]:
    """Where the speeds of the steps come from."""
    return {t.source for row in answer.rows if row.step for t in row.step.terms if t.unit == "s"}


def _parts(model: Any, deployment: Any, answer: Any, *, explain: bool) -> list[str]:
    from kvproof.engine.base import served_model
    from kvproof.engine.stored_types import types_of
    from kvproof.surfaces import show
    from kvproof.surfaces.terminal import fold
    from kvproof.surfaces.text import heading, paint
    from kvproof.units import show_bytes

    served = served_model(model, deployment)
    types = types_of(served, deployment)
    per_token = f"{answer.bytes_per_token:,} B ({show_bytes(answer.bytes_per_token)})"
    parts = [
        show.model_lines(model),
        f"{heading('What each layer caches')}\n{show.slot_table(served, types, answer.draft)}\n"
        f"  {per_token} per token while every layer grows{_drafted(answer)}; "
        f"keys {types.k.name}, values {types.v.name}",
        show.budget_text(answer),
        show.rows_text(answer),
        "  " + show.crossover_text(answer),
    ]
    parts = [fold(part) for part in parts]
    command = _command(model, deployment)
    if command:
        parts.append(f"{heading('Command')}\n  {command}")
    if answer.capacity.error:
        lines = fold(f"Does not fit at full length: {answer.capacity.error}")
        parts.append(paint(lines, "red"))
    return parts if not explain else [*parts, *_explained(model, answer)]


def _drafted(answer: Any) -> str:
    """A word on the part of a draft in a token's bytes."""
    if answer.draft is None:
        return ""
    return f", {answer.draft.bytes_per_token:,} B of them for the draft ({answer.draft.name})"


def _explained(model: Any, answer: Any) -> list[str]:
    """Every formula with its numbers: weights, memory, and the step of each context."""
    from kvproof.model.weights import weight_terms
    from kvproof.surfaces.show import terms_text
    from kvproof.surfaces.terminal import fold

    parts = [
        terms_text("Weights, by role", weight_terms(model)),
        terms_text("Memory, term by term", answer.budget.terms),
    ]
    for row in answer.rows:
        if row.step:
            title = f"One step at {row.context:,} tokens, {row.sequences:,} sequences"
            parts.append(terms_text(title, row.step.terms))
    return [fold(part) for part in parts]
