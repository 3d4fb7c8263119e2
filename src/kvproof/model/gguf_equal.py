"""GGUF metadata as the transformers config that the file was made from.

The config is enough to count parameters: it names one class and states sizes, every size under
all the names that classes use for it (names a class does not have are left alone). What a GGUF
file does not state (biases, norms' shapes) is the class's default.
"""

from __future__ import annotations

from typing import Any

from kvproof.kinds import (
    ConvSlot,
    FullSlot,
    LatentSlot,
    RecurrentSlot,
    SharedSlot,
    SlidingSlot,
    Slot,
)
from kvproof.model.gguf_arch import equal_type
from kvproof.model.gguf_keys import Keys
from kvproof.model.gguf_rules import RULES

Config = dict[str, Any]
_MAY_BE_NONE = ("q_lora_rank",)

_EXPERT_WIDTH_IS_WIDTH = frozenset(
    {"gpt-oss", "minimax-m2", "llama4", "grok", "minimax-m3", "hunyuan-moe", "minimax-01",
     "deepseek4"}
)  # fmt: skip


def equivalent(keys: Keys, slots: tuple[Slot, ...], *, tied: bool | None = None) -> Config | None:
    """The config of the same model, None where no transformers class has this design.

    `tied`: whether the embedding is the output head too; None leaves it to the class.
    """
    kind = equal_type(keys.arch)
    if kind is None:
        return None
    config = _sizes(keys, slots) | _experts(keys) | _latent(keys)
    config["model_type"] = kind
    rule = RULES.get(keys.arch)
    if rule is not None:
        config |= rule(keys, slots, config)
    if tied is not None:
        config["tie_word_embeddings"] = tied
    return {key: value for key, value in config.items() if value is not None or key in _MAY_BE_NONE}


def _sizes(keys: Keys, slots: tuple[Slot, ...]) -> Config:
    layers, width = keys.layers, keys.count("embedding_length")
    heads = max(keys.per_layer("attention.head_count", keys.all_layers, 0))
    own = [slot.kv_heads for slot in slots if type(slot) is FullSlot]
    every = own or [slot.kv_heads for slot in slots if isinstance(slot, FullSlot)]
    wide = max(keys.per_layer("feed_forward_length", keys.all_layers, 0))
    kv_heads = every[0] if every else heads
    config: Config = {
        "hidden_size": width, "n_embd": width, "d_model": width,
        "num_hidden_layers": layers, "n_layer": layers, "num_layers": layers,
        "num_attention_heads": heads, "n_head": heads, "num_heads": heads,
        "num_key_value_heads": kv_heads, "num_kv_heads": kv_heads,
        "intermediate_size": wide or None, "ffn_hidden_size": wide, "n_inner": wide or None,
        "vocab_size": keys.vocab_size or None,
        "max_position_embeddings": keys.count("context_length", 0) or None,
        "n_positions": keys.count("context_length", 0) or None,
        "layer_types": layer_types(slots, layers),
    }  # fmt: skip
    if keys.has("attention.key_length"):
        config["head_dim"] = keys.count("attention.key_length")
    elif heads and width % heads == 0:
        config["head_dim"] = width // heads
    window = next((slot.window for slot in slots if isinstance(slot, SlidingSlot)), None)
    config["sliding_window"] = window
    return config


def layer_types(slots: tuple[Slot, ...], layers: int) -> list[str]:
    """The kind of every layer in transformers' words."""
    out = ["full_attention"] * layers
    for slot in slots:
        if isinstance(slot, SlidingSlot) or (isinstance(slot, LatentSlot) and slot.window):
            out[slot.layer] = "sliding_attention"
        elif isinstance(slot, ConvSlot | RecurrentSlot):
            out[slot.layer] = "linear_attention"
    for slot in slots:
        if isinstance(slot, SharedSlot) and slot.source_layer is not None:
            out[slot.layer] = out[slot.source_layer]
    return out


def _experts(keys: Keys) -> Config:
    count = keys.count("expert_count", 0)
    if not count:
        return {}
    width = max(keys.per_layer("expert_feed_forward_length", keys.all_layers, 0))
    dense = max(keys.per_layer("feed_forward_length", keys.all_layers, 0))
    width = width or dense
    used = max(keys.per_layer("expert_used_count", keys.all_layers, 0))
    shared = keys.count("expert_shared_count", 0)
    shared_width = keys.count("expert_shared_feed_forward_length", 0)
    first = keys.count("leading_dense_block_count", 0)
    out: Config = dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts",
                                 "moe_num_experts"), count)  # fmt: skip
    out |= {
        "num_experts_per_tok": used, "moe_k": used, "moe_topk": used,
        "moe_intermediate_size": width, "expert_ffn_hidden_size": width,
        "n_shared_experts": shared, "num_shared_experts": shared, "moe_num_shared_experts": shared,
        "shared_expert_intermediate_size": shared_width or width * max(shared, 1),
        "shared_intermediate_size": shared_width,
        "first_k_dense_replace": first, "num_dense_layers": first,
        "mlp_layer_types": ["dense"] * first + ["sparse"] * (keys.layers - first),
    }  # fmt: skip
    if keys.arch in _EXPERT_WIDTH_IS_WIDTH:
        out["intermediate_size"] = width
        out["intermediate_size_mlp"] = dense
    return out


def _latent(keys: Keys) -> Config:
    if not keys.has("attention.kv_lora_rank"):
        return {}
    rank, rope = keys.count("attention.kv_lora_rank"), keys.count("rope.dimension_count", 0)
    mla = keys.has("attention.key_length_mla")
    whole = keys.count("attention.key_length_mla" if mla else "attention.key_length", 0)
    value = keys.count("attention.value_length_mla" if mla else "attention.value_length", 0)
    heads = max(keys.per_layer("attention.head_count", keys.all_layers, 0))
    out: Config = {
        "kv_lora_rank": rank, "q_lora_rank": keys.count("attention.q_lora_rank", 0) or None,
        "qk_rope_head_dim": rope, "qk_nope_head_dim": whole - rope, "v_head_dim": value or None,
        "num_key_value_heads": heads, "head_dim": rope,
        "index_head_dim": keys.count("attention.indexer.key_length", 0) or None,
        "index_n_heads": keys.count("attention.indexer.head_count", 0) or None,
        "index_topk": keys.count("attention.indexer.top_k", 0) or None,
    }  # fmt: skip
    return out
