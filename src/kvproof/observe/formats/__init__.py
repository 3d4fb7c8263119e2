"""The line formats of every engine, one table an engine."""

from __future__ import annotations

from functools import cache

from kvproof.observe.formats import llamacpp, sglang, tensorrt_llm, vllm
from kvproof.observe.rows import Compiled, compiled

_TABLES = {
    "vllm": vllm.ROWS,
    "sglang": sglang.ROWS,
    "tensorrt_llm": tensorrt_llm.ROWS,
    "llamacpp": llamacpp.ROWS,
}
# Sizes that the engine rounds to this many decimals before it prints them, so that a trailing
# zero is missing but not unknown.
ROUNDED = {"vllm": 2, "sglang": 2, "tensorrt_llm": 2, "llamacpp": 1}

# What names a program, in lines of whatever kind: (literal in lower case, program, weight).
PROGRAMS = (
    ("vllm", "vllm", 2),
    ("sglang", "sglang", 5),
    ("server_args=serverargs", "sglang", 50),
    ("tensorrt-llm", "tensorrt_llm", 5),
    ("tensorrt_llm", "tensorrt_llm", 5),
    ("[trt-llm]", "tensorrt_llm", 20),
    ("trtllm-serve", "tensorrt_llm", 20),
    ("llm engine (v", "vllm", 50),
    ("llama_model_loader", "llamacpp", 5),
    ("llama_context", "llamacpp", 5),
    ("llama_kv_cache", "llamacpp", 5),
    ("ollama", "Ollama", 5),
    ('msg="offload to', "Ollama", 20),
    ("ggml.go", "Ollama", 10),
    ("lm studio", "LM Studio", 5),
    ("lmstudio", "LM Studio", 5),
)


@cache
def rows() -> tuple[Compiled, ...]:
    """Every row of every engine, compiled."""
    return tuple(compiled(engine, row) for engine, table in _TABLES.items() for row in table)
