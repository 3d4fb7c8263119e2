"""Random metadata of models for the llama.cpp oracle: one recipe per family of architectures.

`metadata(arch, random)` gives GGUF keys without the architecture in front, small enough to be
loaded without tensors and varied enough to touch every sizing rule.
"""

from __future__ import annotations

from random import Random

from llamacpp_shapes import (
    Keys,
    Recipe,
    deci,
    deepseek4,
    dense,
    expanded,
    gemma3n,
    gemma4,
    indexed,
    latent,
    listed,
    minicpm3,
    minimax_m3,
    moe,
    narrow_moe,
    own_width,
    plain_heads,
    plain_moe,
    sixty_four,
    sliding,
    stacked,
)
from llamacpp_states import (
    bailing_linear,
    falcon_h1,
    gated_delta,
    glm5_next,
    hy_v4,
    kimi_k3,
    kimi_linear,
    lfm2,
    lfm2moe,
    mamba,
    mamba2,
    mixed,
    nemotron_h,
    nemotron_h_moe,
    qwen4,
    rwkv,
    rwkv_qwen,
)


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
