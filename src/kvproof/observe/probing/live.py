"""What a server does at this moment, and what a reader makes of its pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from kvproof.observe.figures import Figure, Log, Unit
from kvproof.observe.probing.exposition import Latency
from kvproof.observe.probing.fetch import Page, clean

Pages = Mapping[str, Page]


class Live(msgspec.Struct, frozen=True, kw_only=True):
    """Queues, usage and latencies as the server reports them; None where it does not.

    `usage` is the share of the cache that is held, `hit_tokens` of `queried_tokens` were found in
    the prefix cache since the start.
    """

    running: int | None = None
    waiting: int | None = None
    usage: float | None = None
    preemptions: int | None = None
    queried_tokens: int | None = None
    hit_tokens: int | None = None
    hit_rate: float | None = None
    prompt_tokens: int | None = None
    generation_tokens: int | None = None
    mean_context: float | None = None
    latencies: tuple[Latency, ...] = ()

    @property
    def prefix_hit_rate(self) -> float | None:
        """Share of the asked tokens that the prefix cache held."""
        if self.queried_tokens:
            return (self.hit_tokens or 0) / self.queried_tokens
        return self.hit_rate

    def latency(self, name: str) -> Latency | None:
        """The histogram of that name."""
        return next((found for found in self.latencies if found.name == name), None)


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader understood: the log that `check` compares, and the state."""

    log: Log
    live: Live
    notes: tuple[str, ...] = ()


def whole(value: float | None) -> int | None:
    """A counter as a whole number."""
    return None if value is None else round(value)


def figure(
    name: str, value: float, unit: Unit, *, step: float = 1, text: str = "", worker: Any = None
) -> Figure:
    """A reported value as `check` takes it; reports have no lines."""
    shown = clean(text or f"{value:,.10g}")
    who = None if worker is None else clean(worker, 20)
    return Figure(name=name, value=value, unit=unit, step=step, text=shown, line=0, worker=who)


def models_of(pages: Pages) -> list[dict[str, Any]]:
    """The entries of /v1/models that are models of their own, not adapters of another."""
    page = pages.get("/v1/models")
    body = page.json() if page is not None else None
    data = body.get("data") if isinstance(body, dict) else None
    entries = [e for e in data if isinstance(e, dict)] if isinstance(data, list) else []
    return [e for e in entries[:1000] if not e.get("parent")]


def owner(pages: Pages) -> str:
    """Who the first model says it belongs to: servers put their own name there."""
    found = models_of(pages)
    return clean(found[0].get("owned_by", "")) if found else ""


def object_at(pages: Pages, *paths: str) -> dict[str, Any]:
    """The JSON object of the first of these paths that answered one."""
    for path in paths:
        page = pages.get(path)
        body = page.json() if page is not None else None
        if isinstance(body, dict):
            return body
    return {}


def count_of(value: Any) -> int | None:
    """A positive whole number that a server gives, as number or text."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    text = str(value)[:40]
    try:
        read = float(text)
    except ValueError:
        return None
    return int(read) if 0 < read < 2**62 and read == int(read) else None
