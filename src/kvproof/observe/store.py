"""The local store: what start-ups were observed to take, and the overheads fitted from it.

One SQLite file (`$KVPROOF_STORE`, else kvproof/observed.sqlite in the XDG data folder). A record
keeps the terms that a log printed beside those predicted, never the log itself. `overheads` fits
the difference that is left for the cache, for an engine on a GPU.
"""

from __future__ import annotations

import json
import sqlite3
import statistics
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from kvproof.engine.overheads import OUTSIDE, Overheads
from kvproof.errors import InputError, KvproofError
from kvproof.hardware import accelerator
from kvproof.observe.place import default_path
from kvproof.observe.shared import (
    FLOOR,
    HOST,
    WEIGHTS_DOUBT,
    Part,
    Seen,
    Shares,
    base_of,
    era_of,
    measured,
    shared,
)
from kvproof.terms import Term
from kvproof.units import GIB

_SCHEMA = """
create table if not exists starts (
    id integer primary key,
    engine text not null, version text not null, gpu text not null, ranks integer not null,
    model text not null, flags text not null,
    predicted integer not null, printed integer not null, half integer not null,
    weights integer not null, terms text not null,
    since text not null default '', until text not null default '',
    unique (engine, version, gpu, ranks, model, flags, printed)
)
"""
# Printed terms that are the model's own, and the estimated ones they stand for.
_MODELS_OWN = {
    "peak_activation": ("activations", "experts' workspace", "encoder profiling",
                        "sparse attention's workspace"),
    "cuda_graph_estimated": ("CUDA graphs",),
}  # fmt: skip
_PRINTED_WEIGHTS = ("weights", "draft model")
"""Terms that the printed weights cover."""
_COLUMNS = ("engine", "version", "gpu", "ranks", "model", "flags", "predicted", "printed", "half",
            "weights", "terms", "since", "until")  # fmt: skip
_LATER = ("since", "until")
"""Columns that a store of an earlier kvproof lacks."""
_LONGEST_LINE, _MOST_LINES = 1_000_000, 1_000_000
_ENOUGH = 3
"""Starts from which their spread says something."""
ESTIMATED, DOUBT = "estimated ", "doubt of "
"""Before the names of estimated terms and of their doubts, among the terms printed."""
_USUAL_DOUBT = 0.25
"""Share of an estimate that is in doubt, for starts kept before doubts were."""
# Flags that name a place or a person's model, not a setting of memory.
_PRIVATE = ("host", "port", "api_key", "served_model_name", "tokenizer", "download_dir", "model")


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """One observed start: the cache's memory predicted and printed, and the printed terms.

    `half` is the half width of the predicted interval, `weights` the predicted weights, a draft's
    with them. `terms` holds the terms estimated, too, under names that begin with `ESTIMATED`, and
    by how much they may be off under names that begin with `DOUBT`. A start whose log names no
    version has the releases that its wording allows: `since` and `until`, empty if open.
    """

    engine: str
    version: str
    gpu: str
    ranks: int
    model: str
    flags: Mapping[str, Any]
    predicted: int
    printed: int
    half: int = 0
    weights: int = 0
    terms: Mapping[str, float] = {}
    since: str = ""
    until: str = ""

    @property
    def gap(self) -> int:
        """Printed less predicted bytes of the cache, on one GPU."""
        return self.printed - self.predicted

    @property
    def estimated(self) -> dict[str, float]:
        """The estimated terms, in bytes."""
        return {
            name: value
            for key, value in self.terms.items()
            if key.startswith(ESTIMATED) and (name := key.removeprefix(ESTIMATED)) not in OUTSIDE
        }

    def doubt(self, name: str) -> float:
        """By how many bytes the estimated term `name` may be off."""
        return self.terms.get(DOUBT + name, _USUAL_DOUBT * self.terms.get(ESTIMATED + name, 0.0))

    @property
    def unnamed(self) -> float:
        """Bytes that terms which were not printed alone take beyond their estimates."""
        return -self.gap - sum(more for _, more in _printed(self))

    @property
    def sums_graphs(self) -> bool:
        """Whether the printed peak has the estimate of graphs in it, which is not printed apart."""
        return "consumed" in self.terms and "cuda_graph_estimated" not in self.terms

    @property
    def outside(self) -> bool:
        """Whether more or less is taken than the interval allows: by something not named."""
        return 0 < self.half < abs(self.unnamed)

    @property
    def strangeness(self) -> str:
        """What is said of a start that lies outside."""
        more = "more" if self.unnamed > 0 else "less"
        return (
            f"it takes {abs(self.unnamed) / GIB:.2f} GiB {more} than the terms that are estimated, "
            f"beyond their {self.half / GIB:.2f} GiB of doubt: something that the log does not "
            "name (another process, an option, a build); only starts of this model under this "
            "very release are moved by it"
        )


