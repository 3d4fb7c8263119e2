"""Figure and Log: what an engine printed, each value with its line and its precision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from kvproof.observe.dates import Span

Unit = Literal["B", "token", "block", "layer", "sequence", "x", "%", "B/token", "s", "1"]


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One printed figure in base units: sizes in bytes, counts whole.

    `step` is the distance between two values that print alike: the true value lies within
    half of it. `text` is what stood in the log, `line` its number from 1. `worker` names the
    process or rank that printed it and `device` the buffer's device, where the line says so.
    """

    name: str
    value: int | float
    unit: Unit
    step: float
    text: str
    line: int
    worker: str | None = None
    device: str | None = None
    dtype: str | None = None

    @property
    def low(self) -> float:
        """The smallest value that prints like this."""
        return self.value - self.step / 2

    @property
    def high(self) -> float:
        """The largest value that prints like this."""
        return self.value + self.step / 2

    @property
    def gib(self) -> float:
        """The size in GiB."""
        return self.value / 2**30


BARE = "PyTorch"
"""The program of a log that holds PyTorch's own lines and no engine's."""


class Log(msgspec.Struct, frozen=True, kw_only=True):
    """What a start-up log says: the engine, its version and flags, and every figure.

    `engine` is one of kvproof's engine names; `program` how the software calls itself when that
    differs (Ollama and LM Studio run llama.cpp). `flags` are in the engine's snake_case. `lines`
    counts the lines read; `problems` are error lines that say the model does not fit. `wording`:
    the releases that print such lines, `modules` the engine's modules that do. `notes` say what
    of the text was left aside. `gpus` are the devices by the names that the log has for them, in
    its order, where it names them one by one; `gpu` is the last that it names. `day`: when the
    engine's lines were printed (2026-10-30), where they say so. `metadata`: those of the model's
    GGUF file, where the log prints them whole.
    """

    engine: str
    program: str
    version: str | None
    model: str | None
    gpu: str | None
    flags: Mapping[str, Any]
    figures: tuple[Figure, ...]
    problems: tuple[str, ...] = ()
    lines: int = 0
    dropped: int = 0
    wording: Span = Span()
    modules: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()
    gpus: tuple[tuple[str, str], ...] = ()
    day: str | None = None
    metadata: Mapping[str, Any] | None = None

    @property
    def on_cpu(self) -> bool:
        """Whether vLLM's CPU backend printed it: the cache lies in host memory."""
        return self.engine == "vllm" and str(self.flags.get("device", "")).lower() == "cpu"

    def all(self, name: str) -> tuple[Figure, ...]:
        """Every figure of that name, in the order printed."""
        return tuple(figure for figure in self.figures if figure.name == name)

    def get(self, name: str) -> Figure | None:
        """The figure that counts: the last printed (profiling passes print earlier ones)."""
        found = self.all(name)
        return found[-1] if found else None

    def value(self, name: str) -> int | float | None:
        """Its value in base units."""
        found = self.get(name)
        return None if found is None else found.value

    def smallest(self, name: str) -> Figure | None:
        """The smallest over the workers of the last start: the rank that decides."""
        latest: dict[str | None, Figure] = {f.worker: f for f in self.all(name)}
        return min(latest.values(), key=lambda f: f.value, default=None)

    @property
    def observed(self) -> dict[str, Any]:
        """The figures under flat names with their unit in the name, sizes as the engine prints."""
        from kvproof.observe.flat import flatten

        return flatten(self)
