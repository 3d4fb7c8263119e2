"""vLLM: its flags by release, its block pool, its memory budget.

`capacity` equals the planner of vLLM 0.32 (tests/ground_truth/vllm_cases.json); `versions`
holds what earlier releases did otherwise. `budget` is an estimate with an interval.
"""

from __future__ import annotations

from collections.abc import Callable

from kvproof.engine.base import Cache, CacheRequest, Deployment, context_ranks, prefill_copies
from kvproof.engine.drafts import DraftCache
from kvproof.engine.hooks import Copies, Traits
from kvproof.engine.indexers import with_scaled_keys
from kvproof.engine.stored_types import types_of
from kvproof.engine.vllm.architectures import around_unknown, unknown_yet
from kvproof.engine.vllm.budget import budget, memory_refusals
from kvproof.engine.vllm.cache_elements import types_for
from kvproof.engine.vllm.capabilities import refused_capability
from kvproof.engine.vllm.double_quant import with_unpacked_scales
from kvproof.engine.vllm.draft import draft_notes
from kvproof.engine.vllm.dtypes import refused_type, run_in
from kvproof.engine.vllm.engines import engine_notes
from kvproof.engine.vllm.flags import overrides_of, read_flags
from kvproof.engine.vllm.layers import drafted_slots
from kvproof.engine.vllm.lengths import too_long
from kvproof.engine.vllm.methods import refused_method
from kvproof.engine.vllm.override import allocated_for
from kvproof.engine.vllm.planner import VllmCapacity, VllmGroup, capacity
from kvproof.engine.vllm.rank_weights import kept_bytes
from kvproof.engine.vllm.sequence import sequence_cache
from kvproof.engine.vllm.settings import settle
from kvproof.engine.vllm.states import kept_in_types
from kvproof.engine.vllm.variables import unread_notes
from kvproof.engine.vllm.versions import rules_for
from kvproof.model.overrides import overridden
from kvproof.model.tensors import TensorGroup
from kvproof.model.types import Model

__all__ = [
    "VllmCapacity",
    "VllmGroup",
    "allocated_for",
    "budget",
    "cache",
    "capacity",
    "check_flags",
    "copies_for",
    "draft_for",
    "loaded_for",
    "refusals_for",
    "served_model",
    "types_for",
    "warnings_for",
]

TRAITS = Traits(
    says_types=True,
    reliefs=(
        ("CUDA graphs", "--enforce-eager (CUDA graphs, {})"),
        ("activations", "a smaller --max-num-batched-tokens (of activations, {})"),
        ("encoder profiling", "fewer images a request (--limit-mm-per-prompt, {})"),
        ("left unused", "a higher --gpu-memory-utilization (up to {})"),
    ),
)


def check_flags(deployment: Deployment) -> None:
    """Raise UsageError for a flag that vLLM does not have or a value it can't read."""
    read_flags(deployment)


def served_model(model: Model, deployment: Deployment) -> Model:
    """The model as the flags change its config and the types of its states.

    hf_overrides, and rope_scaling before 0.11.1; the type of weights and cache that the GPU has;
    scales as they are unpacked at load.
    """
    flags = read_flags(deployment)
    served = overridden(model, overrides_of(flags))
    served = with_unpacked_scales(served, rules_for(deployment.engine.version).version)
    return with_scaled_keys(kept_in_types(run_in(served, deployment, flags), flags))


def loaded_for(model: Model, deployment: Deployment) -> Callable[[TensorGroup], int]:
    """Bytes of a group of tensors as loaded under the flags."""
    settings = settle(model, deployment)
    return lambda group: kept_bytes(model, settings, group)


def copies_for(deployment: Deployment) -> Copies:
    """Prefill context ranks hold the whole cache: decoding, they deal the sequences out, and with
    decode context ranks all run every one. Data-parallel ranks are starts of their own.

    Source: vLLM 0.32, config/parallel.py (pcp_shard_decode_requests), and
    model_executor/layers/fused_moe/config.py (FusedMoEParallelConfig.make).
    """
    flags = deployment.flags
    sets, dealt = prefill_copies(flags), context_ranks(flags) == 1
    starts = int(flags.get("data_parallel_size") or 1)
    return Copies(
        dealing=sets if dealt else 1,
        repeating=1 if dealt else sets,
        outside=starts,
        started=starts,
    )


def refusals_for(model: Model, deployment: Deployment) -> tuple[str, ...]:
    """Why vLLM would not start: no class for the model, a type or a quantization that the GPU
    lacks, a length that the config does not give, no memory."""
    unknown = unknown_yet(model, deployment.engine.version)
    flags = read_flags(deployment)
    typed, method = refused_type(model, deployment, flags), refused_method(model, flags)
    capable, long = refused_capability(model, deployment, flags), _refused_length(model, deployment)
    said = (why for why in (unknown, typed, method, capable, long) if why is not None)
    return (*said, *memory_refusals(model, deployment))


def _refused_length(model: Model, deployment: Deployment) -> str | None:
    """A max_model_len beyond the config's that no variable lets through."""
    settings = settle(model, deployment)
    if settings.flags.get("allow_long_max_model_len"):
        return None
    return too_long(model, settings.flags, settings.rules)


def warnings_for(model: Model, deployment: Deployment) -> tuple[str, ...]:
    """An engine that isn't the usual one, a variable that isn't read, a draft that isn't known."""
    settings = settle(model, deployment)
    flags = settings.flags
    said = engine_notes(model, deployment, flags)
    if (around := around_unknown(model, deployment.engine.version)) is not None:
        said.append(around)
    unread = unread_notes(deployment.flags, deployment.engine.version)
    return (*said, *unread, *draft_notes(model, flags))


def cache(model: Model, request: CacheRequest, version: str | None = None) -> Cache:
    """Bytes that sequences hold in vLLM's blocks on one GPU."""
    return sequence_cache(model, request, version)


def draft_for(model: Model, deployment: Deployment) -> DraftCache | None:
    """What a draft keeps of each sequence."""
    settings = settle(model, deployment)
    draft, drafted = drafted_slots(model, settings)
    slots = tuple(slot for _, found in drafted for slot in found)
    name = draft.name if draft is not model else settings.draft.method
    return DraftCache(name=name, slots=slots, types=types_of(draft, deployment))
