"""The pipeline stage that decides: the one that holds fewest tokens, on the GPU answered for.

Sources: SGLang 0.5.1 and 0.5.5 (distributed/utils.py, get_pp_indices: the last stage holds what is
left over), 0.5.6 to 0.5.23 (one layer more each for the last stages); every rank profiles its own
layers and all take the smallest count.
"""

from __future__ import annotations

import msgspec

from kvproof.engine.base import Deployment
from kvproof.engine.sglang.flags import Flags
from kvproof.engine.sglang.memory import static_memory
from kvproof.engine.sglang.pools import make_pools
from kvproof.engine.sglang.states import state_pool
from kvproof.engine.stages import own_stages, scarcest, stage_layers
from kvproof.errors import KvproofError
from kvproof.model.types import Model


def deciding(model: Model, deployment: Deployment, flags: Flags) -> Flags:
    """`flags` for the stage that decides."""
    if flags.pp == 1:
        return flags

    def tokens(part: range) -> float:
        own = msgspec.structs.replace(flags, layers=part)
        pools = make_pools(model, deployment, own)
        if pools.cell <= 0:
            return float("inf")
        try:
            left = static_memory(model, deployment, own).pools
        except KvproofError:
            return -pools.cell
        return pools.sized(max(0, left - state_pool(model, left, own, pools).counted))

    parts = stage_layers(model.layers, flags.pp, flags.rules.extra_layers)
    own = own_stages(deployment, flags.tp, flags.pp)
    return msgspec.structs.replace(flags, layers=scarcest(parts, own, tokens))
