"""The bundled catalogue: published models by name, with no network.

Data: data/catalog.json, built by scripts/build_catalog.py; each entry keeps its source. A name
of a fine-tuned or quantized repository resolves to its base's geometry by dropping known
suffixes, and the answer says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from kvproof.errors import UsageError, unknown_name


class Entry(msgspec.Struct, frozen=True):
    """One published model: its config's facts (raw JSON), where they come from, and caveats.

    `licence` is that of the source the facts were read from, where it states one; the model's
    own licence is its publisher's.
    """

    config: msgspec.Raw
    source: str
    complete: bool
    note: str = ""
    licence: str = ""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A resolved name: the entry, its own name, and what was assumed to get there."""

    name: str
    entry: Entry
    assumption: str | None = None
    quantization: Mapping[str, Any] | None = None

    def config(self) -> dict[str, Any]:
        """The parsed config, with the quantization that the asked-for name implies.

        Packings that no config's quantization section holds are left to the caller (`packed`).
        """
        parsed: dict[str, Any] = msgspec.json.decode(self.entry.config)
        if self.quantization is not None and self.packed is None:
            parsed = {**parsed, "quantization_config": dict(self.quantization)}
        return parsed

    @property
    def packed(self) -> Mapping[str, Any] | None:
        """How MLX or a GGUF file packs the weights, where the name says one of them."""
        scheme = self.quantization
        return scheme if scheme is not None and scheme["quant_method"] in _PACKINGS else None


_PACKINGS = ("gguf", "mlx")


class _Catalog(msgspec.Struct, frozen=True):
    date: str
    models: dict[str, Entry]
    aliases: dict[str, str]


@cache
def _catalog() -> _Catalog:
    raw = (Path(__file__).parent / "data/catalog.json").read_bytes()
    return msgspec.json.decode(raw, type=_Catalog)


def catalog_date() -> str:
    """The day the catalogue was gathered."""
    return _catalog().date


def entries() -> Mapping[str, Entry]:
    """All entries by name."""
    return _catalog().models


# What llm-compressor's published recipes leave in the model's own type.
_ENCODERS = ["lm_head", "visual", "vision_tower", "vision_model", "multi_modal_projector"]
_KEPT = [*_ENCODERS, "linear_attn", "mtp"]
_INT4 = {"bits": 4, "group_size": 128}
_CHANNEL_FP8 = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "float", "strategy": "channel"},
        }
    },
    "ignore": _KEPT,
}
_INT8 = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "int", "strategy": "channel"},
        }
    },
    "ignore": _KEPT,
}
_W4A16 = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128},
        }
    },
    "ignore": _KEPT,
}
_NF4 = {
    "quant_method": "bitsandbytes",
    "load_in_4bit": True,
    "bnb_4bit_quant_type": "nf4",
    "bnb_4bit_use_double_quant": True,
}
_DYNAMIC_NF4 = {**_NF4, "llm_int8_skip_modules": _ENCODERS}
"""Unsloth's dynamic 4 bits, which keep encoders (and a few layers, which differ from model to
model): 6.79 GiB are printed for Qwen2.5-VL-7B, 5.6 with the tower in 4 bits."""
_NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": _KEPT}
_FP8 = {"quant_method": "fp8", "modules_to_not_convert": _ENCODERS}
_BLOCK_FP8 = {**_FP8, "weight_block_size": [128, 128]}

# What publishers append to a base model's name, and the scheme that it stands for (None: a
# fine-tune or a packaging of the same geometry). Longest first; applied until none fits.
_SUFFIXES: tuple[tuple[str, Mapping[str, Any] | None], ...] = (
    (r"-fp8-dynamic", _CHANNEL_FP8),
    (r"-fp8-block|-block-fp8", {"quant_method": "fp8", "weight_block_size": [128, 128]}),
    (r"-fp8", _FP8),
    (r"-quantized\.w8a8|-w8a8|-int8", _INT8),
    (r"-quantized\.w4a16|-w4a16", _W4A16),
    (r"-awq-int4|-int4-awq|-awq-4bit|-awq", {"quant_method": "awq", **_INT4}),
    (r"-gptq-int8", {"quant_method": "gptq", "bits": 8, "group_size": 128}),
    (r"-gptq-int4|-int4-gptq|-gptq-4bit|-gptq", {"quant_method": "gptq", **_INT4}),
    (r"-nvfp4|-fp4", _NVFP4),
    (r"-unsloth-bnb-4bit", _DYNAMIC_NF4),
    (r"-bnb-4bit|-4bit", _NF4),
    (r"-bnb-8bit", {"quant_method": "bitsandbytes", "load_in_8bit": True}),
    (r"-gguf", {"quant_method": "gguf"}),
    (r"-bf16|-fp16|-f16|-hf", None),
    (r"-instruct|-chat|-it|-base|-thinking|-reasoning|-sft|-dpo|-pt", None),
    (r"-\d{4}|-v\d+(\.\d+)?", None),
)

