"""kvproof cache: what a model caches, and what that saves."""

from __future__ import annotations

from typing import Any

import click

from kvproof.surfaces.cli.options import (
    RATE,
    TOKEN_LIST,
    TOKENS,
    asked_contexts,
    contexts_option,
    inputs_of,
    output_options,
    warn,
)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("source", metavar="MODEL")
@contexts_option("--tokens", what="Cached tokens per sequence")
@click.option("--lengths", type=TOKEN_LIST, help="One batch of sequences of these lengths.")
@click.option("--batch", type=int, default=1, show_default=True, help="Sequences of each length.")
@click.option("--engine", default="formula", show_default=True,
              help="Engine[@version] whose rules hold: its blocks, pages or cells.")  # fmt: skip
@click.option("--dtype", help="Element type of keys and values [the model's own].")
@click.option("--k-dtype", help="Element type of keys.")
@click.option("--v-dtype", help="Element type of values.")
@click.option("--static-length", type=TOKENS, help="Reserve this many tokens for each sequence.")
@click.option("--encoder-tokens", type=int, help="Tokens that the encoder or the image holds.")
@click.option("--decode-steps", type=int, default=0, help="Tokens decoded after the prefill.")
@click.option(
    "--quantized", metavar="BACKEND:BITS", help="transformers' quantized cache, e.g. hqq:4."
)
@click.option("--offloaded", is_flag=True, help="transformers' offloaded cache: what stays.")
@click.option(
    "--without-cache", is_flag=True, help="Compare a generation with and without a cache."
)
@click.option(
    "--prompt", type=TOKENS, default=1000, show_default=True, help="With --without-cache."
)
@click.option(
    "--output",
    "generated",
    type=TOKENS,
    default=500,
    show_default=True,
    help="With --without-cache: generated tokens.",
)
@click.option("--parameters", type=float, help="With --without-cache: parameters, e.g. 8.03e9.")
@click.option("--flops", type=RATE, help="With --without-cache: peak, e.g. 989TFLOP/s.")
@output_options
@click.pass_context
def cache(ctx: click.Context, /, source: str, **values: Any) -> int:
    """What MODEL caches: by kind of layer, per token, per sequence.

    With --without-cache: operations of a generation with the cache and without it.
    """
    from kvproof.api import load_model
    from kvproof.surfaces.cli.chosen import refuse_command

    refuse_command(source)
    model = load_model(source, offline=values["offline"])
    if values["without_cache"]:
        return _without(ctx, model)
    if values["quantized"] or values["offloaded"]:
        return _variant(ctx, model)
    return _cache(ctx, model)


def _cache(ctx: click.Context, model: Any) -> int:
    from kvproof.api import cache as ask

    values = ctx.params
    options = {
        k: values[k]
        for k in (
            "engine",
            "dtype",
            "k_dtype",
            "v_dtype",
            "static_length",
            "encoder_tokens",
            "decode_steps",
        )
    }
    from kvproof.engine.stored_types import named_types

    types = named_types(
        model, str(values["engine"]), values["dtype"], values["k_dtype"], values["v_dtype"]
    )
    if values["lengths"]:
        rows = [(values["lengths"], ask(model, lengths=values["lengths"], **options))]
    else:
        rows = [
            ((n,), ask(model, n, batch=values["batch"], **options)) for n in _contexts(ctx, model)
        ]
    if values["chart"]:
        from kvproof.surfaces.charts import cache_chart, save

        save(cache_chart(model, types), values["chart"])
    per_token = sum(slot.entry_bytes(types) for slot in model.slots if slot.kind != "cross")
    if values["as_json"]:
        from kvproof.surfaces.document import document

        result = {
            "bytes_per_token": per_token,
            "parameters": model.parameters,
            "slots": model.slots,
            "rows": [{"lengths": list(n), "cache": answer} for n, answer in rows],
        }
        click.echo(
            document("cache", inputs=inputs_of(ctx, model), result=result, warnings=model.notes)
        )
        return 0
    from kvproof.surfaces.terminal import fold

    click.echo(fold(_cache_text(model, types, rows, per_token, explain=values["explain"])))
    warn(model.notes)
    return 0


def _contexts(ctx: click.Context, model: Any) -> tuple[int, ...]:
    """The contexts asked for, else the default ones that the model reaches."""
    from kvproof.model.overrides import trained_length
    from kvproof.planning.contexts import contexts_up_to

    return asked_contexts(ctx) or contexts_up_to(trained_length(model))


def _cache_text(model: Any, types: Any, rows: Any, per_token: int, *, explain: bool) -> str:
    from kvproof.surfaces import show
    from kvproof.surfaces.text import heading, table
    from kvproof.units import show_bytes, show_context, show_gb

    lines = [
        [
            " + ".join(show_context(n) for n in lengths[:6]) + (" ..." if len(lengths) > 6 else ""),
            f"{answer.bytes:,} B",
            show_bytes(answer.bytes),
            show_gb(answer.bytes),
            show_bytes(answer.allocated_bytes),
        ]
        for lengths, answer in rows
    ]
    parts = [
        show.model_lines(model),
        f"{heading('What each layer caches')}\n{show.slot_table(model, types)}",
        f"{heading('Bytes per token')}  {per_token:,} B ({show_bytes(per_token)}), "
        f"keys {types.k.name}, values {types.v.name}",
        f"{heading('Bytes per sequence')}\n"
        + table(["tokens", "bytes", "size", "GB", "allocated"], lines),
    ]
    if explain:
        parts += [
            show.terms_text(f"At {' + '.join(map(str, lengths))} tokens", answer.terms)
            for lengths, answer in rows
        ]
    return "\n\n".join(parts)


