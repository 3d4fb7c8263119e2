"""TensorRT-LLM's flags: their spellings, defaults by release and backend.

Sources: llmapi/llm_args.py (KvCacheConfig, TorchLlmArgs); plugin/plugin.py (tokens_per_block of the
compiled engine: 64, from 0.19 on 32); the release notes of 0.14.0 (trtllm-build's max_batch_size:
256 before, 2,048 since).
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from kvproof.engine.base import Deployment
from kvproof.engine.cache_types import CacheType, Option, check_type
from kvproof.engine.release import release_number
from kvproof.errors import UsageError, unknown_name
from kvproof.units import parse_bytes

_ALIASES = {
    "tp": "tp_size", "tensor_parallel_size": "tp_size", "pp": "pp_size",
    "pipeline_parallel_size": "pp_size", "ep_size": "moe_expert_parallel_size",
    "kv_cache_free_gpu_mem_fraction": "free_gpu_memory_fraction",
    "kv_cache_free_gpu_memory_fraction": "free_gpu_memory_fraction",
    "max_tokens_in_paged_kv_cache": "max_tokens", "kv_cache_host_memory_bytes": "host_cache_size",
    "max_model_len": "max_seq_len", "dtype_kv": "kv_cache_dtype",
}  # fmt: skip
_NAMES = (
    "tp_size", "pp_size", "moe_expert_parallel_size", "moe_tensor_parallel_size",
    "gpus_per_node", "free_gpu_memory_fraction", "max_tokens", "max_gpu_total_bytes",
    "host_cache_size", "tokens_per_block", "max_attention_window", "sink_token_length",
    "enable_block_reuse", "enable_partial_reuse", "copy_on_partial_reuse", "use_uvm",
    "kv_cache_dtype", "max_batch_size", "max_num_tokens", "max_seq_len", "max_input_len",
    "max_beam_width", "enable_attention_dp", "enable_chunked_prefill", "cuda_graph_config",
    "backend", "dtype", "quantization", "trust_remote_code", "mamba_ssm_cache_dtype",
    "mamba_state_cache_interval", "speculative_config", "multiple_profiles", "kv_cache_config",
    "onboard_blocks", "cross_kv_cache_fraction", "secondary_offload_min_priority",
    "event_buffer_max_size", "attention_dp_events_gather_period_ms", "use_kv_cache_manager_v2",
    "max_util_for_resume", "pool_ratio", "avg_seq_len", "gpu_memory", "free_memory", "used",
)  # fmt: skip
_COMPILED_ONLY = "int8"
"""What trtllm-build's engines alone take, of checkpoints quantized so (kv_cache_quant_algo)."""
_KV_DTYPES = Option(
    engine="TensorRT-LLM",
    flag="kv_cache_dtype",
    types=(
        CacheType("auto"), CacheType("fp8"), CacheType("nvfp4", (1, 1)), CacheType(_COMPILED_ONLY),
        CacheType("float16"), CacheType("bfloat16"), CacheType("half"), CacheType("float32"),
        CacheType("f16"), CacheType("bf16"), CacheType("f32"), CacheType("fp8_e4m3"),
    ),
)  # fmt: skip
"""Source: llmapi/llm_args.py (KvCacheConfig.dtype: auto, fp8, nvfp4); NVFP4 by PR 6244 (September
2025). The 16-bit names are those of a model or checkpoint, which `auto` follows."""
_RESUMED = 0.95
"""max_util_for_resume where none is given (llmapi/llm_args.py)."""
_RELEASES = ("0.5", "0.9", "0.16", "0.18", "0.20", "0.21", "1.0", "1.1", "1.2", "1.3")
_WHOLE = (
    "tp_size", "pp_size", "max_tokens", "tokens_per_block", "max_batch_size", "max_num_tokens",
    "max_seq_len", "max_input_len", "max_beam_width",
)  # fmt: skip
_SIZES = ("gpu_memory", "free_memory", "used", "host_cache_size", "max_gpu_total_bytes")


class Flags(msgspec.Struct, frozen=True, kw_only=True):
    """The flags that decide memory, defaults filled in."""

    tp: int
    pp: int
    attention_tp: int
    fraction: float
    tokens_per_block: int
    max_batch_size: int
    max_num_tokens: int
    given: dict[str, Any]
    version: str | None
    compiled: bool
    """The C++ engine of releases before 1.0, with its buffers for every sequence of a batch."""
    logit_copies: float
    layers: range | None = None
    """The layers of the pipeline stage that is answered for; None: all."""

    def get(self, name: str, default: Any = None) -> Any:
        """A flag as given, else `default`."""
        return self.given.get(name, default)

    @property
    def second_manager(self) -> bool:
        """Whether KVCacheManagerV2 keeps the pools (a prototype, off by default)."""
        return str(self.get("use_kv_cache_manager_v2", False)).lower() in ("true", "1")

    @property
    def most_tokens(self) -> int | None:
        """Tokens that the pool is limited to.

        The second manager adds what it keeps free for sequences that grow, so that max_tokens can
        be resumed. Source: _torch/pyexecutor/kv_cache_manager_v2.py (max_util_for_resume).
        """
        asked: int | None = self.get("max_tokens")
        if asked is None or not self.second_manager:
            return asked
        return math.ceil(int(asked) / float(self.get("max_util_for_resume", _RESUMED)))

    def before(self, major: int, minor: int) -> bool:
        """Whether the release is older than this one; no release named is the newest."""
        return _before(self.version, major, minor)


