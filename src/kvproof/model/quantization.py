"""How a checkpoint's weights are stored: read from the quantization section of its config.

Supported sections: fp8 (block or per tensor), compressed-tensors, AWQ, GPTQ, MXFP4, NVIDIA
ModelOpt (FP8, NVFP4, MXFP8, mixed) and bitsandbytes. Each is a default scheme for the weights
of linear layers, names that stay in the model's type, and schemes for named layers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

import msgspec

from kvproof.errors import ModelError

_MAX_PATTERNS = 100_000
_MAX_PATTERN_LENGTH = 512


class Scheme(msgspec.Struct, frozen=True, kw_only=True):
    """Storage of one quantized weight matrix of `rows` outputs and `columns` inputs.

    `bits` per element; one scale of `scale_bits` (and a zero point of `zero_bits`) per `group`
    inputs of a row, per row (`group` 0), or per `block` (rows, columns); `tensor_bytes` per
    matrix (global scales, shapes) and `column_bytes` per input (GPTQ's order index).
    """

    name: str
    bits: float
    group: int = 0
    block: tuple[int, int] | None = None
    scale_bits: int = 0
    zero_bits: int = 0
    tensor_bytes: int = 0
    column_bytes: int = 0
    source: str = ""

    def bytes(self, rows: int, columns: int) -> int:
        """Bytes of one matrix with its scales."""
        packed = -(-rows * columns * round(self.bits * 8) // 64)
        scales = self._scales(rows, columns)
        return (
            packed
            + -(-scales * (self.scale_bits + self.zero_bits) // 8)
            + self.tensor_bytes
            + columns * self.column_bytes
        )

    def _scales(self, rows: int, columns: int) -> int:
        if self.block:
            return -(-rows // self.block[0]) * -(-columns // self.block[1])
        return rows * (-(-columns // self.group) if self.group else 1)


_FP8_TENSOR = Scheme(
    name="fp8 per tensor", bits=8, tensor_bytes=8, source="one f32 weight scale and input scale"
)
_FP8_CHANNEL = Scheme(
    name="fp8 per channel", bits=8, scale_bits=16, source="compressed-tensors float-quantized"
)
NVFP4 = Scheme(
    name="nvfp4", bits=4, group=16, scale_bits=8, tensor_bytes=8,
    source="E2M1, an E4M3 scale per 16 and two f32 per matrix (ModelOpt)",
)  # fmt: skip
MXFP4 = Scheme(
    name="mxfp4", bits=4, group=32, scale_bits=8, source="OCP MX: E2M1, an E8M0 scale per 32"
)
MXFP8 = Scheme(
    name="mxfp8", bits=8, group=32, scale_bits=8, source="OCP MX: E4M3, an E8M0 scale per 32"
)
_MODELOPT = {
    "FP8": _FP8_TENSOR,
    "FP8_PB_WO": Scheme(name="fp8 128x128", bits=8, block=(128, 128), scale_bits=32),
    "NVFP4": NVFP4,
    "NVFP4_AWQ": NVFP4,
    "W4A16_NVFP4": NVFP4,
    "MXFP8": MXFP8,
    "MXFP4": MXFP4,
    "W4A16_AWQ": Scheme(name="int4 awq", bits=4, group=128, scale_bits=16),
    "W4A8_AWQ": Scheme(name="int4 awq", bits=4, group=128, scale_bits=16),
}
_KV_TYPES = {"fp8": "fp8_e4m3", "nvfp4": "nvfp4", "int8": "int8"}


class Quantization(msgspec.Struct, frozen=True, kw_only=True):
    """The schemes of a checkpoint: a default for linear weights, exceptions, and named layers.

    `default` None: only the named layers are quantized. `kv_dtype` is the cache element type
    that the checkpoint asks engines for, if any.
    """

    method: str
    default: Scheme | None
    ignore: tuple[str, ...] = ()
    named: tuple[tuple[str, Scheme], ...] = ()
    kv_dtype: str | None = None

    def covers(self, *, linear: bool, role: str) -> bool:
        """Whether tensors of this role may be stored in a scheme of the checkpoint at all."""
        return linear and role not in ("embedding", "router")

    def scheme(self, module: str) -> Scheme | None:
        """The scheme of the linear module called `module`, None when it stays unquantized."""
        name = canonical(module)
        spellings = _stored_names(name)
        for pattern, scheme in self.named:
            if any(matches(pattern, spelling) for spelling in spellings):
                return scheme
        return None if self.default is None or self.keeps(module) else self.default

    def keeps(self, module: str) -> bool:
        """Whether `module` is named among those that stay unquantized."""
        name = canonical(module)
        return any(matches(pattern, name) for pattern in self.ignore)


_PREFIX = re.compile(r"^(?:model\.|language_model\.|transformer\.|backbone\.|text_model\.)+")
_SYNONYMS = (
    (".ffn.", ".mlp."),
    (".attn.", ".self_attn."),
    (".block_sparse_moe.", ".mlp."),
)


@lru_cache(maxsize=16_384)
def canonical(name: str) -> str:
    """`name` without the wrappers that differ between checkpoints and model classes."""
    out = _PREFIX.sub("", name.removesuffix(".weight")) + "."
    for old, new in _SYNONYMS:
        out = out.replace(old, new)
    return out[:-1]


# What fused projections are called where a checkpoint stores their parts: the classes' own names
# and Mixtral's (w1 the gate, w2 down, w3 up).
_PARTS = (
    (".gate_up_proj", (".gate_proj", ".w1")),
    (".down_proj", (".down_proj", ".w2")),
    (".up_proj", (".up_proj", ".w3")),
)


@lru_cache(maxsize=16_384)
def _stored_names(name: str) -> tuple[str, ...]:
    """`name` and what checkpoints call its parts: each expert, each of the fused projections."""
    fused, parts = next(((f, p) for f, p in _PARTS if name.endswith(f)), ("", ("",)))
    stem = name.removesuffix(fused)
    each = f"{stem}.0" if stem.endswith(".experts") else stem
    return tuple(dict.fromkeys((name, *(f"{each}{part}" for part in parts))))


@lru_cache(maxsize=131_072)
def matches(pattern: str, name: str) -> bool:
    """Whether an exclusion `pattern` covers the module with canonical `name`.

    Quantizers use three spellings: `re:` regular expressions (compressed-tensors), wildcards
    (ModelOpt) and bare names or parts of names (AutoAWQ, transformers' fp8).
    """
    if pattern.startswith("re:"):
        return _regex_matches(pattern[3:], name)
    short = canonical(pattern)
    if "*" in short:
        return fnmatchcase(name, short) or fnmatchcase(name, f"{short}.*")
    return f".{name}.".find(f".{short}.") >= 0


def _regex_matches(pattern: str, name: str) -> bool:
    """Match a checkpoint's own regular expression, refusing forms that can take forever."""
    if re.search(r"[+*}]\)[+*{]", pattern):
        raise ModelError(
            f"the quantization config holds an unbounded pattern {pattern[:60]!r}",
            hint="simplify its ignore list",
        )
    try:
        return any(re.match(pattern, n) is not None for n in (name, f"model.{name}"))
    except re.error:
        raise ModelError(
            f"the quantization config holds a broken pattern {pattern[:60]!r}",
            hint="correct its ignore list",
        ) from None


def read_quantization(
    config: Mapping[str, Any], sidecar: Mapping[str, Any] | None = None
) -> Quantization | None:
    """The quantization of a parsed config.json, or of ModelOpt's hf_quant_config.json beside it.

    Returns None for an unquantized checkpoint. Raises ModelError for a method that is unknown
    or whose section lacks a needed field.
    """
    given = config.get("quantization_config")
    section = given if given not in (None, {}) else _nested(config)
    if section is None and sidecar is not None:
        section = {
            "quant_method": "modelopt",
            **_mapping(sidecar.get("quantization"), "quantization"),
        }
    if section is None:
        return None
    section = _mapping(section, "quantization_config")
    if config.get("expert_dtype") == "fp4":
        section = {**section, "expert_dtype": "fp4"}
    method = _method(section)
    reader = _READERS.get(method)
    if reader is None:
        raise ModelError(
            f"unknown quantization method {method[:40]!r} in quantization_config.quant_method",
            hint=f"known: {', '.join(sorted(_READERS))}",
        )
    return reader(section)


def _nested(config: Mapping[str, Any]) -> Any:
    for key in ("text_config", "llm_config", "language_config"):
        inner = config.get(key)
        if isinstance(inner, Mapping) and inner.get("quantization_config"):
            return inner["quantization_config"]
    return None


def _method(section: Mapping[str, Any]) -> str:
    producer = section.get("producer")
    if isinstance(producer, Mapping) and producer.get("name") == "modelopt":
        return "modelopt"
    method = section.get("quant_method")
    if method is None and "config_groups" in section:
        return "compressed-tensors"
    if method is None and isinstance(section.get("format"), str):
        return "compressed-tensors"
    return str(method).lower()


def _fp8(section: Mapping[str, Any]) -> Quantization:
    block = section.get("weight_block_size")
    scheme = _FP8_TENSOR
    if block is not None:
        rows, columns = _pair(block, "weight_block_size")
        narrow = section.get("scale_fmt") == "ue8m0"
        scheme = Scheme(
            name=f"fp8 {rows}x{columns}", bits=8, block=(rows, columns), scale_bits=32,
            source="E4M3 with an f32 scale per block" + (" (ue8m0 values)" if narrow else ""),
        )  # fmt: skip
    ignore = (*_names(section, "modules_to_not_convert"), *_names(section, "ignored_layers"))
    named = [
        (name, _modelopt_scheme(str(_mapping(row, "quantized_layers").get("quant_algo"))))
        for name, row in _mapping(section.get("quantized_layers") or {}, "quantized_layers").items()
    ]
    if section.get("expert_dtype") == "fp4":
        named.append(("experts", MXFP4))  # DeepSeek-V4: routed experts in FP4, the rest in FP8
    return Quantization(
        method="fp8", default=scheme, ignore=(*ALWAYS_KEPT, *ignore), named=tuple(named)
    )


def _compressed_tensors(section: Mapping[str, Any]) -> Quantization:
    named: list[tuple[str, Scheme]] = []
    default: Scheme | None = None
    if "config_groups" not in section:
        default = _format_scheme(str(section.get("format")))
    for group in _mapping(section.get("config_groups", {}), "config_groups").values():
        weights = _mapping(group, "config_groups").get("weights")
        if weights is None:
            continue
        scheme = _compressed_scheme(_mapping(weights, "weights"), str(section.get("format")))
        targets = _names(group, "targets")
        if not targets or "Linear" in targets:
            default = scheme
        named += [(t, scheme) for t in targets if t != "Linear"]
    return Quantization(
        method="compressed-tensors",
        default=default,
        ignore=(*ALWAYS_KEPT, *_names(section, "ignore")),
        named=tuple(named),
        kv_dtype=_kv_scheme(section.get("kv_cache_scheme")),
    )


def _format_scheme(name: str) -> Scheme:
    known = {"nvfp4-pack-quantized": NVFP4, "mxfp4-pack-quantized": MXFP4,
             "float-quantized": _FP8_CHANNEL}  # fmt: skip
    if name not in known:
        raise ModelError(
            f"quantization_config.format {name[:40]!r} comes without config_groups",
            hint="give the whole config.json",
        )
    return known[name]


def _compressed_scheme(weights: Mapping[str, Any], form: str) -> Scheme:
    bits = _count(weights.get("num_bits"), "num_bits")
    floating = weights.get("type") == "float"
    strategy = weights.get("strategy") or ("group" if weights.get("group_size") else "channel")
    if floating and bits == 4:
        return NVFP4 if _count(weights.get("group_size"), "group_size") == 16 else MXFP4
    if strategy == "tensor":
        return (
            _FP8_TENSOR if floating else Scheme(name="int8 per tensor", bits=bits, tensor_bytes=2)
        )
    if strategy == "block":
        rows, columns = _pair(weights.get("block_structure"), "block_structure")
        return Scheme(name=f"fp8 {rows}x{columns}", bits=bits, block=(rows, columns), scale_bits=32)
    group = weights.get("group_size") if strategy == "group" else 0
    packed = "pack" in form
    return Scheme(
        name=f"{'fp' if floating else 'int'}{bits} {strategy}",
        bits=bits,
        group=_count(group or 0, "group_size"),
        scale_bits=16,
        zero_bits=0 if weights.get("symmetric", True) else bits,
        tensor_bytes=16 if packed else 0,
        source=f"compressed-tensors {form}",
    )


def _awq(section: Mapping[str, Any]) -> Quantization:
    bits = _count(section.get("bits") or section.get("w_bit"), "bits")
    scheme = Scheme(
        name=f"awq int{bits}",
        bits=bits,
        group=_positive(section.get("group_size") or section.get("q_group_size"), "group_size"),
        scale_bits=16,
        zero_bits=bits if section.get("zero_point", True) else 0,
        source="AutoAWQ: packed int32 weights and zeros, f16 scales",
    )
    ignore = (*ALWAYS_KEPT, *_names(section, "modules_to_not_convert"))
    return Quantization(method="awq", default=scheme, ignore=ignore)


def _gptq(section: Mapping[str, Any]) -> Quantization:
    bits = _count(section.get("bits"), "bits")
    group = section.get("group_size", 128)
    scheme = Scheme(
        name=f"gptq int{bits}",
        bits=bits,
        group=0 if group == -1 else _positive(group, "group_size"),
        scale_bits=16,
        zero_bits=bits,
        column_bytes=4,
        source="GPTQ: packed int32 weights and zeros, f16 scales, int32 order index",
    )
    return Quantization(
        method="gptq",
        default=scheme,
        ignore=(*ALWAYS_KEPT, *_names(section, "modules_to_not_convert")),
    )


def _mxfp4(section: Mapping[str, Any]) -> Quantization:
    ignore = (*ALWAYS_KEPT, *_names(section, "modules_to_not_convert"))
    return Quantization(method="mxfp4", default=MXFP4, ignore=ignore)


def _modelopt(section: Mapping[str, Any]) -> Quantization:
    section = _mapping(section.get("quantization", section), "quantization")
    algorithm = str(section.get("quant_algo")).upper()
    only_cache = section.get("quant_algo", "") is None  # written as null: just the cache
    part = algorithm == "MIXED_PRECISION" or only_cache
    named = [
        (name, _modelopt_scheme(str(_mapping(row, "quantized_layers").get("quant_algo"))))
        for name, row in _mapping(section.get("quantized_layers") or {}, "quantized_layers").items()
    ]
    ignore = (*_names(section, "ignore"), *_names(section, "exclude_modules"))
    asked = section.get("kv_cache_quant_algo") or section.get("kv_cache_scheme")
    return Quantization(
        method="modelopt",
        default=None if part else _modelopt_scheme(algorithm),
        ignore=(*ALWAYS_KEPT, *ignore),
        named=tuple(named[:_MAX_PATTERNS]),
        kv_dtype=_KV_TYPES.get(asked.lower()) if isinstance(asked, str) else _kv_scheme(asked),
    )


def _modelopt_scheme(algorithm: str) -> Scheme:
    if algorithm.upper() not in _MODELOPT:
        raise ModelError(
            f"unknown quant_algo {algorithm[:40]!r} in the quantization config",
            hint=f"known: {', '.join(_MODELOPT)}",
        )
    return _MODELOPT[algorithm.upper()]


def _bitsandbytes(section: Mapping[str, Any]) -> Quantization:
    skip = (*ALWAYS_KEPT, *_names(section, "llm_int8_skip_modules"))
    if section.get("load_in_8bit") or section.get("_load_in_8bit"):
        scheme = Scheme(name="bnb int8", bits=8, scale_bits=32, source="LLM.int8(): f32 per row")
    else:
        double = bool(section.get("bnb_4bit_use_double_quant"))
        scheme = Scheme(
            name="bnb " + str(section.get("bnb_4bit_quant_type", "fp4"))[:8],
            bits=4,
            group=64,
            scale_bits=8 if double else 32,
            source="QLoRA: blocks of 64" + (", 8-bit second-level scales" if double else ""),
        )
    return Quantization(method="bitsandbytes", default=scheme, ignore=skip)


def _kv_scheme(scheme: Any) -> str | None:
    """The cache type of a `kv_cache_scheme` section: 8-bit floats or 4-bit blocks."""
    if isinstance(scheme, str):
        return _KV_TYPES.get(scheme.lower())
    if not isinstance(scheme, Mapping):
        return None
    if scheme.get("num_bits") == 4:
        return "nvfp4"
    return "fp8_e4m3" if scheme.get("type", "float") == "float" else "int8"


# The output head and routers stay unquantized in every published scheme that does not name them.
ALWAYS_KEPT = (
    "lm_head", "embed_tokens", "mlp.gate", "router", "attn_hyper_connection",
    "mlp_hyper_connection", "hyper_connection_mixer",
)  # fmt: skip
"""Hyper connections: vLLM 0.31, models/qwen4_exp/common/hyperconnection.py, has no scheme there."""

_READERS = {
    "fp8": _fp8,
    "fbgemm_fp8": lambda section: Quantization(
        method="fbgemm_fp8",
        default=_FP8_CHANNEL,
        ignore=(*ALWAYS_KEPT, *_names(section, "modules_to_not_convert")),
    ),
    "compressed-tensors": _compressed_tensors,
    "awq": _awq,
    "gptq": _gptq,
    "mxfp4": _mxfp4,
    "modelopt": _modelopt,
    "modelopt_fp4": _modelopt,
    "bitsandbytes": _bitsandbytes,
}


def _mapping(value: Any, key: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ModelError(f"quantization key {key!r} is not an object", hint="check config.json")
    if len(value) > _MAX_PATTERNS:
        raise ModelError(f"quantization key {key!r} has {len(value):,} entries", hint="refused")
    return value


def _names(section: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = section.get(key)
    if value is None:
        return ()
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) > _MAX_PATTERNS:
        raise ModelError(
            f"quantization key {key!r} is not a list of names", hint="check config.json"
        )
    return tuple(str(name)[:_MAX_PATTERN_LENGTH] for name in value)


def _count(value: Any, key: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 2**20:
        raise ModelError(
            f"quantization key {key!r} is {str(value)[:40]!r}", hint="want a small count"
        )
    return value


def _positive(value: Any, key: str) -> int:
    count = _count(value, key)
    if not count:
        raise ModelError(f"quantization key {key!r} is 0", hint="want a positive count")
    return count


def _pair(value: Any, key: str) -> tuple[int, int]:
    if not isinstance(value, Sequence) or len(value) != 2 or isinstance(value, str):
        raise ModelError(f"quantization key {key!r} is not a pair", hint="want [128, 128]")
    first, second = _count(value[0], key), _count(value[1], key)
    if not first or not second:
        raise ModelError(f"quantization key {key!r} holds a zero", hint="want [128, 128]")
    return first, second
