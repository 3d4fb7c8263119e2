"""The methods that --quantization names: which are vLLM's, and which need a quantized checkpoint.

Source: vLLM 0.2 to 0.32, model_executor/layers/quantization/__init__.py (QUANTIZATION_METHODS) and
get_config_filenames of each; config/model.py (_verify_quantization); model_loader/weight_utils.py
(get_quant_config): without a section in the config or a file beside it, "Cannot find the config
file for awq". Methods without such files quantize plain weights while loading, or need none.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from kvproof.model.types import Model

_OF_CHECKPOINTS = frozenset({
    "awq", "awq_marlin", "auto_awq", "awq_triton", "gptq", "gptq_marlin", "gptq_marlin_24",
    "gptq_bitblas", "auto_gptq", "auto-round", "marlin", "squeezellm", "aqlm", "hqq", "bitblas",
    "qqq", "modelopt", "modelopt_fp4", "modelopt_mixed", "moe_wna16", "compressed-tensors",
    "quark", "inc", "petit_nvfp4", "gguf",
})  # fmt: skip
"""A Quark, compressed-tensors or INC config can't be made without the checkpoint's section."""
_AT_LOAD = frozenset({
    "fp8", "bitsandbytes", "experts_int8", "torchao", "fbgemm_fp8", "fp_quant", "deepspeedfp",
    "tpu_int8", "ipex", "neuron_quant", "ptpc_fp8", "rtn", "mxfp4", "gpt_oss_mxfp4", "mxfp8",
    "modelopt_mxfp8", "deepseek_v4_fp8", "humming", "online", "fp8_per_tensor", "fp8_per_block",
    "fp8_per_channel", "int8_per_channel_weight_only", "nvfp4_per_token", "cpu_awq", "cpu_gptq",
    "ascend", "fp8_ascend", "rbln",
})  # fmt: skip
"""Those of vLLM's plugins for other hardware among them."""


def refused_method(model: Model, flags: Mapping[str, Any]) -> str | None:
    """Why vLLM does not start with the method that --quantization names; None where it does."""
    asked = flags.get("quantization")
    if not asked or str(asked).lower() == "none":
        return None
    method = str(asked).lower()
    if method not in _OF_CHECKPOINTS | _AT_LOAD:
        near = get_close_matches(method, sorted(_OF_CHECKPOINTS | _AT_LOAD), 1)
        offer = f": did you mean {near[0]}?" if near else ""
        return f"vLLM refuses to start: it knows no quantization {method[:40]!r}{offer}"
    plain = model.quantization is None and model.tensors
    if method in _OF_CHECKPOINTS and plain:
        return (
            f"vLLM refuses to start with quantization {method}: it reads a checkpoint that is "
            f"quantized so, and {model.name} is not; fp8 and bitsandbytes quantize while loading"
        )
    return None
