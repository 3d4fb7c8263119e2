"""Budget: one GPU's memory, term by term, down to what vLLM leaves for the cache.

requested = memory x gpu_memory_utilization; the cache gets what weights, the profiling run and,
from 0.20 on, the estimate of CUDA graphs leave of it. The CUDA context and NCCL exist before
the first snapshot and are not charged. Source: vLLM 0.32, v1/worker/gpu_worker.py.
"""

from __future__ import annotations

import math

from kvproof.engine.base import Budget, Deployment
from kvproof.engine.vllm.adapters import draft_bytes
from kvproof.engine.vllm.graph_memory import graph_part
from kvproof.engine.vllm.lora import lora_need
from kvproof.engine.vllm.outside import charges_context, minor_of
from kvproof.engine.vllm.parts import Part, constants
from kvproof.engine.vllm.profile import other_ways, run_parts
from kvproof.engine.vllm.rank_weights import RankWeights, rank_weights
from kvproof.engine.vllm.runners import charges_graphs
from kvproof.engine.vllm.settings import Settings, settle
from kvproof.errors import UsageError
from kvproof.model.types import Model
from kvproof.terms import Term
from kvproof.units import GB, GIB

_SOURCE = "vLLM {}, v1/worker/gpu_worker.py"
_FITTED = "start-up logs, data/budget.json"
_CONTEXT, _LEAST_CONTEXT, _MOST_CONTEXT = round(0.56 * GIB), round(0.45 * GIB), round(0.96 * GIB)
_CONTEXT_SOURCE = (
    "0.45 to 0.96 GiB less than all free at the start, in four logs (RTX 3090 twice, B300, "
    "RTX PRO 6000)"
)
_WHOLE_FLOOR = 80 * GB
"""Cards of at least so much have the whole of what is in doubt without a name."""
_WEIGHTS = "tensor shapes of the architecture, vLLM's sharding"


def budget(model: Model, deployment: Deployment) -> Budget:
    """Memory of one GPU of the deployment down to the cache; `interval` covers 90 % of logs."""
    settings = settle(model, deployment)
    memory = _memory(deployment)
    share = settings.flags.get("gpu_memory_utilization", settings.rules.utilization)
    requested = min(memory, math.ceil(memory * share))
    used = int(settings.flags.get("used", 0))
    charged = used if settings.rules.others_charged else 0
    terms = _outside(memory, requested, share, settings, used - charged)
    given = settings.flags.get("kv_cache_memory_bytes")
    if given is not None:
        return _given(terms[0].source, memory, given)
    if used:
        terms.append(_others(used, charged, settings))
    weights = rank_weights(model, settings, _own_stages(deployment, settings))
    terms += _weight_terms(weights, settings)
    parts = [*run_parts(model, settings, memory), *_optional(model, settings)]
    graphs = graph_part(model, settings)
    if graphs is not None and charges_graphs(model, settings):
        parts.append(graphs)
    terms += [_term(part) for part in parts]
    left = memory - sum(int(term.value) for term in terms)
    scale = _scale(deployment, settings)
    gpu = deployment.accelerator
    less, more = (0, 0) if gpu is None else other_ways(model, settings, gpu)
    doubt = _doubt(parts, weights, scale, memory)
    return _answer(terms, memory, left, (doubt + more, doubt + less))


