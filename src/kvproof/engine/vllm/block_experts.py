"""Weights quantized in blocks: releases that start only where ranks hold whole blocks.

Experts: model_executor/layers/quantization/fp8.py (Fp8MoEMethod.create_weights) of every minor from
0.8.5 to 0.28; 0.29 refines the scales instead (weight_scale_refine). Dense layers: 0.32,
quantization/utils/fp8_utils.py (validate_fp8_block_shape), where alone it was read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvproof.engine.vllm.versions import Rules
from kvproof.errors import UsageError
from kvproof.model.types import Model

_FIRST, _PAST = (0, 8, 5), (0, 29, 0)
_DENSE_READ = (0, 32, 0)
_DOWN = (".down_proj", ".w2")
_DENSE_DOWN = ".mlp.down_proj.weight"


def check_block_experts(model: Model, flags: Mapping[str, Any], rules: Rules) -> None:
    """Raise UsageError where a rank's part of an expert is no whole number of fp8 blocks."""
    ranks = flags.get("tensor_parallel_size", 1)
    whole = flags.get("enable_expert_parallel") or flags.get("data_parallel_size", 1) > 1
    if ranks == 1 or whole or not _FIRST <= rules.version < _PAST:
        return
    for width, block in sorted(_widths(model)):
        if width % ranks == 0 and width // ranks % block:
            raise UsageError(
                f"tensor_parallel_size {ranks} leaves {width // ranks} of an expert's {width} "
                f"columns on a rank of {model.name}, no multiple of the fp8 block of {block}",
                hint="vLLM before 0.29 refuses this; set enable_expert_parallel or use fewer ranks",
            )


def check_block_dense(model: Model, flags: Mapping[str, Any], rules: Rules) -> None:
    """Raise UsageError where a rank's part of a dense layer is no whole number of fp8 blocks."""
    ranks, own = flags.get("tensor_parallel_size", 1), model.quantization
    if ranks == 1 or rules.version < _DENSE_READ or own is None or own.method != "fp8":
        return
    for group in model.tensors:
        scheme = own.scheme(group.name) if group.name.endswith(_DENSE_DOWN) else None
        width = group.shape[-1]
        if scheme is not None and scheme.block and width // ranks % scheme.block[-1]:
            raise UsageError(
                f"tensor_parallel_size {ranks} leaves {width // ranks} of a layer's {width} "
                f"columns on a rank of {model.name}, no multiple of the fp8 block of "
                f"{scheme.block[-1]}",
                hint="vLLM refuses this; use fewer ranks",
            )


def _widths(model: Model) -> set[tuple[int, int]]:
    """The inner width of every routed expert in blocks of fp8, and the size of its blocks."""
    own = model.quantization
    if own is None or own.method != "fp8":
        return set()
    found = set()
    for group in model.tensors:
        scheme = own.scheme(group.name) if group.role == "expert" and group.linear else None
        if scheme is not None and scheme.block and group.name.endswith(_DOWN):
            found |= {(group.shape[-1], size) for size in scheme.block}
    return found
