"""Ranks on different GPUs: the rank that leaves the least for the cache decides for all.

Engines agree on one count of blocks or tokens over all ranks, the smallest. Ranks are charged what
their own pipeline stages hold.
"""

from __future__ import annotations

import msgspec

from kvproof.engine.base import Budget, Deployment, engine_module
from kvproof.engine.hooks import traits
from kvproof.model.types import Model


def deciding(model: Model, deployment: Deployment) -> Deployment:
    """The deployment answered for the GPU whose ranks leave the least for the cache."""
    if not deployment.mixed or by_device(deployment):
        return deployment
    module = engine_module(deployment.engine.name)
    each = [deployment.on(kind) for _, kind in deployment.kinds]
    left = [module.budget(model, one).interval[0] for one in each]
    if traits(deployment.engine.name).unlike_ranks == "tokens":
        left = [module.capacity(model, one, kv).tokens
                for one, kv in zip(each, left, strict=True)]  # fmt: skip
    return min(zip(left, each, strict=True), key=lambda pair: pair[0])[1]


def by_device(deployment: Deployment) -> bool:
    """Whether the engine places layers on each device by its memory."""
    return traits(deployment.engine.name).unlike_ranks == "devices"


def smallest_budget(model: Model, deployment: Deployment) -> Budget:
    """The budget of the ranks that decide; its last term says which, and what the others leave."""
    module = engine_module(deployment.engine.name)
    decider = deciding(model, deployment)
    budget: Budget = module.budget(model, decider)
    if not deployment.mixed or by_device(deployment):
        return budget
    terms = [
        msgspec.structs.replace(term, formula=f"{term.formula}; {_who(model, decider)}")
        if term.name == "KV cache"
        else term
        for term in budget.terms
    ]
    return msgspec.structs.replace(budget, terms=tuple(terms))


def _who(model: Model, decider: Deployment) -> str:
    module = engine_module(decider.engine.name)
    others = [kind for _, kind in decider.kinds if kind is not decider.accelerator]
    rest = ", ".join(
        f"{kind.name} would leave {module.budget(model, decider.on(kind)).kv_bytes:,} B"
        for kind in others
    )
    name = decider.accelerator.name if decider.accelerator is not None else "none"
    return f"the ranks on {name} decide for all ({rest})"
