"""kvproof plan: the main question."""

from __future__ import annotations

from typing import Any

import click

from kvproof.surfaces.cli.chosen import chosen_model
from kvproof.surfaces.cli.media import (
    context_tokens,
    media_document,
    media_options,
    media_terms,
    media_text,
    with_media,
)
from kvproof.surfaces.cli.options import (
    EngineCommand,
    asked_contexts,
    contexts_option,
    deployment_of,
    deployment_options,
    inputs_of,
    notes_of,
    output_options,
    warn,
)
from kvproof.surfaces.cli.printed import printed


@click.command(cls=EngineCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("source", metavar="MODEL", required=False)
@deployment_options
@contexts_option(what="Context lengths")
@click.option("--fresh", is_flag=True, help="Leave aside what check --learn kept.")
@media_options
@output_options
@click.pass_context
def plan(ctx: click.Context, /, source: str | None, **values: Any) -> int:
    """How many users of MODEL fit, how fast it decodes, and what limits.

    MODEL is a catalogue name, a hub id, a folder, a config.json or a .gguf file. The engine's own
    flags come after --, in its own spelling, or a whole command line is pasted there.
    """
    from kvproof.api import plan as make
    from kvproof.errors import UsageError

    named, deployment = deployment_of(ctx)
    nowhere = deployment.accelerator is None and "device" not in deployment.flags
    if (source or named) and nowhere and not values.get("gpu_memory"):
        raise UsageError("no GPU is named", hint="add --gpu H100-80GB (kvproof gpus lists them)")
    model = chosen_model(ctx, named, "kvproof MODEL --gpu GPU")
    media = media_terms(model, values)
    model = with_media(model, media)
    learned = None if values["fresh"] else _learned(model, deployment)
    answer = make(
        model,
        deployment,
        asked_contexts(ctx),
        overheads=learned,
        media_tokens=context_tokens(media),
    )
    if learned is not None and learned.starts and not _learned_notes(answer):
        said = f"{learned.starts} start(s) learned on {learned.gpu} move this plan by nothing"
        ctx.meta["notes"] = (*notes_of(ctx), said)
        warn((said,))
    _print(ctx, (model, deployment, answer, media))
    return 0 if answer.fits and answer.capacity.error is None else 1


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

    left_out = {name: ctx.meta.get(name, ()) for name in ("ignored", "uncomputed")}
    command = printed(model, deployment, ctx.meta.get("named"), **left_out)
    parts = _parts(model, deployment, answer, command, explain=values["explain"])
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


def _sources(answer: Any) -> set[str]:
    """Where the speeds of the steps come from."""
    return {t.source for row in answer.rows if row.step for t in row.step.terms if t.unit == "s"}


def _parts(model: Any, deployment: Any, answer: Any, command: str, *, explain: bool) -> list[str]:
    from kvproof.engine.base import served_model
    from kvproof.engine.loading import loaded
    from kvproof.engine.stored_types import types_of
    from kvproof.surfaces import show
    from kvproof.surfaces.terminal import fold
    from kvproof.surfaces.text import heading, paint
    from kvproof.surfaces.way_out import verdict, way_out
    from kvproof.units import show_bytes

    served = served_model(model, deployment)
    types = types_of(served, deployment)
    held = loaded(served, deployment)
    per_token = f"{answer.bytes_per_token:,} B ({show_bytes(answer.bytes_per_token)})"
    parts = [
        show.model_lines(model, held),
        f"{heading('What each layer caches')}\n{show.slot_table(served, types, answer.draft)}\n"
        f"  {per_token} per token while every layer grows{_drafted(answer)}; "
        f"keys {types.k.name}, values {types.v.name}",
        show.budget_text(answer),
        show.rows_text(answer),
        "  " + show.crossover_text(answer),
    ]
    parts = [fold(part) for part in parts]
    if command:
        parts.append(command)
    if answer.capacity.error:
        lines = fold(f"{verdict(answer)}: {answer.capacity.error}")
        parts.append(paint(lines, "red"))
        parts += [fold(line) for line in way_out(answer)]
    return parts if not explain else [*parts, *_explained(model, answer, held)]


def _drafted(answer: Any) -> str:
    """A word on the part of a draft in a token's bytes."""
    if answer.draft is None:
        return ""
    return f", {answer.draft.bytes_per_token:,} B of them for the draft ({answer.draft.name})"


def _explained(model: Any, answer: Any, held: Any) -> list[str]:
    """Every formula with its numbers: weights, memory, capacity, and each context's row."""
    from kvproof.engine.fit import capacity_terms
    from kvproof.model.weights import weight_terms
    from kvproof.surfaces.show import terms_text
    from kvproof.surfaces.terminal import fold

    parts = [
        terms_text(
            f"Weights{' of the checkpoint' if held.name else ''}, by role", weight_terms(model)
        ),
        terms_text("Memory, term by term", answer.budget.terms),
        terms_text("Capacity, term by term", capacity_terms(answer.capacity)),
        terms_text("A token, and where reads cross", answer.terms),
    ]
    for row in answer.rows:
        what = "One step at" if row.step else "At"
        title = f"{what} {row.context:,} tokens, {row.sequences:,} sequences"
        parts.append(terms_text(title, (*(row.step.terms if row.step else ()), *row.terms)))
    return [fold(part) for part in parts]
