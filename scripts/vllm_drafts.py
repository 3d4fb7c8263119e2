"""Speculative decoding for the vLLM oracle: a method that a target takes, or now and then not."""

from __future__ import annotations

import random
from typing import Any

MTP_KEYS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers", "n_mtp_layers",
            "num_mtp_modules")  # fmt: skip


def speculate(rng: random.Random, case: dict[str, Any], text: dict[str, Any]) -> None:
    """Add a speculative method that fits the target more often than not."""
    own = sum(int(text.get(key) or 0) for key in MTP_KEYS)
    method = rng.choice(
        ["mtp", "mtp", "mtp", "ngram"] if own else ["ngram", "eagle", "eagle3", "draft", "draft"]
    )
    if rng.random() < 0.1:
        method = rng.choice(["mtp", "ngram_gpu", "draft", "eagle"])
    asked: dict[str, Any] = {"num_speculative_tokens": rng.choice([1, 2, 3, 5])}
    case["flags"]["speculative_config"] = asked
    asked["method"] = "draft_model" if method == "draft" else method
    if method not in ("ngram", "ngram_gpu"):
        own_settings(rng, asked)
    if method == "mtp" and rng.random() < 0.3:
        del asked["num_speculative_tokens"]  # then as many as the checkpoint has modules
    if method in ("mtp", "ngram", "ngram_gpu"):
        return
    case["draft"] = draft_for(rng, method, text)
    if rng.random() < 0.1:
        asked["draft_tensor_parallel_size"] = 1


def own_settings(rng: random.Random, asked: dict[str, Any]) -> None:
    """Now and then a type of cache and a backend that are the draft's and not the target's."""
    if rng.random() < 0.2:
        asked["kv_cache_dtype"] = rng.choice(["auto", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2",
                                              "int8_per_token_head"])  # fmt: skip
    if rng.random() < 0.15:
        asked["attention_backend"] = rng.choice(["TRITON_ATTN", "FLASHINFER", "FLASH_ATTN",
                                                 "TRITON_MLA", "FLASHMLA", "auto"])  # fmt: skip


def draft_for(rng: random.Random, method: str, text: dict[str, Any]) -> dict[str, Any]:
    """A small model for the target's vocabulary: an EAGLE head, or a model of its own."""
    heads = rng.choice([8, 16, 32])
    width = text.get("hidden_size") or 2048
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": width if method != "draft" else 1024,
        "intermediate_size": 2048,
        "num_hidden_layers": 1 if method != "draft" else rng.choice([4, 16]),
        "num_attention_heads": heads,
        "num_key_value_heads": rng.choice([heads, heads // 2, heads // 4]),
        "head_dim": rng.choice([64, 128]),
        "vocab_size": text.get("vocab_size") or 32000,
        "max_position_embeddings": text.get("max_position_embeddings") or 8192,
        "torch_dtype": "bfloat16",
        "rms_norm_eps": 1e-5,
    }
    if method == "eagle3":
        return config | {"architectures": ["LlamaForCausalLMEagle3"],
                         "draft_vocab_size": config["vocab_size"]}  # fmt: skip
    if method == "draft":
        return config | rng.choice(_OTHER)
    return config


_OTHER: tuple[dict[str, Any], ...] = (
    {},
    {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]},
    {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 1024},
    {"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "sliding_window": 512,
     "query_pre_attn_scalar": 256, "hidden_activation": "gelu_pytorch_tanh"},
)  # fmt: skip
"""Drafts of other families than Llama's, some with windows."""
