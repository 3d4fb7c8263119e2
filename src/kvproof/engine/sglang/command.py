"""SGLang's command lines: the server's module, `sglang serve`, and the official images."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from kvproof.engine.arguments import Grammar, Option, by_prefix, number_or_text, values_ahead
from kvproof.engine.command import Reader, Started, first_start, serving
from kvproof.engine.sglang.flags import (
    DATES,
    OWN_KV_DTYPES,
    canonical_flag,
    is_read,
    known_flags,
    spelled_in,
)
from kvproof.engine.sglang.uncomputed import UNCOMPUTED
from kvproof.engine.sglang.variables import UNFOLLOWED, options_of
from kvproof.engine.shell import Words
from kvproof.errors import UsageError, unknown_name

_MODULES = (
    "sglang.launch_server", "sglang.srt.entrypoints.http_server", "sglang_router.launch_server",
)  # fmt: skip
_WRAPPERS = (
    "dynamo.sglang", "sglang.bench_one_batch", "sglang.bench_latency",
    "sglang.bench_offline_throughput",
)  # fmt: skip
"""Modules that start the engine with the server's arguments and some of their own."""
_CALLS = dict.fromkeys(("Engine", "Runtime", "ServerArgs"), Started(("model_path",)))
_ROUTER = "router_"
"""The router's own options of sglang_router.launch_server, which starts dp_size servers."""
_IMAGE = re.compile(r"(?:^|/)sglang(?::v?(\d+\.\d+[\w.]*)(?:-[\w.-]+)?|:[\w.-]+)?$")
_SWITCHES = (
    "trust_remote_code", "language_only", "language_model_only", "skip_tokenizer_init",
    "skip_server_warmup", "allow_auto_truncate", "delete_ckpt_after_loading", "is_embedding",
    "log_requests", "show_time_cost", "prefill_only_disable_kv_cache", "use_mla",
)  # fmt: skip
_MODEL_OPTIONS = ("model_path", "model", "revision")
_NOT_ENGINE = ("used", "gpu_memory", "free_memory", "max_total_kv_bytes", "mem_fraction_resolved")
"""Flags that are kvproof's own."""


def _start(words: Words) -> int | None:
    return first_start(words, serving("sglang", (*_MODULES, *_WRAPPERS)))


def _option(word: str) -> Option:
    written, equals, given = word.lstrip("-").partition("=")
    name, note = written.replace("-", "_"), None
    if name.startswith(_ROUTER):
        return Option(name=name, word=word, value=given if equals else None)
    if name not in known_flags():
        shown, whole = word.partition("=")[0], by_prefix(name, sorted(known_flags()))
        if whole is None:
            known = [_spelled(flag) for flag in sorted(known_flags())]
            raise unknown_name("SGLang flag", shown, known, see="see launch_server --help")
        name, note = whole, f"{shown[:60]} is read as {_spelled(whole)}"
    name = name if name in _MODEL_OPTIONS else canonical_flag(name)
    return Option(name=name, word=word, value=given if equals else None, note=note)


def _takes(option: Option, rest: Sequence[str]) -> int:
    return 0 if is_switch(option.name) else values_ahead(rest)


def is_switch(name: str) -> bool:
    """Whether an option stands alone on the command line."""
    return name.startswith(("enable_", "disable_")) or name in _SWITCHES


def _read(option: Option, values: Sequence[str]) -> Any:
    if option.name == "kv_cache_dtype" and values and values[0] in OWN_KV_DTYPES:
        raise UsageError(
            f"SGLang has no kv_cache_dtype {values[0]}",
            hint="write fp8_e4m3, fp8_e5m2, bfloat16 or auto",
        )
    return number_or_text(values)


def _model(named: Mapping[str, str], alone: Sequence[str]) -> str | None:
    """--model-path wins over a word that stands alone; --revision goes with either."""
    name = named.get("model_path") or named.get("model") or (alone[0] if alone else None)
    revision = named.get("revision")
    return f"{name}@{revision}" if name and revision and revision != "main" else name


def _spelled(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _offered(flags: Mapping[str, Any], version: str | None) -> Mapping[str, Any]:
    """The flags under the names that the release has for them."""
    return {
        name if name in _NOT_ENGINE else spelled_in(name, version): value
        for name, value in flags.items()
    }


def _render(model: str, flags: Mapping[str, Any]) -> list[str]:
    """The module's call with the flags in SGLang's own names."""
    name, at, revision = model.rpartition("@")
    path = [name, "--revision", revision] if at else [model]
    words = ["python", "-m", "sglang.launch_server", "--model-path", *path]
    for name, value in flags.items():
        if value is None or value is False or name in _NOT_ENGINE:
            continue
        words.append(_spelled(name))
        value = "fp8_e4m3" if name == "kv_cache_dtype" and value == "fp8" else value
        if isinstance(value, list | tuple):
            words += [str(part) for part in value]
        elif value is not True:
            words.append(str(value))
    return words


READER = Reader(
    engine="sglang",
    package="sglang",
    start=_start,
    grammar=Grammar(
        option=_option,
        takes=_takes,
        decides=is_read,
        read=_read,
        model=_model,
        model_options=_MODEL_OPTIONS,
        config_options=("config",),
        image=_IMAGE,
        before=options_of,
        variables=UNFOLLOWED,
        uncomputed=UNCOMPUTED,
    ),
    render=_render,
    offered=_offered,
    later=DATES.refuse_later,
    calls=_CALLS,
    wrappers=_WRAPPERS,
)
