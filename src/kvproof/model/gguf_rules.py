"""What single architectures state differently when GGUF metadata becomes a transformers config."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvproof.kinds import FullSlot, RecurrentSlot, SharedSlot, SlidingSlot, Slot
from kvproof.model.gguf_keys import Keys

Config = dict[str, Any]
Rule = Callable[[Keys, tuple[Slot, ...], Config], Config]


def _llama(keys: Keys, slots: tuple[Slot, ...], config: Config) -> Config:
    """The llama architecture with experts is Mixtral."""
    if not keys.count("expert_count", 0):
        return {"layer_types": None}
    return {"model_type": "mixtral", "layer_types": None, "sliding_window": None}


def _deepseek2(keys: Keys, slots: tuple[Slot, ...], config: Config) -> Config:
    """V3 routes by sigmoid with a bias per expert; V2 by softmax without."""
    sigmoid = keys.count("expert_gating_func", 1) == 2
    return {"model_type": "deepseek_v3" if sigmoid else "deepseek_v2", "layer_types": None}


def _indexed(keys: Keys, slots: tuple[Slot, ...], config: Config) -> Config:
    kept = {slot.layer for slot in slots if slot.kind == "indexer"}
    kinds = ["full" if layer in kept else "shared" for layer in range(keys.layers)]
    return {"layer_types": None, "indexer_types": None if len(kept) == keys.layers else kinds}


def _mamba(keys: Keys, slots: tuple[Slot, ...], config: Config) -> Config:
    inner, heads = keys.count("ssm.inner_size"), keys.count("ssm.time_step_rank", 0)
    width, groups = keys.count("embedding_length"), keys.count("ssm.group_count", 0)
    state, kernel = keys.count("ssm.state_size"), keys.count("ssm.conv_kernel")
    ratio = inner // width if inner % width == 0 else None
    out: Config = {
        "state_size": state, "mamba_d_state": state, "ssm_state_size": state,
        "conv_kernel": kernel, "mamba_d_conv": kernel, "expand": ratio, "mamba_expand": ratio,
        "mamba_d_ssm": inner, "n_groups": groups, "mamba_n_groups": groups,
        "time_step_rank": heads, "mamba_dt_rank": heads,
    }  # fmt: skip
    if groups and heads:
        size = inner // heads
        out |= {"num_heads": heads, "head_dim": size} if keys.arch == "mamba2" else {}
        out |= {"mamba_n_heads": heads, "mamba_num_heads": heads, "mamba_d_head": size,
                "mamba_head_dim": size}  # fmt: skip
    return out


def _granite_hybrid(keys: Keys, slots: tuple[Slot, ...], config: Config) -> Config:
    dense = {} if keys.count("expert_count", 0) else {"num_local_experts": 0}
    shared = keys.count("expert_shared_feed_forward_length", 0)
    wide = config["intermediate_size"] or 0
    return _mamba(keys, slots, config) | dense | {"shared_intermediate_size": shared or wide}


def _falcon_h1(keys: Keys, slots: tuple[Slot, ...], config: Config) -> Config:
    return _mamba(keys, slots, config) | {"layer_types": None}


def _jamba(keys: Keys, slots: tuple[Slot, ...], config: Config) -> Config:
    """Attention and experts come at even distances."""
    kinds = config["layer_types"]
    at = [i for i, kind in enumerate(kinds) if kind == "full_attention"]
    period = at[1] - at[0] if len(at) > 1 else len(kinds)
    return _mamba(keys, slots, config) | {
        "num_experts": config.get("num_experts", 1),
        "layer_types": None, "attn_layer_period": period, "attn_layer_offset": at[0] if at else 0,
    }  # fmt: skip


def _nemotron_h(keys: Keys, slots: tuple[Slot, ...], config: Config) -> Config:
    letters = ["-"] * keys.layers
    wide = keys.per_layer("feed_forward_length", keys.all_layers, 0)
    for slot in slots:
        if isinstance(slot, FullSlot):
            letters[slot.layer] = "*"
        elif isinstance(slot, RecurrentSlot):
            letters[slot.layer] = "M"
        elif isinstance(slot, SharedSlot) and keys.count("expert_count", 0):
            letters[slot.layer] = "E"
    return _mamba(keys, slots, config) | {
        "layer_types": None, "hybrid_override_pattern": "".join(letters),
        "intermediate_size": max(wide, default=0),
        "moe_shared_expert_intermediate_size": config.get("shared_expert_intermediate_size"),
        "moe_latent_size": keys.count("moe_latent_size", 0) or None,
    }  # fmt: skip


def _gated_delta(keys: Keys, slots: tuple[Slot, ...], config: Config) -> Config:
    heads, inner = keys.count("ssm.time_step_rank"), keys.count("ssm.inner_size")
    return {
        "linear_num_value_heads": heads, "linear_value_head_dim": inner // max(heads, 1),
        "linear_num_key_heads": keys.count("ssm.group_count"),
        "linear_key_head_dim": keys.count("ssm.state_size"),
        "linear_conv_kernel_dim": keys.count("ssm.conv_kernel"),
        "decoder_sparse_step": 1, "mlp_only_layers": [],
    }  # fmt: skip


def _kimi(keys: Keys, slots: tuple[Slot, ...], config: Config) -> Config:
    size, heads = keys.count("kda.head_dim"), config["num_attention_heads"]
    kinds = config["layer_types"]
    linear = [i + 1 for i, kind in enumerate(kinds) if kind == "linear_attention"]
    full = [i + 1 for i, kind in enumerate(kinds) if kind != "linear_attention"]
    return {
        "layer_types": None,
        "linear_attn_config": {
            "head_dim": size, "num_heads": heads, "kda_layers": linear, "full_attn_layers": full,
            "short_conv_kernel_size": keys.count("ssm.conv_kernel", 4),
        },
    }  # fmt: skip


def _lfm2(keys: Keys, slots: tuple[Slot, ...], config: Config) -> Config:
    kinds = ["conv" if kind == "linear_attention" else kind for kind in config["layer_types"]]
    return {
        "layer_types": kinds,
        "conv_L_cache": keys.count("shortconv.l_cache"),
        "block_auto_adjust_ff_dim": False,
        "block_ff_dim": config["intermediate_size"],
    }


def _gemma3n(keys: Keys, slots: tuple[Slot, ...], config: Config) -> Config:
    shared = sum(1 for slot in slots if isinstance(slot, SharedSlot))
    wide = keys.per_layer("feed_forward_length", keys.all_layers, 0)
    return {"num_kv_shared_layers": shared, "intermediate_size": list(wide),
            "vocab_size_per_layer_input": None,
            "hidden_size_per_layer_input": keys.count("embedding_length_per_layer_input", 256),
            "altup_num_inputs": keys.count("altup.num_inputs", 4)}  # fmt: skip


def _gemma4(keys: Keys, slots: tuple[Slot, ...], config: Config) -> Config:
    """Full layers have widths and heads of their own; their values may be their keys."""
    shared = sum(1 for slot in slots if isinstance(slot, SharedSlot))
    slides = [slot for slot in slots if isinstance(slot, SlidingSlot)]
    full = [slot for slot in slots if type(slot) is FullSlot]
    out: Config = {"num_kv_shared_layers": shared,
                   "hidden_size_per_layer_input": keys.count("embedding_length_per_layer_input", 0),
                   "enable_moe_block": bool(keys.count("expert_count", 0))}  # fmt: skip
    if slides and full:
        apart = full[0].kv_heads != slides[0].kv_heads
        out |= {
            "head_dim": slides[0].k_dim, "global_head_dim": full[0].k_dim,
            "num_key_value_heads": slides[0].kv_heads,
            "num_global_key_value_heads": full[0].kv_heads if apart else None,
            "attention_k_eq_v": apart,
        }  # fmt: skip
    wide = keys.per_layer("feed_forward_length", keys.all_layers, 0)
    out["use_double_wide_mlp"] = len(set(wide)) > 1
    out["intermediate_size"] = min(wide)
    return out


def _falcon(keys: Keys, slots: tuple[Slot, ...], config: Config) -> Config:
    kv_heads = config["num_key_value_heads"]
    new = 1 < kv_heads < config["num_attention_heads"]
    return {"new_decoder_architecture": new, "multi_query": kv_heads == 1, "layer_types": None}


def _deepseek4(keys: Keys, slots: tuple[Slot, ...], config: Config) -> Config:
    hashed = min(keys.count("hash_layer_count", 0), keys.layers)
    return {
        "layer_types": None,
        "head_dim": keys.count("attention.key_length"),
        "q_lora_rank": keys.count("attention.q_lora_rank", 0) or None,
        "qk_rope_head_dim": keys.count("rope.dimension_count", 0) or None,
        "index_head_dim": keys.count("attention.indexer.key_length", 0) or None,
        "index_n_heads": keys.count("attention.indexer.head_count", 0) or None,
        "index_topk": keys.count("attention.indexer.top_k", 0) or None,
        "o_lora_rank": keys.count("attention.output_lora_rank", 0) or None,
        "o_groups": keys.count("attention.output_group_count", 0) or None,
        "hc_mult": keys.count("hyper_connection.count", 0) or None,
        "num_hash_layers": hashed,
        "mlp_layer_types": ["hash_moe"] * hashed + ["moe"] * (keys.layers - hashed),
        "sliding_window": keys.count("attention.sliding_window"),
        "compress_ratios": list(keys.per_layer("attention.compress_ratios", keys.layers)),
    }


def _ernie(keys: Keys, slots: tuple[Slot, ...], config: Config) -> Config:
    return {"layer_types": None, "mlp_layer_types": None,
            "moe_layer_start_index": keys.count("leading_dense_block_count", 0),
            "moe_layer_end_index": keys.layers - 1,
            "moe_layer_interval": keys.count("interleave_moe_layer_step", 1) or 1}  # fmt: skip


def _cohere2_moe(keys: Keys, slots: tuple[Slot, ...], config: Config) -> Config:
    dense = config["intermediate_size"] or 0
    return {"intermediate_size": config.get("moe_intermediate_size", dense),
            "prefix_dense_intermediate_size": dense or None}  # fmt: skip


def _dbrx(keys: Keys, slots: tuple[Slot, ...], config: Config) -> Config:
    return {
        "layer_types": None, "n_heads": config["num_attention_heads"], "n_layers": keys.layers,
        "attn_config": {"kv_n_heads": config["num_key_value_heads"]},
        "ffn_config": {
            "ffn_hidden_size": config["intermediate_size"],
            "moe_num_experts": config.get("num_experts"),
            "moe_top_k": config.get("moe_k"),
        },
    }  # fmt: skip


def _llama4(keys: Keys, slots: tuple[Slot, ...], config: Config) -> Config:
    chunked = {slot.layer for slot in slots if slot.kind == "chunked"}
    return {
        "layer_types": None,
        "sliding_window": None,
        "no_rope_layers": [int(i in chunked) for i in range(keys.layers)],
        "attention_chunk_size": 8192,
        "interleave_moe_layer_step": keys.count("interleave_moe_layer_step", 1) or 1,
    }


def _step(keys: Keys, slots: tuple[Slot, ...], config: Config) -> Config:
    return {"moe_num_experts": config.get("num_experts"), "moe_top_k": config.get("moe_k")}


def _t5(keys: Keys, slots: tuple[Slot, ...], config: Config) -> Config:
    return {"d_ff": config["intermediate_size"], "d_kv": keys.count("attention.key_length"),
            "num_decoder_layers": keys.count("decoder_block_count", keys.all_layers)}  # fmt: skip


def _qwen2(keys: Keys, slots: tuple[Slot, ...], config: Config) -> Config:
    """Qwen 1's width is stated doubled: its two halves are the gate and the value."""
    half = (config["intermediate_size"] or 0) // (2 if keys.arch == "qwen" else 1)
    return {"layer_types": None, "intermediate_size": half}


