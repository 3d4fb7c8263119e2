"""vLLM's command lines: `vllm serve`, the server's module, and the official image."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from kvproof.engine.arguments import Grammar, Option, by_prefix, one_value, values_ahead
from kvproof.engine.command import Reader, Started, first_start, serving
from kvproof.engine.shell import Words
from kvproof.engine.vllm.came import DATES
from kvproof.engine.vllm.flags import (
    BACKEND_VARIABLE,
    are_pairs,
    as_pairs,
    flag_type,
    has_backend_option,
    is_gone,
    is_switch,
    known_flags,
    overrides_of,
    read_value,
    reads_backend_variable,
    speculation_of,
    without_speculation,
)
from kvproof.engine.vllm.uncomputed import UNCOMPUTED
from kvproof.engine.vllm.variables import AS_FLAGS, UNFOLLOWED, environment_of, options_of
from kvproof.errors import UsageError, unknown_name

_MODULES = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.api_server")
_WRAPPERS = ("dynamo.vllm",)
"""Modules that serve with vLLM's arguments and some of their own (ai-dynamo/dynamo, args.py)."""
_BENCHES = ("latency", "throughput", "startup")
"""`vllm bench` subcommands that start the offline class (benchmarks/, 0.32)."""
_CLASS = "LLM"
_OFFLINE = "llm_class"
_ENGINE = "engine_context"
_CALLS = {
    _CLASS: Started(options=(f"--usage-context={_OFFLINE}",)),
    "EngineArgs": Started(options=(f"--usage-context={_ENGINE}",)),
    "AsyncEngineArgs": Started(options=(f"--usage-context={_ENGINE}",)),
}
"""Classes that start the engine, with batches of their own (arg_utils.py, get_batch_defaults)."""
_SCRIPTS = {
    _OFFLINE: f"from vllm import {_CLASS}; {_CLASS}({{}})",
    _ENGINE: "from vllm import EngineArgs, LLMEngine; LLMEngine.from_engine_args(EngineArgs({}))",
}
"""Starts that no command of the server realises."""
# LMCache's image of the same name carries LMCache's own version.
_IMAGE = re.compile(
    r"(?:lmcache/vllm-openai(?::[\w.+-]*)?"
    r"|(?:^|/)vllm-(?:openai|cpu|tpu|xpu|hpu)[\w-]*(?::v?(\d+\.\d[\w.+]*)?[\w.+-]*)?)$"
)
_SHORT = {
    "tp": "tensor_parallel_size", "pp": "pipeline_parallel_size", "dp": "data_parallel_size",
    "dcp": "decode_context_parallel_size", "pcp": "prefill_context_parallel_size",
    "q": "quantization", "sc": "speculative_config", "cc": "compilation_config",
    "O": "optimization_level", "ac": "attention_config", "n": "nnodes", "r": "node_rank",
    "ep": "enable_expert_parallel", "dc": "diffusion_config", "dpn": "data_parallel_rank",
    "dpr": "data_parallel_start_rank", "dpl": "data_parallel_size_local",
    "dpa": "data_parallel_address", "dpp": "data_parallel_rpc_port",
    "dpb": "data_parallel_backend", "dph": "data_parallel_hybrid_lb",
    "dpe": "data_parallel_external_lb", "dpm": "data_parallel_multi_port_external_lb",
}  # fmt: skip
_OTHER_NAMES = {
    "device_memory_utilization": "gpu_memory_utilization",
    "kv_cache_memory": "kv_cache_memory_bytes",
}
"""Options with two long names (engine/arg_utils.py, 0.31), and the one that vLLM's own log of
0.10.2 to 0.11 recommends, which argparse completes."""
# Options that take any number of words (engine/arg_utils.py, entrypoints/openai/cli_args.py).
_MANY = (
    "served_model_name", "lora_modules", "prompt_adapters", "middleware", "logits_processors",
    "cudagraph_capture_sizes", "cuda_graph_sizes", "ignore_patterns", "api_key", "device_ids",
    "kv_cache_dtype_skip_layers", "lora_target_modules", "collect_detailed_traces",
    "numa_bind_cpus", "numa_bind_nodes", "disable_access_log_for_endpoints",
)  # fmt: skip
_LEVEL = "optimization_level"
"""Printed as -O, which releases before the option take too."""
_NOT_ON_COMMAND_LINE = ("usage_context", "device", "model", "used")
_SEE = "see vllm serve --help"


