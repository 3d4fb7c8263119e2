"""kvproof probe: a running server's own figures beside what is predicted for them."""

from __future__ import annotations

from typing import Any

import click


@click.command(name="probe", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("url", metavar="URL")
@click.argument("engine_flags", nargs=-1, type=click.UNPROCESSED, metavar="[-- FLAGS]")
@click.option("--model", metavar="MODEL", help="The model, where its served name is not enough.")
@click.option("--gpu", metavar="GPU", help="The GPU it runs on: no server tells.")
@click.option("--tolerance", type=float, metavar="SHARE",
              help="A relative difference that still counts as agreement, e.g. 0.02.")  # fmt: skip
@click.option("--timeout", type=float, default=5.0, show_default=True, metavar="SECONDS",
              help="For each page as a whole.")  # fmt: skip
@click.option("--api-key", envvar="KVPROOF_API_KEY", metavar="KEY",
              help="Sent as a bearer token [env: KVPROOF_API_KEY].")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
@click.option("--offline", is_flag=True, help="Never ask the hub.")
@click.pass_context
def probe(ctx: click.Context, /, url: str, engine_flags: tuple[str, ...], **values: Any) -> int:
    """Ask a running server at URL what it holds, and say which figure is off.

    Reads /metrics, /v1/models, /version, /props, /server_info and their like of vLLM, SGLang,
    TensorRT-LLM, llama.cpp, Ollama, TGI and `kvproof lab serve`; sends nothing but GET. Flags
    that no page tells come after --, in the engine's own spelling.

    \b
    kvproof probe http://localhost:8000 --gpu H100-80GB
    kvproof probe http://localhost:8000 --gpu 4xH100-80GB -- --tensor-parallel-size 4
    """
    from kvproof.observe.probing.probe import probe as ask

    named, flags = _flags(engine_flags)
    found = ask(
        url,
        values["model"] or named,
        values["gpu"],
        flags=flags,
        tolerance=values["tolerance"],
        timeout=values["timeout"],
        key=values["api_key"],
        offline=values["offline"],
    )
    click.echo(_document(ctx, found) if values["as_json"] else _text(found))
    for line in found.report.warnings:
        click.echo(f"note: {line}", err=True)
    return 0 if found.ok else 1


def _flags(words: tuple[str, ...]) -> tuple[str | None, Any]:
    """The model and the flags of what stands after --: a whole command, or flags alone.

    Flags are read for the engine that the server turns out to be.
    """
    if not words:
        return None, None
    import shlex

    from kvproof.engine.command import in_release, read_command, read_flags

    if words[0].startswith("-"):
        return None, lambda engine: read_flags(engine, words).deployment.flags
    read = read_command(words[0] if len(words) == 1 else shlex.join(words))
    return read.model, lambda engine: in_release(read, engine).deployment.flags


def _text(found: Any) -> str:
    from kvproof.surfaces.probe import probe_text

    return probe_text(found)


def _document(ctx: click.Context, found: Any) -> str:
    from kvproof.surfaces.cli.options import origins
    from kvproof.surfaces.document import document
    from kvproof.surfaces.probe import probe_result

    where = origins(ctx)
    shown = ("url", "engine_flags", "model", "gpu", "tolerance", "timeout")
    asked = {k: (ctx.params[k], where[k]) for k in shown if ctx.params.get(k) not in (None, ())}
    return document(
        "probe",
        inputs=asked,
        result=probe_result(found),
        assumptions=found.report.assumptions,
        warnings=found.report.warnings,
    )
