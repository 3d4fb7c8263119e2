"""Plan: what a deployment of a model holds and how fast it decodes, at each context length."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from kvproof.engine import formula, hooks
from kvproof.engine.base import (
    Budget,
    Capacity,
    Deployment,
    context_ranks,
    engine_module,
    parallel_sizes,
    prefill_copies,
    ranks_of,
    served_model,
)
from kvproof.engine.common_flags import limit_name, setting_name
from kvproof.engine.drafts import DraftCache, draft_cache
from kvproof.engine.loading import Loaded, asked_quantization, loaded
from kvproof.engine.mixed import by_device, deciding, smallest_budget
from kvproof.engine.overheads import Overheads, adjusted
from kvproof.engine.stored_types import types_of
from kvproof.engine.vendors import unconfirmed
from kvproof.errors import UsageError
from kvproof.hardware import Accelerator
from kvproof.kinds import Types
from kvproof.model.types import Model
from kvproof.timing.measured import efficiency
from kvproof.timing.step import Efficiency, Machine, StepTime, crossover_tokens, step_time
from kvproof.units import show_bytes

_EIGHT_BITS = ("fp8", "mxfp8", "modelopt_fp8", "fbgemm_fp8", "ptpc_fp8")
DEFAULT_CONTEXTS = (4096, 8192, 32768, 131072)


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


def make_plan(
    model: Model,
    deployment: Deployment,
    contexts: tuple[int, ...] = (),
    overheads: Overheads | None = None,
) -> Plan:
    """The plan at `contexts`, corrected by learned `overheads`.

    By default at 4k, 8k, 32k and 128k, as far as the engine goes (contexts_up_to).
    Raises UsageError for a GPU count that the ranks do not divide.
    """
    model = served_model(model, deployment)
    ranks = ranks_of(deployment)
    deployment = deciding(model, deployment)
    budget = smallest_budget(model, deployment)
    if overheads is not None:
        budget = adjusted(budget, overheads)
    module = engine_module(deployment.engine.name)
    capacity: Capacity = module.capacity(model, deployment, max(budget.kv_bytes, 0))
    budget, too_much = hooks.allocated(model, deployment, budget)
    refusals = (*hooks.refusals(model, deployment), *too_much)
    asked = _Asked(
        model=model,
        deployment=deployment,
        types=types_of(model, deployment),
        draft=draft_cache(model, deployment),
        ranks=ranks,
        replicas=_replicas(deployment, ranks),
        weights=loaded(model, deployment),
    )
    limit = hooks.length_limit(deployment, capacity)
    short = None if contexts else _cut(model, deployment, limit)
    contexts = contexts or contexts_up_to(limit)
    shorter = _shorter_start(deployment, capacity)
    warnings = [*_warnings(asked, contexts, limit)]
    warnings += [said for said in (short, shorter) if said]
    rows = tuple(_row(asked, capacity, limit, n) for n in contexts)
    return Plan(
        model=model.name,
        engine=str(deployment.engine),
        gpu=deployment.gpu,
        ranks=ranks,
        replicas=asked.replicas,
        attention_copies=hooks.attention_copies(deployment),
        budget=budget,
        capacity=capacity,
        bytes_per_token=_bytes_per_token(asked),
        draft=asked.draft,
        rows=rows,
        crossover_tokens=_crossover(asked, contexts[0]),
        fits=budget.kv_bytes > 0 and not refusals and any(row.sequences for row in rows),
        warnings=(*warnings, *refusals),
    )


def contexts_up_to(limit: int | None) -> tuple[int, ...]:
    """The default contexts that a limit allows; the limit itself where it allows none."""
    if limit is None:
        return DEFAULT_CONTEXTS
    return tuple(n for n in DEFAULT_CONTEXTS if n <= limit) or (limit,)


def startable_length(capacity: Capacity) -> int | None:
    """The max_model_len at which an engine starts that checks a request of it; None: as it is."""
    found: int | None = getattr(capacity, "estimated_max_model_len", None)
    return None if capacity.error is None else found


def _shorter_start(deployment: Deployment, capacity: Capacity) -> str | None:
    """With which flag the rows of a plan hold that does not start without it."""
    length = startable_length(capacity)
    if not length:
        return None
    name = limit_name(deployment.engine.name, "max_model_len")
    return (
        f"the engine does not start with {name} {capacity.max_model_len:,}: what fits is reckoned "
        f"for a start with {name} {length:,} or less"
    )


def _cut(model: Model, deployment: Deployment, limit: int | None) -> str | None:
    """That default contexts are left out which the model, but not the engine, would take."""
    trained = hooks.reach(model, deployment)
    left = [n for n in DEFAULT_CONTEXTS if limit is not None and limit < n <= (trained or 0)]
    if not left or limit is None:
        return None
    name = limit_name(deployment.engine.name, "max_model_len")
    return f"longer contexts are left out: {name} is {limit:,}, the model reaches {trained:,}"


class _Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What every row of a plan rests on."""

    model: Model
    deployment: Deployment
    types: Types
    draft: DraftCache | None
    ranks: int
    replicas: int
    weights: Loaded


