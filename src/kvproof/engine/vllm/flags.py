"""vLLM's own flags in snake_case: which exist, their types, and how vLLM reads their values.

`data/flags.json` lists every engine argument of the releases that were read: those that bear on
memory have a type, the others are accepted and ignored knowingly.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from kvproof.engine.base import Deployment, prefill_copies
from kvproof.engine.cache_types import CacheType, Option, check_type, has_type
from kvproof.engine.release import is_development, padded, release_number
from kvproof.errors import UsageError, unknown_name
from kvproof.units import parse_bytes

_DATA = Path(__file__).with_name("data") / "flags.json"
_SUFFIX = {
    "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12,
    "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40,
}  # fmt: skip
_HUMAN = re.compile(r"(\d{1,18})(?:\.(\d{1,9}))?([kmgtKMGT]?)$")
_SIZES = (
    "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size",
    "decode_context_parallel_size", "prefill_context_parallel_size", "block_size", "max_num_seqs",
    "max_num_batched_tokens",
)  # fmt: skip
_KV_DTYPES = Option(
    engine="vLLM",
    flag="kv_cache_dtype",
    types=(
        CacheType("auto"),
        CacheType("fp8"),
        CacheType("fp8_e4m3", (0, 4, 3)),
        CacheType("fp8_e5m2", (0, 4, 3)),
        CacheType("fp8_inc", (0, 10, 0)),
        CacheType("bfloat16", (0, 11, 0)),
        CacheType("fp8_ds_mla", (0, 11, 1)),
        CacheType("float16", (0, 18, 0)),
        CacheType("int8_per_token_head", (0, 20, 0)),
        CacheType("fp8_per_token_head", (0, 20, 0)),
        CacheType("nvfp4", (0, 20, 0)),
        CacheType("turboquant_k8v4", (0, 20, 0), computed=False),
        CacheType("turboquant_4bit_nc", (0, 20, 0), computed=False),
        CacheType("turboquant_k3v4_nc", (0, 20, 0), computed=False),
        CacheType("turboquant_3bit_nc", (0, 20, 0), computed=False),
        CacheType("int4_per_token_head", (0, 25, 0)),
        CacheType("nvfp4_4over6", (0, 28, 0)),
        CacheType("nvfp4_ds_mla", (0, 30, 0)),
        CacheType("ultraquant_4bit", (0, 32, 0), computed=False),
        CacheType("octave_k3v4", (0, 33, 0), computed=False),
        CacheType("octave_k3v3", (0, 33, 0), computed=False),
        CacheType("octave_k3v3_compact", (0, 33, 0), computed=False),
    ),
)
"""Source: the choices of --kv-cache-dtype (engine/arg_utils.py, then CacheDType of config/cache.py)
in 0.4.2, 0.4.3, 0.5.0, 0.6.1 to 0.8.5, 0.9.0, 0.9.2 and every minor since; each dated by the first
release read that has it, the one before it being without."""

_AUTO_LENGTH = (0, 14, 0)
BACKEND_VARIABLE = "variable_attention_backend"
_BACKEND_OPTION, _BACKEND_VARIABLE_GONE = (0, 13, 0), (0, 15, 0)
"""--attention-backend came with PR 26315, VLLM_ATTENTION_BACKEND went with PR 32812."""
_LIMITS_IN_JSON, _PAIRS_GONE = (0, 8, 5), (0, 10, 0)
_LIMITS = "limit_mm_per_prompt"
_CONTEXTS = ("api_server", "llm_class", "engine_context")
"""Who starts the engine (usage/usage_lib.py): the server, `LLM`, an engine class by itself."""
_NGRAM = ("ngram", "[ngram]")
_OWN = {
    "used": "bytes", "allow_long_max_model_len": "bool", "estimate_cudagraphs": "bool",
    "use_v1": "bool", "flashinfer_sampler": "bool", "rocm_aiter": "bool",
    "use_v2_model_runner": "bool", BACKEND_VARIABLE: "str",
}  # fmt: skip
"""What kvproof adds: memory of each GPU that other processes use, and what only variables say."""


@cache
def _tables() -> tuple[dict[str, str], frozenset[str], frozenset[str]]:
    raw = msgspec.json.decode(_DATA.read_bytes())
    return {**raw["typed"], **_OWN}, frozenset(raw["ignored"]), frozenset(raw["switches"])


@cache
def _gone() -> dict[str, str]:
    """Flags that went, and the first release read without each."""
    gone: dict[str, str] = msgspec.json.decode(_DATA.read_bytes())["gone"]
    return gone


def is_gone(name: str, version: str | None) -> bool:
    """Whether a release (None: the newest) no longer has the flag `name`.

    Source: engine/arg_utils.py of 43 releases from 0.4.2 to 0.33.0 (all minors from 0.5 on but
    0.15 and 0.23): the first read without the flag, where the one before has it.
    """
    first = release_number(_gone().get(name))
    return first is not None and _since(version, padded(first))


def as_pairs(limits: Any, version: str | None) -> Any:
    """limit_mm_per_prompt as the release's command line takes it.

    Source: engine/arg_utils.py: `image=2,video=1` alone to 0.8.4 (nullable_kvs), JSON too from
    0.8.5, and alone from 0.10.0 on. Raises UsageError for pairs to a release that takes none.
    """
    if are_pairs(_LIMITS, limits) and _since(version, _PAIRS_GONE):
        raise UsageError(
            f"vLLM takes --limit-mm-per-prompt {limits[:60]} to 0.9 only",
            hint="""write it as JSON: '{"image": 0}'""",
        )
    if are_pairs(_LIMITS, limits):
        limits = _json(limits)
    if _since(version, _LIMITS_IN_JSON) or not isinstance(limits, Mapping):
        return limits
    return ",".join(f"{kind}={count}" for kind, count in limits.items())


def are_pairs(name: str, value: Any) -> bool:
    """Whether it is limit_mm_per_prompt as `image=2,video=1`."""
    return name == _LIMITS and isinstance(value, str) and not value.lstrip().startswith("{")


def has_backend_option(version: str | None) -> bool:
    """Whether a release (None: the newest) has --attention-backend."""
    return _since(version, _BACKEND_OPTION)


def reads_backend_variable(version: str | None) -> bool:
    """Whether a release (None: the newest) looks at VLLM_ATTENTION_BACKEND."""
    return not _since(version, _BACKEND_VARIABLE_GONE)


def _since(version: str | None, first: tuple[int, int, int]) -> bool:
    release = release_number(version)
    return release is None or padded(release) >= first


def overrides_of(flags: Mapping[str, Any]) -> dict[str, Any]:
    """What the flags change in the model's config: hf_overrides, and rope_scaling of its time."""
    overrides = dict(read_value("hf_overrides", flags.get("hf_overrides") or {}))
    if flags.get("rope_scaling"):
        overrides["rope_scaling"] = read_value("rope_scaling", flags["rope_scaling"])
    return overrides


