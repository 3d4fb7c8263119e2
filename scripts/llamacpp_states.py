"""Recipes of models with states: recurrent layers alone, or beside attention."""

from __future__ import annotations

from random import Random

from llamacpp_shapes import Keys, Recipe, dense, experts, latent, moe, own_width


def state(r: Random, keys: Keys, *, groups: int) -> Keys:
    width = keys["embedding_length"]
    rank = r.choice([8, 16])
    inner = 2 * width
    return keys | {
        "ssm.conv_kernel": r.choice([3, 4]),
        "ssm.inner_size": inner,
        "ssm.state_size": r.choice([16, 64, 128]),
        "ssm.time_step_rank": rank,
        "ssm.group_count": groups,
    }


def mamba(r: Random) -> Keys:
    keys = state(r, dense(r), groups=0)
    return keys | {
        "attention.head_count": 0,
        "attention.head_count_kv": 0,
        "feed_forward_length": 0,
    }


def mamba2(r: Random) -> Keys:
    keys = state(r, dense(r), groups=r.choice([1, 2]))
    return keys | {
        "attention.head_count": 0,
        "attention.head_count_kv": 0,
        "feed_forward_length": 0,
    }


def mixed(base: Recipe, *, groups: int) -> Recipe:
    """Recurrent layers are those whose head_count_kv is zero."""

    def make(r: Random) -> Keys:
        keys = state(r, base(r), groups=groups)
        kv, layers = keys["attention.head_count_kv"], keys["block_count"]
        heads = [kv if r.random() < 0.4 else 0 for _ in range(layers)]
        heads[-1], heads[0] = kv, 0
        return keys | {"attention.head_count_kv": heads}

    return make


def nemotron_h(r: Random) -> Keys:
    keys = mixed(own_width, groups=2)(r)
    layers = keys["block_count"] = r.randint(6, 14)
    kinds = ["M", "*", "-"] + [r.choice("MMM*--") for _ in range(layers - 3)]
    kv = r.choice([1, 2])
    return keys | {
        "attention.head_count": 4,
        "attention.head_count_kv": [kv if k == "*" else 0 for k in kinds],
        "feed_forward_length": [1024 if k == "-" else 0 for k in kinds],
    }


def nemotron_h_moe(r: Random) -> Keys:
    keys = nemotron_h(r)
    return keys | experts(r) | {"moe_latent_size": r.choice([0, 64, 256])}


def falcon_h1(r: Random) -> Keys:
    return state(r, own_width(r), groups=1)


def lfm2(r: Random) -> Keys:
    keys = mixed(dense, groups=0)(r)
    keys = {key: value for key, value in keys.items() if not key.startswith("ssm")}
    return keys | {"shortconv.l_cache": r.choice([3, 4])}


def lfm2moe(r: Random) -> Keys:
    return lfm2(r) | {"expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 256,
                      "leading_dense_block_count": 1, "expert_gating_func": 2}  # fmt: skip


def gated_delta(base: Recipe) -> Recipe:
    def make(r: Random) -> Keys:
        keys = base(r)
        heads, groups, size = r.choice([8, 16]), r.choice([4, 8]), r.choice([64, 128])
        return keys | {
            "block_count": r.choice([4, 8, 12]),
            "ssm.conv_kernel": 4,
            "ssm.inner_size": heads * size,
            "ssm.state_size": size,
            "ssm.time_step_rank": heads,
            "ssm.group_count": groups,
            "full_attention_interval": r.choice([2, 4]),
            "rope.dimension_sections": [11, 11, 10, 0],
        }

    return make


def kimi_linear(r: Random) -> Keys:
    keys = latent(r)
    layers = keys["block_count"] = r.randint(4, 10)
    heads = [0 if r.random() < 0.7 else 1 for _ in range(layers)]
    heads[0], heads[-1] = 0, 1
    return keys | {"attention.head_count_kv": heads, "ssm.conv_kernel": 4, "kda.head_dim": 64}


