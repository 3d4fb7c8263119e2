"""llama-server's flags: names, spellings, defaults by build, and what they must be.

Source: llama.cpp common/arg.cpp and common/common.h (b11549). The C API's names for the same
settings (n_ctx, n_seq_max, type_k, ...) are understood too.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from importlib import resources
from typing import Any, Literal

import msgspec

from kvproof.engine.base import Deployment
from kvproof.engine.cache_types import CacheType, Option, check_type
from kvproof.engine.llamacpp.builds import Build, build_of
from kvproof.engine.llamacpp.overrides import Override, read_overrides
from kvproof.errors import UsageError, unknown_name
from kvproof.kinds.elements import ELEMENT_TYPES, ElementType
from kvproof.units import parse_bytes, parse_rate

_CACHE_TYPES = (
    CacheType("f32"), CacheType("f16"), CacheType("q8_0", (1620,)), CacheType("q4_0", (1620,)),
    CacheType("q4_1", (1620,)), CacheType("q5_0", (1620,)), CacheType("q5_1", (1620,)),
    CacheType("iq4_nl", (2480,)), CacheType("bf16", (3641,)),
)  # fmt: skip
"""Source: kv_cache_type_from_str (common/common.cpp, then common/arg.cpp). PR 4312 (2023-12-07), PR
6183 (2024-03-21: iq4_nl); bf16 is not there in 2024-08 (b3640) and is in 2024-11 (b4100)."""
CACHE_TYPES = tuple(row.name for row in _CACHE_TYPES)
_ROTARY = ("rope_scale", "rope_freq_scale", "yarn_orig_ctx", "rope_scaling")
_TYPED = ("cache_type_k", "cache_type_v", "spec_draft_type_k", "spec_draft_type_v")
_C_API = {
    "n_ctx": "ctx_size", "n_seq_max": "parallel", "n_parallel": "parallel",
    "n_batch": "batch_size", "n_ubatch": "ubatch_size", "type_k": "cache_type_k",
    "type_v": "cache_type_v", "flash_attn_type": "flash_attn", "offload_kqv": "kv_offload",
    "n_cpu_moe": "n_cpu_moe",
}  # fmt: skip
# What kvproof adds: settings of the C API without a flag, and other programs' memory.
_OWN = ("n_outputs_max", "n_rs_seq", "gpu_memory", "host_memory", "host_bandwidth", "used")
_NEGATIONS = ("nkvo", "nocb", "nr")
"""Short spellings that switch an option off: --no-kv-offload, --no-cont-batching, --no-repack."""
# What may be fetched in place of a file that is named.
_FETCHED = {"spec_draft_model": "spec_draft_hf", "mmproj": "mmproj_url"}
_ROLLED_BACK = ("draft-mtp", "draft-eagle3", "draft-dflash", "draft-dspark")
_LONGEST_PATH = 4096
_TRUE, _FALSE = ("1", "on", "true", "yes", "enabled"), ("0", "off", "false", "no", "disabled")


class Flags(msgspec.Struct, frozen=True, kw_only=True):
    """The flags that decide memory; the rest are known by name and left alone.

    `parallel` None: the server chooses (four slots over one unified pool). `n_gpu_layers` None:
    as many as there are.
    """

    build: Build
    ctx_size: int = 0
    parallel: int | None = None
    kv_unified: bool | None = None
    kv_unified_per_slot: int = 0
    batch_size: int = 2048
    ubatch_size: int = 512
    cache_type_k: ElementType
    cache_type_v: ElementType
    flash_attn: Literal["on", "off", "auto"] = "auto"
    swa_full: bool = False
    kv_offload: bool = True
    n_gpu_layers: int | None = None
    split_mode: Literal["none", "layer", "row", "tensor"] = "layer"
    tensor_split: tuple[float, ...] = ()
    main_gpu: int = 0
    n_cpu_moe: int = 0
    cpu_moe: bool = False
    override_tensor: tuple[Override, ...] = ()
    op_offload: bool = True
    fit: bool = True
    fit_ctx: int = 4096
    cache_ram: int = 8192
    n_outputs_max: int | None = None
    host_bandwidth: float | None = None
    n_rs_seq: int | None = None
    spec_type: tuple[str, ...] = ()
    mtp: bool = False
    spec_draft_n_max: int = 3
    spec_draft_model: str | None = None
    spec_draft_ngl: int | None = None
    spec_draft_n_cpu_moe: int = 0
    spec_draft_cpu_moe: bool = False
    mmproj: str | None = None
    mmproj_auto: bool = True
    mmproj_offload: bool = True
    lora: tuple[str, ...] = ()
    lora_scaled: tuple[str, ...] = ()
    spec_draft_type_k: ElementType = ELEMENT_TYPES["f16"]
    spec_draft_type_v: ElementType = ELEMENT_TYPES["f16"]
    gpu_memory: int | None = None
    used: int = 0

    @property
    def drafts_by_mtp(self) -> bool:
        """Whether the model's own layers for further tokens draft."""
        return self.mtp or "draft-mtp" in self.spec_type

    @property
    def draft_tokens(self) -> int:
        """Tokens that a draft on the model's states may be rolled back by."""
        drafts = self.drafts_by_mtp or any(kind in _ROLLED_BACK for kind in self.spec_type)
        return self.spec_draft_n_max if drafts else 0


