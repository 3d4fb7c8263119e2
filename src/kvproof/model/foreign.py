"""Published configs of classes outside transformers, written as their equal inside it.

Each row names the class of the same design and how fields are renamed. A row is there only where
the design is the same as far as the cache goes; where the parameters differ, `exact` is False and
no weights are computed. Source: the published modeling code and papers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

Config = dict[str, Any]


class Equal(msgspec.Struct, frozen=True):
    """The class of the same design, {published field: field}, and whether weights are equal."""

    model_type: str
    names: dict[str, str] = {}
    exact: bool = True


class Translated(msgspec.Struct, frozen=True):
    """A config in terms of a transformers class, and notes on what was translated."""

    config: Config
    notes: tuple[str, ...] = ()
    exact: bool = True


_SAME: dict[str, Equal] = {
    "MiniMaxText01": Equal("minimax"),
    "Yi": Equal("llama"),
    "aquila": Equal("llama"),
    "bailing_moe": Equal("llama", exact=False),
    "bailing_moe_v2": Equal("llama", exact=False),
    "deepseek": Equal("deepseek_ocr2_text"),
    "deepseek_ref": Equal("deepseek_v4"),
    "internlm": Equal("llama", {"bias": "attention_bias"}),
    "internlm2": Equal("llama", {"bias": "attention_bias"}),
    "kimi_k2": Equal("deepseek_v3"),
    "llava_llama": Equal("llama", exact=False),
    "llava_mistral": Equal("mistral", exact=False),
    "llava_qwen": Equal("qwen2", exact=False),
    "mimo": Equal("qwen2"),
    "mimo_v2": Equal("mimo_v2_flash", exact=False),
    "minicpm": Equal("llama", exact=False),
    "minicpmv": Equal("qwen2", exact=False),
    "minimax_m1": Equal("minimax"),
    "minimax_m3": Equal("minimax_m3_vl_text"),
    "minimax_text_01": Equal("minimax"),
    "orion": Equal("llama", exact=False),
    "phi3_v": Equal("phi3", exact=False),
    "phi4mm": Equal("phi3", exact=False),
    "skywork": Equal("llama", exact=False),
    "stablelm_epoch": Equal("stablelm", exact=False),
    "xverse": Equal("llama"),
}


def translate(config: Config) -> Translated:
    """`config` as a class of transformers would write it; unknown types are left as they are."""
    kind = config.get("model_type")
    if kind is None and "hybrid_override_pattern" in config:
        note = "the config names no model_type; its fields are those of nemotron_h"
        return Translated({**config, "model_type": "nemotron_h"}, (note,))
    if not isinstance(kind, str):
        return Translated(config)
    if kind in _SPECIAL:
        rule, equal_weights = _SPECIAL[kind]
        exact = equal_weights(config) if callable(equal_weights) else equal_weights
        return Translated(rule(config), (f"model_type {kind} is read by its own rule",), exact)
    equal = _SAME.get(kind)
    if equal is None:
        return Translated(config)
    out = {equal.names.get(key, key): value for key, value in config.items()}
    note = f"model_type {kind} is read as {equal.model_type}"
    return Translated({**out, "model_type": equal.model_type}, (note,), equal.exact)


def _wrapped(key: str) -> Callable[[Config], Config]:
    """Image-text wrappers: the decoder under `key` is read by its own type."""

    def rule(config: Config) -> Config:
        text = translate(dict(config[key])).config
        kept = ("architectures", "torch_dtype", "dtype")
        rest: Config = {name: config[name] for name in kept if name in config}
        return {**rest, "text_config": text, "model_type": "internvl"}

    return rule


def _internvl(config: Config) -> Config:
    """InternVL's own form: the decoder under llm_config, InternViT's names for the tower's fields.

    Source: configuration_intern_vit.py and modeling_internvl_chat.py of OpenGVLab's repositories.
    """
    out, vision = _wrapped("llm_config")(config), _tower(config)
    image, patch = vision.get("image_size", 448), vision.get("patch_size", 14)
    tower = {
        "model_type": "internvl_vision",
        "hidden_size": vision.get("hidden_size", 3200),
        "num_hidden_layers": vision.get("num_hidden_layers", 48),
        "num_attention_heads": vision.get("num_attention_heads", 25),
        "intermediate_size": vision.get("intermediate_size", 12800),
        "image_size": [image, image],
        "patch_size": [patch, patch],
        "attention_bias": vision.get("qkv_bias", False),
        "use_qk_norm": vision.get("qk_normalization", True),
        "norm_type": vision.get("norm_type", "rms_norm"),
    }
    return {
        **out,
        "vision_config": tower,
        "downsample_ratio": config.get("downsample_ratio", 0.5),
        "tie_word_embeddings": bool(out["text_config"].get("tie_word_embeddings", False)),
    }


def _tower(config: Config) -> Config:
    found = config.get("vision_config")
    return found if isinstance(found, dict) else {}


def _whole_tower(config: Config) -> bool:
    """Whether the decoder's weights are known and the tower's widths are written out."""
    text = translate(dict(config["llm_config"]))
    return text.exact and {"hidden_size", "intermediate_size"} <= set(_tower(config))


def _inkling(config: Config) -> Config:
    """Inkling's decoder alone as it is published: the layers that slide are named, none is a
    default, and their widths are those of the others unless given.

    Source: vLLM 0.32, models/inkling/configs.py (InklingModelConfig).
    """
    names = {"sconv_kernel_size": "conv_kernel_size"}
    out = {names.get(key, key): value for key, value in config.items() if value is not None}
    out.pop("layer_types", None)
    for name in ("num_attention_heads", "num_key_value_heads", "head_dim"):
        if name in out:
            out.setdefault(f"swa_{name}", out[name])
    filled: Config = {"local_layer_ids": [], "padded_vocab_size": out.get("vocab_size")}
    return {**filled, **out, "model_type": "inkling_text"}


def _refined_web(config: Config) -> Config:
    """Falcon under its first names; n_head_kv (40B) marks the new decoder."""
    out = {
        **config,
        "model_type": "falcon",
        "num_hidden_layers": config["n_layer"],
        "num_attention_heads": config["n_head"],
    }
    if "n_head_kv" in config:
        out |= {"new_decoder_architecture": True, "num_kv_heads": config["n_head_kv"]}
    return out


def _chatglm(config: Config) -> Config:
    heads = config["num_attention_heads"]
    grouped = config.get("multi_query_attention")
    return {
        **config,
        "model_type": "glm",
        "num_hidden_layers": config["num_layers"],
        "num_key_value_heads": config["multi_query_group_num"] if grouped else heads,
        "head_dim": config["kv_channels"],
        "intermediate_size": config["ffn_hidden_size"],
        "vocab_size": config["padded_vocab_size"],
        "attention_bias": bool(config.get("add_qkv_bias") or config.get("add_bias_linear")),
        "max_position_embeddings": config.get("seq_length", 8192),
    }


def _every_head(kind: str) -> Callable[[Config], Config]:
    """Classes that have one key/value head per query head and no field for it."""

    def rule(config: Config) -> Config:
        heads = config["num_attention_heads"]
        return {**config, "model_type": kind, "num_key_value_heads": heads}

    return rule


def _kimi_k3(config: Config) -> Config:
    text = {**config["text_config"], "model_type": "kimi_linear"}
    return {**text, "architectures": config.get("architectures")}


def _phi3small(config: Config) -> Config:
    return {**config, "model_type": "llama", "intermediate_size": config["ff_intermediate_size"]}


def _deci(config: Config) -> Config:
    """Nemotron-NAS (DeciLM): each block says its own group of heads, or has no attention."""
    heads = config["num_attention_heads"]
    blocks = [block["attention"] for block in config["block_configs"]]
    empty = [bool(b.get("no_op") or b.get("replace_with_linear")) for b in blocks]
    groups = {i: heads // b["n_heads_in_group"] for i, b in enumerate(blocks) if not empty[i]}
    return {
        **{key: value for key, value in config.items() if key != "block_configs"},
        "model_type": "llama",
        "num_key_value_heads": heads,
        "intermediate_size": config.get("intermediate_size") or 1,
        "layer_types": ["mlp" if none else "full_attention" for none in empty],
        "per_layer_config": {str(i): {"num_key_value_heads": n} for i, n in groups.items()},
    }


def _baichuan_m1(config: Config) -> Config:
    """Sliding layers have their own numbers of heads."""
    slides = set(config["sliding_window_layers"])
    n, hidden = config["num_hidden_layers"], config["hidden_size"]
    own = {
        "num_key_value_heads": config["num_swa_key_value_heads"],
        "num_attention_heads": config["num_swa_attention_heads"],
        "head_dim": hidden // config["num_swa_attention_heads"],
    }
    kinds = ["sliding_attention" if i in slides else "full_attention" for i in range(n)]
    overrides = {str(i): own for i in range(n) if i in slides}
    return {**config, "model_type": "llama", "layer_types": kinds, "per_layer_config": overrides}


_SPECIAL: dict[str, tuple[Callable[[Config], Config], bool | Callable[[Config], bool]]] = {
    "RefinedWeb": (_refined_web, True),
    "RefinedWebModel": (_refined_web, True),
    "baichuan": (_every_head("llama"), False),
    "baichuan_m1": (_baichuan_m1, False),
    "chatglm": (_chatglm, True),
    "deepseek_vl_v2": (_wrapped("language_config"), False),
    "h2ovl_chat": (_wrapped("llm_config"), False),
    "inkling_model": (_inkling, True),
    "internvl_chat": (_internvl, _whole_tower),
    "kimi_k3": (_kimi_k3, False),
    "kimi_vl": (_wrapped("text_config"), False),
    "NVLM_D": (_wrapped("llm_config"), False),
    "nemotron-nas": (_deci, False),
    "phi3small": (_phi3small, False),
    "qwen": (_every_head("qwen2"), False),
}