def kimi_k3(r: Random) -> Keys:
    return bailing_linear(r) | {
        "attn_res.block_size": r.choice([0, 2, 3, 12]),
        "activation.situ_beta": 4.0,
        "activation.situ_linear_beta": r.choice([0.0, 25.0]),
        "expert_latent_length": r.choice([0, 64, 256]),
    }


def glm5_next(r: Random) -> Keys:
    keys = bailing_linear(r)
    rank, pool = r.choice([128, 512]), r.choice([2, 4, 64])
    heads = keys["attention.head_count_kv"]
    owns = [not any(heads[:i]) or r.random() < 0.5 for i in range(len(heads))]
    return keys | {
        "rope.dimension_count": 0,
        "attention.key_length": rank,
        "attention.value_length": rank,
        "attention.kv_lora_rank": rank,
        "attention.key_length_mla": 128,
        "attention.indexer.head_count": 8,
        "attention.indexer.key_length": 64,
        "attention.indexer.top_k": pool * r.choice([1, 4, 8]),
        "attention.indexer.kpool": pool,
        "attention.indexer.kpool_select_tail": r.random() < 0.5,
        "attention.indexer.types": owns,
        **hyper_connections(r),
    }


def hyper_connections(r: Random) -> Keys:
    return {
        "hyper_connection.count": 4,
        "hyper_connection.sinkhorn_iterations": r.choice([2, 20]),
        "hyper_connection.epsilon": 1e-6,
        "hyper_connection.magnitude": 2.0,
    }


def hy_v4(r: Random) -> Keys:
    keys = latent(r) | hyper_connections(r) | {"hyper_connection.count": r.choice([2, 4])}
    if r.random() < 0.3:
        return keys
    owns = [True] + [r.random() < 0.5 for _ in range(keys["block_count"] - 1)]
    return keys | {
        "attention.indexer.head_count": 8,
        "attention.indexer.key_length": 128,
        "attention.indexer.top_k": r.choice([256, 2048]),
        "attention.indexer.types": owns,
    }


def qwen4(r: Random) -> Keys:
    keys = gated_delta(moe)(r)
    streams = r.choice([2, 4])
    return keys | {
        "rope.dimension_count": 64,
        "hyper_connection.count": streams,
        "hyper_connection.low_rank": r.choice([32, 128]),
        "attention.indexer.head_count": r.choice([2, 4]),
        "attention.indexer.key_length": 64,
        "attention.indexer.top_k": r.choice([64, 2048]),
        "attention.compress_ratios": [r.choice([0, 4, 16])] * keys["block_count"],
        **(looked_up_parts(r, keys["embedding_length"]) if r.random() < 0.6 else {}),
    }


def looked_up_parts(r: Random, width: int) -> Keys:
    """A table of hashed neighbours of a token, read by the first layer."""
    sizes = [1009] * 4
    return {
        "ple.layers": [0],
        "ple.ngram_size": 3,
        "ple.heads_per_ngram": 2,
        "ple.conv_kernel": r.choice([2, 4]),
        "ple.eos_token_id": 2,
        "ple.layer_multipliers": [3, 5, 7],
        "ple.head_offsets": [1009 * i for i in range(4)],
        "ple.head_vocab_sizes": sizes,
        "embedding_length_per_layer_input": width // 4,
    }


def bailing_linear(r: Random) -> Keys:
    return kimi_linear(r) | {"kda.gate_lower_bound": -5.0}


def rwkv(r: Random) -> Keys:
    keys = dense(r)
    return keys | {
        "embedding_length": 512, "attention.head_count": 0, "attention.head_count_kv": 0,
        "wkv.head_size": 64, "token_shift_count": 2, "attention.decay_lora_rank": 32,
        "attention.iclr_lora_rank": 32, "attention.value_residual_mix_lora_rank": 16,
        "attention.gate_lora_rank": 32, "time_mix_extra_dim": 32, "time_decay_extra_dim": 64,
        "rescale_every_n_layers": 0,
    }  # fmt: skip


def rwkv_qwen(r: Random) -> Keys:
    keys = rwkv(r)
    return keys | {"attention.head_count": 8, "attention.head_count_kv": 8, "token_shift_count": 1,
                   "feed_forward_length": 1024}  # fmt: skip