def _own_stages(deployment: Deployment, settings: Settings) -> frozenset[int] | None:
    """The pipeline stages whose ranks lie on the GPU that is answered for; None for all.

    Ranks follow the order of the GPUs, stage after stage, replica after replica. Source: vLLM
    0.32, distributed/parallel_state.py (initialize_model_parallel).
    """
    if not deployment.mixed:
        return None
    return frozenset(rank // settings.ranks % settings.stages for rank in deployment.own_ranks)


def memory_refusals(model: Model, deployment: Deployment) -> tuple[str, ...]:
    """A start that fails for want of free memory."""
    settings = settle(model, deployment)
    memory, used = _memory(deployment), int(settings.flags.get("used", 0))
    free = max(0, memory - used)
    given = settings.flags.get("kv_cache_memory_bytes")
    if given is not None:
        return _too_large(model, deployment, int(given), free)
    if not used or settings.rules.others_charged:
        return ()
    share = settings.flags.get("gpu_memory_utilization", settings.rules.utilization)
    requested = math.ceil(memory * share)
    if requested <= free:
        return ()
    most = math.floor(100 * free / memory) / 100
    way = (
        f"lower gpu_memory_utilization to {most:g} or less, its own context comes on top"
        if most > 0
        else "end what holds it"
    )
    return (
        f"vLLM refuses to start: {free / GIB:.2f} of {memory / GIB:.2f} GiB are free and "
        f"{share:g} asks for {requested / GIB:.2f}: {way}",
    )


def _too_large(model: Model, deployment: Deployment, given: int, free: int) -> tuple[str, ...]:
    """A given cache that does not fit beside the weights: nothing is checked before it is taken."""
    settings, weights = settle(model, deployment), 0
    if model.tensors or model.stored_weight_bytes is not None:
        weights = rank_weights(model, settings, _own_stages(deployment, settings)).total
    if given + weights <= free:
        return ()
    most = max(0, free - weights) / GIB
    return (
        f"vLLM runs out of memory: kv_cache_memory_bytes of {given / GIB:.2f} GiB and weights of "
        f"{weights / GIB:.2f} GiB are more than the {free / GIB:.2f} GiB free: less than "
        f"{most:.2f} GiB are left for the cache",
    )


def _memory(deployment: Deployment) -> int:
    if str(deployment.flags.get("device", "")).lower() == "cpu":
        raise UsageError(
            "vLLM on a CPU divides no GPU's memory: its cache is VLLM_CPU_KVCACHE_SPACE GiB a rank",
            hint="kvproof capacity --kv-bytes 40GiB -- ... says what that holds",
        )
    if deployment.accelerator is None:
        raise UsageError("no GPU is named", hint="give gpu=..., for example gpu='H100-80GB'")
    return deployment.accelerator.memory_bytes


def _outside(
    memory: int, requested: int, share: float, settings: Settings, others: int
) -> list[Term]:
    """What is not requested, less what others use of it: the context, and what stays unused.

    What others use beyond that is taken of the cache.
    """
    version = ".".join(str(part) for part in settings.rules.version)
    rest = max(0, memory - requested - others)
    less = f" - {others:,} of other processes" if others else ""
    apart = settings.platform == "cuda" and not charges_context(settings)
    context = min(_CONTEXT, rest) if apart else 0
    own = f" - {context:,} of the context" if context else ""
    unused = Term(
        name="left unused",
        value=rest - context,
        unit="B",
        formula=f"{memory:,} B - ceil({memory:,} x {share:g}){less}{own} = {rest - context:,} B; "
        "NCCL's first buffers and graphs that are not charged live here",
        source=_SOURCE.format(version),
    )
    if not context:
        return [unused]
    held = Term(
        name="CUDA context",
        value=context,
        unit="B",
        formula=f"about {_CONTEXT / GIB:.2f} GiB, there before the first snapshot, so outside the "
        f"requested share = {context:,} B",
        source=_CONTEXT_SOURCE,
        low=min(context, _LEAST_CONTEXT),
        high=max(context, min(_MOST_CONTEXT, rest)),
    )
    return [unused, held]


def _others(used: int, charged: int, settings: Settings) -> Term:
    how = "charged to the budget" if charged else "outside the requested share"
    return Term(
        name="other processes",
        value=used,
        unit="B",
        formula=f"in use before the start: {used:,} B, {how}",
        source=_SOURCE.format(".".join(str(part) for part in settings.rules.version)),
    )


def _given(source: str, memory: int, given: int) -> Budget:
    """kv_cache_memory_bytes sets the cache; nothing is profiled."""
    rest = memory - given
    other = Term(
        name="everything else" if rest >= 0 else "missing",
        value=rest,
        unit="B",
        formula=f"{memory:,} - {given:,} B = {rest:,} B",
        source=source,
    )
    cache = Term(
        name="KV cache",
        value=given,
        unit="B",
        formula="kv_cache_memory_bytes as given",
        source=source,
    )
    terms = (other, cache) if rest >= 0 else (cache, other)
    return Budget(kv_bytes=given, interval=(given, given), terms=terms)


def _weight_terms(weights: RankWeights, settings: Settings) -> list[Term]:
    asked = float(settings.flags.get("cpu_offload_gb") or 0)
    hosted = f" less {asked:g} GiB of its layers in host memory" if asked else ""
    rows = (
        ("weights", weights.decoder, f"decoder on one of {settings.ranks} ranks{hosted}"),
        ("encoder weights", weights.encoders, "vision, audio and projectors"),
        ("absorbed latent projections", weights.absorbed, "halves of kv_b_proj in 16 bits"),
        ("rotary tables", weights.tables, "cosines and sines for the whole context"),
        ("buffers of a batch", weights.buffers, "picked positions, streams for drafts"),
        ("held by the allocator", weights.remainders, "ends of torch's blocks; pads on ROCm"),
    )
    return [
        Term(name=name, value=size, unit="B", formula=f"{what}: {size:,} B", source=_WEIGHTS)
        for name, size, what in rows
        if size
    ]


def _optional(model: Model, settings: Settings) -> list[Part]:
    """LoRA slots and a draft's weights, where asked for."""
    out = []
    lora, words = lora_need(model, settings)
    if lora:
        formula = f"{words} = {lora:,} B"
        out.append(Part(name="LoRA slots", value=lora, formula=formula, doubt=0.02 * lora))
    draft = draft_bytes(model, settings)
    if draft:
        own = settings.draft.model
        formula = f"{settings.draft.method}, {settings.draft.layers} layer(s): {draft:,} B"
        doubt = (0.3 if own is None else 0.02) * draft
        out.append(Part(name="draft model", value=draft, formula=formula, doubt=doubt))
    return out


def _term(part: Part) -> Term:
    return Term(
        name=part.name,
        value=part.value,
        unit="B",
        formula=part.formula,
        source=_FITTED,
        low=max(0, round(part.value - part.doubt)),
        high=round(part.value + part.doubt),
    )


def _scale(deployment: Deployment, settings: Settings) -> float:
    """The factor on doubts: larger where no start on the GPU, or of the release, was seen."""
    table, gpu = constants()["interval"], deployment.accelerator
    seen = gpu is not None and gpu.name in table["gpus"] and minor_of(settings) in table["releases"]
    return float(table["scale" if seen else "unseen_scale"])


def _doubt(parts: list[Part], weights: RankWeights, scale: float, memory: int) -> int:
    """Half the width of the interval: parts' doubts in quadrature, scaled to cover 90 %.

    What no part names is less on a small card: it goes with the fourth root of the memory, so
    that of 16 GB has two thirds of it.
    """
    table = constants()["interval"]
    own = float(table["weights_share"]) * weights.total
    unnamed = float(table["floor_gb"]) * GB * min(1.0, memory / _WHOLE_FLOOR) ** 0.25
    square = sum(part.doubt**2 for part in parts) + own**2 + unnamed**2
    return round(scale * math.sqrt(square))


def _answer(terms: list[Term], memory: int, left: int, doubt: tuple[int, int]) -> Budget:
    """The budget; `doubt` is by how much less and more may be left."""
    kv = max(0, left)
    low, high = max(0, left - doubt[0]), max(0, left + doubt[1])
    taken = memory - sum(int(term.value) for term in terms)
    cache = Term(
        name="KV cache",
        value=kv,
        unit="B",
        formula=f"{memory:,} B less the terms above = {taken:,} B",
        source="the rest",
        low=low,
        high=high,
    )
    terms = [*terms, cache]
    if left < 0:
        missing = Term(
            name="missing",
            value=left,
            unit="B",
            formula=f"{-left:,} B more are needed than gpu_memory_utilization allows",
            source="the rest",
        )
        terms.append(missing)
    return Budget(kv_bytes=kv, interval=(low, high), terms=tuple(terms))