def _plain(keys: Keys, slots: tuple[Slot, ...], config: Config) -> Config:
    return {"layer_types": None}


def _minimax(keys: Keys, slots: tuple[Slot, ...], config: Config) -> Config:
    kinds = config["layer_types"]
    return {"layer_types": kinds, "rotary_dim": keys.count("rope.dimension_count", 64)}


def _phi(keys: Keys, slots: tuple[Slot, ...], config: Config) -> Config:
    return {"layer_types": None, "sliding_window": config.get("sliding_window")}


RULES: dict[str, Rule] = {
    **dict.fromkeys(
        ("baichuan", "orion", "xverse", "internlm2", "exaone", "bloom", "gpt2", "gptneox", "gptj",
         "granite", "granitemoe", "olmoe", "qwen2vl", "qwen3vl", "qwen3vlmoe", "starcoder2",
         "mistral4", "llama-embed", "maincoder", "minicpm3", "glm4moe", "starcoder", "command-r",
         "grovemoe"),
        _plain,
    ),
    **dict.fromkeys(("glm-dsa", "deepseek32", "hy_v4", "dots3note"), _indexed),
    **dict.fromkeys(("mamba", "mamba2"), _mamba),
    **dict.fromkeys(("nemotron_h", "nemotron_h_moe"), _nemotron_h),
    **dict.fromkeys(("qwen3next", "qwen35", "qwen35moe", "qwen4exp"), _gated_delta),
    **dict.fromkeys(("kimi-linear", "bailingmoe3", "glm5-next"), _kimi),
    **dict.fromkeys(("lfm2", "lfm2moe"), _lfm2),
    **dict.fromkeys(("qwen", "qwen2"), _qwen2),
    **dict.fromkeys(("phi2", "phi3", "phimoe"), _phi),
    "cohere2moe": _cohere2_moe,
    "dbrx": _dbrx,
    "deepseek2": _deepseek2,
    "deepseek4": _deepseek4,
    "ernie4_5-moe": _ernie,
    "falcon": _falcon,
    "falcon-h1": _falcon_h1,
    "gemma3n": _gemma3n,
    "gemma4": _gemma4,
    "granitehybrid": _granite_hybrid,
    "jamba": _jamba,
    "llama": _llama,
    "llama4": _llama4,
    "minimax-01": _minimax,
    "step35": _step,
    "t5": _t5,
}  # fmt: skip
