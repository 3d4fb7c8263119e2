"""check: what an engine printed beside what kvproof predicts, figure by figure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from os import PathLike
from typing import Any

import msgspec

from kvproof.engine.base import Budget, Deployment, engine_module, served_model
from kvproof.engine.overheads import Overheads, adjusted, learned_note
from kvproof.errors import KvproofError, UsageError
from kvproof.model.types import Model
from kvproof.observe.advice import advice, fits
from kvproof.observe.budget_rows import budget_rows, reported
from kvproof.observe.buffer_rows import buffer_rows, context_note, context_unknown
from kvproof.observe.capacity_rows import capacity_rows, planned_rows
from kvproof.observe.compare import Comparison
from kvproof.observe.deploy import Setup, named_release, setup_of
from kvproof.observe.figures import BARE, Log
from kvproof.observe.ledger import ledger_rows
from kvproof.observe.model_rows import model_rows
from kvproof.observe.named import model_of
from kvproof.observe.ranks import with_ranks
from kvproof.observe.read import read_log
from kvproof.observe.releases import others, settle
from kvproof.terms import Term

_PREDICTED = frozenset(
    ("available_kv_memory", "kv_cache_tokens", "num_blocks", "max_concurrency", "weights",
     "peak_activation", "cuda_graph_estimated", "non_torch", "kv_total", "compute_buffer")
)  # fmt: skip
Learned = Callable[[str, str, str, str | None], Overheads | None]
"""What was learned, by engine, GPU, model and release."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `kvproof.check`.

    `rows` hold each printed figure beside its prediction; `ledger` those that need no model (the
    log's own figures against each other). `ok`: every printed figure lies within its prediction's
    bounds or the tolerance; `fits`: the log reports no start that failed for memory. `unread`: why
    the model that was asked for could not be had.
    """

    log: Log
    model: str | None
    engine: str
    gpu: str | None
    rows: tuple[Comparison, ...]
    ledger: tuple[Comparison, ...]
    advice: tuple[str, ...]
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...]
    terms: tuple[Term, ...] = ()
    fits: bool = True
    unread: KvproofError | None = None

    @property
    def ok(self) -> bool:
        """Whether every compared figure of the model lies within its bounds."""
        return all(row.ok for row in self.rows)

    @property
    def context_unknown(self) -> bool:
        """Whether caches are not compared because the log states no context."""
        return context_unknown(self.log)

    @property
    def compared(self) -> bool:
        """Whether there was anything to compare."""
        return bool(self.rows or self.ledger)

    @property
    def off(self) -> tuple[Comparison, ...]:
        """The figures that lie outside their bounds."""
        return tuple(row for row in self.rows if not row.ok)


def check(
    log: Log | str | PathLike[str],
    model: Model | str | PathLike[str] | dict[str, Any] | None = None,
    gpu: str | None = None,
    *,
    tolerance: float | None = None,
    overheads: Overheads | Learned | None = None,
    offline: bool = False,
) -> Report:
    """Predict each printed figure and compare.

    `log`: a Log, a path or text; no file that it names is opened. `model` and `gpu` where the log
    does not name them or names others. `tolerance`: a relative difference that counts as agreement
    beyond the rounding and the intervals. `overheads`: what was learned of the engine on this GPU,
    or who knows it. Where no model is named or it can't be had, only the log's own figures are
    compared, and a warning says so.
    """
    read = log if isinstance(log, Log) else read_log(log)
    if tolerance is not None and not 0 <= tolerance < 1:
        raise UsageError(f"the tolerance is {tolerance}", hint="give a share, such as 0.02")
    warnings: list[str] = list(read.notes)
    described, unread = _model(read, model, warnings, offline=offline)
    ranks = None
    if described is not None:
        shape = described
        read, ranks = with_ranks(read, shape, lambda log: _at_release(log, shape, gpu, None))
    setup = _setup(read, gpu, described, warnings)
    if callable(overheads):
        overheads = _learned(overheads, described, setup)
    rows, terms = _predicted(read, described, setup, gpu, overheads, warnings)
    deployment = setup.deployment if setup is not None else None
    return Report(
        log=read,
        model=described.name if described is not None else read.model,
        engine=str(deployment.engine) if deployment is not None else read.engine,
        gpu=deployment.gpu if deployment is not None else gpu,
        rows=_tolerant(rows, tolerance),
        ledger=_tolerant(ledger_rows(read), tolerance),
        advice=advice(read, described, deployment),
        assumptions=_assumed(ranks, setup, overheads, terms),
        warnings=tuple(dict.fromkeys((*warnings, *(setup.warnings if setup else ())))),
        terms=terms,
        fits=fits(read),
        unread=unread,
    )


def _predicted(
    log: Log,
    model: Model | None,
    setup: Setup | None,
    gpu: str | None,
    overheads: Overheads | None,
    warnings: list[str],
) -> tuple[list[Comparison], tuple[Term, ...]]:
    """Each figure compared, and the terms behind them; none without a model or a deployment."""
    if model is None or setup is None:
        return [], ()
    rows, terms = _rows(log, model, setup.deployment, overheads, warnings)
    warnings += _unstated(log, model, setup.deployment)
    return [_by_rules(row, log, model, gpu) for row in rows], terms


def _unstated(log: Log, model: Model, deployment: Deployment) -> list[str]:
    if log.engine != "llamacpp":
        return []
    try:
        note = context_note(log, served_model(model, deployment), deployment)
    except KvproofError:
        return []
    return [note] if note else []


def _tolerant(rows: Iterable[Comparison], tolerance: float | None) -> tuple[Comparison, ...]:
    return tuple(msgspec.structs.replace(row, tolerance=tolerance) for row in rows)


def _assumed(
    ranks: str | None,
    setup: Setup | None,
    overheads: Overheads | None,
    terms: tuple[Term, ...],
) -> tuple[str, ...]:
    """What the prediction rests on: the ranks, what the log does not say, what was learned."""
    return (
        *((ranks,) if ranks else ()),
        *(setup.assumptions if setup is not None else ()),
        *((learned_note(terms) or overheads.note,) if overheads and overheads.starts else ()),
    )


def _learned(ask: Learned, model: Model | None, setup: Setup | None) -> Overheads | None:
    if model is None or setup is None or setup.deployment.accelerator is None:
        return None
    engine = setup.deployment.engine
    return ask(engine.name, setup.deployment.accelerator.name, model.name, engine.version)


def _model(
    log: Log, given: Any, warnings: list[str], *, offline: bool
) -> tuple[Model | None, KvproofError | None]:
    """The model, or why the one that the caller gave can't be had."""
    from kvproof.model.load import load

    if isinstance(given, Model):
        return given, None
    if given is None and (described := _described(log)) is not None:
        return described, None
    if given is None and log.model is None:
        warnings.append("no model is named: figures are compared with each other only")
        return None, None
    source = given
    if given is None:
        named = model_of(str(log.model))
        warnings += [line for line in (named.warning, named.assumption) if line]
        if named.source is None:
            return None, None
        source = named.source
    try:
        described = load(source, offline=offline)
        if given is not None:
            warnings += _another(log, described)
        return described, None
    except KvproofError as error:
        if given is not None and not isinstance(given, str | PathLike):
            raise
        names = ", ".join(dict.fromkeys(f.name for f in log.figures if f.name in _PREDICTED))
        lacking = f"; not predicted: {names}" if names else ""
        warnings.append(f"{error.message}: figures are compared with each other only{lacking}")
        return None, error if given is not None else None


def _described(log: Log) -> Model | None:
    """The model whose metadata the log prints; None where it prints none, or none that is known."""
    from kvproof.model.load import load

    if log.metadata is None:
        return None
    try:
        model = load(dict(log.metadata), offline=True)
    except KvproofError:
        return None
    name = log.model or log.metadata.get("general.name") or model.name
    return msgspec.structs.replace(model, name=re.split(r"[\\/]", str(name))[-1])


def _another(log: Log, given: Model) -> list[str]:
    """A word on a given model of other shapes or types than the one that the log names."""
    from kvproof.model.load import load

    source = model_of(log.model).source if log.model else None
    try:
        named = load(source, offline=True) if source else given
    except KvproofError:
        return []
    alike = (named.slots, named.parameters, named.quantization)
    if alike == (given.slots, given.parameters, given.quantization):
        return []
    return [f"the log names {named.name}; it is held against {given.name}, as given"]


def _setup(log: Log, gpu: str | None, model: Model | None, warnings: list[str]) -> Setup | None:
    try:
        setup = setup_of(log, gpu)
    except KvproofError as error:
        if gpu is not None:
            raise
        warnings.append(error.message)
        return None
    if named_release(log) is not None or log.program == BARE:
        return setup
    settled = settle(log, lambda release: _at_release(log, model, gpu, release))
    if settled is None:
        return setup
    setup = setup_of(log, gpu, settled.release)
    return msgspec.structs.replace(setup, assumptions=(settled.note, *setup.assumptions))


def _at_release(
    log: Log, model: Model | None, gpu: str | None, release: str | None
) -> tuple[list[Comparison], tuple[Term, ...]] | None:
    """The rows and terms under another release's rules; None where nothing can be predicted."""
    if model is None:
        return None
    try:
        return _rows(log, model, setup_of(log, gpu, release).deployment, None, [])
    except KvproofError:
        return None


def _by_rules(row: Comparison, log: Log, model: Model, gpu: str | None) -> Comparison:
    """A figure that is off names the releases whose rules give it, where there are any."""
    if row.ok or not row.exact:
        return row
    unnamed = msgspec.structs.replace(log, version=None)
    found = others(log, row.name, lambda release: _capacities_at(unnamed, model, gpu, release))
    if not found:
        return row
    return msgspec.structs.replace(row, cause=f"version rule: {log.program} {found} gives it")


def _capacities_at(
    log: Log, model: Model, gpu: str | None, release: str
) -> tuple[list[Comparison], tuple[Term, ...]] | None:
    """As `_at_release`, without the memory budget."""
    make = _buffers if log.engine == "llamacpp" else _capacities
    try:
        deployment = setup_of(log, gpu, release).deployment
        return make(log, served_model(model, deployment), deployment, None)
    except KvproofError:
        return None


def _rows(
    log: Log,
    model: Model,
    deployment: Deployment,
    overheads: Overheads | None,
    warnings: list[str],
) -> tuple[list[Comparison], tuple[Term, ...]]:
    makers = [_buffers] if log.engine == "llamacpp" else [_capacities, _budgets]
    rows: list[Comparison] = []
    terms: tuple[Term, ...] = ()
    for make in makers:
        try:
            found, shown = make(log, served_model(model, deployment), deployment, overheads)
        except KvproofError as error:
            warnings.append(error.message)
            continue
        rows += found
        terms += shown
    return rows, terms


def _capacities(
    log: Log, model: Model, deployment: Deployment, overheads: Overheads | None
) -> tuple[list[Comparison], tuple[Term, ...]]:
    return capacity_rows(log, model, deployment), ()


def _budgets(
    log: Log, model: Model, deployment: Deployment, overheads: Overheads | None
) -> tuple[list[Comparison], tuple[Term, ...]]:
    if deployment.accelerator is None:
        return [], ()
    card = reported(deployment.accelerator, log.get("total_gpu_memory"))
    if card is not deployment.accelerator:
        deployment = deployment.on(card)
    budget: Budget = engine_module(deployment.engine.name).budget(model, deployment)
    if overheads is not None:
        budget = adjusted(budget, overheads)
    rows = [
        *budget_rows(log, budget, card.memory_bytes, card.other_memory_bytes),
        *planned_rows(log, model, deployment, budget),
    ]
    return rows, budget.terms


def _buffers(
    log: Log, model: Model, deployment: Deployment, overheads: Overheads | None
) -> tuple[list[Comparison], tuple[Term, ...]]:
    return [*model_rows(log, model), *buffer_rows(log, model, deployment)], ()
