"""Random deployments for the vLLM oracle: every flag that bears on the plan, and draft models.

`random_case` chooses what a config allows more often than not; what vLLM refuses is a case too.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

LENGTHS = (1024, 4096, 8192, 16384, 32768, 65536, 131072)
_CONTEXT = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len",
            "seq_length")  # fmt: skip
_MTP_KEYS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers", "n_mtp_layers")
_CHANCES: tuple[tuple[float, str, list[Any]], ...] = (
    (0.15, "pipeline_parallel_size", [2, 3, 4]),
    (0.3, "kv_cache_dtype", ["fp8", "fp8", "bfloat16", "fp8_e4m3", "fp8_e5m2", "float16",
                             "int8_per_token_head", "fp8_per_token_head", "int4_per_token_head",
                             "fp8_ds_mla"]),
    (0.25, "block_size", [8, 16, 32, 48, 64, 128, 256]),
    (0.3, "max_num_batched_tokens", [512, 1000, 2048, 4096, 8192, 16384, 32768]),
    (0.2, "max_num_seqs", [1, 16, 64, 256, 512, 2048]),
    (0.25, "enable_prefix_caching", [True, False, False]),
    (0.15, "async_scheduling", [False, True]),
    (0.05, "disable_hybrid_kv_cache_manager", [True, False]),
    (0.08, "num_gpu_blocks_override", [2, 777, 5000, 40000]),
    (0.1, "mamba_ssm_cache_dtype", ["float32", "bfloat16", "float16", "auto"]),
    (0.06, "mamba_cache_dtype", ["float32", "bfloat16", "auto"]),
    (0.06, "mamba_cache_mode", ["align", "none", "all"]),
    (0.03, "mamba_block_size", [64, 256, 1024]),
    (0.05, "enable_lora", [True]),
    (0.05, "enable_chunked_prefill", [False, True]),
    (0.04, "performance_mode", ["throughput", "interactivity", "balanced"]),
    (0.05, "cpu_offload_gb", [4]),
    (0.04, "kv_sharing_fast_prefill", [True]),
    (0.04, "disable_sliding_window", [True]),
    (0.08, "dtype", ["float16", "bfloat16", "float32"]),
    (0.05, "enforce_eager", [True]),
    (0.07, "attention_backend", ["TRITON_ATTN", "FLASHINFER", "FLASH_ATTN", "FLEX_ATTENTION"]),
    (0.04, "data_parallel_size", [2]),
    (0.03, "language_model_only", [True]),
    (0.03, "enable_expert_parallel", [True]),
)  # fmt: skip


def configs(folder: Path) -> dict[str, dict[str, Any]]:
    """Every config under `folder` that names its architecture."""
    found = {}
    for path in sorted([*folder.glob("*.json"), *folder.glob("*/config.json")]):
        config = json.loads(path.read_text())
        if isinstance(config, dict) and "architectures" in config:
            found[path.stem if path.stem != "config" else path.parent.name] = config
    return found


def in_turn(rng: random.Random, known: dict[str, dict[str, Any]], count: int) -> list[str]:
    """`count` names, every architecture in turn before one comes again, any of its models."""
    alike: dict[tuple[str, str], list[str]] = {}
    for name, config in known.items():
        key = (config["architectures"][0], str(config.get("model_type")))
        alike.setdefault(key, []).append(name)
    out: list[str] = []
    while len(out) < count:
        turn = list(alike.values())
        rng.shuffle(turn)
        out += [rng.choice(names) for names in turn]
    return out[:count]


def unquantized(config: dict[str, Any]) -> dict[str, Any]:
    """The config without its quantization."""
    out = {key: value for key, value in config.items() if key != "quantization_config"}
    text = out.get("text_config")
    if isinstance(text, dict):
        out["text_config"] = {k: v for k, v in text.items() if k != "quantization_config"}
    return out


def random_case(rng: random.Random, name: str, config: dict[str, Any], gpu: str) -> dict[str, Any]:
    """A deployment that the config allows, chosen by `rng`."""
    text = config.get("text_config") or config
    heads = text.get("num_attention_heads") or 32
    context = next((text[key] for key in _CONTEXT if text.get(key)), 8192)
    ranks = rng.choice([n for n in (1, 1, 2, 4, 8, 16) if heads % n == 0 or rng.random() < 0.05])
    flags: dict[str, Any] = {"tensor_parallel_size": ranks}
    lengths = [n for n in LENGTHS if n <= context] or [context]
    if rng.random() < 0.93:
        odd = rng.randrange(500, context + 1) if context > 500 else context
        flags["max_model_len"] = rng.choice([-1, odd, *lengths, *lengths])
    few = 0.5 if rng.random() < 0.5 else 1.0  # half of the cases with fewer flags
    for share, key, values in _CHANCES:
        if rng.random() < share * few:
            flags[key] = rng.choice(values)
    if gpu == "B200" and rng.random() < 0.1:
        flags["kv_cache_dtype"] = "nvfp4"
    if ranks > 1 and rng.random() < 0.06:
        flags["decode_context_parallel_size"] = rng.choice([ranks, 2])
    case = {
        "model": name,
        "config": config if rng.random() < 0.3 else unquantized(config),
        "gpu": gpu,
        "kv_bytes": rng.choice([1, 2, 5, 10, 20, 40, 60]) * 10**9 + rng.randrange(10**8),
        "usage_context": rng.choice(["api_server", "llm_class"]),
        "flags": flags,
    }
    if rng.random() < 0.12:
        _speculate(rng, case, text)
    return case


def _speculate(rng: random.Random, case: dict[str, Any], text: dict[str, Any]) -> None:
    """Add a speculative method that fits the target."""
    flags, count = case["flags"], rng.choice([1, 2, 3, 5])
    own = sum(int(text.get(key) or 0) for key in _MTP_KEYS)
    method = rng.choice(["mtp", "mtp", "ngram"] if own else ["ngram", "eagle", "eagle3", "draft"])
    flags["speculative_config"] = {"num_speculative_tokens": count}
    if method in ("mtp", "ngram"):
        flags["speculative_config"]["method"] = method
        return
    case["draft"] = _draft(rng, method, text)
    flags["speculative_config"]["method"] = "draft_model" if method == "draft" else method


def _draft(rng: random.Random, method: str, text: dict[str, Any]) -> dict[str, Any]:
    """A small model for the target's vocabulary: an EAGLE head, or a Llama of its own."""
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
    return config