def _printed(start: Start) -> list[tuple[tuple[str, ...], float]]:
    """Terms that the log prints alone, and the bytes that they take beyond their estimates."""
    found: list[tuple[tuple[str, ...], float]] = []
    weights = start.terms.get("weights")
    if weights and start.weights:
        found.append((_PRINTED_WEIGHTS, weights - start.weights))
    for name, parts in _MODELS_OWN.items():
        if name in start.terms:
            if name == "peak_activation" and start.sums_graphs:
                parts = (*parts, *_MODELS_OWN["cuda_graph_estimated"])
            estimate = sum(start.terms.get(ESTIMATED + part, 0.0) for part in parts)
            found.append((parts, start.terms[name] - estimate))
    return found


@contextmanager
def _opened(path: Path | None, *, write: bool) -> Iterator[sqlite3.Connection | None]:
    place = path or default_path()
    if not write and not place.is_file():
        yield None
        return
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        base = sqlite3.connect(place)
    except (OSError, sqlite3.Error) as error:
        raise InputError(f"can't open the store {place}: {error}") from None
    try:
        base.execute(_SCHEMA)
        _extend(base)
        yield base
        base.commit()
    except sqlite3.Error as error:
        raise InputError(
            f"the store {place} can't be used: {error}",
            hint="move it away, set KVPROOF_STORE, or add --fresh to do without",
        ) from None
    finally:
        base.close()


def _extend(base: sqlite3.Connection) -> None:
    """Add the columns that an earlier kvproof did not know."""
    known = {row[1] for row in base.execute("pragma table_info(starts)")}
    for name in _LATER:
        if name not in known:
            base.execute(f"alter table starts add column {name} text not null default ''")


def remember(starts: Iterable[Start], path: Path | None = None) -> int:
    """Keep the starts; those that are kept already are left alone. How many were new."""
    rows = [
        (s.engine, s.version, s.gpu, s.ranks, s.model, _json(_public(s.flags)), s.predicted,
         s.printed, s.half, s.weights, _json(s.terms), s.since, s.until)
        for s in starts
    ]  # fmt: skip
    marks = ", ".join("?" * len(_COLUMNS))
    with _opened(path, write=True) as base:
        assert base is not None  # noqa: S101 - opened for writing
        before = base.total_changes
        base.executemany(
            f"insert or ignore into starts ({', '.join(_COLUMNS)}) values ({marks})",
            rows,
        )
        return base.total_changes - before


def recall(
    engine: str | None = None, gpu: str | None = None, path: Path | None = None
) -> tuple[Start, ...]:
    """The starts kept, of one engine and GPU if named, oldest first."""
    with _opened(path, write=False) as base:
        if base is None:
            return ()
        rows = base.execute(
            f"select {', '.join(_COLUMNS)} from starts "
            "where (?1 is null or engine = ?1) and (?2 is null or gpu = ?2) order by id",
            (engine, gpu),
        ).fetchall()
    fields = (dict(zip(_COLUMNS, row, strict=True)) for row in rows)
    return tuple(
        Start(**{**f, "flags": json.loads(f["flags"]), "terms": json.loads(f["terms"])})
        for f in fields
    )


def overheads(
    engine: str,
    gpu: str,
    model: str | None = None,
    path: Path | None = None,
    release: str | None = None,
) -> Overheads | None:
    """What was learned of `engine` on `gpu`, for `model` under `release`; None if nothing was."""
    return fit(recall(engine, gpu, path), model, release)


def fit(
    starts: Iterable[Start],
    model: str | None = None,
    release: str | None = None,
    shares: Shares | None = None,
) -> Overheads | None:
    """The overheads of starts of one engine on one GPU, for `model` under `release`.

    What starts are expected to share with any other and with those of their own deployment:
    `kvproof.observe.shared`.
    """
    kept = list(starts)
    if not kept:
        return None
    found = shared([seen_of(s) for s in distinct(kept)], model, release, shares or measured())
    return Overheads(
        engine=kept[0].engine,
        gpu=kept[0].gpu,
        starts=len(kept),
        models=len({start.model for start in kept}),
        kv_bytes=round(-found.constant * GIB),
        spread=_spread([s for s in kept if s.model == model and _same_base(s, release)]),
        ratios={"weights": found.weights_ratio} if found.weights_ratio else {},
        shifts=found.shifts,
        own=found.own,
        unnamed=FLOOR,
    )


