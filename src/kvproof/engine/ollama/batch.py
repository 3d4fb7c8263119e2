"""The batch that Ollama chooses from 0.30 on where num_batch is not given.

Longer contexts get larger batches while the model is predicted to leave room for them
(server/sched.go, automaticGenerationBatch; llm/llama_server.go, PredictServerVRAM).
"""

from __future__ import annotations

from kvproof.engine.base import Deployment
from kvproof.errors import ModelError
from kvproof.kinds import FullSlot
from kvproof.model.types import Model
from kvproof.model.weights import weight_bytes
from kvproof.units import GIB, MIB

_DEFAULT, _CONSTRAINED = 512, 256
# Cells above which a batch is taken; the batch; what it takes; the share of the memory that may be
# predicted before.
_LARGER = ((32_768, 2_048, 2 * GIB, 60), (4_096, 1_024, 768 * MIB, 75))
_MOST = 80
_SMALL_GPU = 8 * GIB


def automatic_batch(
    model: Model | None, deployment: Deployment, cells: int, memory: int, flash_off: bool
) -> int:
    """Tokens of a batch over `cells` of context on GPUs of `memory` bytes (0: unknown)."""
    if flash_off and deployment.accelerator is not None:
        constrained = cells > 4_096 and deployment.accelerator.memory_bytes <= _SMALL_GPU
        return _CONSTRAINED if constrained else _DEFAULT
    predicted = _predicted(model, cells)
    for least, batch, surcharge, share in _LARGER:
        fits = not (predicted and memory) or (
            predicted <= memory * share // 100 and predicted + surcharge <= memory * _MOST // 100
        )
        if cells > least and fits:
            return batch
    return _DEFAULT


def _predicted(model: Model | None, cells: int) -> int:
    """Weights, and f16 keys and values as if all layers had the fewest heads, whatever the type."""
    if model is None:
        return 0
    try:
        weights = weight_bytes(model)
    except ModelError:
        return 0
    heads = min((s.kv_heads for s in model.slots if isinstance(s, FullSlot)), default=1)
    width = model.hidden_size // max(1, model.attention_heads)
    return weights + 2 * model.layers * heads * width * cells * 2
