"""Random metadata of models for the llama.cpp oracle: one recipe per family of architectures.

`metadata(arch, random)` gives GGUF keys without the architecture in front, small enough to be
loaded without tensors and varied enough to touch every sizing rule.
"""

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


def minimax_01(r: Random) -> Keys:
    return moe(r) | {"block_count": 8, "residual_scale": 1.0}


RECIPES: dict[str, Recipe] = {
    **{arch: dense for arch in (
        "llama", "qwen2", "granite", "internlm2", "arcee", "smollm3", "xverse", "ernie4_5",
        "starcoder2", "exaone", "seed_oss", "maincoder", "hunyuan-dense", "pangu-embedded",
        "mistral3", "nemotron", "command-r", "stablelm", "minicpm", "olmo", "qwen", "baichuan",
        "orion", "starcoder", "refact", "falcon", "phi2", "plamo", "chatglm", "glm4",
        "bitnet", "codeshell", "jais2", "qwen2vl", "hunyuan_vl", "talkie", "nanbeige",
        "openelm",
    )},
    **{arch: plain_heads for arch in ("gpt2", "gptneox", "bloom", "mpt", "jais", "chameleon")},
    **{arch: own_width for arch in ("qwen3", "gemma", "apertus")},
    **{arch: moe for arch in (
        "qwen3moe", "glm4moe", "minimax-m2", "ernie4_5-moe", "bailingmoe",
        "bailingmoe2", "granitemoe", "hunyuan-moe", "grovemoe", "hy_v3", "laguna",
    )},
    **{arch: narrow_moe for arch in ("phimoe", "arctic", "dbrx", "qwen2moe", "grok")},
    **{arch: plain_moe for arch in ("olmoe", "dots1", "deepseek")},
    **{arch: sliding(own_width) for arch in (
        "gemma2", "gemma3", "plamo3", "muse-glimmer",
    )},
    **{arch: sliding(moe) for arch in ("gpt-oss", "exaone-moe", "smallthinker", "afmoe", "mellum",
                                       "cohere2moe")},
    **{arch: listed(moe) for arch in ("mimo2", "step35", "granite_swa", "maple", "spark2_5")},
    **{arch: sliding(dense) for arch in ("exaone4", "cohere2", "olmo2")},
    "deci": deci,
    "qwen3vl": stacked(own_width),
    "qwen3vlmoe": stacked(moe),
    "exaone4-64": sixty_four,
    "phi3": sliding(dense),
    "llama4": moe,
    "gemma3n": gemma3n,
    "gemma4": gemma4,
    "deepseek2": latent,
    "mistral4": latent,
    "deepseek2-expanded": expanded,
    "minicpm3": minicpm3,
    "deepseek32": indexed,
    "glm-dsa": indexed,
    "minimax-m3": minimax_m3,
    "deepseek4": deepseek4,
    "mamba": mamba,
    "mamba2": mamba2,
    "jamba": mixed(dense, groups=0),
    "granitehybrid": mixed(dense, groups=1),
    "plamo2": mixed(own_width, groups=0),
    "nemotron_h": nemotron_h,
    "nemotron_h_moe": nemotron_h_moe,
    "falcon-h1": falcon_h1,
    "lfm2": lfm2,
    "lfm2moe": lfm2moe,
    "qwen3next": gated_delta(moe),
    "qwen35": gated_delta(own_width),
    "qwen35moe": gated_delta(moe),
    "kimi-linear": kimi_linear,
    "bailingmoe3": bailing_linear,
    "kimi-k3": kimi_k3,
    "glm5-next": glm5_next,
    "hy_v4": hy_v4,
    "qwen4exp": qwen4,
    "rwkv6": rwkv,
    "rwkv7": rwkv,
    "arwkv7": rwkv_qwen,
    "rwkv6qwen2": rwkv_qwen,
    "minimax-01": minimax_01,
}  # fmt: skip


def metadata(recipe: str, random: Random) -> tuple[str, Keys]:
    """Architecture and keys of a random model of a recipe."""
    return recipe.removesuffix("-expanded").removesuffix("-64"), RECIPES[recipe](random)
