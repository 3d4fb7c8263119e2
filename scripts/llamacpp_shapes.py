"""Recipes of models with attention alone: sizes, experts, windows, latents and indexers."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

Keys = dict[str, Any]
Recipe = Callable[[Random], Keys]


def dense(r: Random, *, groups: bool = True) -> Keys:
    layers = r.randint(2, 12)
    kv = r.choice([1, 2, 4, 8])
    heads = kv * (r.choice([1, 2, 4]) if groups else 1)
    dim = r.choice([32, 64, 96, 128])
    return {
        "context_length": r.choice([2048, 8192, 40960]),
        "embedding_length": heads * dim,
        "block_count": layers,
        "feed_forward_length": r.choice([512, 1024, 3072]),
        "attention.head_count": heads,
        "attention.head_count_kv": kv,
        "vocab_size": r.choice([1000, 32000, 50304]),
        "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.layer_norm_epsilon": 1e-5,
        "rope.dimension_count": dim,
        "rope.dimension_sections": [dim // 8, dim // 8, dim // 8, 0],
        "logit_scale": 1.0,
        "use_parallel_residual": True,
        "attention.clamp_kqv": 8.0,
        "expert_group_scale": 1.0,
        **{f"xielu.{name}": 1.0 for name in ("alpha_n", "alpha_p", "beta", "eps")},
    }


def own_width(r: Random) -> Keys:
    keys = dense(r)
    dim = r.choice([64, 128, 256])
    return keys | {"attention.key_length": dim, "attention.value_length": dim,
                   "rope.dimension_count": dim}  # fmt: skip


def stacked(base: Recipe) -> Recipe:
    """Models of pictures, whose first layers add vectors of one."""

    def make(r: Random) -> Keys:
        keys = base(r)
        return keys | {"n_deepstack_layers": r.choice([0, 1, min(3, keys["block_count"] - 1)])}

    return make


def deci(r: Random) -> Keys:
    """Layers without attention, with a weight in its place, or without a feed-forward."""
    keys = dense(r)
    layers, heads, kv = (
        keys["block_count"], keys["attention.head_count"], keys["attention.head_count_kv"],
    )  # fmt: skip
    kinds = ["full", *(r.choice(["full", "full", "linear", "none"]) for _ in range(layers - 2))]
    kinds.append("full")
    wide = [keys["feed_forward_length"] * r.choice([0, 1, 2]) for _ in range(layers - 1)]
    return keys | {
        "attention.head_count": [0 if kind == "none" else heads for kind in kinds],
        "attention.head_count_kv": [kv if kind == "full" else 0 for kind in kinds],
        "feed_forward_length": [*wide, keys["feed_forward_length"]],
    }


def plain_heads(r: Random) -> Keys:
    return dense(r, groups=False)


def moe(r: Random) -> Keys:
    return own_width(r) | experts(r)


def narrow_moe(r: Random) -> Keys:
    keys = dense(r)
    dim = keys["rope.dimension_count"]
    return keys | experts(r) | {"attention.key_length": dim, "attention.value_length": dim}


def plain_moe(r: Random) -> Keys:
    keys = narrow_moe(r)
    return keys | {"attention.head_count_kv": keys["attention.head_count"]}


def experts(r: Random) -> Keys:
    return {
        "experts_per_group": 2,
        "swiglu_clamp_exp": 10.0,
        "expert_count": 8,
        "expert_used_count": 2,
        "expert_feed_forward_length": r.choice([256, 512]),
        "expert_shared_feed_forward_length": 512,
        "expert_shared_count": 1,
        "leading_dense_block_count": 1,
        "expert_weights_scale": 1.0,
        "expert_weights_norm": True,
        "expert_gating_func": 2,
        "interleave_moe_layer_step": 1,
        "expert_group_count": 0,
    }


def sliding(base: Recipe, *, key: bool = True) -> Recipe:
    def make(r: Random) -> Keys:
        keys = base(r)
        if key:
            keys["attention.sliding_window"] = r.choice([64, 128, 500, 1024, 4096])
        return keys

    return make


def listed(base: Recipe) -> Recipe:
    def make(r: Random) -> Keys:
        keys = sliding(base)(r)
        keys["attention.sliding_window_pattern"] = [
            r.random() < 0.6 for _ in range(keys["block_count"])
        ]
        keys["attention.sliding_window_pattern"][0] = True
        return keys

    return make


def sixty_four(r: Random) -> Keys:
    return sliding(dense)(r) | {"block_count": 64}


def gemma3n(r: Random) -> Keys:
    return sliding(own_width)(r) | {
        "block_count": r.choice([25, 30, 35]),
        "embedding_length_per_layer_input": 64,
        "altup.active_idx": 0,
        "altup.num_inputs": 4,
    }


def gemma4(r: Random) -> Keys:
    keys = listed(own_width)(r)
    layers = r.randint(8, 16)
    period = r.choice([3, 5, 6])
    slides = [(i + 1) % period != 0 for i in range(layers)]
    small = r.choice([64, 128])
    full = r.choice([1, 2])
    return keys | {
        "block_count": layers,
        "attention.sliding_window_pattern": slides,
        "attention.head_count_kv": [keys["attention.head_count_kv"] if s else full for s in slides],
        "attention.head_count": 8,
        "attention.key_length_swa": small,
        "attention.value_length_swa": small,
        "rope.dimension_count_swa": small,
        "attention.shared_kv_layers": r.choice([0, 0, layers - 2 * period])
        if layers > 2 * period
        else 0,
        "embedding_length_per_layer_input": 0,
        "rope.freq_base_swa": 10000.0,
    }


def latent(r: Random) -> Keys:
    keys = moe(r)
    rank, rope, nope, value = r.choice([128, 512]), 64, 128, 128
    return keys | {
        "attention.head_count_kv": 1,
        "attention.q_lora_rank": 256,
        "attention.kv_lora_rank": rank,
        "attention.key_length": rank + rope,
        "attention.value_length": rank,
        "attention.key_length_mla": nope + rope,
        "attention.value_length_mla": value,
        "rope.dimension_count": rope,
    }


def expanded(r: Random) -> Keys:
    keys = latent(r)
    for name in ("attention.key_length_mla", "attention.value_length_mla"):
        del keys[name]
    return keys | {
        "attention.head_count_kv": keys["attention.head_count"],
        "attention.key_length": 192,
        "attention.value_length": 128,
    }


def minicpm3(r: Random) -> Keys:
    keys = expanded(r)
    for name in [key for key in keys if key.startswith("expert") or "leading" in key]:
        del keys[name]
    return keys


def indexed(r: Random) -> Keys:
    return latent(r) | {
        "attention.indexer.head_count": 8,
        "attention.indexer.key_length": r.choice([64, 128]),
        "attention.indexer.top_k": 256,
    }


def minimax_m3(r: Random) -> Keys:
    keys = moe(r)
    return keys | {
        "attention.indexer.head_count": keys["attention.head_count_kv"],
        "attention.indexer.key_length": 64,
        "attention.indexer.top_k": 16,
        "attention.indexer.block_size": 64,
        "attention.indexer.local_blocks": 2,
    }


def deepseek4(r: Random) -> Keys:
    layers = r.randint(4, 10)
    dim = r.choice([64, 128])
    return moe(r) | {
        "block_count": layers,
        "embedding_length": 512,
        "attention.head_count": 8,
        "attention.head_count_kv": 1,
        "attention.key_length": dim,
        "attention.value_length": dim,
        "rope.dimension_count": 32,
        "attention.q_lora_rank": 64,
        "attention.sliding_window": r.choice([128, 256]),
        "attention.output_group_count": 8,
        "attention.output_lora_rank": 32,
        "attention.compress_ratios": [r.choice([0, 4, 128]) for _ in range(layers)],
        "attention.compress_rope_freq_base": 160000.0,
        "hyper_connection.count": 4,
        "hyper_connection.sinkhorn_iterations": 2,
        "hyper_connection.epsilon": 1e-6,
        "hash_layer_count": 0,
        "swiglu_clamp_exp": 10.0,
        "expert_gating_func": 4,
        "attention.indexer.head_count": 64,
        "attention.indexer.key_length": 128,
        "attention.indexer.top_k": 1024,
    }
