"""Collector: turns the lines of one log into figures, flags and a verdict which engine it is."""

from __future__ import annotations

import re
from typing import Any

from kvproof.engine.common_flags import CALLED
from kvproof.errors import InputError
from kvproof.observe.dates import span, wording
from kvproof.observe.figures import BARE, Figure, Log, Unit
from kvproof.observe.flags import read_flags, spoken_flags
from kvproof.observe.formats import ROUNDED
from kvproof.observe.rows import Compiled, number, size
from kvproof.observe.served import runner_flags
from kvproof.observe.start import AHEAD, AHEAD_SOURCE, ARGUMENTS, RUNNER, Start, chosen
from kvproof.observe.watch import Arguments, Described, Program, Runner, Spoken, Thing, things_in

_WINDOW = 2048
_MOST_TRIES = 20_000
_MOST_FIGURES = 20_000
_MOST_PROBLEMS = 50

_UNITS: dict[str, Unit] = {
    "kv_cache_tokens": "token", "max_concurrency_len": "token", "est_max_model_len": "token",
    "kv_needed_for_len": "token", "tokens_per_block": "token", "window_size": "token",
    "full_tokens": "token", "swa_tokens": "token", "cells": "token", "block_size": "token",
    "attention_block_size": "token", "requested_max_model_len": "token", "kv_slots": "token",
    "total_cells": "token", "num_blocks": "block", "cpu_blocks": "block", "host_blocks": "block",
    "mamba_blocks": "block", "blocks_per_sequence": "block", "mamba_slots": "sequence",
    "max_concurrency": "x", "kv_tensor_bytes": "B", "kv_bytes_per_token": "B/token",
    "observed_kv_bytes_per_token": "B/token", "padding_waste": "%", "mamba_page_padding": "%",
    "alloc_failed": "B",
}  # fmt: skip
_MOST_STARTS = 100
_BEGINS = ("vllm", "sglang")
"""Engines whose printed arguments begin a start; of the others a line with the version does."""
_SETTLES = ("llamacpp",)
"""Engines whose lines print what came of a command's flags, and so hold before them."""
_ABOUT_LINE = ("worker", "device", "dtype")
# vLLM's "(Worker_DP0_TP1_EP1 pid=7)", MPI's "[1,3]<stdout>", "[RANK 3]", SGLang's
# "[... DP0 TP1 EP1]"; a "TP8" in prose is a size and no worker's name.
_WORKER = re.compile(
    r"\bWorker_(\w{1,40}) pid=|pid=(\d{1,9})|\[(\d{1,4},\d{1,5})\]<std|\brank[ =:]{0,2}(\d{1,5})\b"
    r"|\b((?:[A-Z]{2,4}\d{1,4} ){0,3}TP\d{1,4}(?: [A-Z_]{2,9}\d{1,4}){0,2})(?=\])",
    re.IGNORECASE,
)
_DAY = re.compile(r"(?<!\d)20\d\d-[01]\d-[0-3]\d(?=[ T])")
_RENAMED = {"max_seq_len": "max_model_len", "model_tag": "model", "model_path": "model"}
_MODEL_KEYS = ("model", "model_path", "model_tag")