def _bytes_per_token(asked: _Asked) -> int:
    own = sum(slot.entry_bytes(asked.types) for slot in asked.model.slots if slot.kind != "cross")
    return own + (asked.draft.bytes_per_token if asked.draft else 0)


def _crossover(asked: _Asked, context: int) -> float | None:
    model, deployment = asked.model, asked.deployment
    machine = Machine(bandwidth=1.0, flops=None, **_sizes(deployment, asked.ranks))
    reads = (asked.weights.streamed, asked.weights.experts)
    return crossover_tokens(model, asked.types, *reads, machine=machine, context=context)


def _replicas(deployment: Deployment, ranks: int) -> int:
    count = deployment.gpu_count or ranks
    if count % ranks:
        raise UsageError(
            f"{count} GPUs are no multiple of the {ranks} that one replica takes",
            hint="change the GPU count or the parallel sizes",
        )
    return count // ranks


def _row(asked: _Asked, capacity: Capacity, limit: int | None, context: int) -> PlanRow:
    model, deployment, types = asked.model, asked.deployment, asked.types
    refused = limit is not None and context > limit
    startable = startable_length(capacity)
    stopped = refused or (startable is not None and context > startable)
    count = 0 if stopped else capacity.sequences(context)
    machine = machine_of(deployment, model, asked.ranks)
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
    own = sum(formula.held_bytes(slot, context, types) for slot in model.slots)
    return PlanRow(
        context=context,
        bytes_per_sequence=own + drafted,
        draft_bytes=drafted,
        sequences=count,
        total_sequences=count * asked.replicas * hooks.attention_copies(deployment),
        limit="max_model_len" if refused else "max_num_seqs" if limited else "capacity",
        step=step,
        alone=alone,
    )


def machine_of(deployment: Deployment, model: Model, ranks: int) -> Machine | None:
    """Bandwidth and peak of one rank, None when neither a GPU nor a bandwidth is named."""
    gpu = deployment.accelerator
    kinds = [kind for _, kind in deployment.kinds]  # a step waits for the slowest rank
    bandwidth = float(min(kind.memory_bandwidth for kind in kinds)) if gpu else None
    asked = asked_quantization(model, deployment)
    flops = min(kind.flops(compute_type(model, asked)) for kind in kinds) if gpu else None
    given = hooks.speed(deployment)
    bandwidth, flops = given.bandwidth or bandwidth, given.flops or flops
    if bandwidth is None:
        return None
    return Machine(
        bandwidth=bandwidth, flops=flops, **_sizes(deployment, ranks),
        offload=hooks.offload(model, deployment),
    )  # fmt: skip


def _sizes(deployment: Deployment, ranks: int) -> dict[str, Any]:
    """How the ranks of one copy of the attention share the work."""
    stages = parallel_sizes(deployment.flags)[1]
    return {
        "ranks": ranks // hooks.attention_copies(deployment) // prefill_copies(deployment.flags),
        "stages": stages if ranks % stages == 0 else 1,
        "context_ranks": context_ranks(deployment.flags),
        "sharing": hooks.expert_copies(deployment),
    }


