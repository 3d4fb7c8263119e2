"""Ollama: llama.cpp with Ollama's defaults for context, parallel requests, batch and cache type.

Flags are the options of a request or Modelfile (num_ctx, num_batch, num_gpu, ...) and the
server's environment in snake_case without OLLAMA_ (num_parallel, kv_cache_type,
flash_attention, context_length).
"""

from __future__ import annotations

import msgspec

from kvproof.engine import llamacpp
from kvproof.engine.base import Budget, Cache, CacheRequest, Capacity, Deployment, Offload
from kvproof.engine.ollama.flags import as_llamacpp, build_name, runner_model
from kvproof.engine.ollama.releases import NEWEST
from kvproof.engine.release import shown
from kvproof.kinds import Types
from kvproof.model.types import Model

TRAITS = msgspec.structs.replace(llamacpp.TRAITS, newest=shown(NEWEST))


def check_flags(deployment: Deployment) -> None:
    """Raise UsageError for a flag that Ollama does not have or a bad value."""
    as_llamacpp(deployment)


def cache(model: Model, request: CacheRequest, version: str | None = None) -> Cache:
    """Bytes of sequences in the llama.cpp context that Ollama starts for them."""
    return llamacpp.cache(runner_model(model, version), request, build_name(version))


def budget(model: Model, deployment: Deployment) -> Budget:
    """What the runner allocates, by llama.cpp's rules."""
    return llamacpp.budget(_model(model, deployment), as_llamacpp(deployment, model))


def capacity(model: Model, deployment: Deployment, kv_bytes: int) -> Capacity:
    """The cells of the runner's context."""
    return llamacpp.capacity(_model(model, deployment), as_llamacpp(deployment, model), kv_bytes)


def served_model(model: Model, deployment: Deployment) -> Model:
    """The model with what its convolutions keep."""
    return llamacpp.served_model(model, as_llamacpp(deployment, model))


def types_for(model: Model, deployment: Deployment) -> Types:
    """Element types of the runner's cache."""
    return llamacpp.types_for(model, as_llamacpp(deployment, model))


def ranks_for(deployment: Deployment) -> int:
    """GPUs that one runner spreads its model over."""
    return llamacpp.ranks_for(deployment)


def offload_for(model: Model, deployment: Deployment) -> Offload | None:
    """What a decode step reads from host memory; None where it reads nothing there."""
    return llamacpp.offload_for(_model(model, deployment), as_llamacpp(deployment, model))


def warnings_for(model: Model, deployment: Deployment) -> tuple[str, ...]:
    """What a plan says of a step's time that rests on an assumption."""
    asked = as_llamacpp(deployment, model)
    return llamacpp.warnings_for(_model(model, deployment), asked, "num_gpu is not set")


def _model(model: Model, deployment: Deployment) -> Model:
    return runner_model(model, deployment.engine.version)
