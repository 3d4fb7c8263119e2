"""Options that several commands share, and the types that read what people write."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from kvproof.units import parse_bytes, parse_rate, parse_token_list, parse_tokens

F = TypeVar("F", bound=Callable[..., Any])


def _parsed(name: str, parse: Callable[[str], Any]) -> click.ParamType[Any]:
    """A click type around one of the parsers of kvproof.units, shown as `name`."""
    kind: click.ParamType[Any] = click.types.FuncParamType(parse)
    kind.name = name
    return kind


def _size(text: str) -> int:
    """Bytes of a size; a small number without a unit is asked for one."""
    size = parse_bytes(text)
    if text.strip().isdigit() and 0 < size < _LEAST:
        from kvproof.errors import UsageError

        said = text.strip()
        raise UsageError(f"{said} has no unit: that is {said} bytes", hint=f"write {said}GiB")
    return size


_LEAST = 2**20
"""Bytes below which a size without a unit is taken for a slip."""
TOKENS = _parsed("TOKENS", parse_tokens)
TOKEN_LIST = _parsed("TOKENS,...", parse_token_list)
SIZE = _parsed("SIZE", _size)
RATE = _parsed("RATE", parse_rate)


def contexts_option(*names: str, what: str) -> Callable[[F], F]:
    """--contexts: the lengths that are answered for; by default those of planning.contexts."""
    return click.option(
        "--contexts",
        *names,
        type=TOKEN_LIST,
        default="4k,8k,32k,128k",
        show_default=True,
        help=f"{what}: a list or a doubling range (4k..128k); the default ends where the model "
        "does.",
    )


def output_options(command: F) -> F:
    """--json, --explain, -o FILE, --offline: the same on every command that answers."""
    for option in (
        click.option("--offline", is_flag=True, help="Never ask the hub."),
        click.option(
            "-o", "--chart", "chart", metavar="FILE", help="Chart as .svg, .png or .html."
        ),
        click.option("--explain", is_flag=True, help="Every formula with its numbers and source."),
        click.option(
            "--json", "as_json", is_flag=True, help="One JSON document on standard output."
        ),
    ):
        command = option(command)
    return command


def deployment_options(command: F) -> F:
    """A manifest that holds the deployment, and what is given by itself."""
    command = given_options(command)
    for option in (
        click.option("--server", metavar="NAME", help="Which server of the manifest."),
        click.option(
            "--manifest",
            metavar="FILE",
            help="Kubernetes manifest, chart values, compose file, SkyPilot task, Ray Serve file "
            "or script that serves it.",
        ),
    ):
        command = option(command)
    return command


def given_options(command: F) -> F:
    """--gpu, --engine and the flags that most deployments change."""
    for option in (
        click.option("--other-memory", type=SIZE, help="Formula: other memory per GPU [4GB]."),
        click.option(
            "--memory-share", type=float, help="Formula: usable share of GPU memory [0.9]."
        ),
        click.option("--weight-bytes", type=SIZE, help="Formula: bytes of all weights."),
        click.option("--bandwidth", type=RATE, help="Formula: memory bandwidth, e.g. 3.35TB/s."),
        click.option("--gpu-memory", type=SIZE, help="Formula: memory of one GPU, e.g. 80GB."),
        click.option("--used", type=SIZE, help="Memory of each GPU that others use, e.g. 3GiB."),
        click.option("--max-model-len", type=TOKENS, help="Context limit of the engine, e.g. 32k."),
        click.option("--kv-dtype", help="Cache element type, e.g. fp8."),
        click.option("--tp", type=int, help="Tensor-parallel GPUs of one replica."),
        click.option("--engine", default="vllm", show_default=True, help="Engine[@version]."),
        click.option(
            "--gpu", metavar="GPU", help="GPU, with a count: 8xH100-80GB; mixed: H100-80GB+L40S."
        ),
    ):
        command = option(command)
    return command


class EngineCommand(click.Command):
    """A command whose words after `--` are an engine's own flags or a pasted command line."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep what follows the first `--` apart from the command's own arguments."""
        if "--" in args:
            at = args.index("--")
            ctx.meta["engine_words"] = tuple(args[at + 1 :])
            args = args[:at]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """The usage line names the engine's part too."""
        return [*super().collect_usage_pieces(ctx), "[-- ENGINE FLAGS OR COMMAND]"]


_FORMULA_ONLY = ("gpu_memory", "bandwidth", "weight_bytes", "memory_share", "other_memory")


def deployment_of(ctx: click.Context, gpu: str | None = None) -> tuple[str | None, Any]:
    """The model that a pasted command or manifest names (else None), and the deployment.

    Options of kvproof's own override the pasted flags. How the command was read goes to
    standard error, and to `notes_of`.
    """
    values = ctx.params
    read = _pasted(ctx, gpu or values.get("gpu"))
    if read is None:
        deployment = make_deployment({**ctx.params, "engine": engine_of(ctx, gpu)}, gpu)
        ctx.meta["deployment"] = (deployment, None)
        return None, deployment
    ctx.meta["deployment"] = (read.deployment, "config" if values.get("manifest") else "flag")
    ctx.meta["notes"] = (*notes_of(ctx), *read.notes)
    ctx.meta["named"], ctx.meta["ignored"] = read.model, read.ignored
    ctx.meta["uncomputed"] = read.uncomputed
    warn(read.notes)
    return read.model, read.deployment