@functools.cache
def _spellings() -> dict[str, str]:
    """Every spelling of every option, to its long name."""
    file = resources.files("kvproof.engine.llamacpp").joinpath("data/flags.json")
    options: dict[str, list[str]] = json.loads(file.read_bytes())["options"]
    out = {other: name for name, others in options.items() for other in others}
    out |= {name: name for name in options}
    return out | _C_API | {name: name for name in _OWN}


def canonical_flag(name: str) -> tuple[str, bool]:
    """The long name of a flag, and whether it is written in its negated form."""
    key = name.strip().lstrip("-").replace("-", "_")
    known = _spellings()
    if key == "no_mmproj":  # of --mmproj-auto: --mmproj itself names a file
        return "mmproj_auto", True
    if key in known:
        return known[key], key in _NEGATIONS
    if key.startswith("no_") and key[3:] in known:
        return known[key[3:]], True
    shown = name.partition("=")[0]
    raise unknown_name("llama-server flag", shown, _written(), see="see llama-server --help")


@functools.cache
def _written() -> list[str]:
    """Every spelling of llama-server's own as it is typed."""
    own = sorted(set(_spellings()) - set(_C_API) - set(_OWN))
    return [
        f"--{key.replace('_', '-')}" if "_" in key or len(key) > 5 else f"-{key}" for key in own
    ]


def is_read(name: str) -> bool:
    """Whether a flag decides memory or reach; the others are known by name only."""
    return name in _READERS or name in _ROTARY


def stretched(flags: Mapping[str, Any], trained: int) -> int:
    """The length that a model trained for `trained` tokens reaches with its rotary flags.

    Source: src/llama-context.cpp (yarn_orig_ctx, else n_ctx_train, times 1 / rope_freq_scale).
    """
    given = {canonical_flag(name)[0]: value for name, value in flags.items()}
    scale, step = given.get("rope_scale"), given.get("rope_freq_scale")
    try:
        factor = float(scale) if scale else 1 / float(step) if step else 1.0
        original = int(given.get("yarn_orig_ctx") or trained)
        return max(trained, int(original * factor))
    except (TypeError, ValueError, ZeroDivisionError, OverflowError):
        raise UsageError("rope_scale or yarn_orig_ctx is no number", hint="give one") from None


def flags_of(deployment: Deployment) -> Flags:
    """The deployment's flags, read and checked."""
    build = build_of(deployment.engine.version)
    read: dict[str, Any] = {}
    for name, value in deployment.flags.items():
        key, negated = canonical_flag(name)
        reader = _READERS.get(key)
        if key in _TYPED:
            _check_type(key, value, deployment.engine.version)
        if reader is not None:
            read[key] = not reader(key, value) if negated else reader(key, value)
    for here, there in _FETCHED.items():
        source = read.pop(there, None)
        if source is not None:
            read.setdefault(here, source)
    read.setdefault("cache_type_k", ELEMENT_TYPES["f16"])
    read.setdefault("cache_type_v", ELEMENT_TYPES["f16"])
    read.setdefault("flash_attn", build.flash_attn)
    flags = Flags(build=build, **read)
    if not flags.batch_size and not flags.ubatch_size:
        raise UsageError("batch_size and ubatch_size are both zero", hint="give one of them")
    return flags


def _bad(key: str, value: Any, want: str) -> UsageError:
    return UsageError(f"llama-server's {key} is {str(value)[:40]!r}", hint=f"want {want}")


def _whole(key: str, value: Any) -> int:
    try:
        number = int(str(value))
    except ValueError:
        raise _bad(key, value, "a whole number") from None
    if isinstance(value, bool) or not -(2**31) < number < 2**31:
        raise _bad(key, value, "a whole number")
    return number


def _count(key: str, value: Any) -> int:
    number = _whole(key, value)
    if number < 0:
        raise _bad(key, value, "zero or more")
    return number


def _slots(key: str, value: Any) -> int | None:
    number = _whole(key, value)
    if number == 0 or number > 256:
        raise _bad(key, value, "1 to 256 sequences, or -1")
    return number if number > 0 else None


