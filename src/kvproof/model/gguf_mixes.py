"""What the file types of llama.cpp make of a model's tensors, by what each tensor does.

Source: llama.cpp, src/llama-quant.cpp (llama_tensor_get_type, use_more_bits, the default types of
llama_model_quantize_impl and the fallbacks for rows that are no whole blocks). Published files of
the IQ types are made with an importance matrix, so the rules with one hold for them.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

Part = Literal[
    "output", "embedding", "attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "ffn_down",
    "ffn_up", "other",
]  # fmt: skip
"""What a rule can tell apart; ffn_up is the gate too."""
When = Literal["", "more", "eighth", "sixteenth", "two", "four", "middle", "shared"]
"""In which layers, or models: `more` those of use_more_bits, `eighth` the first eighth, `middle`
without the first and the last eighth, `shared` four query heads or more to a KV head."""


class Rule(msgspec.Struct, frozen=True):
    """Tensors of `part` are stored as `type` where `when` holds."""

    part: Part
    type: str
    when: When = ""


class Mix(msgspec.Struct, frozen=True):
    """A file type: the type of most tensors, and the rules for others, the first that holds."""

    base: str
    rules: tuple[Rule, ...] = ()
    output: str = "Q6_K"


def _first_eighth(kind: str) -> Rule:
    return Rule("ffn_down", kind, "eighth")


_V_SHARED = Rule("attn_v", "Q4_K", "shared")
_LOW = (Rule("embedding", "Q2_K"), _V_SHARED, Rule("attn_v", "Q2_K"), _first_eighth("Q2_K"))
_LOW_S = (
    Rule("embedding", "IQ3_S"), _V_SHARED, Rule("attn_v", "IQ3_S"), _first_eighth("IQ3_S"),
    Rule("attn_output", "IQ3_S"),
)  # fmt: skip
_LOWEST = (*_LOW, Rule("attn_output", "IQ2_XXS"))

MIXES: dict[str, Mix] = {
    **{name: Mix(name, (), name) for name in ("F32", "F16", "BF16", "Q8_0")},
    **{name: Mix(name) for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q6_K")},
    "Q2_K": Mix("Q2_K", (
        _V_SHARED, Rule("attn_v", "Q3_K"), Rule("ffn_down", "Q3_K"), Rule("attn_output", "Q3_K"),
    )),
    "Q2_K_S": Mix("Q2_K", (_V_SHARED, _first_eighth("Q4_K"))),
    "Q3_K_S": Mix("Q3_K"),
    "Q3_K_M": Mix("Q3_K", (
        Rule("attn_v", "Q5_K", "two"), Rule("attn_v", "Q4_K"),
        Rule("ffn_down", "Q5_K", "sixteenth"), Rule("ffn_down", "Q4_K"),
        Rule("attn_output", "Q4_K"), Rule("attn_qkv", "Q4_K"),
    )),
    "Q3_K_L": Mix("Q3_K", (
        Rule("attn_v", "Q5_K"), Rule("ffn_down", "Q5_K"), Rule("attn_output", "Q5_K"),
        Rule("attn_qkv", "Q4_K"),
    )),
    "Q4_K_S": Mix("Q4_K", (Rule("attn_v", "Q5_K", "four"), _first_eighth("Q5_K"))),
    "Q4_K_M": Mix("Q4_K", (
        Rule("attn_v", "Q6_K", "more"), Rule("ffn_down", "Q6_K", "more"), Rule("attn_qkv", "Q5_K"),
    )),
    "Q5_K_S": Mix("Q5_K"),
    "Q5_K_M": Mix("Q5_K", (
        Rule("attn_v", "Q6_K", "more"), Rule("ffn_down", "Q6_K", "more"), Rule("attn_qkv", "Q6_K"),
    )),
    "IQ4_NL": Mix("IQ4_NL", (Rule("attn_v", "Q5_K", "shared"),)),
    "IQ4_XS": Mix("IQ4_XS", (Rule("attn_v", "Q5_K", "shared"),)),
    "IQ3_M": Mix("IQ3_S", (
        Rule("attn_v", "Q4_K"), _first_eighth("Q4_K"), Rule("attn_output", "Q4_K"),
        Rule("attn_qkv", "Q4_K"),
    )),
    "IQ3_S": Mix("IQ3_S", (_V_SHARED,)),
    "IQ3_XS": Mix("IQ3_S", (
        _V_SHARED, Rule("attn_k", "IQ3_XXS"), Rule("attn_q", "IQ3_XXS"),
        Rule("ffn_up", "IQ3_XXS", "middle"),
    )),
    "IQ3_XXS": Mix("IQ3_XXS", (
        Rule("embedding", "IQ3_S"), _V_SHARED, Rule("attn_k", "IQ2_S"), Rule("attn_q", "IQ2_S"),
        Rule("attn_output", "IQ3_S"),
    ), "Q5_K"),
    "IQ2_M": Mix("IQ2_S", _LOW_S, "Q5_K"),
    "IQ2_S": Mix("IQ2_XS", _LOW_S, "Q5_K"),
    "IQ2_XS": Mix("IQ2_XS", _LOW, "Q5_K"),
    "IQ2_XXS": Mix("IQ2_XXS", _LOW, "Q5_K"),
    "IQ1_M": Mix("IQ1_M", _LOWEST, "Q5_K"),
    "IQ1_S": Mix("IQ1_S", _LOWEST, "Q5_K"),
    "TQ1_0": Mix("TQ1_0", (Rule("embedding", "Q4_K"),)),
    "TQ2_0": Mix("TQ2_0", (Rule("embedding", "Q4_K"),)),
    "MXFP4": Mix("Q8_0", (), "Q8_0"),  # experts are kept apart (kvproof.model.gguf_named)
}  # fmt: skip
_KEEPS = {"Q2_K_L": "Q2_K", "Q3_K_XL": "Q3_K_L", "Q4_K_L": "Q4_K_M", "Q5_K_L": "Q5_K_M",
          "Q6_K_L": "Q6_K"}  # fmt: skip
for _name, _near in _KEEPS.items():  # bartowski's: embedding and output in Q8_0
    _mix = MIXES[_near]
    MIXES[_name] = Mix(_mix.base, (Rule("embedding", "Q8_0"), *_mix.rules), "Q8_0")

NEAR = {"FP16": "F16", "FP32": "F32", "MXFP4_MOE": "MXFP4", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M",
        "Q3_K": "Q3_K_M", "Q2_K_XL": "Q2_K", "Q4_K_XL": "Q4_K_M", "Q5_K_XL": "Q5_K_M",
        "Q6_K_XL": "Q6_K", "Q8_K_XL": "Q8_0"}  # fmt: skip
"""Other names of types (llama-quantize's Q4_K is Q4_K_M), and Unsloth's own mixes by the nearest.

Unsloth's UD-..._XL choose types tensor by tensor, by a table that only the file holds."""
FALLBACKS = {
    **dict.fromkeys(("TQ1_0", "TQ2_0"), "Q4_0"),
    **dict.fromkeys(
        ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "Q2_K", "Q3_K",
         "IQ4_XS"),
        "IQ4_NL",
    ),
    "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0",
}  # fmt: skip
"""For rows that are no whole blocks of a type; F16 where that type's blocks do not fit either."""
_TYPE = re.compile(
    r"(?<![a-z0-9])(i?q\d(?:_[a-z0-9]{1,3}){0,2}|tq\d_0|b?f16|fp16|f32|fp32|mxfp4(?:_moe)?)"
    r"(?![a-z0-9])",
    re.IGNORECASE,
)


def file_type(name: str) -> str | None:
    """The file type that the name of a file, a tag or a model ends in; None where it says none."""
    known = (found.upper() for found in _TYPE.findall(name.rpartition("/")[2]))
    return next((kind for kind in reversed(list(known)) if kind in MIXES or kind in NEAR), None)


def mix_of(kind: str) -> Mix:
    """The mix of a file type by its name, as file_type gives it."""
    return MIXES[NEAR.get(kind, kind)]