def _pasted(ctx: click.Context, gpu: str | None) -> Any:
    """What a manifest or the words behind -- start; None without either."""
    from kvproof.errors import UsageError

    values, flags = ctx.params, _own_flags(ctx.params)
    engine = str(values["engine"]) if _engine_chosen(ctx) else None
    words: tuple[str, ...] = ctx.meta.get("engine_words", ())
    if values.get("server") and not values.get("manifest"):
        raise UsageError("--server chooses one of a manifest's servers", hint="add --manifest FILE")
    if values.get("manifest"):
        from kvproof.engine.manifest import read_manifest

        text = _read_text(values["manifest"])
        return read_manifest(text, gpu, server=values.get("server"), engine=engine, **flags)
    if not words:
        return None
    if given := _formulas_own(values):
        raise UsageError(
            f"{_typed(given)} belongs to the formula, which takes no engine's flags",
            hint="leave it out, or what follows --",
        )
    import shlex

    from kvproof.engine.command import read_command, read_flags

    text = words[0] if len(words) == 1 else shlex.join(words)
    try:
        if words[0].startswith("-"):
            return read_flags(engine_of(ctx, gpu), words, gpu, **flags)
        return read_command(text, gpu, engine=engine, **flags)
    except UsageError as error:
        own = {option for parameter in ctx.command.params for option in parameter.opts}
        placed = (word.partition("=")[0] for word in text.split())
        wrong = next((word for word in placed if word in own and repr(word) in error.message), None)
        if wrong is None:
            raise
        hint = f"{wrong} is kvproof's own: put it before --"
        raise UsageError(error.message, hint=hint) from None


def _engine_chosen(ctx: click.Context) -> bool:
    return ctx.get_parameter_source("engine") is click.core.ParameterSource.COMMANDLINE


def engine_of(ctx: click.Context, gpu: str | None) -> str:
    """The engine; unless one is named, Ollama for its store, the formula where its own inputs are
    given, and what runs on the GPU at all.
    """
    engine, gpu = str(ctx.params["engine"]), gpu or ctx.params.get("gpu")
    if _engine_chosen(ctx):
        return engine
    if str(ctx.params.get("source")).startswith("ollama:"):
        return "ollama"
    if _formulas_own(ctx.params):
        return "formula"
    if not gpu:
        return engine
    from kvproof.engine.vendors import local_engine
    from kvproof.hardware import parse_ranks

    _, first = parse_ranks(gpu)[0]
    local = local_engine(engine, first)
    if local != engine:
        note = f"{first.name} runs {local}, not {engine}: it is planned with that"
        ctx.meta["notes"] = (*notes_of(ctx), note)
        warn((note,))
    return local


def notes_of(ctx: click.Context) -> tuple[str, ...]:
    """How the pasted command or manifest was read, where that is not plain."""
    notes: tuple[str, ...] = ctx.meta.get("notes", ())
    return notes


def _read_text(path: str) -> str:
    """A small text file, or standard input for `-`."""
    from kvproof.errors import InputError

    try:
        with click.open_file(path, encoding="utf-8") as file:
            return str(file.read(2_000_001))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise InputError(f"can't read {path[:80]}: {reason}", hint="check the file") from None


def _own_flags(values: dict[str, Any]) -> dict[str, Any]:
    flags = {
        "tensor_parallel_size": values.get("tp"),
        "kv_cache_dtype": values.get("kv_dtype"),
        "max_model_len": values.get("max_model_len"),
        "used": values.get("used"),
    }
    return {name: value for name, value in flags.items() if value is not None}


def _formulas_own(values: dict[str, Any]) -> dict[str, Any]:
    return {name: values[name] for name in _FORMULA_ONLY if values.get(name) is not None}


def _typed(names: Iterable[str]) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in names)


def make_deployment(values: dict[str, Any], gpu: str | None = None) -> Any:
    """The deployment that the options describe."""
    from kvproof.engine.base import Deployment, parse_engine
    from kvproof.errors import UsageError

    engine = str(values["engine"])
    given = _formulas_own(values)
    if given and parse_engine(engine).name != "formula":
        raise UsageError(f"{_typed(given)} belongs to the formula", hint="say --engine formula")
    from kvproof.engine.common_flags import named_for

    own = named_for(parse_engine(engine).name, _own_flags(values))
    return Deployment(engine, gpu or values.get("gpu"), **{**own, **given})


def origins(ctx: click.Context) -> dict[str, str]:
    """Where each parameter's value came from: flag or default."""
    commandline = click.core.ParameterSource.COMMANDLINE
    return {
        name: "flag" if ctx.get_parameter_source(name) is commandline else "default"
        for name in ctx.params
    }


def asked_contexts(ctx: click.Context) -> tuple[int, ...]:
    """The contexts of --contexts where somebody gave them; none where they are the default."""
    default = ctx.get_parameter_source("contexts") is click.core.ParameterSource.DEFAULT
    return () if default else tuple(ctx.params["contexts"])


def inputs_of(ctx: click.Context, model: Any = None) -> dict[str, tuple[Any, str]]:
    """The resolved inputs of a command with their origins, for the JSON document."""
    skipped = {"as_json", "explain", "chart", "offline"}
    where = origins(ctx)
    found = {k: (v, where[k]) for k, v in ctx.params.items() if k not in skipped and v is not None}
    deployment, origin = ctx.meta.get("deployment", (None, None))
    if deployment is not None:
        found["engine"] = (str(deployment.engine), origin or where.get("engine", "default"))
        found["flags"] = (dict(deployment.flags), origin or "flag")
    if deployment is not None and deployment.gpu is not None:
        found["gpu"] = (deployment.gpu, "flag")
    if model is not None:
        found["model"] = (
            {"name": model.name, "model_type": model.model_type, "source": model.source},
            "config" if model.source.origin in ("path", "dict", "gguf") else model.source.origin,
        )
    return found


def warn(warnings: tuple[str, ...]) -> None:
    """Warnings go to standard error, one line each."""
    for line in warnings:
        click.echo(f"note: {line}", err=True)