_serving = serving("vllm", (*_MODULES, *_WRAPPERS))


def _start(words: Words) -> int | None:
    """Behind `vllm serve`, the module or a benchmark, else behind an image that runs the server."""
    return first_start(words, _begins, _IMAGE)


def _begins(words: Sequence[str], at: int) -> int | None:
    name = words[at].rsplit("/", 1)[-1]
    bench = name == "vllm" and words[at + 1 : at + 2] == ("bench",)
    if bench and words[at + 2 : at + 3] and words[at + 2] in _BENCHES:
        return at + 3
    return _serving(words, at)


def _before(words: Words) -> list[str]:
    """What the environment says as options, and that a benchmark is no server."""
    pairs = zip(words.words, words.words[1:], strict=False)
    benched = any(first == "bench" and second in _BENCHES for first, second in pairs)
    return [*options_of(words), *([f"--usage-context={_OFFLINE}"] if benched else [])]


def _option(word: str) -> Option:
    body, equals, value = word.lstrip("-").partition("=")
    head, *path = body.split(".")
    single = not word.startswith("--")
    if single and head[:1] == "O" and head[1:].isdigit():
        return Option(name="optimization_level", word=word, value=head[1:])
    written = (_SHORT.get(head, head) if single else head).replace("-", "_")
    if single and head == "O" and path:
        written = "compilation_config"  # what -O stood for until 0.11
    written = _OTHER_NAMES.get(written, written)
    name, negated = _positive(written)
    note = None
    if name not in known_flags():
        name, note = _completed(name, word)
    return Option(
        name=name,
        word=word,
        path=tuple(path),
        value="false" if negated else value if equals else None,
        negated=negated,
        note=note,
    )


def _completed(name: str, word: str) -> tuple[str, str]:
    """The option that a shortened one means, as argparse completes it, and a word on it."""
    whole = by_prefix(name, known_flags())
    shown = word.partition("=")[0]
    if whole is None:
        raise unknown_name("vLLM flag", shown, [_spelled(n) for n in known_flags()], see=_SEE)
    return whole, f"{shown[:60]} is read as {_spelled(whole)}"


def _positive(name: str) -> tuple[str, bool]:
    """`no_x` as x, and that it is switched off."""
    if name.startswith("no_") and name not in known_flags() and name[3:] in known_flags():
        return name[3:], True
    return name, False


def _takes(option: Option, rest: Sequence[str]) -> int:
    if not rest:
        return 0
    if flag_type(option.name) == "bool" or is_switch(option.name):
        return int(rest[0].lower() in ("true", "false"))
    return values_ahead(rest) if option.name in _MANY else one_value(rest)


def _decides(name: str) -> bool:
    return flag_type(name) is not None


def _read(option: Option, values: Sequence[str]) -> Any:
    if not values and flag_type(option.name) != "bool":
        raise UsageError(f"{_spelled(option.name)} has no value", hint=_SEE)
    if values and are_pairs(option.name, values[0]):
        return values[0]
    if flag_type(option.name) == "words":
        return read_value(option.name, values)
    return read_value(option.name, values[0] if values else "true")


def _model(named: Mapping[str, str], alone: Sequence[str]) -> str | None:
    """The word that stands alone wins over --model; --revision goes with either."""
    name = alone[0] if alone else named.get("model")
    revision = named.get("revision")
    return f"{name}@{revision}" if name and revision and revision != "main" else name


