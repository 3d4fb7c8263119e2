"""Weights of a GGUF file that is not here, by the type that its name says.

The shapes are the config's, the types those that llama.cpp gives such a file's tensors
(kvproof.model.gguf_mixes).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from kvproof.model.ggml_types import GGML_TYPES, GgmlType
from kvproof.model.gguf_mixes import FALLBACKS, NEAR, Mix, Part, When, file_type, mix_of
from kvproof.model.gguf_tensors import FileQuantization, scheme_of
from kvproof.model.quantization import Scheme
from kvproof.model.tensors import ENCODER_ROLES, TensorGroup
from kvproof.model.types import Model

DEFAULT_TYPE = "Q4_K_M"
"""What llama.cpp takes first of a repository (common/download.cpp), and Ollama's tags stand for."""
TYPE_NOTE = "weights are reckoned as"
"""How the note on a named type starts."""
_BY_NAME = {kind.name: kind for kind in GGML_TYPES.values()}
_PARTS: tuple[tuple[tuple[str, ...], Part], ...] = (
    (("qkv_proj", "query_key_value", "c_attn", "wqkv", "qkv"), "attn_qkv"),
    (("v_proj", "wv"), "attn_v"), (("k_proj", "wk"), "attn_k"), (("q_proj", "wq"), "attn_q"),
    (("o_proj", "out_proj", "dense", "c_proj", "wo"), "attn_output"),
)  # fmt: skip
_DOWN = ("down_proj", "w2", "fc2", "c_proj", "dense_4h_to_h", "output_linear", "linear_2")
_PLAIN_ROLES = ("norm", "router", "position")
_EIGHT, _SOME_EXPERTS = 8, 4
_LAYERS_OF_70B = 80
_BUMPED = ("Q3_K", "Q4_K")


def typed(model: Model, kind: str) -> Model:
    """`model` as a GGUF file of type `kind`, a note said; itself where its tensors are unknown.

    Experts that the checkpoint has in MXFP4 stay so, as in every file that is made of one.
    """
    if not model.tensors:
        return model
    types = _Types(model, mix_of(kind), keeps=_mxfp4(model) or NEAR.get(kind, kind) == "MXFP4")
    quantization = FileQuantization(method=kind, default=None, types=types.all())
    return msgspec.structs.replace(model, quantization=quantization, stored_weight_bytes=None)


def type_note(kind: str, name: str) -> str:
    """Where the type of the weights comes from."""
    near = NEAR.get(kind, kind)
    said = f"{kind} is taken as {near}: " if kind.endswith("XL") and near != kind else ""
    return (
        f"{TYPE_NOTE} {kind}, by the name {name[:80]}: {said}types by llama.cpp's own "
        "mix; the file itself says it to the byte"
    )


def named_type(model: Model, name: str) -> str | None:
    """The type of the GGUF weights that `name` means, a default's where it names none.

    None for a file whose name says no type, for what is no name of GGUF weights, and where the
    type is the checkpoint's: Ollama has gpt-oss as it is published, others its rest in Q8_0.
    """
    ollama = name.startswith("ollama:")
    plain = name.removeprefix("ollama:").removesuffix(":latest")
    tagged = ":" in plain and "://" not in plain
    if not (ollama or tagged or plain != name or "gguf" in plain.lower()):
        return None
    if (found := file_type(plain)) is not None:
        return found
    if plain.endswith(".gguf"):
        return None
    if _mxfp4(model):
        return None if ollama else "MXFP4"
    return DEFAULT_TYPE


