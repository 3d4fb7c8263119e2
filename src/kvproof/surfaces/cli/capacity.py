"""kvproof capacity: what a given amount of cache memory holds."""

from __future__ import annotations

from typing import Any

import click

from kvproof.surfaces.cli.chosen import chosen_model
from kvproof.surfaces.cli.options import (
    SIZE,
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


@click.command(cls=EngineCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("source", metavar="MODEL", required=False)
@click.option("--kv-bytes", type=SIZE, required=True, help="Cache memory per GPU, e.g. 40GiB.")
@contexts_option(what="Context lengths")
@deployment_options
@output_options
@click.pass_context
def capacity(ctx: click.Context, /, source: str | None, **values: Any) -> int:
    """Blocks, tokens and concurrency that --kv-bytes per GPU hold under the engine's allocator."""
    from kvproof.api import capacity as ask
    from kvproof.engine.hooks import length_limit
    from kvproof.planning.contexts import contexts_up_to

    named, deployment = deployment_of(ctx)
    model = chosen_model(ctx, named, "kvproof capacity MODEL --kv-bytes 40GiB")
    answer = ask(model, deployment, values["kv_bytes"])
    limit = length_limit(deployment, answer)
    contexts = asked_contexts(ctx) or contexts_up_to(limit)
    sequences = {n: 0 if limit and n > limit else answer.sequences(n) for n in contexts}
    if values["chart"]:
        from kvproof.surfaces.charts import capacity_chart, save

        save(capacity_chart(model.name, str(deployment.engine), answer, sequences), values["chart"])
    if values["as_json"]:
        from kvproof.surfaces.document import document

        result = {"capacity": answer, "sequences": sequences}
        warnings = (*notes_of(ctx), *model.notes)
        click.echo(
            document("capacity", inputs=inputs_of(ctx, model), result=result, warnings=warnings)
        )
    else:
        from kvproof.surfaces.terminal import fold

        click.echo(fold(_text(answer, sequences, str(deployment.engine), model.name)))
        if values["explain"]:
            from kvproof.engine.fit import capacity_terms, fit_term
            from kvproof.surfaces.show import terms_text

            click.echo(fold("\n" + terms_text("Derivation", capacity_terms(answer))))
            for n in contexts:
                title = f"At {n:,} tokens"
                click.echo(fold("\n" + terms_text(title, (fit_term(answer, n, limit),))))
        warn(model.notes)
    return 0 if answer.fits else 1


def _text(answer: Any, sequences: dict[int, int], engine: str, name: str) -> str:
    from kvproof.engine.common_flags import limit_name
    from kvproof.surfaces.text import heading, paint, table
    from kvproof.units import show_bytes, show_context

    groups = [
        [
            g.kind,
            str(g.layers),
            f"{g.block_size:,}",
            show_bytes(g.page_bytes),
            f"{g.blocks_per_sequence:,}",
        ]
        for g in answer.groups
    ]
    limit = limit_name(engine.partition("@")[0], "max_model_len")
    fit = [
        [show_context(n), f"{answer.blocks_held(n):,}", f"{count:,}", ""]
        if count or n <= answer.max_model_len
        else [show_context(n), "-", "0", f"beyond {limit}"]
        for n, count in sequences.items()
    ]
    parts = [
        f"{heading(name)}  ({engine})\n"
        f"  {answer.num_blocks:,} blocks of {answer.block_size:,} tokens, "
        f"{answer.bytes_per_block:,} B each; {answer.tokens:,} tokens\n"
        f"  maximum concurrency for {answer.max_model_len:,} tokens: {answer.max_concurrency:.2f}x",
        f"{heading('Groups')}\n"
        + table(["kind", "layers", "block", "page", "blocks/sequence"], groups),
        f"{heading('Sequences that run at once')}\n"
        + table(["context", "blocks each", "fit", ""], fit),
    ]
    if answer.error:
        parts.append(paint(f"Does not fit: {answer.error}", "red"))
    return "\n\n".join(parts)
