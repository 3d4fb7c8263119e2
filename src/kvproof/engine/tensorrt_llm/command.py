"""TensorRT-LLM's command lines: `trtllm-serve`, `trtllm-bench`, and the official images."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from kvproof.engine.command import Parsed, Reader, Words
from kvproof.engine.tensorrt_llm import canonical_flag, is_read
from kvproof.errors import UsageError, unknown_name

_PROGRAMS = ("trtllm-serve", "trtllm-bench")
_VERBS = ("serve", "throughput", "latency", "disaggregated", "mm_embedding_serve")
_IMAGE = re.compile(r"(?:^|/)tensorrt-llm/release:v?(\d+\.\d+[\w.]*)")
_MODEL_FLAGS = ("model", "model_path")
_SWITCHES = ("trust_remote_code", "fail_fast_on_attention_window_too_large", "streaming",
             "enable_chunked_prefill", "enable_attention_dp", "multiple_profiles")  # fmt: skip
# Options of trtllm-serve and trtllm-bench that change nothing that is computed here.
_IGNORED = (
    "host", "port", "tokenizer", "log_level", "extra_llm_api_options", "config", "metadata_server",
    "metadata_server_config_file", "server_role", "reasoning_parser", "tool_parser",
    "num_postprocess_workers", "cluster_size", "ep_size", "gpus_per_node", "custom_tokenizer",
    "otlp_traces_endpoint", "dataset", "engine_dir", "concurrency", "num_requests", "revision",
    "workspace", "warmup", "eos_id", "chat_template", "served_model_name", "streaming",
    "custom_module_dirs", "fail_fast_on_attention_window_too_large",
)  # fmt: skip


def _start(words: Words) -> int | None:
    for i, word in enumerate(words.words):
        if word.rsplit("/", 1)[-1] in _PROGRAMS:
            return i + 1
    return None


def _parse(words: Words, start: int) -> Parsed:
    flags: dict[str, Any] = {}
    ignored: list[str] = []
    model: str | None = None
    rest = list(words.words[start:])
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            model = model if model or word in _VERBS else word
            continue
        written, equals, given = word.lstrip("-").partition("=")
        name = written.replace("-", "_")
        value = given if equals else None
        if value is None and name not in _SWITCHES and rest and not rest[0].startswith("--"):
            value = rest.pop(0)
        if name in _MODEL_FLAGS:
            model = value or model
        elif name in _IGNORED:
            ignored.append(name)
        elif is_read(name):
            flags[canonical_flag(name)] = _value(value)
        else:
            raise unknown_name("TensorRT-LLM flag", word, list(_IGNORED), see="trtllm-serve --help")
    return Parsed(model=model, flags=flags, version=_version(words), ignored=tuple(ignored))


def _value(text: str | None) -> Any:
    if text is None:
        return True
    if re.fullmatch(r"-?\d{1,15}", text):
        return int(text)
    return float(text) if re.fullmatch(r"\d{0,9}\.\d{1,15}", text) else text


def _version(words: Words) -> str | None:
    for word in words.words:
        match = _IMAGE.search(word)
        if match:
            return match[1]
    return None


_SPELLED = {
    "free_gpu_memory_fraction": "kv_cache_free_gpu_memory_fraction",
    "moe_expert_parallel_size": "ep_size",
}
_OPTIONS = (
    "tp_size", "pp_size", "moe_expert_parallel_size", "max_batch_size", "max_num_tokens",
    "max_seq_len", "max_beam_width", "free_gpu_memory_fraction", "kv_cache_dtype", "backend",
    "trust_remote_code", "gpus_per_node", "enable_chunked_prefill",
)  # fmt: skip


def _render(model: str, flags: Mapping[str, Any]) -> list[str]:
    """`trtllm-serve` with the flags; what only its configuration file takes is refused."""
    words = ["trtllm-serve", model]
    for name, value in flags.items():
        key = canonical_flag(name)
        if value is None or value is False or name in ("used", "gpu_memory", "free_memory"):
            continue
        if key not in _OPTIONS:
            raise UsageError(
                f"{key} has no option of trtllm-serve", hint="put it under kv_cache_config in YAML"
            )
        words.append(f"--{_SPELLED.get(key, key)}")
        if value is not True:
            words.append(str(value))
    return words


READER = Reader(engine="tensorrt_llm", start=_start, parse=_parse, render=_render)
