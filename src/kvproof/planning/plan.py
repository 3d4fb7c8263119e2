"""Plan: what a deployment of a model holds and how fast it decodes, at each context length."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from kvproof.engine import formula, hooks
from kvproof.engine.base import (
    Budget,
    Capacity,
    Deployment,
    engine_module,
    ranks_of,
    served_model,
)
from kvproof.engine.drafts import DraftCache, draft_cache
from kvproof.engine.loading import Loaded, loaded
from kvproof.engine.mixed import deciding, smallest_budget
from kvproof.engine.overheads import Overheads, adjusted
from kvproof.engine.stored_types import types_of
from kvproof.errors import UsageError
from kvproof.kinds import Types
from kvproof.model.types import Model
from kvproof.planning.contexts import check_room, contexts_up_to, left_out, startable_length
from kvproof.planning.derivation import fit_terms, pace_terms, sequence_term, token_term
from kvproof.planning.machine import efficiency_of, machine_of, shared_out
from kvproof.planning.remarks import remarks, shorter_start
from kvproof.terms import Term
from kvproof.timing.step import Machine, StepTime, crossover_tokens, step_time


class PlanRow(msgspec.Struct, frozen=True, kw_only=True):
    """One context length: sequences per replica, the full step, and the step of one user alone.

    `bytes_per_sequence` is logical, over all ranks, `draft_bytes` of them what a draft keeps; the
    steps are the model's own, without a draft's. `limit` is what stops more users:
    "capacity" (cache memory), "max_num_seqs", or "max_model_len" (the engine refuses such a
    length); the step's own limit is bandwidth or compute.
    """

    context: int
    bytes_per_sequence: int
    draft_bytes: int
    sequences: int
    total_sequences: int
    limit: Literal["capacity", "max_num_seqs", "max_model_len"]
    step: StepTime | None
    alone: StepTime | None
    terms: tuple[Term, ...] = ()
    """How what is shown of the row comes about; the step's own terms are in `step`."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `kvproof.plan`; `replicas` copies of the model on `ranks` GPUs each.

    Each replica has `attention_copies`, with a cache and sequences of their own; what `rows` count
    beside `total_sequences` is of one of them.

    `bytes_per_token` are of the model and of `draft`, where one keeps a cache beside it.
    `crossover_tokens`: cached tokens in a batch, of sequences of the first of `rows`, at which KV
    reads equal weight reads.
    """

    model: str
    engine: str
    gpu: str | None
    ranks: int
    replicas: int
    attention_copies: int
    budget: Budget
    capacity: Capacity
    bytes_per_token: int
    draft: DraftCache | None
    rows: tuple[PlanRow, ...]
    crossover_tokens: float | None
    fits: bool
    warnings: tuple[str, ...]
    terms: tuple[Term, ...] = ()
    """How a token's bytes and the crossover come about."""


def make_plan(
    model: Model,
    deployment: Deployment,
    contexts: tuple[int, ...] = (),
    overheads: Overheads | None = None,
    media: int = 0,
) -> Plan:
    """The plan at `contexts`, corrected by learned `overheads`.

    By default at 4k, 8k, 32k and 128k, as far as the engine goes (contexts_up_to). `media`: tokens
    of each context that images, audio and video of the request take.
    Raises UsageError for a GPU count that the ranks do not divide, and for contexts without room
    for text.
    """
    model = served_model(model, deployment)
    deployment = deciding(model, deployment)
    budget = smallest_budget(model, deployment)
    if overheads is not None:
        budget = adjusted(budget, overheads)
    asked = _asked(model, deployment, budget)
    budget, too_much = hooks.allocated(model, deployment, budget)
    check_room(contexts, media)
    short = None if contexts else left_out(model, deployment, asked.limit)
    contexts = contexts or contexts_up_to(asked.limit, media)
    said = (*remarks(model, deployment, contexts, asked.limit), short)
    said = (*said, shorter_start(deployment, asked.capacity))
    refusals = (*hooks.refusals(model, deployment), *too_much)
    rows = tuple(_row(asked, n) for n in contexts)
    return Plan(
        model=model.name,
        engine=str(deployment.engine),
        gpu=deployment.gpu,
        ranks=ranks_of(deployment),
        replicas=asked.replicas,
        attention_copies=hooks.copies(deployment).attention,
        budget=budget,
        capacity=asked.capacity,
        bytes_per_token=_bytes_per_token(asked),
        draft=asked.draft,
        rows=rows,
        crossover_tokens=_crossover(asked, contexts[0]),
        fits=budget.kv_bytes > 0 and not refusals and any(row.sequences for row in rows),
        warnings=(*filter(None, said), *refusals),
        terms=_own_terms(asked, contexts[0]),
    )