def releases() -> tuple[str, ...]:
    """The releases that can have printed a log, oldest first: one of each span that is alike."""
    return _RELEASES


def read_flags(deployment: Deployment) -> Flags:
    """The deployment's flags under TensorRT-LLM's names; nested kv_cache_config is flattened."""
    given: dict[str, Any] = {}
    nested = deployment.flags.get("kv_cache_config")
    inner = nested if isinstance(nested, dict) else {}  # its dtype is the cache's, not the model's
    flat = {"kv_cache_dtype" if name == "dtype" else name: value for name, value in inner.items()}
    for name, value in {**flat, **deployment.flags}.items():
        key = _ALIASES.get(name, name)
        if key not in _NAMES:
            raise unknown_name("TensorRT-LLM flag", name, list(_NAMES), see="write tp_size=8")
        if value is not None:
            given[key] = _value(key, value)
    version = deployment.engine.version
    compiled = _compiled(version, given)
    _check_type(given, version, compiled)
    block = given.get("tokens_per_block", 64 if _before(version, 0, 19) else 32)
    if block & (block - 1):
        raise UsageError(f"tokens_per_block={block} is no power of two", hint="use 32, 64 or 128")
    tp = given.get("tp_size", 1)
    return Flags(
        tp=tp,
        pp=given.get("pp_size", 1),
        attention_tp=1 if given.get("enable_attention_dp") else tp,
        fraction=given.get("free_gpu_memory_fraction", 0.9),
        tokens_per_block=block,
        max_batch_size=given.get("max_batch_size", 256 if _before(version, 0, 14) else 2048),
        max_num_tokens=given.get("max_num_tokens", 8192),
        given=given,
        version=version,
        compiled=compiled,
        logit_copies=_copies(version) if compiled else 1.0,
    )


def _check_type(given: dict[str, Any], version: str | None, compiled: bool) -> None:
    """Refuse a cache type that the release's backend lacks; logs print words behind it."""
    asked = str(given.get("kv_cache_dtype", "auto")).split() or ["auto"]
    if asked[0] == _COMPILED_ONLY and not compiled:
        raise UsageError(
            f"TensorRT-LLM's PyTorch backend has no {_COMPILED_ONLY} cache",
            hint="use fp8, or backend=tensorrt before 1.0",
        )
    check_type(_KV_DTYPES, asked[0], version)


def _copies(version: str | None) -> float:
    """Copies of the f32 logits of a full batch: logs of 0.12, 0.14 and 0.19 (see `_buffers`)."""
    return 7.7 if _before(version, 0, 17) else 4.5


def _compiled(version: str | None, given: dict[str, Any]) -> bool:
    backend = str(given.get("backend", "")).lower()
    return backend in ("cpp", "tensorrt", "trt") or (not backend and _before(version, 1, 0))


def _before(version: str | None, major: int, minor: int) -> bool:
    number = release_number(version)
    return number is not None and len(number) > 1 and number[:2] < (major, minor)


def _value(name: str, value: Any) -> Any:
    try:
        if name in _SIZES:
            return parse_bytes(value)
        if name in _WHOLE:
            value = int(value)
        elif name == "max_attention_window":
            value = _windows(value)
        elif name in ("free_gpu_memory_fraction", "max_util_for_resume"):
            value = float(str(value).split()[0])
    except (TypeError, ValueError, OverflowError, IndexError):
        raise UsageError(f"{name}={str(value)[:40]!r} is no number", hint="give one") from None
    if name in _WHOLE and value < 1:
        raise UsageError(f"{name} is {value}", hint="give 1 or more")
    if name == "max_util_for_resume" and not 0 < value <= 1:
        raise UsageError(f"{name} is {value}", hint="give a share above 0, up to 1")
    if name == "free_gpu_memory_fraction" and not 0 <= value <= 1:
        raise UsageError(f"{name} is {value}", hint="give a share from 0 to 1")
    return value


def _windows(value: Any) -> list[int] | None:
    """The windows that repeat over the layers: one, or a list."""
    listed = value if isinstance(value, list | tuple) else [value] if value else []
    windows = [int(window) for window in listed]
    if any(window < 1 for window in windows):
        raise ValueError
    return windows or None


def canonical_flag(name: str) -> str:
    """TensorRT-LLM's own name of a flag that has several spellings."""
    return _ALIASES.get(name, name)


def flag_names() -> tuple[str, ...]:
    """Every flag that is read, with its other spellings."""
    return (*_NAMES, *_ALIASES)


def is_read(name: str) -> bool:
    """Whether the flag bears on what is computed here."""
    return canonical_flag(name) in _NAMES