_RECIPES = frozenset({"redhatai", "neuralmagic", "nm-testing"})
"""Publishers whose quantized checkpoints follow the recipes that these schemes stand for."""
_OTHER_FP8 = _RECIPES | {"nvidia", "amd", "intel"}
_IN_BLOCKS = "qwen3"
"""Qwen's own FP8 checkpoints since Qwen3 have a scale per block of 128 x 128, as the entries of
the catalogue that are whole say; other publishers' of these models have one per tensor."""

_MLX_PUBLISHER = "mlx-community"
_MLX = re.compile(r"-(?:mlx-)?([2-6]|8)[-_]?bit(-mlx)?(?:-dwq(?:-[\w.]+)?)?$")
"""mlx-lm's `convert -q` names: bits a weight, in groups of 64 unless it is told otherwise."""

_SCHEME_KEYS = frozenset({"quantization_config", "compression_config", "text_config"})
"""Where a config may hold its scheme."""


def find(name: str) -> Found | None:
    """The catalogue entry that `name` stands for, or None when nothing fits."""
    catalog = _catalog()
    target = catalog.aliases.get(name, name)
    if target in catalog.models:
        return _exact(name, target)
    short = _short_names()
    publisher, _, own = name.lower().rpartition("/")
    wanted, scheme = own, None
    if publisher in _RECIPES:  # not for another publisher's checkpoint of that short name
        stripped, scheme = _strip(own)
        wanted = own if scheme is None else stripped
    elif (mlx := _MLX.search(own)) and (publisher == _MLX_PUBLISHER or "-mlx" in mlx[0]):
        wanted = own[: mlx.start()]
        scheme = {"quant_method": "mlx", "bits": int(mlx[1]), "group_size": 64}
    while True:
        if wanted in short:
            return _found(name, short[wanted], _as_published(publisher, own, scheme))
        stripped, named = _strip(wanted)
        if stripped == wanted:
            return None
        wanted, scheme = stripped, scheme or named


def _exact(asked: str, target: str) -> Found:
    """The entry itself; of a trimmed config without its scheme, with the one that the name says."""
    entry = _catalog().models[target]
    said = None if target == asked else f"{asked} is {target} in the catalogue"
    scheme = None
    if _lost_scheme(entry):
        publisher, _, own = target.lower().rpartition("/")
        scheme = _as_published(publisher, own, _strip(own)[1])
    if scheme is not None:
        read = f"{target} is read with {scheme['quant_method']} weights, as its name says"
        said = f"{said}; {read}" if said else read
    return Found(name=target, entry=entry, assumption=said, quantization=scheme)


def _as_published(
    publisher: str, own: str, scheme: Mapping[str, Any] | None
) -> Mapping[str, Any] | None:
    """The scheme of a name, as whoever published that model has it."""
    blocks = own.startswith(_IN_BLOCKS) and publisher not in _OTHER_FP8
    return _BLOCK_FP8 if scheme is _FP8 and blocks else scheme


def _lost_scheme(entry: Entry) -> bool:
    return not entry.complete and not _SCHEME_KEYS & msgspec.json.decode(entry.config).keys()


def _found(asked: str, target: str, scheme: Mapping[str, Any] | None) -> Found:
    said = f"{asked} is read with the geometry of {target}"
    if scheme is not None and scheme["quant_method"] != "gguf":  # its type gets a note of its own
        said += f" and {_shown(scheme)} weights, as its name says"
    if asked.rpartition("/")[2].lower() == target.rpartition("/")[2].lower():
        said = f"{asked} is {target} in the catalogue"
    return Found(name=target, entry=_catalog().models[target], assumption=said, quantization=scheme)


def _shown(scheme: Mapping[str, Any]) -> str:
    method = scheme["quant_method"]
    return f"MLX {scheme['bits']}-bit" if method == "mlx" else str(method)


def _strip(name: str) -> tuple[str, Mapping[str, Any] | None]:
    """`name` without its last known suffix, and the scheme that the suffix stands for."""
    for pattern, scheme in _SUFFIXES:
        match = re.search(rf"(?:{pattern})$", name)
        if match and match.start() > 0:
            return name[: match.start()], scheme
    return name, None


@cache
def _short_names() -> dict[str, str]:
    """Lower-case names without organisation, and their forms without suffixes, to full names.

    An exact short name wins over a stripped one; bf16 entries win over quantized ones.
    """
    catalog = _catalog()
    out: dict[str, str] = {}
    for full in [*catalog.models, *catalog.aliases]:
        out.setdefault(full.rpartition("/")[2].lower(), catalog.aliases.get(full, full))
    for full in sorted(catalog.models, key=lambda n: (len(n), n)):
        short, quantized = full.rpartition("/")[2].lower(), False
        bare = _lost_scheme(catalog.models[full])  # what is left is the base model's
        while True:
            stripped, scheme = _strip(short)
            if stripped == short:
                break
            short, quantized = stripped, quantized or (scheme is not None and not bare)
            if not quantized:
                out.setdefault(short, full)
                out.setdefault(short.removeprefix("meta-"), full)
    return out


def no_such_model(name: str) -> UsageError:
    """The error for a name that the catalogue does not hold, with the near ones."""
    known = [*entries(), *_catalog().aliases]
    return unknown_name("model", name, known, see="kvproof models lists them")