def _variant(ctx: click.Context, model: Any) -> int:
    """transformers' quantized or offloaded cache at each context."""
    values = ctx.params
    ask = _quantized if values["quantized"] else _offloaded
    rows = [(n, ask(model, n, values)) for n in _contexts(ctx, model)]
    variant = "quantized" if values["quantized"] else "offloaded"
    if values["chart"]:
        from kvproof.surfaces.charts import save, variant_chart

        save(variant_chart(model.name, variant, rows), values["chart"])
    if values["as_json"]:
        from kvproof.surfaces.document import document

        result = {"rows": [{"tokens": n, "cache": answer} for n, answer in rows]}
        click.echo(
            document("cache", inputs=inputs_of(ctx, model), result=result, warnings=model.notes)
        )
        return 0
    from kvproof.surfaces import show
    from kvproof.surfaces.text import heading, table
    from kvproof.units import show_bytes, show_context

    fields = rows[0][1].__struct_fields__
    head = ["tokens", *(field.removesuffix("_bytes").replace("_", " ") for field in fields)]
    lines = [
        [show_context(n), *(show_bytes(getattr(answer, field)) for field in fields)]
        for n, answer in rows
    ]
    title = heading(f"transformers' {variant} cache")
    click.echo(f"{show.model_lines(model)}\n\n{title}\n{table(head, lines)}")
    warn(model.notes)
    return 0


def _quantized(model: Any, tokens: int, values: dict[str, Any]) -> Any:
    from kvproof.engine.transformers_variants import quantized_cache
    from kvproof.errors import UsageError

    backend, _, bits = values["quantized"].partition(":")
    if bits and not bits.isdigit():
        raise UsageError(f"can't read {values['quantized'][:40]!r}", hint="write hqq:4")
    return quantized_cache(
        model,
        tokens,
        decode_steps=values["decode_steps"],
        backend=backend,
        bits=int(bits or 4),
        dtype=values["dtype"],
    )


def _offloaded(model: Any, tokens: int, values: dict[str, Any]) -> Any:
    from kvproof.engine.base import CacheRequest, parse_engine
    from kvproof.engine.transformers_variants import offloaded_cache

    request = CacheRequest(
        lengths=(tokens,) * values["batch"],
        dtype=values["dtype"],
        static_length=values["static_length"],
        encoder_tokens=values["encoder_tokens"],
        decode_steps=values["decode_steps"],
    )
    engine = parse_engine(values["engine"])
    return offloaded_cache(
        model, request, engine.version if engine.name == "transformers" else None
    )


def _without(ctx: click.Context, model: Any) -> int:
    from kvproof.timing import without_cache

    values = ctx.params
    answer = without_cache(
        model, prompt=values["prompt"], output=values["generated"], parameters=values["parameters"]
    )
    if values["chart"]:
        from kvproof.surfaces.charts import save, without_cache_chart

        save(without_cache_chart(answer), values["chart"])
    if values["as_json"]:
        from kvproof.surfaces.document import document

        result = {"without_cache": answer, "table": answer.table()}
        click.echo(
            document("cache", inputs=inputs_of(ctx, model), result=result, warnings=model.notes)
        )
        return 0
    from kvproof.surfaces.terminal import fold

    click.echo(fold(_without_text(model, answer, values["flops"], explain=values["explain"])))
    warn(model.notes)
    return 0


def _without_text(model: Any, answer: Any, flops: float | None, *, explain: bool) -> str:
    from kvproof.surfaces import show
    from kvproof.surfaces.text import heading, table
    from kvproof.units import show_seconds

    share = answer.attention_flops_last_step / max(1, answer.flops_per_step)
    head = ["", "with the cache", "without"]
    rows = [
        ["last step", _flop(answer.flops_per_step), _flop(answer.flops_last_step_without)],
        [
            f"{answer.decode_steps:,} decode steps",
            _flop(answer.flops_with),
            _flop(answer.flops_without),
        ],
        ["closed form", _flop(answer.closed_form_with), _flop(answer.closed_form_without)],
    ]
    steps = [
        [str(r.step), str(r.produces), f"{r.with_cache:,}", f"{r.without_cache:,}"]
        for r in answer.table(10)
    ]
    if answer.output > 10:
        last = answer.output - 1
        steps += [
            ["...", "", "", ""],
            [str(last), str(answer.output), "1", f"{answer.prompt + last:,}"],
        ]
    parts = [
        show.model_lines(model),
        f"{heading(f'{answer.prompt:,} tokens in, {answer.output:,} out')}\n" + table(head, rows),
        f"  Without a cache the decode takes {answer.ratio:,.0f} times the arithmetic.\n"
        f"  Attention at the last step: {_flop(answer.attention_flops_last_step)}, "
        f"{100 * share:.0f} % of the step.",
        f"{heading('Tokens through the model at each step')}\n"
        + table(["step", "makes token", "with the cache", "without"], steps),
    ]
    if flops:
        seconds = answer.seconds_last_step_without(flops)
        parts.append(
            f"  The last uncached step takes {show_seconds(seconds)} at {flops:.4g} FLOP/s."
        )
    if explain:
        parts.append(show.terms_text("Operations", answer.terms))
    return "\n\n".join(parts)


def _flop(value: float) -> str:
    """Operations in the unit that keeps them above one."""
    for unit, name in ((1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP")):
        if value >= unit / 10:
            scaled = value / unit
            return f"{scaled:,.2f} {name}" if scaled < 10 else f"{scaled:,.1f} {name}"
    return f"{value:,.0f} FLOP"
