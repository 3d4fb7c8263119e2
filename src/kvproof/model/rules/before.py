"""Rules on what a config.json says, before its nested configs are built."""

from __future__ import annotations

from typing import Any

from kvproof.model.classes import class_row
from kvproof.model.rules import Config, Rule

_ROPE = ("rope_parameters", "rope_scaling", "rope_theta")
_CARRIED = ("dtype", "torch_dtype")


def _flat_text(text_class: str) -> Rule:
    """Flat configs of early releases: what the text class knows moves into text_config."""

    def rule(c: Config) -> None:
        row = class_row(text_class)
        if c.get("text_config") is not None or row is None:
            return
        names = {*row.defaults, *row.alias, *_ROPE, "architectures"} - {"tie_word_embeddings"}
        text = {key: c[key] for key in names if key in c and key not in ("architectures",)}
        text |= {key: c[key] for key in _CARRIED if key in c}
        c["text_config"] = text

    return rule


def _fuyu(c: Config) -> None:
    row = class_row("fuyu")
    if c.get("text_config") is None and row is not None:
        names = {*row.subs["text_config"].init, *_ROPE}
        text = {key: c[key] for key in names if key in c}
        c["text_config"] = text or None


def _everything_as_text(c: Config) -> None:
    if c.get("text_config") is None:
        skip = ("vision_config", "model_type", "architectures")
        c["text_config"] = {key: value for key, value in c.items() if key not in skip}


def _unlimited_ocr(c: Config) -> None:
    if c.get("text_config") is None:
        text = dict(c.get("language_config") or {})
        if "sliding_window" in c:
            text["sliding_window"] = c["sliding_window"]
        c["text_config"] = text


def _text_type(old: str, new: str) -> Rule:
    """A nested text config of a published type that transformers calls otherwise."""

    def rule(c: Config) -> None:
        text = c.get("text_config")
        if isinstance(text, dict) and text.get("model_type") == old:
            c["text_config"] = {**text, "model_type": new}

    return rule


def _init_below(key: str) -> Rule:
    """The class merges its own values below a given nested config."""

    def rule(c: Config) -> None:
        row = class_row(str(c.get("model_type")))
        if row is not None and isinstance(c.get(key), dict):
            c[key] = {**row.subs[key].init, **c[key]}

    return rule


def _inkling(c: Config) -> None:
    mtp: dict[str, Any] = c.get("mtp_config") or {}
    text = c.get("text_config")
    if isinstance(text, dict):
        added = {
            "num_mtp_layers": mtp.get("num_nextn_predict_layers"),
            "chain_hidden_post_norm": mtp.get("chain_hidden_post_norm", False),
            "mtp_local_layer_ids": mtp.get("local_layer_ids"),
        }
        c["text_config"] = {**added, **text}


_NEMOTRON_NAMES = {
    "mamba_n_groups": "n_groups",
    "mamba_num_groups": "n_groups",
    "mamba_d_conv": "conv_kernel",
    "mamba_expand": "expand",
    "mamba_chunk_size": "chunk_size",
    "mamba_conv_bias": "use_conv_bias",
}


def _nemotron_h(c: Config) -> None:
    for old, new in _NEMOTRON_NAMES.items():
        if old in c:
            c[new] = c[old]


def _renamed(**names: str) -> Rule:
    """Older names of fields: `new=old`."""

    def rule(c: Config) -> None:
        for new, old in names.items():
            if c.get(old) is not None:
                c[new] = c[old]

    return rule


def _inner(section: str, **names: str) -> Rule:
    """Fields that a published config keeps in a section of their own: `field=key in section`."""

    def rule(c: Config) -> None:
        given = c.get(section)
        if isinstance(given, dict):
            c.update({field: given[key] for field, key in names.items() if key in given})

    return rule


def _lfm2(c: Config) -> None:
    _renamed(tie_word_embeddings="tie_embedding", intermediate_size="block_ff_dim")(c)


def _molmo2(c: Config) -> None:
    if c.get("vision_config") is None and c.get("vit_config") is not None:
        c["vision_config"] = c["vit_config"]


_KDA = _inner(
    "linear_attn_config",
    linear_head_dim="head_dim",
    linear_num_heads="num_heads",
    linear_conv_kernel_dim="short_conv_kernel_size",
)

BEFORE: dict[str, Rule] = {
    "bloom": _renamed(hidden_size="n_embed"),
    "deepseek_v32": _renamed(n_routed_experts="num_experts"),
    "dots3_note": _everything_as_text,
    "exaone4_5": _text_type("exaone4_5_text", "exaone4"),
    "falcon": _renamed(hidden_size="n_embed"),
    "fuyu": _fuyu,
    "glm5_next": _everything_as_text,
    "glm5_next_text": _KDA,
    "glm_moe_dsa": _renamed(n_routed_experts="num_experts"),
    "glmasr": _init_below("text_config"),
    "hunyuan_vl": _flat_text("hunyuan_vl_text"),
    "inkling2_loop_text": _inner(
        "loop_config",
        loop_layer_index_start="core_start",
        loop_layer_index_end="core_end",
        loop_num_passes="num_passes",
        loop_gate_rank="gate_rank",
    ),
    "inkling_mm_model": _inkling,
    "kimi_k25": _text_type("kimi_k2", "deepseek_v3"),
    "kimi_linear": _KDA,
    "lfm2": _lfm2,
    "lfm2_moe": _lfm2,
    "lfm2_vl": _lfm2,
    "minimax_m3_vl_text": _inner(
        "sparse_attention_config",
        index_n_heads="sparse_num_index_heads",
        index_head_dim="sparse_index_dim",
        index_block_size="sparse_block_size",
        index_topk_blocks="sparse_topk_blocks",
        index_local_blocks="sparse_local_block",
    ),
    "mistral_large4_text": _renamed(n_routed_experts="num_experts"),
    "molmo2": _molmo2,
    "nemotron_h": _nemotron_h,
    "paddleocr_vl": _flat_text("paddleocr_vl_text"),
    "qwen2_5_vl": _flat_text("qwen2_5_vl_text"),
    "qwen2_vl": _flat_text("qwen2_vl_text"),
    "unlimited_ocr": _unlimited_ocr,
    "voxtral": _init_below("text_config"),
    "voxtral_realtime": _init_below("text_config"),
}