class Collector:
    """Fed with lines in order; `finish` gives the log."""

    def __init__(self) -> None:
        self._tries: dict[Compiled, int] = {}
        self._starts = [Start()]
        self._now = self._starts[-1]
        self._ahead: Start | None = None
        self._votes: dict[str, int] = {}
        self._begun: dict[str, int] = {}
        self._part = 0
        self._last: tuple[tuple[int, int], set[tuple[str, str, Any]]] = ((0, 0), set())
        self.lines = self._dropped = 0

    def line(self, index: int, raw: bytes, words: list[bytes], part: int = 0) -> bool:
        """Take one line, whose words are given, or a part of it; whether it held anything."""
        self._part = part
        things = things_in(raw.lower(), words)
        if not things:
            return False
        text, held = raw[:_WINDOW].decode("utf-8", "replace"), False
        for thing in sorted(things, key=_order):
            if isinstance(thing, Compiled):
                held |= self._search(thing, index, text)
            elif isinstance(thing, Program):
                self._vote(thing.name, thing.weight)
            elif isinstance(thing, Arguments):
                held |= self._arguments(thing, raw, index)
            elif isinstance(thing, Spoken):
                held |= self._command(thing, text)
            elif isinstance(thing, Described):
                held |= self._now.metadata.add(text)
            elif isinstance(thing, Runner):
                held |= self._runner(text[text.lower().index(thing.literal) :], index)
            else:
                held |= self._problem(text, index)
        return held

    def _begin(self, engine: str, kind: str, line: int, *, other: bool = False) -> None:
        """A line that starts print first: what was kept so far was another's, if that had ended.

        A server's own arguments always begin one, and a runner of its. Of other lines only the kind
        that began the start does, as engines of one server print theirs one after the other, unless
        they say that they are of an `other` or lines that come before them were met.
        """
        alone = kind in (ARGUMENTS, RUNNER) or self._now.kind in ("", RUNNER, kind)
        if self._now.over and (alone or other or self._ahead is not None):
            if len(self._starts) >= _MOST_STARTS:
                self._starts.pop(0)
            before, self._now = self._now, self._ahead or Start(line)
            self._ahead = None
            if kind == RUNNER:
                self._now.keep_settings(before)
            self._starts.append(self._now)
        elif self._now.kind:
            return
        self._now.kind = kind
        self._begun[engine] = self._begun.get(engine, 0) + 1

    def _place(self, row: Compiled, line: int) -> Start:
        """The start that a line of `row` belongs to: of one that has ended, the next."""
        ahead = row.row.literal in AHEAD or row.row.source == AHEAD_SOURCE
        if not self._now.over or not ahead:
            return self._now
        self._ahead = self._ahead or Start(line)
        return self._ahead

    def _vote(self, program: str, weight: int) -> None:
        self._votes[program] = self._votes.get(program, 0) + weight

    def _search(self, row: Compiled, index: int, text: str) -> bool:
        tries = self._tries[row] = self._tries.get(row, 0) + 1
        self._dropped += tries > _MOST_TRIES
        match = row.regex.search(text) if tries <= _MOST_TRIES else None
        if match is None:
            return False
        self._vote(row.engine, len(row.slots) if row.row.source == "quoted" else 5)
        if row.row.source != "quoted":
            if any(name == "version" for name, _ in row.slots):
                self._begin(row.engine, row.row.literal, index)
            words = wording(row.row.versions, match[0][:60])
            day = _DAY.search(text, 0, match.start())
            if day is not None:
                self._place(row, index).days.setdefault(row.engine, day[0])
            self._place(row, index).rows.setdefault(
                (row.engine, row.row.source, row.row.versions), words
            )
        pairs = list(zip(row.slots, match.groups(), strict=True))
        about = {n: v for (n, _), v in pairs if n in _ABOUT_LINE and v}
        about.setdefault("worker", _worker(text[: match.start()]))
        for (name, kind), value in pairs:
            if value is not None and name not in _ABOUT_LINE:
                self._take(row, name, kind, value, index, about)
        return True

    def _take(
        self, row: Compiled, name: str, kind: str, text: str, index: int, about: dict[str, Any]
    ) -> None:
        start = self._place(row, index)
        if name in ("version", "model", "gpu"):
            if row.row.source != "quoted":
                start.facts[row.engine, name] = text.strip()
            start.facts.setdefault((row.engine, name), text.strip())
            if name == "gpu" and about.get("device"):
                named = start.gpus.setdefault((row.engine, row.row.literal), {})
                named[about["device"]] = text.strip()
            return
        if name.startswith("flag."):
            value: Any = number(text) if kind in ("int", "num") else text.strip()
            start.flags_of(row.engine).setdefault(name[5:], value)
            return
        if len(start.found) >= _MOST_FIGURES:
            self._dropped += 1
            return
        key = (row.engine, name, about.get("device"))
        place = (index, self._part)
        if place != self._last[0]:
            self._last = (place, set())
        if key in self._last[1]:
            return
        self._last[1].add(key)
        start.keep(row.engine, _figure(row.engine, name, kind, text, index, about))

    def _arguments(self, place: Arguments, raw: bytes, index: int) -> bool:
        match = place.start.search(raw.decode("utf-8", "replace"))
        if match is None:
            return False
        self._vote(place.engine, 20)
        read = read_flags(match[1])
        cut = index if place.cut(match[1]) else 0
        said = {key: read[key] for key in place.keys & read.keys()} if place.keys else {}
        if place.engine in _BEGINS:
            kind = place.engine if place.keys else ARGUMENTS
            self._begin(place.engine, kind, index, other=bool(said) and self._now.differs(said))
            self._now.said = said or self._now.said
        self._now.cut = cut or self._now.cut
        for key in _MODEL_KEYS:
            if isinstance(read.get(key), str):
                self._now.facts[place.engine, "model"] = read[key]
        own, names = self._now.flags_of(place.engine), {**_RENAMED, **dict(place.renamed)}
        for key, value in read.items():
            name = names.get(key, key)
            if place.keys is None:
                own[name] = value
            elif key in place.keys:
                own.setdefault(name, value)
        own.update(place.adds)
        return True

    def _command(self, place: Spoken, text: str) -> bool:
        """Flags of a printed command line, where the engine does not print its own."""
        words = text[text.lower().index(place.literal) + len(place.literal) :]
        model, flags = spoken_flags(place.engine, words, place.program)
        if model and (flags or "/" in model):  # else words about a server, not its command
            self._now.facts.setdefault((place.engine, "model"), model)
        if not flags:
            return False
        own = self._now.flags_of(place.engine)
        if place.engine in _SETTLES:
            own = self._now.asked.setdefault(place.engine, {})
        for name, value in flags.items():
            own.setdefault(name, value)
        self._vote(place.engine, 10)
        return True

    def _runner(self, words: str, index: int) -> bool:
        """Ollama's words to its runner; what a runner before it was told no longer holds."""
        self._vote("Ollama", 20)
        self._begin("llamacpp", RUNNER, index)
        self._now.flags_of("llamacpp").update(runner_flags(words))
        return True

    def _problem(self, text: str, index: int) -> bool:
        short, problems = text.strip(), self._now.problems
        if len(problems) < _MOST_PROBLEMS or short in problems:
            problems[short] = index
        self._now.over |= bool(self._now.found)
        return True

    def finish(self, name: str) -> Log:
        """The log; InputError when no line was an engine's."""
        engine, program = self._verdict()
        start = chosen(self._starts, engine)
        figures = start.figures(engine)
        flags = {**start.asked.get(engine, {}), **start.flags.get(engine, {})}
        if not self.lines:
            raise InputError(f"{name} is empty", hint="give the engine's output from its start on")
        if not figures and not flags:
            raise InputError(
                f"{name} holds no start-up line of vLLM, SGLang, TensorRT-LLM, llama.cpp or Ollama "
                f"in {self.lines:,} line{'' if self.lines == 1 else 's'}",
                hint="give the engine's output from its start on",
            )
        model = flags.pop("model", None)
        return Log(
            engine=engine,
            program=program,
            version=self._fact(start, engine, "version"),
            model=start.facts.get((engine, "model")) or model or self._fact(start, engine, "model"),
            gpu=self._fact(start, engine, "gpu"),
            gpus=self._devices(start, engine),
            flags=flags,
            figures=figures,
            problems=start.standing(engine),
            lines=self.lines,
            dropped=self._dropped,
            wording=span(w for (own, *_), w in start.rows.items() if own == engine),
            modules=frozenset(source for own, source, _ in start.rows if own == engine),
            notes=self._notes(start, engine),
            day=start.days.get(engine),
            metadata=start.metadata.described() if engine == "llamacpp" else None,
        )

    def _fact(self, start: Start, engine: str, name: str) -> str | None:
        """What the start says, else an earlier one of the same log."""
        upto = self._starts[: self._starts.index(start) + 1]
        found = (row.facts.get((engine, name)) for row in reversed(upto))
        return next((value for value in found if value), None)

    def _devices(self, start: Start, engine: str) -> tuple[tuple[str, str], ...]:
        """The GPUs that the start names, else an earlier one of the same log."""
        upto = self._starts[: self._starts.index(start) + 1]
        return next((found for row in reversed(upto) if (found := row.devices(engine))), ())

    def _notes(self, start: Start, engine: str) -> tuple[str, ...]:
        """What of the log is not read: other starts, other engines."""
        out = []
        count = self._begun.get(engine, 0)
        if count > 1:
            where = max(start.line, 1)
            out.append(f"the log holds {count:,} starts: the one from line {where:,} on is read")
        if start.cut:
            out.append(
                f"line {start.cut:,} ends before its arguments do: what stood after is not known"
            )
        also = {
            own
            for row in self._starts
            for own, source, _ in row.rows
            if own != engine and source != "torch"  # which runs under several engines
        }
        if also:
            names = ", ".join(CALLED[own] for own in ROUNDED if own in also)
            out.append(f"lines of {names} are in the log too: those of {CALLED[engine]} are read")
        out += [
            f"line {figure.line:,} prints {figure.text} for the cache: less than nothing is left, "
            "so the start ends there"
            for own, figure in start.found
            if own == engine and figure.name == "available_kv_memory" and figure.value < 0
        ]
        return tuple(out)

    def _verdict(self) -> tuple[str, str]:
        """The engine with most evidence of those that printed anything; rows weigh most."""
        scores = dict(self._votes)
        for program in ("Ollama", "LM Studio"):
            scores["llamacpp"] = scores.get("llamacpp", 0) + scores.get(program, 0)
        printed = {own for row in self._starts for own in (*(e for e, _ in row.found), *row.flags)}
        engines = [e for e in ROUNDED if e in printed] or list(ROUNDED)
        engine = max(engines, key=lambda e: scores.get(e, 0))
        if self._torch_alone(scores):
            return engine, BARE
        if engine != "llamacpp":
            return engine, CALLED[engine]
        programs = [p for p in ("LM Studio", "Ollama") if p in scores]
        ollama = any(
            f.name in ("estimate_full", "total_used") for row in self._starts for _, f in row.found
        )
        return engine, programs[0] if programs else "Ollama" if ollama else CALLED[engine]

    def _torch_alone(self, scores: dict[str, int]) -> bool:
        """Whether PyTorch's lines are all there is, which no engine alone prints."""
        sources = {source for row in self._starts for _, source, _ in row.rows}
        flags = any(given for row in self._starts for given in row.flags.values())
        return sources == {"torch"} and not flags and len(set(scores.values()) - {0}) == 1


def _order(thing: Thing) -> bool:
    """Rows before shortened forms of the same line, so that the exact one counts."""
    return isinstance(thing, Compiled) and thing.row.source == "quoted"


def _worker(prefix: str) -> str | None:
    match = _WORKER.search(prefix[-200:])
    return next((g for g in match.groups() if g), None) if match else None


def _figure(
    engine: str, name: str, kind: str, text: str, index: int, about: dict[str, Any]
) -> Figure:
    if kind in ("size", "bytes", "gib", "mib", "mb"):
        value, step = size(text, kind, ROUNDED[engine])
        unit: Unit = "B"
    else:
        value, step = number(text), 1.0  # type: ignore[assignment]
        unit = _UNITS.get(name, "1")
        if "." in text:
            step = 10.0 ** -len(text.partition(".")[2])
    return Figure(name=name, value=value, unit=unit, step=step, text=text, line=index, **about)
