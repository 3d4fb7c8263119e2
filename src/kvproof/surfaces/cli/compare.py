"""kvproof compare: models, deployments, or attention designs side by side."""

from __future__ import annotations

from typing import Any

import click

from kvproof.surfaces.cli.options import (
    TOKENS,
    engine_of,
    given_options,
    inputs_of,
    make_deployment,
    output_options,
    warn,
)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("sources", metavar="MODEL...", nargs=-1)
@given_options
@click.option("--attention", is_flag=True, help="One body with MHA, GQA, MQA and MLA caches.")
@click.option("--groups", type=int, help="With --attention: KV heads of the GQA row.")
@click.option(
    "--context", type=TOKENS, default="4k", show_default=True, help="Tokens per sequence."
)
@output_options
@click.pass_context
def compare(ctx: click.Context, /, sources: tuple[str, ...], **values: Any) -> int:
    """MODEL... (and several GPUs as --gpu A,B) side by side at one context length."""
    from kvproof.api import load_model
    from kvproof.errors import UsageError

    if not sources or (values["attention"] and len(sources) > 1):
        raise UsageError("name one model with --attention, else one or more",
                         hint="kvproof compare MODEL MODEL --gpu GPU")  # fmt: skip
    models = [load_model(source, offline=values["offline"]) for source in sources]
    if values["attention"]:
        from kvproof.model.designs import with_attention

        body = models[0]
        models = [
            with_attention(body, d, groups=values["groups"]) for d in ("mha", "gqa", "mqa", "mla")
        ]
    rows = [row for model in models for row in _rows(model, values)]
    notes = tuple(dict.fromkeys(note for model in models for note in model.notes))
    _print(ctx, rows, notes)
    return 1 if any(row.get("sequences") == 0 for row in rows) else 0


def _rows(model: Any, values: dict[str, Any]) -> list[dict[str, Any]]:
    """One row per deployment of `model`; without a GPU only what the model caches."""
    from kvproof.api import cache, plan
    from kvproof.engine.formula import types_of
    from kvproof.errors import UsageError

    context = values["context"]
    row: dict[str, Any] = {"model": model.name, "parameters": model.parameters, "context": context}
    gpus = [gpu.strip() for gpu in (values["gpu"] or "").split(",") if gpu.strip()]
    if values["gpu"] is not None and not gpus:
        raise UsageError("a GPU's name is empty", hint="`kvproof gpus` lists them")
    if not gpus and not values["gpu_memory"]:
        types = types_of(model, values["kv_dtype"])
        per_token = sum(slot.entry_bytes(types) for slot in model.slots if slot.kind != "cross")
        held = cache(model, context, engine="formula", dtype=values["kv_dtype"])
        return [{**row, "bytes_per_token": per_token, "bytes_per_sequence": held.bytes}]
    out = []
    for gpu in gpus or [None]:
        engine = engine_of(click.get_current_context(), gpu)
        answer = plan(model, make_deployment({**values, "engine": engine}, gpu), [context])
        first = answer.rows[0]
        out.append(
            {
                **row,
                "gpu": answer.gpu or "given memory",
                "engine": answer.engine,
                "bytes_per_token": answer.bytes_per_token,
                "bytes_per_sequence": first.bytes_per_sequence,
                "kv_bytes": answer.budget.kv_bytes,
                "sequences": first.total_sequences,
                "step": first.step,
                "warnings": answer.warnings,
            }
        )
    return out


def _print(ctx: click.Context, rows: list[dict[str, Any]], notes: tuple[str, ...]) -> None:
    values = ctx.params
    warnings = tuple(dict.fromkeys([*notes, *[w for row in rows for w in row.pop("warnings", ())]]))
    if values["chart"]:
        from kvproof.surfaces.charts import compare_chart, save

        save(compare_chart(rows), values["chart"])
    if values["as_json"]:
        from kvproof.surfaces.document import document

        click.echo(
            document("compare", inputs=inputs_of(ctx), result={"rows": rows}, warnings=warnings)
        )
        return
    click.echo(_text(rows))
    if values["explain"]:
        from kvproof.surfaces.show import terms_text

        for row in rows:
            if row.get("step"):
                click.echo("\n" + terms_text(f"One step: {row['model']}", row["step"].terms))
    warn(warnings)


def _text(rows: list[dict[str, Any]]) -> str:
    from kvproof.surfaces.text import heading, table
    from kvproof.units import show_bytes, show_context, show_count, show_seconds

    least = min(row["bytes_per_sequence"] for row in rows) or 1
    head = [
        "model",
        "gpu",
        "parameters",
        "growth/token",
        "x least",
        "per sequence",
        "KV memory",
        "fit",
        "step",
        "tok/s/user",
    ]
    lines = []
    for row in rows:
        step = row.get("step")
        lines.append(
            [
                row["model"],
                row.get("gpu", "-"),
                show_count(row["parameters"]),
                show_bytes(row["bytes_per_token"]),
                f"{row['bytes_per_sequence'] / least:.2f}",
                show_bytes(row["bytes_per_sequence"]),
                show_bytes(row["kv_bytes"]) if "kv_bytes" in row else "-",
                f"{row['sequences']:,}" if "sequences" in row else "-",
                show_seconds(step.seconds) if step else "-",
                f"{step.tokens_per_second_per_user:.0f}" if step else "-",
            ]
        )
    context, engines = rows[0]["context"], dict.fromkeys(row.get("engine") for row in rows)
    by = ", ".join(engine for engine in engines if engine)
    title = f"At {show_context(context)} tokens per sequence" + (f" ({by})" if by else "")
    return f"{heading(title)}\n" + table(head, lines, left=2)