def adjusted_kv(start: Start, overheads: Overheads) -> float:
    """The memory predicted for `start` under what was learned of others."""
    estimated = [
        Term(name=name, value=value, unit="B", formula="", source="", low=0,
             high=value + start.doubt(name))
        for name, value in start.estimated.items()
    ]  # fmt: skip
    weights = Term(name="weights", value=start.weights, unit="B", formula="", source="")
    return start.predicted + overheads.moved([weights, *estimated])


def _same_base(start: Start, release: str | None) -> bool:
    return not start.version or not release or base_of(start.version) == base_of(release)


def _spread(starts: list[Start]) -> int | None:
    """Half the width that starts of one model and release leave; None for fewer than three."""
    gaps = [start.gap for start in starts]
    if len(gaps) < _ENOUGH:
        return None
    middle = statistics.median(gaps)
    return int(max(abs(gap - middle) for gap in gaps) * 1.5)


def _era(start: Start) -> str | None:
    """The era of a start; None where its wording allows several."""
    if start.version:
        return era_of(start.version)
    first = era_of(start.since or "0")
    return first if first == era_of(start.until or None) else None


def distinct(starts: list[Start]) -> list[Start]:
    """One start of each model, release and flags: the middle one."""
    groups: dict[str, list[Start]] = {}
    for start in starts:
        groups.setdefault(_json([start.model, start.version, start.flags]), []).append(start)
    return [sorted(own, key=lambda s: s.gap)[len(own) // 2] for own in groups.values()]


def seen_of(start: Start) -> Seen:
    """A start as the rule of what starts share sees it."""
    estimated = start.estimated
    doubts = {name: start.doubt(name) / GIB for name in estimated}
    doubts |= {HOST: FLOOR / GIB, "weights": WEIGHTS_DOUBT * start.weights / GIB}
    printed = _printed(start)
    alone = {name for names, _ in printed for name in names}
    weights = start.terms.get("weights")
    return Seen(
        model=start.model,
        release=start.version,
        era=_era(start),
        total=Part(terms=tuple(n for n in doubts if n not in alone), more=start.unnamed / GIB),
        half=start.half / GIB,
        weights_ratio=weights / start.weights - 1 if weights and start.weights else None,
        terms={name: value / GIB for name, value in estimated.items()},
        doubts=doubts,
        parts=tuple(
            Part(terms=names, more=more / GIB)
            for names, more in printed
            if any(doubts.get(name) for name in names) and "weights" not in names
        ),
    )


def export_lines(path: Path | None = None) -> Iterator[str]:
    """The whole store as JSON lines, without line breaks."""
    for start in recall(path=path):
        yield _json(msgspec.structs.asdict(start))


def import_lines(lines: Iterable[str], path: Path | None = None) -> int:
    """Keep the starts of JSON lines; how many were new. InputError for a bad line, by number."""
    return remember(list(_parsed(lines)), path)


def _parsed(lines: Iterable[str]) -> Iterator[Start]:
    for number, line in enumerate(lines, 1):
        if number > _MOST_LINES or len(line) > _LONGEST_LINE:
            raise InputError("too much to import at once", hint="split the file")
        if not line.strip():
            continue
        if not line.isprintable() and any("\ud800" <= sign <= "\udfff" for sign in line):
            raise InputError(f"line {number} is no UTF-8 text", hint="export it again")
        try:
            start = msgspec.json.decode(line, type=Start)
        except (msgspec.DecodeError, RecursionError) as error:
            raise InputError(f"line {number} is no observed start: {error}") from None
        if not start.engine or not start.gpu or start.printed <= 0:
            raise InputError(f"line {number} is no observed start: it lacks engine, GPU or memory")
        if (room := _memory_of(start.gpu)) is not None and max(start.printed, start.weights) > room:
            raise InputError(
                f"line {number} is no observed start: {start.printed:,} B of cache and "
                f"{start.weights:,} B of weights are not on one {start.gpu[:40]}",
                hint="leave the line out",
            )
        yield start


def _memory_of(gpu: str) -> int | None:
    """The most that one GPU of this name holds; None for one that is not in the table."""
    try:
        found = accelerator(gpu)
    except KvproofError:
        return None
    return max(found.memory_bytes, found.nominal_memory_bytes)


def _public(flags: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in sorted(flags.items()) if k not in _PRIVATE and "key" not in k}


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
