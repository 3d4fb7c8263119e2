"""The same settings under each engine's names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from kvproof.errors import UsageError

# Engines that do not understand vLLM's names, by setting.
_NAMES: dict[str, dict[str, tuple[str, ...]]] = {
    "llamacpp": {
        "max_model_len": ("ctx_size",),
        "kv_cache_dtype": ("cache_type_k", "cache_type_v"),
    },
    "ollama": {"max_model_len": ("num_ctx",), "kv_cache_dtype": ("kv_cache_type",)},
}


# Element types as people name them, where the engine's option calls them otherwise.
_DTYPES: dict[str, dict[str, str]] = {
    "vllm": {"bf16": "bfloat16", "f16": "float16", "fp16": "float16"},
    "sglang": {"fp8": "fp8_e4m3", "f16": "float16", "fp16": "float16"},
}


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How an engine spells, on its command line, what decides whether a model fits."""

    length: str
    ranks: str
    share: str
    """The part of the GPU's memory that the engine takes, or of what is free."""


OPTIONS = {
    "vllm": Options(
        length="--max-model-len",
        ranks="--tensor-parallel-size",
        share="--gpu-memory-utilization",
    ),
    "sglang": Options(
        length="--context-length",
        ranks="--tp-size",
        share="--mem-fraction-static",
    ),
    "tensorrt_llm": Options(
        length="--max_seq_len",
        ranks="--tp_size",
        share="--kv_cache_free_gpu_memory_fraction",
    ),
}
"""Of the engines that share a model out over ranks."""


def flag_of(option: str) -> str:
    """The flag's name in snake_case of an option as it is typed."""
    return option.lstrip("-").replace("-", "_")


def named_for(engine: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """`settings` (max_model_len, kv_cache_dtype, tensor_parallel_size, ...) as `engine` calls them.

    Raises UsageError for one that the engine has not.
    """
    names, dtypes = _NAMES.get(engine), _DTYPES.get(engine, {})
    if names is None:
        given = settings.get("kv_cache_dtype")
        renamed = {"kv_cache_dtype": dtypes[given]} if given in dtypes else {}
        return {**settings, **renamed}
    if "tensor_parallel_size" in settings:
        raise UsageError(
            f"{engine} has no tensor-parallel size: it spreads a model over all GPUs",
            hint="give their number as 2xGPU",
        )
    return {name: value for key, value in settings.items() for name in names.get(key, (key,))}
