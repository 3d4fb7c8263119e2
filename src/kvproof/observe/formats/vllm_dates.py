"""Wordings of vLLM's lines that only some releases print: they date a log that names no version.

Each row holds no figure. Releases are those whose sources were read (0.4.3, 0.5.0, 0.5.5, 0.6.1 to
0.6.6, 0.7.0, 0.7.3, 0.8.0, 0.8.5, 0.9.0, 0.9.2, every minor from 0.10 to 0.22, 0.24, 0.26, 0.28,
0.30): a wording begins after the last release without it and ends before the first without it.
"""

from __future__ import annotations

from kvproof.engine.vllm.versions import V0_MODULE
from kvproof.observe.rows import Row

RUNNER = "vllm/v1/worker/gpu_model_runner.py"
WORKER = "vllm/v1/worker/gpu_worker.py"
CACHE = "vllm/v1/core/kv_cache_utils.py"

DATES = (
    Row("initializing an llm engine", r"initializing an LLM engine \(v", "0.2-0.7.2",
        "vllm/engine/llm_engine.py"),
    Row("# gpu blocks:", r"# GPU blocks: ?\d", "0.2-0.6.6", "vllm/executor/gpu_executor.py"),
    Row("initializing a v1 llm engine", r"initializing a V1 LLM engine", "0.7.1+",
        "vllm/v1/engine/core.py"),
    Row("initializing a v0 llm engine", r"initializing a V0 LLM engine", "0.7.1-0.10.2", V0_MODULE),
    Row("model loading took", r"took \d{1,4}\.\d{4} GB", "0.8.0-0.8.4", RUNNER),
    Row("model loading took", r"took \d{1,4}\.\d{4} GiB and", "0.8.1-0.11.0", RUNNER),
    Row("model loading took", r"took \d{1,4}\.\d{4} GiB memory", "0.11.1-0.13", RUNNER),
    Row("model loading took", r"took \d{1,4}(?:\.\d{1,2})? GiB memory", "0.14+", RUNNER),
    # round(bytes, 2) since 0.14, two decimals always before.
    Row("available kv cache memory", r"available KV cache memory: -?\d{1,4}\.\d0 GiB", "0.9.1-0.13",
        WORKER),
    Row("available kv cache memory", r"available KV cache memory: -?\d{1,4}\.[1-9] GiB", "0.14+",
        WORKER),
    Row("available kv cache memory", r"available KV cache memory: -?\d{1,4}\.\d{1,2} GiB", "0.9+",
        WORKER),
    Row("kv cache size", r"KV cache size: [\d,]{1,20} tokens, Maximum", "0.27+", CACHE),
    Row("kv cache size", r"KV cache size: [\d,]{1,20} tokens", "0.8+", CACHE),
    Row("maximum concurrency", r"maximum concurrency for \d{4,9} tokens per request",
        "0.6.3-0.10.2", "vllm/executor/executor_base.py"),
    Row("maximum concurrency", r"maximum concurrency for \d{1,3}(?:,\d{3})+ tokens per request",
        "0.8+", CACHE),
    Row("max seq len", r"with the models's max seq len \(", "0.7-0.21", CACHE),
    Row("max seq len", r"with the model's max seq len \(", "0.22+", CACHE),
    Row("cache is needed", r"\d GB KV cache is needed", "0.7-0.8.4", CACHE),
    Row("for weight,", r"GiB for weight, [\d.]{1,9} GiB for peak activation", "0.10.2-0.27",
        WORKER),
    Row("cuda graph memory profiling is enabled", r"profiling is enabled \(default since", "0.20+",
        WORKER),
    Row("using v2 model runner", r"using V2 Model Runner", "0.14+", WORKER),
)  # fmt: skip