def _layers(key: str, value: Any) -> int | None:
    if str(value).lower() in ("auto", "all"):
        return None
    number = _whole(key, value)
    return number if number >= 0 else None


def _switch(key: str, value: Any) -> bool:
    text = str(value).lower()
    if text in _TRUE or value is None:
        return True
    if text in _FALSE:
        return False
    raise _bad(key, value, "on or off")


def _three_way(key: str, value: Any) -> str:
    text = str(value).lower()
    if text in ("auto", "-1"):
        return "auto"
    return "on" if _switch(key, value) else "off"


def _unified(key: str, value: Any) -> bool | None:
    return None if value is None else _switch(key, value)


def _check_type(key: str, value: Any, version: str | None) -> None:
    """Refuse a type that the build lacks; a build of unknown commit calls itself 0."""
    known = None if version is None or version.strip("b0") == "" else version
    option = Option(engine="llama.cpp", flag=key, types=_CACHE_TYPES, prefix="b")
    check_type(option, str(value).lower(), known)


def _type(key: str, value: Any) -> ElementType:
    return ELEMENT_TYPES[str(value).lower()]


def _mode(key: str, value: Any) -> str:
    text = str(value).lower()
    if text not in ("none", "layer", "row", "tensor"):
        raise _bad(key, value, "none, layer, row or tensor")
    return text


def _shares(key: str, value: Any) -> tuple[float, ...]:
    parts = value if isinstance(value, list | tuple) else re.split(r"[,/]", str(value))
    try:
        shares = tuple(float(part) for part in parts)
    except (TypeError, ValueError):
        raise _bad(key, value, "proportions such as 3,1") from None
    if len(shares) > 128 or any(not 0 <= share < 2**31 for share in shares):
        raise _bad(key, value, "up to 128 proportions of zero or more")
    return shares


def _names(key: str, value: Any) -> tuple[str, ...]:
    parts = value if isinstance(value, list | tuple) else str(value).split(",")
    return tuple(str(part).strip().lower()[:40] for part in parts[:16])


def _memory(key: str, value: Any) -> int:
    return parse_bytes(value)


def _path(key: str, value: Any) -> str:
    text = str(value)
    if not text or len(text) > _LONGEST_PATH or "\0" in text:
        raise _bad(key, value, "a file")
    return text


def _paths(key: str, value: Any) -> tuple[str, ...]:
    parts = value if isinstance(value, list | tuple) else str(value).split(",")
    return tuple(_path(key, part) for part in parts)


def _scaled_paths(key: str, value: Any) -> tuple[str, ...]:
    """Files, each with `:SCALE` behind it."""
    return tuple(re.sub(r":-?[\d.]+$", "", part) for part in _paths(key, value))


def _remote(key: str, value: Any) -> str:
    raise UsageError(
        f"llama-server's {key} spreads the model over machines whose memory is not known here",
        hint="leave it out and name their GPUs in the GPU's list, those of other machines first",
    )


def _repository(key: str, value: Any) -> str:
    """A hub repository without its tag, which names one file of it."""
    return _path(key, str(value).partition(":")[0])


def _rate(key: str, value: Any) -> float:
    return parse_rate(value)


_READERS: dict[str, Any] = {
    "ctx_size": _count, "parallel": _slots, "kv_unified": _unified, "batch_size": _count,
    "kv_unified_per_slot": _count, "ubatch_size": _count, "cache_type_k": _type,
    "cache_type_v": _type, "flash_attn": _three_way, "swa_full": _switch, "kv_offload": _switch,
    "n_gpu_layers": _layers, "split_mode": _mode, "tensor_split": _shares, "main_gpu": _count,
    "n_cpu_moe": _count, "cpu_moe": _switch, "override_tensor": read_overrides,
    "op_offload": _switch, "rpc": _remote,
    "fit": _switch, "fit_ctx": _count,
    "cache_ram": _whole, "n_outputs_max": _count, "n_rs_seq": _count, "gpu_memory": _memory,
    "host_bandwidth": _rate,
    "used": _memory,
    "spec_type": _names, "mtp": _switch, "spec_draft_n_max": _count,
    "spec_draft_model": _path, "spec_draft_hf": _repository, "mmproj_url": _path,
    "spec_draft_ngl": _layers, "spec_draft_n_cpu_moe": _count,
    "spec_draft_cpu_moe": _switch, "mmproj": _path, "mmproj_auto": _switch,
    "mmproj_offload": _switch, "lora": _paths,
    "lora_scaled": _scaled_paths,
    "spec_draft_type_k": _type, "spec_draft_type_v": _type,
}  # fmt: skip
