"""SGLang's environment variables that decide memory: those followed, and those that are not.

Source: SGLang 0.5.23, srt/environ.py and where each is read; others change nothing computed here.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvproof.engine.arguments import Unfollowed
from kvproof.engine.shell import Words

_OPTIONS = {"SGLANG_MAMBA_SSM_DTYPE": "--mamba-ssm-dtype"}

UNFOLLOWED: Mapping[str, Unfollowed] = {
    "SGLANG_MAMBA_CONV_DTYPE": Unfollowed("sets the type of convolution states"),
    "SGLANG_DSV4_COMPRESS_STATE_DTYPE": Unfollowed("sets the type of compressor states"),
    "SGLANG_DSV4_KV_LAYOUT": Unfollowed("lays DeepSeek-V4's cache out otherwise"),
    "SGLANG_DSV4_COMPRESSED_KV_LAYOUT": Unfollowed("lays DeepSeek-V4's cache out otherwise"),
    "SGLANG_HACK_FLASHMLA_BACKEND": Unfollowed("may keep DeepSeek-V4's cache in one pool"),
    "SGLANG_DSV4_UNIFIED_KV_FP8": Unfollowed("keeps DeepSeek-V4's cache in FP8"),
    "SGLANG_OPT_MINIMAX_M3_FP8_INDEX_CACHE": Unfollowed("keeps the index cache in FP8"),
    "SGLANG_AITER_KV_CACHE_LAYOUT": Unfollowed("lays the cache out otherwise"),
    "SGLANG_AITER_HONOR_EXPLICIT_MEM_FRACTION": Unfollowed("leaves the share uncut"),
    "SGLANG_USE_AITER": Unfollowed("chooses AMD's attention, which cuts the share"),
    "SGLANG_INT4_WEIGHT": Unfollowed("packs weights to four bits"),
    "SGLANG_SYMM_MEM_PREALLOC_GB_SIZE": Unfollowed("takes memory before the pools"),
    "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK": Unfollowed("sets DeepEP's buffers"),
    "SGLANG_EMBEDDING_POOL_SIZE_MB": Unfollowed("takes memory beside the pools"),
    "SGLANG_VLM_CACHE_SIZE_MB": Unfollowed("takes memory beside the pools"),
    "SGLANG_DISAGG_STAGING_POOL_SIZE_MB": Unfollowed("takes memory beside the pools"),
}


def options_of(words: Words) -> list[str]:
    """The options that the variables of a command stand for."""
    said = [(option, words.environment.get(name)) for name, option in _OPTIONS.items()]
    return [f"{option}={value}" for option, value in said if value]
