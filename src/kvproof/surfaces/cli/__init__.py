"""The command line: one thin command per question, each in its own module, imported when run."""

from __future__ import annotations

import errno
import os
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module

import click

from kvproof import __version__
from kvproof.errors import KvproofError, UsageError
from kvproof.surfaces.document import HEARD

# name -> (module, one line of help): known without importing any of them.
COMMANDS = {
    "plan": ("plan", "How many users fit, how fast, and why (the default command)."),
    "cache": ("cache", "What a model caches: bytes per token, per sequence, per layer."),
    "compare": ("compare", "Several models, deployments or attention designs side by side."),
    "capacity": ("capacity", "What a given amount of cache memory holds under an engine."),
    "check": ("check", "Read an engine's start-up log and say which assumption is off."),
    "probe": ("probe", "Ask a running server what it holds, against what is predicted."),
    "models": ("lists", "The bundled catalogue of models."),
    "gpus": ("lists", "The table of GPUs and other accelerators."),
    "lab": ("lab", "Run a real KV cache and measure what each mechanism costs."),
}


class _Commands(click.Group):
    """Commands by name; a first word that is none of them is a model to plan."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        try:
            module = import_module(f"kvproof.surfaces.cli.{COMMANDS[cmd_name][0]}")
        except ModuleNotFoundError as error:
            if error.name and error.name.startswith("kvproof."):
                return None
            raise
        command: click.Command = getattr(module, cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS:
            if len(args) == 1 and "/" not in args[0] and not os.path.exists(args[0]):
                self._refuse(args[0])
            return "plan", self.get_command(ctx, "plan"), args
        return super().resolve_command(ctx, args)

    def _refuse(self, word: str) -> None:
        """A single word that is neither a command nor a model gets an answer of its own."""
        from kvproof.model.catalog import find, no_such_model

        if find(word) is None:
            near = no_such_model(word)
            hint = f"commands: {', '.join(COMMANDS)}; {getattr(near, 'hint', '')}"
            raise UsageError(f"{word[:40]!r} is neither a command nor a known model", hint=hint)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    invoke_without_command=True,
    epilog="kvproof MODEL --gpu GPU is short for kvproof plan MODEL --gpu GPU.",
)
@click.version_option(__version__, "-V", "--version", message="kvproof %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """KV-cache arithmetic that equals the engine's own numbers.

    \b
    kvproof meta-llama/Llama-3.1-8B --gpu H100-80GB
    kvproof cache path/to/config.json --contexts 4k..128k
    kvproof compare MODEL MODEL --gpu H100-80GB,L40S
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point: runs a command and turns every outcome into an exit status."""
    args = list(sys.argv[1:] if argv is None else argv)
    sys.exit(_run([*args[1:], "--help"] if args[:1] == ["help"] else args))


def _run(args: list[str]) -> int:
    from kvproof.surfaces.terminal import prepare_streams
    from kvproof.surfaces.text import colour_wanted

    prepare_streams()
    warnings.showwarning = _note
    try:
        status = cli.main(args, prog_name="kvproof", standalone_mode=False, color=colour_wanted())
        if sys.stdout is not None:
            sys.stdout.flush()
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        return _report(*_usage(error), 2, args)
    except click.Abort:
        return 130
    except KvproofError as error:
        return _report(error.message, error.hint, error.exit_status, args)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EIO):
            return _fault(error, args)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _report("can't write the answer", str(error.strerror), 2, args)
    except Exception as error:
        return _fault(error, args)
    return status if isinstance(status, int) else 0


def _usage(error: click.ClickException) -> tuple[str, str | None]:
    """What is wrong with the words of a command, and where its help is."""
    said = error.format_message().rstrip(".")
    ctx = getattr(error, "ctx", None)
    hint = f"see {ctx.command_path} --help" if ctx is not None else None
    return said[:1].lower() + said[1:], hint


def _note(message: Warning | str, *_: object, **__: object) -> None:
    """A warning of the library as one line, kept for the JSON document too."""
    context = click.get_current_context(silent=True)
    heard = [] if context is None else context.meta.setdefault(HEARD, [])
    if str(message) in heard:
        return
    heard.append(str(message))
    click.echo(f"note: {message}", err=True)


def _report(message: str, hint: str | None, status: int, args: list[str]) -> int:
    if "--json" in args:
        from kvproof.surfaces.document import error_document

        click.echo(error_document(message, hint, status, _command_of(args)), err=True)
    else:
        click.echo(f"kvproof: {message}" + (f"; {hint}" if hint else ""), err=True)
    return status


def _command_of(args: list[str]) -> str:
    """The command that the arguments name: `plan` where they begin with a model."""
    named = [word for word in args if not word.startswith("-")]
    if named[:1] == ["lab"]:
        return " ".join(named[:2])
    return named[0] if named and named[0] in COMMANDS else "plan"


def _fault(error: Exception, args: list[str]) -> int:
    """An unexpected exception: one line, where it happened, and no values of variables."""
    if os.environ.get("KVPROOF_DEBUG"):
        raise error
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = (
        f"{os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}" if trace else "?"
    )
    text = f"a fault of kvproof: {type(error).__name__} at {place}"
    return _report(text, "please report it; KVPROOF_DEBUG=1 shows the trace", 101, args)
