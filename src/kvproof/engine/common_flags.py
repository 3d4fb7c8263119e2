"""The same settings under each engine's names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from kvproof.errors import UsageError

CALLED = {
    "vllm": "vLLM", "sglang": "SGLang", "tensorrt_llm": "TensorRT-LLM", "llamacpp": "llama.cpp",
    "ollama": "Ollama",
}  # fmt: skip
"""The programs' own names."""

# Engines that call vLLM's settings otherwise.
_NAMES: dict[str, dict[str, tuple[str, ...]]] = {
    "sglang": {"max_model_len": ("context_length",), "tensor_parallel_size": ("tp_size",)},
    "tensorrt_llm": {"max_model_len": ("max_seq_len",), "tensor_parallel_size": ("tp_size",)},
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


_UNSPLIT = ("llamacpp", "ollama")


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


# What bounds a request's length, and how many run at once, as each engine calls it.
_LIMITS = {
    "sglang": {"max_model_len": "context_length", "max_num_seqs": "max_running_requests"},
    "tensorrt_llm": {"max_model_len": "max_seq_len", "max_num_seqs": "max_batch_size"},
    "llamacpp": {"max_model_len": "context (n_ctx_seq)", "max_num_seqs": "parallel"},
    "ollama": {"max_model_len": "num_ctx", "max_num_seqs": "num_parallel"},
}


def limit_name(engine: str, limit: str) -> str:
    """What `engine` calls a limit (max_model_len, max_num_seqs); other words stay as they are."""
    return _LIMITS.get(engine, {}).get(limit, limit)


def setting_name(engine: str, setting: str) -> str:
    """The flag by which `engine` takes a setting of vLLM's name."""
    return _NAMES.get(engine, {}).get(setting, (setting,))[0]


def flag_of(option: str) -> str:
    """The flag's name in snake_case of an option as it is typed."""
    return option.lstrip("-").replace("-", "_")


def named_for(engine: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """`settings` (max_model_len, kv_cache_dtype, tensor_parallel_size, ...) as `engine` calls them.

    Raises UsageError for one that the engine has not.
    """
    names, dtypes = _NAMES.get(engine, {}), _DTYPES.get(engine, {})
    given = settings.get("kv_cache_dtype")
    if given in dtypes:
        settings = {**settings, "kv_cache_dtype": dtypes[given]}
    if "tensor_parallel_size" in settings and engine in _UNSPLIT:
        raise UsageError(
            f"{engine} has no tensor-parallel size: it spreads a model over all GPUs",
            hint="give their number as 2xGPU",
        )
    return {name: value for key, value in settings.items() for name in names.get(key, (key,))}