_SPECULATION = {
    "speculative_model": "model",
    "num_speculative_tokens": "num_speculative_tokens",
    "speculative_draft_tensor_parallel_size": "draft_tensor_parallel_size",
    "speculative_max_model_len": "max_model_len",
    "speculative_model_quantization": "quantization",
    "ngram_prompt_lookup_max": "prompt_lookup_max",
    "ngram_prompt_lookup_min": "prompt_lookup_min",
}
"""Flags of the releases before speculative_config (0.8.5 has it, 0.8.0 these), and its keys."""
_SHORT_SPECULATION = {
    "spec_method": "method", "spec_model": "model", "spec_tokens": "num_speculative_tokens",
}  # fmt: skip
"""Short options for its keys, since 0.22 (engine/arg_utils.py, create_speculative_config)."""


def speculation_of(flags: Mapping[str, Any]) -> dict[str, Any]:
    """How a draft is asked for: speculative_config, or the flags of its time as its keys."""
    config = dict(read_value("speculative_config", flags.get("speculative_config") or {}))
    short = {key: flags[name] for name, key in _SHORT_SPECULATION.items() if flags.get(name)}
    if both := sorted(set(short) & set(config)):
        raise UsageError(
            f"speculative_config and its short option both name {both[0]}", hint="vLLM takes one"
        )
    if config or short:
        return {**config, **short}
    told = {key: flags[name] for name, key in _SPECULATION.items() if flags.get(name) is not None}
    if told.get("model") in _NGRAM:
        told = {**told, "method": "ngram"}
        del told["model"]
    return told


