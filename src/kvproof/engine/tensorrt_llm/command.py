"""TensorRT-LLM's command lines: `trtllm-serve`, `trtllm-bench`, and the official images."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from kvproof.engine.arguments import Grammar, Option, number_or_text, one_value
from kvproof.engine.command import Reader, Started, first_start
from kvproof.engine.shell import Words
from kvproof.engine.tensorrt_llm import canonical_flag, flag_names, is_read
from kvproof.errors import UsageError, unknown_name

_PLAIN = re.compile(r"[A-Za-z][\w.-]{0,80}$")
_PROGRAMS = ("trtllm-serve", "trtllm-bench")
_WRAPPERS = ("dynamo.trtllm",)
"""Modules that start the engine with some of the server's arguments and their own."""
_VERBS = ("serve", "throughput", "latency", "disaggregated", "mm_embedding_serve")
_IMAGE = re.compile(r"(?:^|/)tensorrt-llm/release:v?(\d+\.\d+[\w.]*)")
_MODEL_OPTIONS = ("model", "model_path", "revision")
_CONFIG_OPTIONS = ("extra_llm_api_options", "extra_engine_args", "config")
_SWITCHES = ("trust_remote_code", "fail_fast_on_attention_window_too_large", "streaming",
             "enable_chunked_prefill", "enable_attention_dp", "multiple_profiles")  # fmt: skip
# Options of trtllm-serve and trtllm-bench that change nothing that is computed here.
_IGNORED = (
    "host", "port", "tokenizer", "log_level", "metadata_server",
    "metadata_server_config_file", "server_role", "reasoning_parser", "tool_parser",
    "num_postprocess_workers", "cluster_size", "ep_size", "gpus_per_node", "custom_tokenizer",
    "otlp_traces_endpoint", "dataset", "engine_dir", "concurrency", "num_requests",
    "workspace", "warmup", "eos_id", "chat_template", "served_model_name", "streaming",
    "custom_module_dirs", "fail_fast_on_attention_window_too_large",
)  # fmt: skip


def _start(words: Words) -> int | None:
    named = (*_PROGRAMS, *_WRAPPERS)
    return first_start(
        words, lambda found, at: at + 1 if found[at].rsplit("/", 1)[-1] in named else None
    )


def _option(word: str) -> Option:
    written, equals, given = word.lstrip("-").partition("=")
    name = written.replace("-", "_")
    known = (*_MODEL_OPTIONS, *_CONFIG_OPTIONS, *_IGNORED)
    if name not in known and not is_read(name):
        shown = [f"--{flag}" for flag in (*flag_names(), *known)]
        raise unknown_name(
            "TensorRT-LLM flag", word.partition("=")[0], shown, see="trtllm-serve --help"
        )
    name = name if name in known else canonical_flag(name)
    return Option(name=name, word=word, value=given if equals else None)


def _takes(option: Option, rest: Sequence[str]) -> int:
    return 0 if option.name in _SWITCHES else one_value(rest)


def _decides(name: str) -> bool:
    return name not in _IGNORED and is_read(name)


def _read(option: Option, values: Sequence[str]) -> Any:
    if values and values[0].startswith("{"):
        try:
            return msgspec.json.decode(values[0])
        except msgspec.DecodeError:
            raise UsageError(f"--{option.name} is no JSON object", hint="check it") from None
    return number_or_text(values)


def _model(named: Mapping[str, str], alone: Sequence[str]) -> str | None:
    """--model, else the first word that is no verb of the programs."""
    name = named.get("model") or named.get("model_path")
    name = name or next((word for word in alone if word not in _VERBS), None)
    revision = named.get("revision")
    return f"{name}@{revision}" if name and revision and revision != "main" else name


_SPELLED = {
    "free_gpu_memory_fraction": "kv_cache_free_gpu_memory_fraction",
    "moe_expert_parallel_size": "ep_size",
}
_OPTIONS = (
    "tp_size", "pp_size", "moe_expert_parallel_size", "max_batch_size", "max_num_tokens",
    "max_seq_len", "max_beam_width", "free_gpu_memory_fraction", "kv_cache_dtype", "backend",
    "trust_remote_code", "gpus_per_node", "enable_chunked_prefill",
)  # fmt: skip
# What lies under kv_cache_config in the file of options (llmapi/llm_args.py, KvCacheConfig).
_OF_CACHE = (
    "max_tokens", "max_gpu_total_bytes", "host_cache_size", "tokens_per_block",
    "max_attention_window", "sink_token_length", "enable_block_reuse", "enable_partial_reuse",
    "copy_on_partial_reuse", "use_uvm", "onboard_blocks", "cross_kv_cache_fraction",
    "secondary_offload_min_priority", "event_buffer_max_size",
    "attention_dp_events_gather_period_ms", "use_kv_cache_manager_v2", "max_util_for_resume",
    "pool_ratio", "avg_seq_len", "mamba_ssm_cache_dtype", "mamba_state_cache_interval",
)  # fmt: skip
_CACHE = "kv_cache_config"
_FILE = "options.yaml"
_OWN = ("used", "gpu_memory", "free_memory")


def _render(model: str, flags: Mapping[str, Any]) -> list[str] | str:
    """`trtllm-serve` with the flags; what only its file of options takes stands in such a file."""
    name, at, revision = model.rpartition("@")
    words = ["trtllm-serve", *([name, "--revision", revision] if at else [model])]
    nested = flags.get(_CACHE)
    cache: dict[str, Any] = dict(nested) if isinstance(nested, Mapping) else {}
    others: dict[str, Any] = {}
    for name, value in flags.items():
        key = canonical_flag(name)
        if value is None or name in (*_OWN, _CACHE):
            continue
        if key in _OF_CACHE:
            cache[key] = value
        elif key not in _OPTIONS:
            others[key] = value
        elif value is not False:
            words.append(f"--{_SPELLED.get(key, key)}")
            words += [] if value is True else [str(value)]
    if not cache and not others:
        return words
    lines = [f"cat > {_FILE} <<'EOF'", *_yaml({_CACHE: cache} if cache else {}), *_yaml(others)]
    return "\n".join([*lines, "EOF", shlex.join([*words, "--extra_llm_api_options", _FILE])])


def _yaml(values: Mapping[str, Any], margin: str = "") -> Iterator[str]:
    """Lines of YAML; lists and what no plain word is as JSON, which YAML holds."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value and all(_PLAIN.match(str(part)) for part in value):
            yield f"{margin}{key}:"
            yield from _yaml(value, margin + "  ")
        elif isinstance(value, str) and _PLAIN.match(value):
            yield f"{margin}{key}: {value}"
        else:
            yield f"{margin}{key}: {msgspec.json.encode(value).decode()}"


READER = Reader(
    engine="tensorrt_llm",
    package="tensorrt-llm",
    start=_start,
    grammar=Grammar(
        option=_option,
        takes=_takes,
        decides=_decides,
        read=_read,
        model=_model,
        model_options=_MODEL_OPTIONS,
        config_options=_CONFIG_OPTIONS,
        image=_IMAGE,
    ),
    render=_render,
    calls={"LLM": Started()},
    wrappers=_WRAPPERS,
)
