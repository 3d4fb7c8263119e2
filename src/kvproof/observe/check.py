"""check: what an engine printed beside what kvproof predicts, figure by figure."""

from __future__ import annotations

from os import PathLike
from typing import Any

import msgspec

from kvproof.engine.base import Budget, Deployment, engine_module
from kvproof.engine.overheads import Overheads, adjusted
from kvproof.errors import HubError, KvproofError, UsageError
from kvproof.model.types import Model
from kvproof.observe.advice import advice, fits
from kvproof.observe.budget_rows import budget_rows
from kvproof.observe.buffer_rows import buffer_rows
from kvproof.observe.capacity_rows import capacity_rows, planned_rows
from kvproof.observe.compare import Comparison
from kvproof.observe.deploy import Setup, setup_of
from kvproof.observe.figures import Log
from kvproof.observe.ledger import ledger_rows
from kvproof.observe.model_rows import model_rows
from kvproof.observe.read import read_log
from kvproof.terms import Term


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `kvproof.check`.

    `rows` hold each printed figure beside its prediction; `ledger` those that need no model (the
    log's own figures against each other). `ok`: every printed figure lies within its prediction's
    bounds or the tolerance; `fits`: the log reports no start that failed for memory.
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

    @property
    def ok(self) -> bool:
        """Whether every compared figure of the model lies within its bounds."""
        return all(row.ok for row in self.rows)

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
    overheads: Overheads | None = None,
    offline: bool = False,
) -> Report:
    """Predict each printed figure and compare.

    `log`: a Log, a path or text. `model` and `gpu` where the log does not name them or names
    others. `tolerance`: a relative difference that counts as agreement beyond the rounding and
    the intervals. `overheads`: what was learned of the engine on this GPU. Where no model is named
    or given, only the log's own figures are compared, and a warning says so.
    """
    read = log if isinstance(log, Log) else read_log(log)
    if tolerance is not None and not 0 <= tolerance < 1:
        raise UsageError(f"the tolerance is {tolerance}", hint="give a share, such as 0.02")
    warnings: list[str] = []
    described = _model(read, model, warnings, offline=offline)
    setup = _setup(read, gpu, warnings)
    ledger = ledger_rows(read)
    rows: list[Comparison] = []
    terms: tuple[Term, ...] = ()
    if described is not None and setup is not None:
        rows, terms = _rows(read, described, setup.deployment, overheads, warnings)
    rows = [msgspec.structs.replace(row, tolerance=tolerance) for row in rows]
    deployment = setup.deployment if setup is not None else None
    assumed = setup.assumptions if setup is not None else ()
    return Report(
        log=read,
        model=described.name if described is not None else read.model,
        engine=str(deployment.engine) if deployment is not None else read.engine,
        gpu=deployment.gpu if deployment is not None else gpu,
        rows=tuple(rows),
        ledger=tuple(msgspec.structs.replace(row, tolerance=tolerance) for row in ledger),
        advice=advice(read, described, deployment),
        assumptions=assumed
        + ((overheads.note,) if overheads is not None and overheads.starts else ()),
        warnings=tuple(warnings) + (setup.warnings if setup is not None else ()),
        terms=terms,
        fits=fits(read),
    )


def _model(log: Log, given: Any, warnings: list[str], *, offline: bool) -> Model | None:
    from kvproof.model.load import load

    if isinstance(given, Model):
        return given
    if given is not None:
        return load(given, offline=offline)
    if log.model is None:
        warnings.append("no model is named: figures are compared with each other only")
        return None
    try:
        return load(log.model, offline=offline)
    except (HubError, KvproofError) as error:
        warnings.append(f"{error.message}: figures are compared with each other only")
        return None


def _setup(log: Log, gpu: str | None, warnings: list[str]) -> Setup | None:
    if gpu is not None:
        return setup_of(log, gpu)
    try:
        return setup_of(log)
    except KvproofError as error:
        warnings.append(error.message)
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
            found, shown = make(log, model, deployment, overheads)
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
    budget: Budget = engine_module(deployment.engine.name).budget(model, deployment)
    if overheads is not None:
        budget = adjusted(budget, overheads)
    memory = deployment.accelerator.memory_bytes
    rows = [*budget_rows(log, budget, memory), *planned_rows(log, model, deployment, budget)]
    return rows, budget.terms


def _buffers(
    log: Log, model: Model, deployment: Deployment, overheads: Overheads | None
) -> tuple[list[Comparison], tuple[Term, ...]]:
    return [*model_rows(log, model), *buffer_rows(log, model, deployment)], ()