class _Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What every row of a plan rests on."""

    model: Model
    deployment: Deployment
    capacity: Capacity
    limit: int | None
    """The length beyond which the engine refuses requests."""
    types: Types
    draft: DraftCache | None
    replicas: int
    weights: Loaded


def _asked(model: Model, deployment: Deployment, budget: Budget) -> _Asked:
    module = engine_module(deployment.engine.name)
    capacity: Capacity = module.capacity(model, deployment, max(budget.kv_bytes, 0))
    return _Asked(
        model=model,
        deployment=deployment,
        capacity=capacity,
        limit=hooks.length_limit(deployment, capacity),
        types=types_of(model, deployment),
        draft=draft_cache(model, deployment),
        replicas=_replicas(deployment),
        weights=loaded(model, deployment),
    )


def _bytes_per_token(asked: _Asked) -> int:
    return int(token_term(asked.model, asked.types, asked.draft).value)


def _crossover(asked: _Asked, context: int) -> float | None:
    model, deployment = asked.model, asked.deployment
    machine = shared_out(deployment, Machine(bandwidth=1.0, flops=None))
    reads = (asked.weights.streamed, asked.weights.experts)
    return crossover_tokens(model, asked.types, *reads, machine=machine, context=context)


def _own_terms(asked: _Asked, context: int) -> tuple[Term, ...]:
    """A token's bytes, and the cached tokens at which KV reads equal weight reads."""
    token = token_term(asked.model, asked.types, asked.draft)
    crossing = _crossover(asked, context)
    if crossing is None:
        return (token,)
    formula = (
        f"cached tokens in sequences of {context:,} whose reads equal those of the weights, "
        f"which {crossing / context:,.1f} such sequences read = {crossing:,.0f}"
    )
    source = "tensor shapes; slots of the model"
    return (
        token,
        Term(name="crossover", value=crossing, unit="token", formula=formula, source=source),
    )


def _replicas(deployment: Deployment) -> int:
    """Copies on the GPUs given, which may be one machine of several that a command starts on.

    Without a count, the copies that one command starts.
    """
    ranks, started = ranks_of(deployment), hooks.copies(deployment).started
    count = deployment.gpu_count or ranks * started
    if count % ranks:
        raise UsageError(
            f"{count} GPUs are no multiple of the {ranks} that one replica takes",
            hint="change the GPU count or the parallel sizes",
        )
    return count // ranks


def _row(asked: _Asked, context: int) -> PlanRow:
    model, deployment, types = asked.model, asked.deployment, asked.types
    capacity = asked.capacity
    refused = asked.limit is not None and context > asked.limit
    bounds = [n for n in (asked.limit, startable_length(capacity)) if n is not None]
    copies = (asked.replicas, hooks.copies(deployment).attention)
    fit = fit_terms(capacity, context, min(bounds, default=None), copies)
    count = int(fit[0].value)
    machine = machine_of(model, deployment)
    step = alone = None
    if machine is not None:
        args: dict[str, Any] = {
            "streamed": asked.weights.streamed,
            "experts": asked.weights.experts,
            "efficiency": efficiency_of(model, deployment, types, asked.weights),
        }
        step = step_time(model, machine, types, {context: count}, **args) if count else None
        alone = step_time(model, machine, types, {context: 1}, **args)
    limited = capacity.max_num_seqs is not None and count >= capacity.max_num_seqs
    drafted = asked.draft.bytes(context) if asked.draft else 0
    kept = [(slot.kind, formula.held_bytes(slot, context, types)) for slot in model.slots]
    held = sequence_term(kept, drafted)
    return PlanRow(
        context=context,
        bytes_per_sequence=int(held.value),
        draft_bytes=drafted,
        sequences=count,
        total_sequences=int(fit[-1].value),
        limit="max_model_len" if refused else "max_num_seqs" if limited else "capacity",
        step=step,
        alone=alone,
        terms=(held, *fit, *(pace_terms(step, copies[0] * copies[1]) if step else ())),
    )