def without_speculation(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The flags without those that ask for a draft."""
    asked = ("speculative_config", *_SPECULATION)
    return {name: value for name, value in flags.items() if name not in asked}


def known_flags() -> list[str]:
    """Every flag that is accepted, ignored ones included."""
    typed, ignored, _ = _tables()
    return sorted({*typed, *ignored})


def flag_type(name: str) -> str | None:
    """How a flag's value is read: "int", "bool", "json" ...; None for one that is ignored."""
    return _tables()[0].get(name)


def takes_kv_dtype(name: str, version: str | None) -> bool:
    """Whether a release's --kv-cache-dtype takes `name`."""
    return has_type(_KV_DTYPES, name, version)


def is_switch(name: str) -> bool:
    """Whether an ignored flag stands alone on the command line."""
    return name in _tables()[2]


def read_value(name: str, value: Any) -> Any:
    """`value` as vLLM reads it for the flag `name`; unread for a flag that is ignored."""
    kind = flag_type(name)
    return value if kind is None else _read(name, kind, value)


def read_flags(deployment: Deployment) -> dict[str, Any]:
    """The deployment's flags with their values read; unknown names and bad values raise."""
    typed, ignored, _ = _tables()
    out: dict[str, Any] = {}
    for name, value in deployment.flags.items():
        kind = typed.get(name)
        if kind is None and name not in ignored:
            raise unknown_name("vLLM flag", name, known_flags(), see="see vllm serve --help")
        if kind is not None and value is not None:
            out[name] = _read(name, kind, value)
    version = deployment.engine.version
    named = out.pop(BACKEND_VARIABLE, None)
    if named is not None and reads_backend_variable(version):
        out.setdefault("attention_backend", named)
    _check(out, version)
    return out


def _read(name: str, kind: str, value: Any) -> Any:
    try:
        if kind == "int":
            return _integer(value)
        if kind in ("size", "length"):
            if kind == "length" and str(value).lower() in ("auto", "-1"):
                return -1
            return human_integer(value)
        if kind == "float":
            return float(value)
        if kind == "bytes":
            return parse_bytes(value)
        if kind == "bool":
            return _boolean(value)
        if kind == "json":
            return _json(value)
        if kind == "words":
            return _words(value)
    except (TypeError, ValueError, msgspec.DecodeError):
        raise UsageError(
            f"{name}={str(value)[:60]!r} is no value for a vLLM flag of type {kind}",
            hint="see vllm serve --help",
        ) from None
    return str(value)


def _integer(value: Any) -> int:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise ValueError(value)
    return int(value)


def human_integer(value: Any) -> int:
    """An integer as vLLM reads it: `8192`, `32k` (32,000), `32K` (32,768), `25.6k`.

    Source: vLLM 0.32, engine/arg_utils.py (human_readable_int).
    """
    if not isinstance(value, str):
        return _integer(value)
    match = _HUMAN.match(value.strip())
    if match is None:
        raise ValueError(value)
    whole, fraction, suffix = match.groups()
    if fraction is None:
        return int(whole) * _SUFFIX.get(suffix, 1)
    if not suffix or suffix.isupper():
        raise ValueError(value)
    return int(float(f"{whole}.{fraction}") * _SUFFIX[suffix])


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in ("true", "1", "yes", "on"):
        return True
    if text in ("false", "0", "no", "off"):
        return False
    raise ValueError(value)


def _json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, str) and value.lstrip().startswith("{"):
        return msgspec.json.decode(value)
    if isinstance(value, str) and not value.lstrip().startswith("["):
        pairs = (part.split("=", 1) for part in value.split(",") if "=" in part)
        return {key.strip(): _integer_or_text(told) for key, told in pairs}
    raise ValueError(value)


def _integer_or_text(value: str) -> int | str:
    """A value behind `key=`: `image=2` of the releases before JSON means the number."""
    return int(value) if re.fullmatch(r"\s*\d{1,9}\s*", value) else value


def _words(value: Any) -> tuple[str, ...]:
    """Any number of words: a list, a list in JSON, or words with blanks between."""
    if isinstance(value, str):
        listed = value.lstrip().startswith("[")
        value = msgspec.json.decode(value) if listed else value.split()
    return tuple(str(word) for word in (value if isinstance(value, Sequence) else [value]))


def asked_backend(flags: Mapping[str, Any]) -> str | None:
    """The attention backend that the flags name, by itself or in attention_config."""
    named = flags.get("attention_backend")
    if named is None:
        named = (flags.get("attention_config") or {}).get("backend")
    return None if named is None or str(named).lower() == "auto" else str(named).upper()


def _check(flags: Mapping[str, Any], version: str | None) -> None:
    for name in _SIZES:
        if flags.get(name, 1) < 1:
            raise UsageError(f"{name} is {flags[name]}", hint="give 1 or more")
    share = flags.get("gpu_memory_utilization", 0.9)
    if not 0 < share <= 1:
        raise UsageError(
            f"gpu_memory_utilization is {share:g}", hint="give a share above 0, up to 1"
        )
    hosted = flags.get("cpu_offload_gb", 0.0)
    if not 0 <= hosted < math.inf:
        raise UsageError(f"cpu_offload_gb is {hosted:g}", hint="give GiB, 0 or more")
    length = flags.get("max_model_len", 1)
    if length < 1 and length != -1:
        raise UsageError(f"max_model_len is {length}", hint="give 1 or more, or -1 to fit memory")
    if length == -1:
        _check_auto(version)
    check_type(_KV_DTYPES, flags.get("kv_cache_dtype", "auto"), version)
    context = flags.get("decode_context_parallel_size", 1)
    ranks = flags.get("tensor_parallel_size", 1)
    if prefill_copies(flags) == 1 and ranks % context:
        raise UsageError(
            f"decode_context_parallel_size {context} does not divide tensor_parallel_size {ranks}",
            hint="choose one that does",
        )
    context_flag = flags.get("usage_context", "api_server")
    if context_flag not in _CONTEXTS:
        raise UsageError(
            f"unknown usage_context {context_flag[:40]!r}", hint=f"use {', '.join(_CONTEXTS)}"
        )


def _check_auto(version: str | None) -> None:
    """Raise UsageError where the release does not fit max_model_len to memory by itself.

    Source: PR 29431, among the improvements that the notes of 0.14.0 name.
    """
    release = release_number(version)
    if release is None or padded(release) >= _AUTO_LENGTH or is_development(version):
        return
    raise UsageError(
        f"vLLM {version} has no max_model_len of auto or -1; 0.14.0 is the first with it",
        hint="give a length in tokens",
    )
