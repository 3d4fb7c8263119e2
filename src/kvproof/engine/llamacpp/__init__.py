"""llama.cpp: cells, streams and buffers that the flags ask for, exactly, and what else it takes.

The pool is sized by flags and not by what is left of the memory. K, V, indexer, compressed and
recurrent buffers are exact (facts measured on b11549); compute buffers are estimates.
"""

from __future__ import annotations

from kvproof.engine.base import Budget, Cache, CacheRequest, Capacity, Deployment, Offload
from kvproof.engine.drafts import DraftCache
from kvproof.engine.hooks import Traits
from kvproof.engine.llamacpp.flags import Flags, flags_of, stretched
from kvproof.kinds import Types, element_type
from kvproof.model.types import Model

TRAITS = Traits(static_caches=True, unlike_ranks="devices", newest="b11549")


def check_flags(deployment: Deployment) -> None:
    """Raise UsageError for a flag that llama-server does not have or a bad value."""
    flags_of(deployment)


def cache(model: Model, request: CacheRequest, version: str | None = None) -> Cache:
    """Bytes of sequences in a context made for exactly them, one stream each."""
    from kvproof.engine.llamacpp.sequences import cache_of

    return cache_of(model, request, version)


def budget(model: Model, deployment: Deployment) -> Budget:
    """What the flags allocate, one term per buffer and device, down to what is left."""
    from kvproof.engine.llamacpp.memory import budget_of

    return budget_of(model, deployment)


def capacity(model: Model, deployment: Deployment, kv_bytes: int) -> Capacity:
    """The cells of the context under the flags, when `kv_bytes` hold them."""
    from kvproof.engine.llamacpp.pool import capacity_of

    return capacity_of(model, deployment, kv_bytes)


def trained_for(model: Model, deployment: Deployment) -> int | None:
    """The length that the model reaches under the deployment's rotary flags."""
    return None if model.context is None else stretched(deployment.flags, model.context)


def served_model(model: Model, deployment: Deployment) -> Model:
    """The model with what its convolutions keep."""
    from kvproof.engine.convolutions import keeping
    from kvproof.engine.llamacpp.layout import stored_columns

    return keeping(model, stored_columns(model))


def types_for(model: Model, deployment: Deployment) -> Types:
    """Element types of the deployment's cache; states are always f32."""
    flags = flags_of(deployment)
    return Types(flags.cache_type_k, flags.cache_type_v, element_type("f32"))


def draft_for(model: Model, deployment: Deployment) -> DraftCache | None:
    """What a draft keeps of each sequence."""
    from kvproof.engine.llamacpp.companions import drafted

    return drafted(model, flags_of(deployment))


def ranks_for(deployment: Deployment) -> int:
    """GPUs that one server spreads its model over: all of them."""
    return deployment.gpu_count or 1


def offload_for(model: Model, deployment: Deployment) -> Offload | None:
    """What a decode step reads from host memory; None where it reads nothing there."""
    from kvproof.engine.llamacpp.memory import offload_of

    return offload_of(model, deployment)


def _projector_note(model: Model, flags: Flags) -> tuple[str, ...]:
    """A word on the projector that a repository brings along (common/arg.cpp, --mmproj-auto)."""
    pictured = any(model.config.get(f"{kind}_config") for kind in ("vision", "audio"))
    if not pictured or flags.mmproj or not flags.mmproj_auto:
        return ()
    return (
        "with -hf (and in Ollama) the model's projector is loaded too, unless --no-mmproj: it is "
        "counted where --mmproj names its file",
    )


def warnings_for(model: Model, deployment: Deployment, fitted: str = "--fit") -> tuple[str, ...]:
    """What was lowered to fit, and by what (`fitted`), what could not be read beside the model, and
    an assumed speed.
    """
    from kvproof.engine.llamacpp.companions import companions_of
    from kvproof.engine.llamacpp.memory import lowered_note

    flags, offload = flags_of(deployment), offload_for(model, deployment)
    beside = (*companions_of(flags).unread, *_projector_note(model, flags))
    unread = (*lowered_note(model, deployment, fitted), *beside)
    if offload is None or flags.host_bandwidth:
        return unread
    if not (offload.weight_bytes or offload.expert_bytes or offload.cache_share):
        return unread
    rate = offload.bandwidth / 1e9
    return (*unread, f"what stays in host memory is read at {rate:.4g} GB/s: {offload.source}")