class _Types:
    """Which type every tensor of a model gets in one mix."""

    def __init__(self, model: Model, mix: Mix, *, keeps: bool) -> None:
        self.model, self.mix, self.keeps = model, mix, keeps
        heads = model.number("num_key_value_heads") or model.attention_heads
        self.shared = model.attention_heads >= 4 * heads
        self.order: dict[Part, tuple[int, ...]] = {}
        for group in model.tensors:
            part = _part(group)
            self.order[part] = tuple(sorted({*self.order.get(part, ()), *group.layers}))

    def all(self) -> Mapping[str, Scheme]:
        """The scheme of every tensor, by its name."""
        out: dict[str, Scheme] = {}
        for group in self.model.tensors:
            if not group.layers or "{}" not in group.name:
                out[group.name] = scheme_of(self.type_of(group, 0))
                continue
            for layer in group.layers:
                name = group.name.replace("{}", str(layer), 1).replace("{}", "0")
                out[name] = scheme_of(self.type_of(group, layer))
        return out

    def type_of(self, group: TensorGroup, layer: int) -> GgmlType:
        """The type of a group's tensor in `layer`."""
        if group.role in ENCODER_ROLES:
            return _BY_NAME["F16"]
        if len(group.shape) < 2 or group.role in _PLAIN_ROLES or _small(group):
            return _BY_NAME["F32"]
        if group.role == "expert" and self.keeps:
            return _BY_NAME["MXFP4"]
        return _fitting(self.named(_part(group), layer), group.shape[-1])

    def named(self, part: Part, layer: int) -> str:
        """The type of a part's tensor, by the mix and the rules for models of eight experts."""
        if part == "output":
            return self.mix.output
        rules = (rule for rule in self.mix.rules if rule.part == part)
        found = next((r.type for r in rules if self.holds(r.when, part, layer)), self.mix.base)
        if self.model.experts == _EIGHT and self.mix.base not in ("F32", "F16", "BF16"):
            if part in ("attn_k", "attn_v"):
                return "Q8_0"
            if part == "attn_output" and self.mix.base not in ("Q5_K", "Q6_K", "Q8_0"):
                return "Q5_K"
        deep = self.model.layers == _LAYERS_OF_70B
        return "Q5_K" if part == "attn_v" and deep and found in _BUMPED else found

    def holds(self, when: When, part: Part, layer: int) -> bool:
        """Whether a rule's condition holds in a layer."""
        if when == "shared" or not when:
            few = self.mix.output == "Q5_K" and self.model.experts >= _SOME_EXPERTS
            return not when or self.shared or few
        at, count = layer, self.model.layers
        if part == "attn_v" or not self.model.experts:
            at = self.order[part].index(layer)
        if part == "attn_v":
            count = len(self.order[part])
        return {
            "eighth": at < count // 8, "sixteenth": at < count // 16, "two": at < 2,
            "four": at < 4, "middle": count // 8 <= at < 7 * count // 8,
            "more": at < count // 8 or at >= 7 * count // 8 or (at - count // 8) % 3 == 2,
        }[when]  # fmt: skip


def _part(group: TensorGroup) -> Part:
    last = group.name.removesuffix(".weight").rpartition(".")[2].lower()
    if group.role == "head" or group.tied:
        return "output"
    if group.role == "embedding":
        return "embedding"
    if group.role in ("mlp", "expert", "shared_expert"):
        return "ffn_down" if last in _DOWN else "ffn_up"
    if group.role == "attention":
        return next((part for names, part in _PARTS if last in names), "other")
    return "other"


def _small(group: TensorGroup) -> bool:
    """Biases of experts, and what a convolution or a state's decay is made of."""
    return group.name.endswith("bias") or (group.role == "mixer" and not group.linear)


def _fitting(name: str, columns: int) -> GgmlType:
    """The type, or what stands for it where a row is no whole number of its blocks."""
    for wanted in (name, FALLBACKS.get(name, "F16"), "F16"):
        if columns % _BY_NAME[wanted].block == 0:
            return _BY_NAME[wanted]
    return _BY_NAME["F16"]


def _mxfp4(model: Model) -> bool:
    """Whether the checkpoint has its experts in MXFP4."""
    quantization = model.quantization
    expert = next((group for group in model.tensors if group.role == "expert"), None)
    if quantization is None or expert is None or not math.prod(expert.shape):
        return False
    scheme = quantization.scheme(expert.name.replace("{}", str(expert.layers[0]), 1))
    return scheme is not None and scheme.name == "mxfp4"
