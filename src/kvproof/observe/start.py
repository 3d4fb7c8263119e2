"""Start: what one start of an engine printed, apart from those before and after it in a log."""

from __future__ import annotations

from typing import Any

from kvproof.observe.dates import Wording
from kvproof.observe.figures import Figure
from kvproof.observe.metadata import Dump

SIZED = ("kv_cache_tokens", "num_blocks", "compute_buffer")
"""Figures that are printed once the cache has its size."""


IN_USE = "using device"
"""The kind of line that names the GPUs which a model is loaded on."""
ARGUMENTS = "arguments"
"""The kind of line that a server prints once, whatever else it starts."""

RUNNER = "runner"
"""The kind of line with which an Ollama server starts a runner, for each model it loads."""
AHEAD = ("max model len", "chunked prefill is enabled", "chunked prefill tokens")
"""Rows that vLLM's configuration and Unsloth print before a start's first line: behind a cache that
has its size they are the next start's."""
AHEAD_SOURCE = "ollama: llm/memory.go"
"""What prints Ollama's estimate, before it starts the runner that is estimated."""


class Start:
    """Filled by the collector, line by line.

    `line` is where it begins, `kind` the line it began with, `said` what an engine's own line said
    last, `over` whether the cache was sized or something failed, `cut` the line of arguments that
    ends before they do, `days` when an engine's first line was printed, `asked` the flags of a
    command whose server prints what came of them.
    """

    def __init__(self, line: int = 0) -> None:
        self.line = line
        self.found: list[tuple[str, Figure]] = []
        self.facts: dict[tuple[str, str], str] = {}
        self.flags: dict[str, dict[str, Any]] = {}
        self.asked: dict[str, dict[str, Any]] = {}
        self.metadata = Dump()
        self.gpus: dict[tuple[str, str], dict[str, str]] = {}
        self.problems: dict[str, int] = {}
        self.rows: dict[tuple[str, str, str], Wording] = {}
        self.said: dict[str, Any] = {}
        self.over = False
        self.cut = 0
        self.kind = ""
        self.days: dict[str, str] = {}

    def flags_of(self, engine: str) -> dict[str, Any]:
        """The flags of `engine`, to be read and added to."""
        return self.flags.setdefault(engine, {})

    def differs(self, said: dict[str, Any]) -> bool:
        """Whether an engine's own line says another than the last one did."""
        return bool(self.said) and self.said != said

    def keep_settings(self, before: Start) -> None:
        """The server's settings hold for each of its runners, and no other flags do."""
        for engine, flags in before.flags.items():
            own = self.flags_of(engine)
            for name, value in flags.items():
                if name.startswith("ollama_"):
                    own.setdefault(name, value)

    def devices(self, engine: str) -> tuple[tuple[str, str], ...]:
        """The GPUs that lines of one kind name one by one: those in use before those there are."""
        kinds = {kind: found for (own, kind), found in self.gpus.items() if own == engine}
        if not kinds:
            return ()
        return tuple(kinds.get(IN_USE, next(iter(kinds.values()))).items())

    def keep(self, engine: str, figure: Figure) -> None:
        """Add a figure; one that sizes the cache ends the start, whatever else it prints."""
        self.found.append((engine, figure))
        self.over |= figure.name in SIZED

    def figures(self, engine: str) -> tuple[Figure, ...]:
        """The figures that are `engine`'s."""
        return tuple(figure for own, figure in self.found if own == engine)

    def says(self, engine: str) -> bool:
        """Whether anything of `engine` is in it, or why it failed."""
        return bool(self.problems) or any(own == engine for own, _ in self.found)

    def standing(self, engine: str) -> tuple[str, ...]:
        """The problems that no later sizing overcame: a retry of the same start."""
        sized = max((f.line for f in self.figures(engine) if f.name in SIZED), default=0)
        return tuple(text for text, line in self.problems.items() if line >= sized)


def chosen(starts: list[Start], engine: str) -> Start:
    """The last start that says anything of `engine`."""
    return next((start for start in reversed(starts) if start.says(engine)), starts[-1])
