"""The machine that runs a deployment's steps: its ranks' speed and how they share the work."""

from __future__ import annotations

import msgspec

from kvproof.engine import hooks
from kvproof.engine.base import Deployment, context_ranks, parallel_sizes, ranks_of
from kvproof.engine.loading import Loaded, asked_quantization
from kvproof.kinds import Types
from kvproof.model.types import Model
from kvproof.timing.measured import efficiency
from kvproof.timing.step import Efficiency, Machine

_EIGHT_BITS = ("fp8", "mxfp8", "modelopt_fp8", "fbgemm_fp8", "ptpc_fp8")


def machine_of(model: Model, deployment: Deployment) -> Machine | None:
    """Bandwidth and peak of one rank, None when neither a GPU nor a bandwidth is named."""
    kinds = [kind for _, kind in deployment.kinds]  # a step waits for the slowest rank
    given, asked = hooks.speed(deployment), asked_quantization(model, deployment)
    bandwidth = given.bandwidth or min((kind.memory_bandwidth for kind in kinds), default=None)
    flops = given.flops or min((k.flops(compute_type(model, asked)) for k in kinds), default=None)
    if bandwidth is None:
        return None
    offload = hooks.offload(model, deployment)
    return shared_out(deployment, Machine(bandwidth=float(bandwidth), flops=flops, offload=offload))


def shared_out(deployment: Deployment, rank: Machine) -> Machine:
    """The machine of ranks like `rank` that share the work as the deployment's flags say."""
    stages, copies = parallel_sizes(deployment.flags)[1], hooks.copies(deployment)
    ranks = ranks_of(deployment)
    return msgspec.structs.replace(
        rank,
        ranks=ranks // copies.sets,
        stages=stages if ranks % stages == 0 else 1,
        context_ranks=context_ranks(deployment.flags),
        copies=copies.dealing,
        sharing=copies.sets * copies.outside,
        repeating=copies.repeating,
    )


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
