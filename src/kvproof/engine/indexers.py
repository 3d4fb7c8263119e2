"""Keys of the indexers beside latents, as engines store them: 128 numbers in FP8 with an f32 scale.

Sources: vLLM 0.32, models/deepseek_v2.py (DeepseekV32IndexerCache); SGLang 0.5.23,
mem_cache/memory_pool.py (NSATokenToKVPool); TensorRT-LLM 1.x, _torch/attention_backend/sparse/
dsa.py. The checkpoint's own code keeps them in the model's type.
"""

from __future__ import annotations

import msgspec

from kvproof.kinds import IndexerSlot, LatentSlot, element_type
from kvproof.model.types import Model

_SCALED = element_type("fp8_scaled_128")


def with_scaled_keys(model: Model) -> Model:
    """The model whose indexers beside latents keep scaled FP8."""
    latents = {slot.layer for slot in model.slots if isinstance(slot, LatentSlot)}
    slots = tuple(
        msgspec.structs.replace(slot, element=_SCALED)
        if isinstance(slot, IndexerSlot)
        and slot.element is None
        and slot.layer in latents
        and slot.dim % _SCALED.block == 0
        else slot
        for slot in model.slots
    )
    return model if slots == model.slots else msgspec.structs.replace(model, slots=slots)
