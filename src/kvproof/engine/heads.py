"""Attention heads that ranks share out in whole numbers, for engines that assert it."""

from __future__ import annotations

from kvproof.errors import UsageError
from kvproof.model.types import Model


def check_heads(model: Model, ranks: int, engine: str) -> None:
    """Raise UsageError where `ranks` of one attention don't divide the model's query heads.

    Source: SGLang 0.4.4 to 0.5.23, srt/models (`total_num_heads % attn_tp_size == 0`);
    TensorRT-LLM, tensorrt_llm/_torch/modules/attention.py and layers/attention.py.
    """
    if model.attention_heads and model.attention_heads % ranks:
        raise UsageError(
            f"{ranks} tensor-parallel ranks do not divide the {model.attention_heads} attention "
            f"heads of {model.name}",
            hint=f"{engine} refuses this; choose a divisor",
        )
