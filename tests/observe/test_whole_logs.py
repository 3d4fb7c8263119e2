"""Whole logs: one that llama-server b11549 printed, and older formats rebuilt line by line.

The rebuilt ones follow the releases' own format strings; their figures are those of published
starts, or follow from them by the engine's rules.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kvproof

FOLDER = Path(__file__).resolve().parent / "logs"
EXPECTED: dict[str, dict[str, Any]] = {
    "vllm-0.4.3-opt": {"weights_gib": 0.2389, "num_blocks": 11422, "cpu_blocks": 7281},
    "vllm-0.6.6-qwen2.5-tp2": {
        "weights_gib": 7.12, "total_gpu_memory_gib": 23.57, "non_torch_gib": 0.21,
        "peak_activation_gib": 1.03, "available_kv_memory_gib": 12.85, "num_blocks": 30076,
        "max_concurrency": 58.74, "cuda_graph_gib": 0.12,
    },
    "sglang-0.4.6-qwen3-tp2": {
        "avail_mem_before_gb": 22.81, "avail_mem_loaded_gb": 15.11, "weights_gib": 7.7,
        "kv_cache_tokens": 176928, "k_size_gb": 6.07, "v_size_gb": 6.07, "cuda_graph_gib": 0.44,
    },
    "tensorrt-llm-0.19-engine": {
        "engine_mib": 8718.0, "activation_mib": 928.77, "available_before_kv_gib": 17.83,
        "num_blocks": 8219, "tokens_per_block": 32, "available_kv_memory_gib": 16.05,
        "kv_cache_tokens": 263008,
    },
    "tensorrt-llm-1.2-pytorch": {
        "weights_gib": 5.91, "peak_memory_gib": 12.65, "available_kv_memory_gib": 3.17,
        "kv_bytes_per_token": 73728, "kv_cache_tokens": 46208, "num_blocks": 1444,
    },
    "ollama-0.3-runner": {
        "total_gpu_memory_mib": 24268.8, "estimate_full_gib": 6.2, "kv_total_mib": 1024.0,
        "weights_mib": 4812.8, "offloaded_layers": 33, "graph_full_mib": 560.0,
    },
    "ollama-0.12-engine": {
        "kv_total_mib": 490.0, "total_used_mib": 5324.8, "offloaded_layers": 35,
        "compute_buffer_mib": {"CUDA0": 1126.4, "CPU": 5.0},
    },
    "llama-server-b11549-smollm2": {
        "kv_total_mib": 90.0, "k_mib": 45.0, "cells": 2048, "layers": 30, "seqs": 2, "streams": 2,
        "compute_buffer_mib": {"CPU": 16.64}, "output_buffer_mib": {"CPU": 0.38},
        "model_buffer_mib": {"CPU": 0.0, "CPU_Mapped": 92.1},
    },
}  # fmt: skip
ABOUT = {
    "vllm-0.4.3-opt": ("vllm", "vLLM", "0.4.3", "facebook/opt-125m"),
    "vllm-0.6.6-qwen2.5-tp2": ("vllm", "vLLM", "0.6.6.post1", "Qwen/Qwen2.5-7B-Instruct"),
    "sglang-0.4.6-qwen3-tp2": ("sglang", "SGLang", None, "Qwen/Qwen3-8B"),
    "tensorrt-llm-0.19-engine": ("tensorrt_llm", "TensorRT-LLM", "0.19.0", None),
    "tensorrt-llm-1.2-pytorch": ("tensorrt_llm", "TensorRT-LLM", "1.2.0rc4", None),
    "ollama-0.3-runner": ("llamacpp", "Ollama", "0.3.11", "/usr/share/ollama/blobs/sha256-8eeb52"),
    "ollama-0.12-engine": ("llamacpp", "Ollama", "0.12.6", None),
    "llama-server-b11549-smollm2": (
        "llamacpp", "llama.cpp", "0", "/models/SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
}  # fmt: skip


def test_every_whole_log_has_its_figures() -> None:
    assert {path.stem for path in FOLDER.glob("*.log")} == set(EXPECTED) == set(ABOUT)


@pytest.mark.parametrize("name", EXPECTED)
def test_every_figure_of_a_whole_log_is_read(name: str) -> None:
    log = kvproof.read_log(FOLDER / f"{name}.log")
    assert (log.engine, log.program, log.version, log.model) == ABOUT[name]
    seen = log.observed
    assert {key: seen.get(key) for key in EXPECTED[name]} == EXPECTED[name]
    assert not log.problems


@pytest.mark.parametrize(
    ("name", "model", "gpu"),
    [
        ("vllm-0.6.6-qwen2.5-tp2", None, "RTX-3090-24GB"),
        ("sglang-0.4.6-qwen3-tp2", None, None),
        ("llama-server-b11549-smollm2", "HuggingFaceTB/SmolLM2-135M-Instruct", None),
    ],
)
def test_what_follows_from_other_figures_is_predicted(
    name: str, model: str | None, gpu: str | None
) -> None:
    report = kvproof.check(FOLDER / f"{name}.log", model=model, gpu=gpu)
    exact = [row for row in report.rows if row.exact]
    assert exact
    assert all(row.ok for row in exact)
    assert all(row.ok for row in report.ledger)


def test_the_rank_that_decides_is_the_one_with_least() -> None:
    log = kvproof.read_log(FOLDER / "vllm-0.6.6-qwen2.5-tp2.log")
    smallest = log.smallest("available_kv_memory")
    assert smallest is not None
    assert smallest.text == "12.85GiB"
    assert {f.worker for f in log.all("available_kv_memory")} == {"318", None}
