"""Random deployments for the vLLM oracle: every flag that bears on the plan, and draft models.

`random_case` chooses what a config allows more often than not; what vLLM refuses is a case too.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from vllm_drafts import speculate

LENGTHS = (1024, 4096, 8192, 16384, 32768, 65536, 131072)
_CONTEXT = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len",
            "seq_length")  # fmt: skip
_CHANCES: tuple[tuple[float, str, list[Any]], ...] = (
    (0.15, "pipeline_parallel_size", [2, 3, 4, 8]),
    (0.3, "kv_cache_dtype", ["fp8", "fp8", "bfloat16", "fp8_e4m3", "fp8_e5m2", "float16",
                             "int8_per_token_head", "fp8_per_token_head", "int4_per_token_head",
                             "fp8_ds_mla", "nvfp4_ds_mla"]),
    (0.25, "block_size", [1, 8, 16, 32, 48, 64, 80, 96, 128, 256, 512, 1024]),
    (0.3, "max_num_batched_tokens", [512, 1000, 2048, 4096, 8192, 16384, 32768, 131072]),
    (0.2, "max_num_seqs", [1, 2, 16, 64, 256, 512, 2048]),
    (0.25, "enable_prefix_caching", [True, False, False]),
    (0.15, "async_scheduling", [False, True]),
    (0.07, "disable_hybrid_kv_cache_manager", [True, True, False]),
    (0.08, "num_gpu_blocks_override", [2, 777, 5000, 40000]),
    (0.1, "mamba_ssm_cache_dtype", ["float32", "bfloat16", "float16", "auto"]),
    (0.06, "mamba_cache_dtype", ["float32", "bfloat16", "float16", "auto"]),
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
    (0.08, "attention_backend", ["TRITON_ATTN", "FLASHINFER", "FLASH_ATTN", "FLEX_ATTENTION",
                                 "TRITON_MLA", "FLASHMLA", "FLASH_ATTN_MLA", "CUTLASS_MLA",
                                 "FLASHINFER_MLA", "FLASHMLA_SPARSE", "FLASHINFER_MLA_SPARSE",
                                 "FLASH_ATTN_MLA_SPARSE"]),
    (0.04, "data_parallel_size", [2, 4]),
    (0.03, "language_model_only", [True]),
    (0.03, "enable_expert_parallel", [True]),
    (0.02, "watermark", [0.01, 0.1]),
    (0.02, "prefix_match_unit", [16, 32]),
    (0.02, "long_prefill_token_threshold", [256]),
    (0.02, "kv_cache_memory_bytes", [10**10]),
    (0.02, "gpu_memory_utilization", [0.5, 0.98]),
    (0.02, "scheduling_policy", ["priority"]),
    (0.02, "stream_interval", [10]),
)  # fmt: skip


_RETYPED = {"deepseek_ref": "deepseek_v4"}
"""Types that whoever trimmed a gathered file wrote into it, and the published one's."""
_VARIED: dict[str, list[Any]] = {
    "num_key_value_heads": [1, 2, 4, 8],
    "head_dim": [64, 96, 128, 192, 256],
    "sliding_window": [0, 100, 1024, 4096],
    "max_position_embeddings": [2048, 10000, 262144],
    "torch_dtype": ["float32", "float16", "bfloat16"],
    "attn_logit_softcapping": [None, 50.0],
}
"""Sizes of a decoder that differ from model to model, and values that some model has."""


def configs(folder: Path) -> dict[str, dict[str, Any]]:
    """Every config under `folder` that names its architecture."""
    found = {}
    for path in sorted([*folder.glob("*.json"), *folder.glob("*/config.json")]):
        config = json.loads(path.read_text())
        if isinstance(config, dict) and "architectures" in config:
            retype(config)
            found[path.stem if path.stem != "config" else path.parent.name] = config
    return found


def retype(config: dict[str, Any]) -> None:
    """Give a config the published model type where it has another."""
    kind = config.get("model_type")
    config["model_type"] = _RETYPED.get(kind, kind)


