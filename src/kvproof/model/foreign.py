"""Published configs of classes outside transformers, written as their equal inside it.

Each row names the class of the same design and how fields are renamed. A row is there only where
the design is the same as far as memory goes; source: the published modeling code and papers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Config = dict[str, Any]

# published type -> (equal type in transformers, {published field: field})
_SAME: dict[str, tuple[str, dict[str, str]]] = {
    "RefinedWeb": ("falcon", {"n_head_kv": "num_kv_heads"}),
    "RefinedWebModel": ("falcon", {}),
    "aquila": ("llama", {}),
    "deepseek_ref": ("deepseek_v4", {}),
    "internlm": ("llama", {"bias": "attention_bias"}),
    "internlm2": ("llama", {"bias": "attention_bias"}),
    "kimi_k2": ("deepseek_v3", {}),
    "mimo_v2": ("mimo_v2_flash", {}),
    "mimo": ("qwen2", {}),
    "minimax_m1": ("minimax", {}),
    "minimax_text_01": ("minimax", {}),
    "minimax_m3": ("minimax_m3_vl_text", {}),
    "openchat": ("mistral", {}),
    "orion": ("llama", {}),
    "qwen": ("qwen2", {"seq_length": "max_position_embeddings"}),
    "xverse": ("llama", {}),
    "yi": ("llama", {}),
    "Yi": ("llama", {}),
}


def translate(config: Config) -> tuple[Config, tuple[str, ...]]:
    """The config in terms of a transformers class, and notes on what was translated."""
    kind = config.get("model_type")
    if kind is None and "hybrid_override_pattern" in config:
        return {**config, "model_type": "nemotron_h"}, ("read as nemotron_h by its fields",)
    if not isinstance(kind, str):
        return config, ()
    if kind in _SPECIAL:
        return _SPECIAL[kind](config), (f"model_type {kind} is read by its own rule",)
    if kind not in _SAME:
        return config, ()
    equal, names = _SAME[kind]
    out = {names.get(key, key): value for key, value in config.items()}
    if kind.startswith("RefinedWeb"):
        out["new_decoder_architecture"] = "n_head_kv" in config
    return {**out, "model_type": equal}, (f"model_type {kind} is read as {equal}",)


def _nested(text_key: str, equal: str, text_equal: str | None = None) -> Callable[[Config], Config]:
    """A wrapper whose decoder stands under `text_key`."""

    def rule(config: Config) -> Config:
        text, _ = translate(dict(config[text_key]))
        if text_equal is not None:
            text["model_type"] = text_equal
        rest = {key: value for key, value in config.items() if key != text_key}
        return {**rest, "text_config": text, "model_type": equal}

    return rule


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


def _baichuan(config: Config) -> Config:
    return {**config, "model_type": "llama", "num_key_value_heads": config["num_attention_heads"]}


def _kimi_k3(config: Config) -> Config:
    text = {**config["text_config"], "model_type": "kimi_linear"}
    return {**text, "architectures": config.get("architectures")}


def _phi3small(config: Config) -> Config:
    return {**config, "model_type": "llama", "intermediate_size": config["ff_intermediate_size"]}


def _deepseek_moe(config: Config) -> Config:
    heads = config["num_attention_heads"]
    return {"num_key_value_heads": heads, **config, "model_type": "ernie4_5_moe"}


_SPECIAL: dict[str, Callable[[Config], Config]] = {
    "baichuan": _baichuan,
    "chatglm": _chatglm,
    "internvl_chat": _nested("llm_config", "internvl"),
    "kimi_k3": _kimi_k3,
    "phi3small": _phi3small,
}
