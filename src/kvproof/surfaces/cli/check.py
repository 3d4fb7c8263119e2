"""kvproof check: an engine's start-up log beside what is predicted for it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click


@click.command(name="check", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("log", metavar="LOG", required=False)
@click.option("--model", metavar="MODEL", help="The model, where the log does not name it.")
@click.option("--gpu", metavar="GPU", help="The GPU, where the log does not name it.")
@click.option("--tolerance", type=float, metavar="SHARE",
              help="A relative difference that still counts as agreement, e.g. 0.02.")  # fmt: skip
@click.option("--learn", is_flag=True, help="Keep what was observed in the local store.")
@click.option("--fresh", is_flag=True, help="Leave what was learned aside.")
@click.option("--export", "export", is_flag=True, help="Print the store as JSON lines.")
@click.option("--import", "source", metavar="FILE", help="Add JSON lines to the store ('-').")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
@click.option("--offline", is_flag=True, help="Never ask the hub.")
@click.pass_context
def check(ctx: click.Context, /, log: str | None, **values: Any) -> int:
    """Read a start-up LOG ('-': standard input) and say which assumption is off.

    \b
    vllm serve org/name 2>&1 | kvproof check -
    kvproof check server.log --model meta-llama/Llama-3.1-8B --gpu H100-80GB
    """
    if values["export"] or values["source"]:
        return _store(log, values)
    if log is None:
        raise click.UsageError("give a log, or '-' for standard input")
    values["fresh"] |= values["learn"]  # what is learned is the distance to the bare estimate
    report = _report(log, values)
    if values["learn"]:
        _learn(report)
    if values["as_json"]:
        click.echo(_document(ctx, report))
    else:
        from kvproof.surfaces.report import report_text

        click.echo(report_text(report))
    for line in report.warnings:
        click.echo(f"note: {line}", err=True)
    if report.unread is not None:
        click.echo(f"kvproof: {report.unread}", err=True)
        return int(report.unread.exit_status)
    if not report.compared and report.fits:
        click.echo(f"kvproof: nothing could be compared; {_lacking(report, values)}", err=True)
        return 2
    return 0 if report.ok and report.fits else 1


def _store(log: str | None, values: dict[str, Any]) -> int:
    """Print the store, or add to it."""
    from kvproof.observe import store
    from kvproof.observe.place import default_path

    if log is not None or values["learn"]:
        raise click.UsageError("--export and --import are about the store alone: leave LOG out")
    if values["export"]:
        for line in store.export_lines():
            click.echo(line)
        return 0
    count = store.import_lines(_lines(values["source"]))
    click.echo(f"{count} start(s) added to {default_path()}", err=True)
    return 0


def _lacking(report: Any, values: dict[str, Any]) -> str:
    """What to give for a comparison."""
    has = (("--model", values["model"]), ("--gpu", values["gpu"] or report.gpu))
    names = [option for option, value in has if not value]
    if not names and report.context_unknown:
        return "the log does not state num_ctx"
    if not names:
        return "the log prints none of the figures that are predicted"
    return f"give {' and '.join(names)}"


def _report(log: str, values: dict[str, Any]) -> Any:
    from kvproof.observe import store
    from kvproof.observe.check import check as ask
    from kvproof.observe.read import read_log

    def learned(engine: str, gpu: str, model: str, release: str | None) -> Any:
        return store.overheads(engine, gpu, model, release=release)

    return ask(
        read_log(sys.stdin.buffer if log == "-" else Path(log)),
        values["model"],
        values["gpu"],
        tolerance=values["tolerance"],
        overheads=None if values["fresh"] else learned,
        offline=values["offline"],
    )


def _learn(report: Any) -> None:
    from kvproof.observe import store
    from kvproof.observe.learn import start_of
    from kvproof.observe.place import default_path

    start = start_of(report)
    said = "kept" if store.remember([start]) else "known already"
    click.echo(f"note: the start is {said} ({default_path()})", err=True)
    if start.outside:
        click.echo(f"note: {start.strangeness}", err=True)


def _lines(source: str) -> Any:
    from kvproof.errors import InputError

    if source == "-":
        return sys.stdin.read().splitlines()
    try:
        return Path(source).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise InputError(f"can't read {source[:200]!r}: {error.strerror}") from None


def _document(ctx: click.Context, report: Any) -> str:
    from kvproof.surfaces.document import document
    from kvproof.surfaces.report import report_result

    asked = {k: (ctx.params[k], "flag") for k in ("log", "model", "gpu", "tolerance")
             if ctx.params.get(k) is not None}  # fmt: skip
    return document(
        "check",
        inputs=asked,
        result=report_result(report),
        assumptions=report.assumptions,
        warnings=report.warnings,
    )