_LEFT_OUT: dict[str, dict[str, Any]] = {
    "deepseek_v2": {"n_group": 8, "topk_group": 3},
    "gpt_oss": {"rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}},
    "inkling_text": {"gate_activation": "sigmoid", "norm_after_topk": True,
                     "shared_expert_sink": True},
    "internlm2": {"rope_theta": 1_000_000},
    "internlm3": {"rope_theta": 50_000_000},
    "qwen4_exp_text": {"eos_token_id": 248044},
}  # fmt: skip
"""Keys of published configs that the catalogue leaves out, vLLM does not start without, and no
plan depends on."""


def complete(config: dict[str, Any]) -> None:
    """Give a config of the catalogue its published model type and the keys that it lacks."""
    retype(config)
    for part in (config, config.get("text_config")):
        lacking = _LEFT_OUT.get(part.get("model_type", ""), {}) if isinstance(part, dict) else {}
        for key, value in lacking.items():
            had = part.get(key)
            part[key] = {**value, **had} if isinstance(had, dict) else part.get(key, value)


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
    ranks = rng.choice([n for n in (1, 1, 2, 4, 8, 16) if heads % n == 0 or rng.random() < 0.05])
    flags: dict[str, Any] = {"tensor_parallel_size": ranks}
    if rng.random() < 0.93:
        flags["max_model_len"] = _length(rng, text)
    few = 0.5 if rng.random() < 0.5 else 1.0  # half of the cases with fewer flags
    for share, key, values in _CHANCES:
        if rng.random() < share * few:
            flags[key] = rng.choice(values)
    if gpu == "B200" and rng.random() < 0.1:
        flags["kv_cache_dtype"] = rng.choice(["nvfp4", "nvfp4", "nvfp4_4over6"])
    if rng.random() < (0.15 if "kv_cache_dtype" in flags else 0.01):
        flags["kv_cache_dtype_skip_layers"] = skipped(rng, text)
    if ranks > 1 and rng.random() < 0.06:
        flags["decode_context_parallel_size"] = rng.choice([ranks, 2])
    case = {
        "model": name,
        "config": config if rng.random() < 0.3 else unquantized(config),
        "gpu": gpu,
        "kv_bytes": _bytes(rng),
        "usage_context": rng.choice(["api_server", "llm_class", "engine_context"]),
        "flags": flags,
    }
    if rng.random() < 0.15:
        speculate(rng, case, text)
    if rng.random() < 0.12:
        case["config"] = varied(rng, case["config"])
    return case


def skipped(rng: random.Random, text: dict[str, Any]) -> list[str]:
    """Layers whose cache is not quantized: a few by number, those that slide, or none that is."""
    layers = text.get("num_hidden_layers") or 8
    few = sorted(rng.sample(range(layers), min(layers, rng.choice([1, 2, 5]))))
    numbers = [str(layer) for layer in few]
    return rng.choice([numbers, numbers, ["sliding_window"], [*numbers, "sliding_window"], ["999"]])


def varied(rng: random.Random, config: dict[str, Any]) -> dict[str, Any]:
    """The config of a model that was never published: one size of its decoder changed."""
    out: dict[str, Any] = json.loads(json.dumps(config))
    text = out.get("text_config") or out
    key = rng.choice([key for key in _VARIED if text.get(key) is not None] or [""])
    if key:
        text[key] = rng.choice(_VARIED[key])
    return out


def _length(rng: random.Random, text: dict[str, Any]) -> int:
    """A max_model_len: usual, odd, short, fitted to the memory, or now and then too long."""
    context = next((text[key] for key in _CONTEXT if text.get(key)), 8192)
    lengths = [n for n in LENGTHS if n <= context] or [context]
    odd = rng.randrange(500, context + 1) if context > 500 else context
    short = rng.randrange(1, 500)
    return int(rng.choice([-1, -1, odd, odd, short, 2 * context, *lengths, *lengths]))


def _bytes(rng: random.Random) -> int:
    """Bytes of cache: whole gigabytes and some, or so few that hardly a request fits."""
    if rng.random() < 0.15:
        return rng.randrange(10**6, 10**9)
    return int(rng.choice([1, 2, 5, 10, 20, 40, 60, 120]) * 10**9 + rng.randrange(10**8))
