"""Weights on one rank: the shared arithmetic, and the pads of MXFP4 experts.

Source: TensorRT-LLM 1.x, _torch/modules/fused_moe/quantization.py (MXFP4 methods,
`weight_alignment` 128): a rank's part of the experts' inner size and the hidden size are rounded
up. gpt-oss-120b prints 63.32 GiB, 2.55 more than its tensors (1.2, GB10).
"""

from __future__ import annotations

from kvproof.engine.rank_weights import rank_weight_bytes
from kvproof.engine.tensorrt_llm.flags import Flags
from kvproof.model.types import Model
from kvproof.model.weights import known_tensors, stored_bytes

_ALIGNED = 128
_PADDED = "mxfp4"


def weight_bytes(model: Model, flags: Flags) -> int:
    """Bytes of the weights on a rank of the stage that `flags` are for."""
    size = rank_weight_bytes(
        model, flags.tp, flags.layers, flags.attention_tp, flags.get("quantization")
    )
    method = model.quantization.method if model.quantization is not None else ""
    return size + _pads(model, flags) if method == _PADDED and not flags.compiled else size


def _pads(model: Model, flags: Flags) -> int:
    """Bytes on a rank that the experts' pads take."""
    total = 0.0
    ranks = max(1, flags.tp // int(flags.get("moe_expert_parallel_size") or 1))
    for group in known_tensors(model):
        if group.role != "expert" or not group.linear or len(group.shape) < 2:
            continue
        held = [layer for layer in group.layers if flags.layers is None or layer in flags.layers]
        grown = _grown(model.hidden_size, 1) * _grown(_inner(model, group.shape), ranks) - 1
        total += stored_bytes(model, group) / flags.tp * len(held) / len(group.layers) * grown
    return int(total)


def _inner(model: Model, shape: tuple[int, ...]) -> int:
    """The experts' inner size by the config, else the tensors' last side."""
    named = model.text_config.get("moe_intermediate_size") or model.text_config.get(
        "intermediate_size"
    )
    return int(named) if isinstance(named, int) and named > 0 else shape[-1]


def _grown(size: int, ranks: int) -> float:
    """By what factor a side grows when each of `ranks` parts is rounded up."""
    part = size / ranks
    return -(-part // _ALIGNED) * _ALIGNED / part
