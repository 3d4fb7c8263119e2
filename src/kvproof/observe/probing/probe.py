"""probe: asks a running server, and holds what it reports against what is predicted."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from kvproof.engine.base import Capacity, Deployment, engine_module
from kvproof.errors import InputError, KvproofError, UsageError
from kvproof.model.types import Model
from kvproof.observe.check import Report, check
from kvproof.observe.compare import Comparison, compared
from kvproof.observe.figures import Log
from kvproof.observe.probing import local, sglang, vllm
from kvproof.observe.probing.fetch import Page, Server
from kvproof.observe.probing.live import Live, Pages, Reading, figure
from kvproof.terms import Term
from kvproof.units import GIB, show_bytes

# The first reader that recognises the pages is the server's; those of others leave it alone.
_READERS: tuple[Callable[[Pages], Reading | None], ...] = (
    sglang.read, vllm.read, local.tensorrt_llm, local.tgi, local.llamacpp, local.ollama,
)  # fmt: skip
_FIRST = vllm.PATHS
_THEN = (*sglang.PATHS, *local.PATHS)


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `kvproof.observe.probe`: the report of `check` over what the server said.

    `live` is what it does now; `derived` what follows for its cache from what it reports and the
    model's description; `answered` the paths that gave something.
    """

    url: str
    report: Report
    live: Live
    derived: tuple[Term, ...]
    answered: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether every compared figure lies within its bounds."""
        return self.report.ok


def probe(
    url: str,
    model: Model | str | Mapping[str, Any] | None = None,
    gpu: str | None = None,
    *,
    flags: Mapping[str, Any] | Callable[[str], Mapping[str, Any]] | None = None,
    tolerance: float | None = None,
    timeout: float = 5.0,
    key: str | None = None,
    offline: bool = False,
) -> Probe:
    """Ask the server at `url` and compare.

    `model` where its name is not enough; what a server names is looked up in the catalogue, the
    local cache and, for a server on this machine, local paths: the hub is asked only for a
    `model` that the caller names. `flags` are the engine's own that no page tells (the tensor
    parallel size of an older vLLM), or give them for the engine that is found; they go before those
    reported. Raises HubError when nothing
    answers, InputError for a server of another kind, UsageError for a refused key.
    """
    if not 0 < timeout <= 600:
        raise UsageError(f"the timeout is {timeout:g} s", hint="give 0.1 to 600 seconds")
    server = Server(url, timeout=timeout, key=key)
    pages = _pages(server)
    reading = _read(server, pages)
    own = flags(reading.log.engine) if callable(flags) else flags or {}
    log = msgspec.structs.replace(reading.log, flags={**reading.log.flags, **own})
    named = model if model is not None else _nameable(server, log)
    report = check(
        msgspec.structs.replace(log, model=named if isinstance(named, str) else log.model),
        named if isinstance(named, Model | Mapping) else model,  # type: ignore[arg-type]
        gpu,
        tolerance=tolerance,
        offline=offline or model is None,
    )
    described = _described(named, offline=offline or model is None)
    rows, derived = _derived(reading.live, log, described, report)
    return Probe(
        url=server.url,
        report=msgspec.structs.replace(
            report, rows=(*report.rows, *rows), warnings=(*reading.notes, *report.warnings)
        ),
        live=reading.live,
        derived=derived,
        answered=tuple(path for path, page in pages.items() if page.body),
    )


def _pages(server: Server) -> dict[str, Page]:
    """What the paths answer, those of vLLM first; the others only where these are not enough."""
    pages: dict[str, Page] = {}
    for paths in (_FIRST, _THEN):
        for path in paths:
            page = server.get(path)
            if page.status in (401, 403):
                raise UsageError(
                    f"{server.url}{path} refuses ({page.status})", hint="give --api-key"
                )
            if page.status == 200:
                pages[path] = page
        if vllm.read(pages) is not None:
            break
    return pages


def _read(server: Server, pages: Pages) -> Reading:
    for reader in _READERS:
        reading = reader(pages)
        if reading is not None:
            return reading
    said = f"answers {', '.join(pages)}" if pages else "answers none of the paths asked for"
    raise InputError(
        f"{server.url} {said}, but as no server that is known",
        hint="vLLM, SGLang, TensorRT-LLM, llama.cpp (--metrics), Ollama, TGI and the lab are",
    )


def _nameable(server: Server, log: Log) -> str | None:
    """The model's name as it may be looked up: no path of another machine."""
    name = log.model
    if name is None or not os.path.isabs(name):
        return name
    return name if server.local and os.path.exists(name) else os.path.basename(name)


def _described(named: Any, *, offline: bool) -> Model | None:
    from kvproof.model.load import load

    if named is None or isinstance(named, Model):
        return named
    try:
        return load(named, offline=offline)
    except KvproofError:
        return None  # the report says so already


def _derived(
    live: Live, log: Log, model: Model | None, report: Report
) -> tuple[list[Comparison], tuple[Term, ...]]:
    """Rows and terms that need the server's state; none where the model is unknown."""
    from kvproof.observe.deploy import setup_of

    if model is None:
        return [], ()
    try:
        deployment = setup_of(log, report.gpu).deployment
        return _step_rows(live, model, deployment), _cache_terms(live, log, model, deployment)
    except KvproofError:
        return [], ()


def _cache_terms(live: Live, log: Log, model: Model, deployment: Deployment) -> tuple[Term, ...]:
    """Bytes of the cache and of what is held of it."""
    blocks, tokens = log.smallest("num_blocks"), log.get("kv_cache_tokens")
    if blocks is None and tokens is None:
        return ()
    sized: Capacity = engine_module(deployment.engine.name).capacity(model, deployment, GIB)
    if blocks is not None:
        value = int(blocks.value) * sized.bytes_per_block
        how = f"{blocks.value:,.0f} blocks x {sized.bytes_per_block:,} B = {value:,} B"
    else:
        per = sized.bytes_per_block / sized.block_size
        value = round((tokens.value if tokens else 0) * per)
        how = f"{tokens.value if tokens else 0:,.0f} tokens x {per:,.0f} B = {value:,} B"
    source = f"reported count x {deployment.engine.name}'s size of one, per GPU"
    terms = [Term(name="the cache takes", value=value, unit="B", formula=how, source=source)]
    if live.usage is not None:
        held = round(value * live.usage)
        formula = f"{100 * live.usage:.2f} % of {show_bytes(value)} = {held:,} B"
        terms.append(Term(name="of it held now", value=held, unit="B", formula=formula,
                          source="reported usage"))  # fmt: skip
    return tuple(terms)


def _step_rows(live: Live, model: Model, deployment: Deployment) -> list[Comparison]:
    """The mean time of an output token between a step alone and a full one, where a GPU is known.

    Requests were counted since the start, whatever ran beside them then: the bounds are those of
    an empty and of a full server at the mean length.
    """
    from kvproof.planning.plan import make_plan

    latency = live.latency("time per output token")
    if latency is None or live.mean_context is None or deployment.accelerator is None:
        return []
    (row,) = make_plan(model, deployment, (max(1, round(live.mean_context)),)).rows
    if row.step is None or row.alone is None:
        return []
    reported = figure("time per output token", latency.mean, "s", step=1e-6)
    cause = "prefills in the same steps, waiting, work of the host: what no step's bytes show"
    return [compared(reported, row.alone.seconds, low=0.8 * row.alone.seconds,
                     high=1.25 * row.step.seconds, exact=False, cause=cause)]  # fmt: skip
