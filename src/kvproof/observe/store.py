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

from kvproof.engine.overheads import Overheads
from kvproof.errors import InputError
from kvproof.observe.place import default_path
from kvproof.observe.shared import USED, Seen, Widths, era_of, shared
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
    "peak_activation": ("activations", "experts' workspace", "encoder profiling"),
    "cuda_graph_estimated": ("CUDA graphs",),
}
_COLUMNS = ("engine", "version", "gpu", "ranks", "model", "flags", "predicted", "printed", "half",
            "weights", "terms", "since", "until")  # fmt: skip
_LATER = ("since", "until")
"""Columns that a store of an earlier kvproof lacks."""
_LONGEST_LINE, _MOST_LINES = 1_000_000, 1_000_000
ESTIMATED = "estimated "
"""Before the names of terms that were estimated, among those printed."""
# Flags that name a place or a person's model, not a setting of memory.
_PRIVATE = ("host", "port", "api_key", "served_model_name", "tokenizer", "download_dir", "model")


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """One observed start: the cache's memory predicted and printed, and the printed terms.

    `half` is the half width of the predicted interval, `weights` the predicted weights. `terms`
    holds the terms estimated, too, under names that begin with `ESTIMATED`. A start whose log names
    no version has the releases that its wording allows: `since` and `until`, empty if open.
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
    def overhead_gap(self) -> int:
        """The gap without the part that lies in the weights, which are the model's own."""
        seen = self.terms.get("weights")
        if not seen or not self.weights:
            return self.gap
        return self.gap + round(seen) - self.weights


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
            f"the store {place} can't be used: {error}", hint="move it away or set KVPROOF_STORE"
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
    """What was learned of `engine` on `gpu`; None where nothing was.

    Starts of `model` itself count alone where there are any.
    """
    return fit(recall(engine, gpu, path), model, release)


def fit(
    starts: Iterable[Start],
    model: str | None = None,
    release: str | None = None,
    widths: Widths = USED,
) -> Overheads | None:
    """The overheads of starts of one engine on one GPU, for `model` or for any model.

    Of the same model, the median difference. Of others, what they are expected to share with any
    model (`kvproof.observe.shared`), for starts on `release`.
    """
    kept = list(starts)
    if not kept:
        return None
    own = _nearest([start for start in kept if start.model == model], release)
    spread: int | None = None
    ratios: Mapping[str, float] = {}
    if own:
        kept = own
        value, spread = _own(own)
    else:
        found = shared([_seen(start) for start in distinct(kept)], release, widths)
        value, ratios = -found.constant * GIB, found.ratios
    return Overheads(
        engine=kept[0].engine,
        gpu=kept[0].gpu,
        starts=len(kept),
        models=len({start.model for start in kept}),
        kv_bytes=round(value),
        spread=spread,
        ratios=ratios,
    )


def adjusted_kv(start: Start, overheads: Overheads) -> float:
    """The memory predicted for `start` under what was learned of others."""
    terms = {
        name.removeprefix(ESTIMATED): value
        for name, value in start.terms.items()
        if name.startswith(ESTIMATED)
    }
    terms["weights"] = start.weights
    more = sum(overheads.ratios.get(name, 0.0) * value for name, value in terms.items())
    return start.predicted + overheads.kv_bytes - more


def _nearest(starts: list[Start], release: str | None) -> list[Start]:
    """The starts of `release` itself where there are any, else of its era, else all."""
    era = era_of(release)
    same = [start for start in starts if release and start.version == release]
    return same or [start for start in starts if _era(start) == era] or starts


def _era(start: Start) -> str | None:
    """The era of a start; None where its wording allows several."""
    if start.version:
        return era_of(start.version)
    first = era_of(start.since or "0")
    return first if first == era_of(start.until or None) else None


def _own(starts: list[Start]) -> tuple[float, int | None]:
    gaps = [start.gap for start in starts]
    middle = statistics.median(gaps)
    spread = max(abs(gap - middle) for gap in gaps) * 1.5 if len(gaps) >= 3 else None
    return middle, None if spread is None else int(spread)


def distinct(starts: list[Start]) -> list[Start]:
    """One start of each model, release and flags: the middle one."""
    groups: dict[str, list[Start]] = {}
    for start in starts:
        groups.setdefault(_json([start.model, start.version, start.flags]), []).append(start)
    return [sorted(own, key=lambda s: s.gap)[len(own) // 2] for own in groups.values()]


def _seen(start: Start) -> Seen:
    own = sum(
        start.terms[name] - sum(start.terms.get(ESTIMATED + part, 0.0) for part in parts)
        for name, parts in _MODELS_OWN.items()
        if name in start.terms
    )
    settled = {part for name, parts in _MODELS_OWN.items() if name in start.terms for part in parts}
    printed = start.terms.get("weights")
    known = bool(printed and start.weights)
    return Seen(
        model=start.model,
        release=start.version,
        era=_era(start),
        more=-(start.overhead_gap + own) / GIB,
        weights=start.weights / GIB,
        weights_ratio=printed / start.weights - 1 if known and printed else None,
        terms={
            name.removeprefix(ESTIMATED): value / GIB
            for name, value in start.terms.items()
            if name.startswith(ESTIMATED) and name.removeprefix(ESTIMATED) not in settled
        },
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
        yield start


def _public(flags: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in sorted(flags.items()) if k not in _PRIVATE and "key" not in k}


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
