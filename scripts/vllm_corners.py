"""Chosen corners for the vLLM oracle, which random deployments reach too seldom.

Heads of 256 with FlashAttention, windows of 0, MTP on models with and without modules, backends of
latents by name, drafts of other families beside every architecture, caches of two types, and many
ranks.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

from vllm_cases import skipped, unquantized
from vllm_drafts import MTP_KEYS, draft_for, own_settings

Config = dict[str, Any]
_LATENT_BACKENDS = ("TRITON_MLA", "FLASHMLA", "FLASH_ATTN_MLA", "CUTLASS_MLA", "FLASHINFER_MLA",
                    "FLASHMLA_SPARSE", "FLASHINFER_MLA_SPARSE", None, None)  # fmt: skip
_KV_BYTES = 60 * 10**9


def corner_cases(rng: random.Random, known: dict[str, Config], gpu: str, kind: str) -> list[Config]:
    """The cases of one corner on a GPU; `kind` is a key of CORNERS."""
    return [
        {"model": name, "gpu": gpu, "usage_context": "api_server", "kv_bytes": _KV_BYTES, **rest}
        for name, rest in CORNERS[kind](rng, known)
    ]


Cases = Iterator[tuple[str, Config]]


def _wide(rng: random.Random, known: dict[str, Config]) -> Cases:
    for name in _pick(rng, known, lambda text: text.get("head_dim") == 256)[:7]:
        for block in (None, 64, 128, 256):
            flags = {"max_model_len": 8192, "attention_backend": "FLASH_ATTN", "block_size": block}
            if rng.random() < 0.2:
                flags["kv_cache_dtype"] = "fp8"
            yield name, _case(known[name], flags)


def _windowless(rng: random.Random, known: dict[str, Config]) -> Cases:
    for name in _pick(rng, known, lambda text: bool(text.get("sliding_window")))[:16]:
        config = json.loads(json.dumps(known[name]))
        (config.get("text_config") or config)["sliding_window"] = 0
        yield name, _case(config, {"max_model_len": rng.choice([4096, -1, None])})


def _modules(rng: random.Random, known: dict[str, Config]) -> Cases:
    own = _pick(rng, known, lambda text: any(text.get(key) for key in MTP_KEYS))
    others = _pick(rng, known, lambda text: not any(text.get(key) for key in MTP_KEYS))
    for name in own[:14] + others[:8]:
        for tokens in rng.sample([1, 2, 3, 4, None], 2):
            asked = {"method": "mtp", "num_speculative_tokens": tokens}
            asked = {key: value for key, value in asked.items() if value is not None}
            ranks = 8 if name in own else 1
            flags = {"tensor_parallel_size": ranks, "max_model_len": 2048}
            yield name, _case(known[name], {**flags, "speculative_config": asked})


def _latents(rng: random.Random, known: dict[str, Config]) -> Cases:
    for name in _pick(rng, known, lambda text: bool(text.get("kv_lora_rank")))[:12]:
        for backend in rng.sample(_LATENT_BACKENDS, 3):
            flags = {
                "tensor_parallel_size": rng.choice([1, 2, 8]),
                "max_model_len": 4096,
                "attention_backend": backend,
                "kv_cache_dtype": rng.choice([None, None, "fp8", "bfloat16", "fp8_ds_mla"]),
                "block_size": rng.choice([None, None, 16, 32, 48, 64, 128, 256]),
            }
            yield name, _case(known[name], flags)


def _drafts(rng: random.Random, known: dict[str, Config]) -> Cases:
    for name in _pick(rng, known, lambda text: True)[:30]:
        text = known[name].get("text_config") or known[name]
        ranks = rng.choice([1, 2, 4])
        asked: Config = {"method": "draft_model", "num_speculative_tokens": rng.choice([1, 3])}
        if ranks > 1 and rng.random() < 0.3:
            asked["draft_tensor_parallel_size"] = rng.choice([1, ranks])
        flags = {
            "tensor_parallel_size": ranks,
            "max_model_len": 4096,
            "block_size": rng.choice([None, None, 32, 64, 128]),
            "speculative_config": asked,
        }
        yield name, _case(known[name], flags) | {"draft": draft_for(rng, "draft", text)}


def _types(rng: random.Random, known: dict[str, Config]) -> Cases:
    """Layers of two types in one model, and drafts of another type than their target."""
    for name in _pick(rng, known, lambda text: True)[:30]:
        text = known[name].get("text_config") or known[name]
        kept = rng.choice(["fp8", "fp8", "fp8_e4m3", "int8_per_token_head", "int4_per_token_head",
                           "nvfp4"])  # fmt: skip
        flags = {
            "tensor_parallel_size": rng.choice([1, 2]),
            "max_model_len": 4096,
            "kv_cache_dtype": kept,
            "kv_cache_dtype_skip_layers": skipped(rng, text),
            "block_size": rng.choice([None, None, None, 32, 64, 128]),
            "enable_prefix_caching": rng.choice([None, None, False]),
        }
        yield name, _case(known[name], flags)
    for name in _pick(rng, known, lambda text: True)[:20]:
        text = known[name].get("text_config") or known[name]
        own = any(text.get(key) for key in MTP_KEYS)
        method = rng.choice(["mtp"] if own else ["draft", "eagle", "eagle3"])
        asked: Config = {"method": {"draft": "draft_model"}.get(method, method),
                         "num_speculative_tokens": 1}  # fmt: skip
        while len(asked) < 3:
            own_settings(rng, asked)
        flags = {
            "max_model_len": 2048,
            "kv_cache_dtype": rng.choice([None, "fp8", "bfloat16"]),
            "speculative_config": asked,
        }
        drafted = {} if own else {"draft": draft_for(rng, method, text)}
        yield name, _case(known[name], flags) | drafted


def _parallel(rng: random.Random, known: dict[str, Config]) -> Cases:
    """Every architecture over many ranks, stages, context ranks, replicas and sets of experts."""
    for name in _pick(rng, known, lambda text: True):
        ranks = rng.choice([1, 2, 4, 8, 16])
        flags = {
            "tensor_parallel_size": ranks,
            "pipeline_parallel_size": rng.choice([None, None, 2, 3, 4, 8]),
            "decode_context_parallel_size": rng.choice([None, None, None, 2, 4, ranks]),
            "data_parallel_size": rng.choice([None, None, 2, 4]),
            "enable_expert_parallel": rng.choice([None, None, True]),
            "kv_cache_dtype": rng.choice([None, None, "fp8"]),
            "max_model_len": rng.choice([None, -1, 4096]),
        }
        yield name, _case(known[name], flags)


CORNERS: dict[str, Callable[[random.Random, dict[str, Config]], Cases]] = {
    "wide": _wide, "windowless": _windowless, "modules": _modules, "latents": _latents,
    "drafts": _drafts, "types": _types,
    "parallel": _parallel,
}  # fmt: skip


def _case(config: Config, flags: Config) -> Config:
    flags = {"tensor_parallel_size": 1, **flags}
    kept = {key: value for key, value in flags.items() if value is not None}
    return {"config": unquantized(config), "flags": kept}


def _pick(
    rng: random.Random, known: dict[str, Config], fits: Callable[[Config], bool]
) -> list[str]:
    """Names in random order, one of each architecture, whose decoder `fits`."""
    names = [name for name, config in known.items() if fits(config.get("text_config") or config)]
    rng.shuffle(names)
    return list({known[name]["architectures"][0]: name for name in names}.values())