def _spelled(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _offered(flags: Mapping[str, Any], version: str | None) -> Mapping[str, Any]:
    """The flags without those that the release has no more.

    A rope_scaling is then an override, and a draft's own flags are one config; a backend is named
    by a variable before it had an option, limits are pairs before they were JSON. None of the
    others that went bears on what is planned.
    """
    kept = {name: value for name, value in flags.items() if not is_gone(name, version)}
    if flags.get("rope_scaling") and "rope_scaling" not in kept:
        kept["hf_overrides"] = overrides_of(flags)
    if flags.get("speculative_model") and "speculative_model" not in kept:
        kept = {**without_speculation(kept), "speculative_config": speculation_of(flags)}
    if kept.get("limit_mm_per_prompt"):
        kept["limit_mm_per_prompt"] = as_pairs(kept["limit_mm_per_prompt"], version)
    if "attention_backend" in kept and not has_backend_option(version):
        kept[BACKEND_VARIABLE] = kept.pop("attention_backend")
    if BACKEND_VARIABLE in kept and not reads_backend_variable(version):
        kept[BACKEND_VARIABLE] = None
    return kept


def _called(model: str, flags: Mapping[str, Any]) -> list[str]:
    """The call of a class that starts the engine without the server."""
    name, at, revision = model.rpartition("@")
    given = {"model": name, "revision": revision} if at else {"model": model}
    given |= {
        name: value
        for name, value in flags.items()
        if name not in (*_NOT_ON_COMMAND_LINE, *AS_FLAGS) and value is not None
    }
    arguments = ", ".join(f"{name}={_literal(value)}" for name, value in given.items())
    script = _SCRIPTS[flags["usage_context"]].format(arguments)
    return [*environment_of(flags), "python", "-c", script]


def _literal(value: Any) -> str:
    """A value as Python writes it, in double quotes: a shell puts single ones around."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_literal(k)}: {_literal(v)}' for k, v in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_literal, value))}]"
    return msgspec.json.encode(value).decode() if isinstance(value, str) else repr(value)


def _render(model: str, flags: Mapping[str, Any]) -> list[str]:
    if flags.get("usage_context") in _SCRIPTS:
        return _called(model, flags)
    name, at, revision = model.rpartition("@")
    served = [name, "--revision", revision] if at else [model]
    words = [*environment_of(flags), "vllm", "serve", *served]
    for name, value in flags.items():
        if name in (*_NOT_ON_COMMAND_LINE, *AS_FLAGS) or value is None:
            continue
        option = _spelled(name)
        if name == _LEVEL:
            words += [f"-O{value}"] if str(value).isdigit() else ["-O", str(value)]
        elif isinstance(value, bool):
            words.append(option if value else f"--no-{name.replace('_', '-')}")
        elif isinstance(value, Mapping):
            words += [option, msgspec.json.encode(value).decode()]
        elif isinstance(value, tuple | list):
            words += [option, *map(str, value)]
        elif str(value).startswith("-"):
            words.append(f"{option}={value}")
        else:
            words += [option, str(value)]
    return words


READER = Reader(
    engine="vllm",
    package="vllm",
    start=_start,
    grammar=Grammar(
        option=_option,
        takes=_takes,
        decides=_decides,
        read=_read,
        model=_model,
        model_options=("model", "revision"),
        config_options=("config",),
        before=_before,
        image=_IMAGE,
        variables=UNFOLLOWED,
        uncomputed=UNCOMPUTED,
    ),
    render=_render,
    images=("vllm-openai", "vllm/vllm", "vllm-cpu", "llm-d", "huggingfaceserver"),
    entry=("vllm", "serve"),
    offered=_offered,
    later=DATES.refuse_later,
    calls=_CALLS,
    wrappers=(*_WRAPPERS, *_BENCHES),
)
