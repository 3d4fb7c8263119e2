"""A million (model, context, element type) points by numpy, against a plain loop."""

from __future__ import annotations

import sys
import time

import numpy as np

import kvproof
from kvproof.engine.formula import types_of
from kvproof.kinds import sequence_bytes

MODELS = (
    "meta-llama/Llama-3.1-8B",
    "google/gemma-3-27b-it",
    "deepseek-ai/DeepSeek-V3",
    "openai/gpt-oss-120b",
    "Qwen/Qwen3-Next-80B-A3B-Thinking",
)
TYPES = ("bf16", "fp8", "int4", "q8_0")
CONTEXTS = 50_000


def main() -> None:
    models = [kvproof.load_model(name) for name in MODELS]
    contexts = np.arange(1, CONTEXTS + 1, dtype=np.int64) * 8
    start = time.perf_counter()
    points = 0
    for model in models:
        for name in TYPES:
            types = types_of(model, name)
            total = sequence_bytes(model.slots, contexts, types)
            points += total.size
    seconds = time.perf_counter() - start
    sample = contexts[:: CONTEXTS // 50].tolist()
    start = time.perf_counter()
    types = types_of(models[0], "bf16")
    for n in sample:
        sequence_bytes(models[0].slots, n, types)
    loop = (time.perf_counter() - start) / len(sample)
    print(f"{points:,} points in {seconds:.3f} s: {points / seconds:,.0f} points/s")
    print(f"plain loop: {1 / loop:,.0f} points/s; numpy is {points / seconds * loop:,.0f}x")
    sys.exit(seconds > 1)


main()