def compute_type(model: Model, asked: str | None = None) -> str:
    """The type in which the model's matrices are multiplied; `asked`: --quantization's scheme."""
    scheme = model.quantization.default if model.quantization else None
    name = scheme.name if scheme is not None else asked
    if name is None:
        return "bf16" if model.dtype == "bf16" else "fp16"
    return "fp8" if name.startswith(_EIGHT_BITS) else "bf16"


def efficiency_of(
    model: Model, deployment: Deployment, types: Types, weights: Loaded
) -> Efficiency:
    """The formula's roofline is ideal; engines reach what was measured on the GPU."""
    if hooks.traits(deployment.engine.name).ideal or deployment.accelerator is None:
        return Efficiency()
    bits = 8 * (weights.total or 0) / max(1, model.parameters)
    return efficiency(deployment.accelerator.name, kv_bits=types.k.bits, weight_bits=bits)


def _warnings(asked: _Asked, contexts: tuple[int, ...], limit: int | None) -> tuple[str, ...]:
    """What a reader should know; beyond `limit` the engine refuses requests."""
    model, deployment, replicas = asked.model, asked.deployment, asked.replicas
    out = list(model.notes)
    trained = hooks.reach(model, deployment)
    if over := _past(contexts, trained):
        reach = "was trained for" if trained == model.context else "is scaled to"
        out.append(f"{model.name} {reach} {trained:,} tokens: {over} is past that")
    out += hooks.warnings_of(model, deployment)
    if over := _past(contexts, limit):
        name = limit_name(deployment.engine.name, "max_model_len")
        out.append(f"the engine refuses {over} tokens: its {name} is {limit:,}")
    ranks = asked.ranks
    if deployment.gpu_count is None and ranks > 1 and deployment.accelerator is not None:
        out.append(
            f"one replica takes {ranks} GPUs: as many {deployment.accelerator.name} are assumed"
        )
    if replicas > 1 and not deployment.flags:
        out.append(
            f"{replicas} GPUs run {replicas} replicas of one GPU each; "
            f"{setting_name(deployment.engine.name, 'tensor_parallel_size')} joins them"
        )
    return (*out, *_hardware_warnings(deployment))


def _hardware_warnings(deployment: Deployment) -> tuple[str, ...]:
    """Of memory that is shared with the host, of weights kept there, and of unequal ranks."""
    gpu, out = deployment.accelerator, []
    if gpu is not None and gpu.unified_memory and not deployment.flags.get("used"):
        out.append(
            f"{gpu.name} shares its memory with the CPU{_part(gpu)}: what the system and other "
            "programs hold comes off it; give that as --used SIZE (used=)"
        )
    kinds = {kind.vendor: kind for _, kind in deployment.kinds}.values()
    out += [said for kind in kinds if (said := unconfirmed(deployment.engine.name, kind))]
    if deployment.flags.get("cpu_offload_gb"):
        out.append(
            "weights kept in host memory are read over PCIe in every step: steps take longer than "
            "said here"
        )
    if deployment.mixed:
        names = ", ".join(f"{count} x {kind.name}" for count, kind in deployment.kinds)
        if by_device(deployment):
            how = "layers are dealt by memory; the step is reckoned at the slowest GPU"
        else:
            how = "the smallest and the slowest rank decide for all"
        out.append(f"different GPUs ({names}): {how}")
    return tuple(out)


def _part(gpu: Accelerator) -> str:
    """How much of the machine's memory is the GPU's, where that is much less."""
    whole = gpu.nominal_memory_bytes
    if not whole or gpu.memory_bytes > 0.9 * whole:
        return ""
    return f", {show_bytes(gpu.memory_bytes)} of {show_bytes(whole)} are the GPU's"


def _past(contexts: tuple[int, ...], limit: int | None) -> str:
    """The context lengths beyond `limit`, as people read them."""
    return ", ".join(f"{n:,}" for n in contexts if limit is not None and n > limit)
