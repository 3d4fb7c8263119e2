"""The batch of starts that give none, by release, model, GPU and flags (arg_utils.py)."""

from __future__ import annotations

from typing import Any

import pytest

import kvproof
from kvproof.engine.vllm.settings import settle

LLAMA, LATENT = "meta-llama/Llama-3.1-8B-Instruct", "deepseek-ai/DeepSeek-V3"
PICTURES, WINDOWED = "google/gemma-3-27b-it", "microsoft/Phi-4-mini-instruct"
WHOLE = 131_072


def _batch(release: str, name: str, gpu: str = "8xH200", **flags: Any) -> int:
    flags = {"tensor_parallel_size": 8, **flags}
    deployment = kvproof.Deployment(f"vllm@{release}", gpu, **flags)
    return settle(kvproof.load_model(name, offline=True), deployment).max_num_batched_tokens


@pytest.mark.parametrize(
    ("release", "tokens"),
    [("0.5.2", WHOLE), ("0.5.3", 512), ("0.6.4", 512), ("0.6.5", 2048), ("0.7.3", 2048)],
)
def test_long_models_are_served_in_chunks(release: str, tokens: int) -> None:
    assert _batch(release, LLAMA) == tokens
    assert _batch(release, LLAMA, max_model_len=32768) == 32768
    assert _batch(release, LLAMA, max_model_len=1024) == 2048
    assert _batch(release, LLAMA, enable_chunked_prefill=False) == WHOLE
    assert _batch(release, LLAMA, max_num_batched_tokens=4096) == 4096


def test_releases_with_both_engines_keep_their_own_rule() -> None:
    assert _batch("0.8.5", LLAMA, use_v1=False) == 2048
    assert _batch("0.7.3", LATENT) == 2048
    assert _batch("0.8.5", LATENT, use_v1=False) == 163_840


def test_what_has_no_chunks_is_profiled_whole() -> None:
    assert _batch("0.6.4", LLAMA, enable_lora=True) == WHOLE
    assert _batch("0.6.4", LLAMA, num_scheduler_steps=8) == WHOLE
    assert _batch("0.6.0", LLAMA, enable_prefix_caching=True) == WHOLE
    assert _batch("0.6.1", LLAMA, enable_prefix_caching=True) == 512
    assert _batch("0.7.3", WINDOWED) == WHOLE
    assert _batch("0.7.3", WINDOWED, disable_sliding_window=True) == 2048
    assert _batch("0.6.4", LLAMA, "8xMI300X") == 512
    assert _batch("0.6.5", LLAMA, "8xMI300X") == WHOLE


def test_pictures_are_never_cut() -> None:
    assert _batch("0.7.3", PICTURES) == WHOLE
    assert _batch("0.7.3", PICTURES, max_model_len=2048) == 5120
    assert _batch("0.6.1", PICTURES, max_model_len=2048) == 4096


@pytest.mark.parametrize(
    ("release", "gpu", "batch"),
    [
        ("0.8.3", "H100-80GB", (8192, 1024)),
        ("0.8.3", "L40S-48GB", (2048, 1024)),
        ("0.8.3", "A100-80GB", (2048, 1024)),
        ("0.8.4", "A100-80GB", (2048, 256)),
        ("0.8.5", "A100-80GB", (8192, 1024)),
        ("0.8.5", "L40S-48GB", (2048, 256)),
        ("0.9.0", "A100-80GB", (2048, 256)),
        ("0.9.0", "H200-141GB", (8192, 1024)),
    ],
)
def test_v1_tells_large_gpus_by_name_and_then_by_memory(
    release: str, gpu: str, batch: tuple[int, int]
) -> None:
    deployment = kvproof.Deployment(f"vllm@{release}", gpu, use_v1=True)
    settings = settle(kvproof.load_model(LLAMA, offline=True), deployment)
    assert (settings.max_num_batched_tokens, settings.max_num_seqs) == batch
