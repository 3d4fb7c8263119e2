"""Whole logs made of a record's lines: prefixes, colours and other text as deployments add them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

_BLUE, _RESET = "\x1b[0;36m", "\x1b[0;0m"

WRAPPERS: dict[str, Callable[[str], str]] = {
    "plain": lambda line: line,
    "vllm v0": lambda line: f"INFO 11-20 09:12:33 gpu_executor.py:122] {line}",
    "vllm worker": lambda line: (
        f"(VllmWorkerProcess pid=219) INFO 03-02 10:00:01 worker.py:267] {line}"
    ),
    "vllm v1": lambda line: (
        f"{_BLUE}(EngineCore_DP0 pid=4242){_RESET} INFO 11-20 09:12:33 [gpu_worker.py:298] {line}"
    ),
    "ray": lambda line: f"\x1b[36m(RayWorkerWrapper pid=883, ip=10.0.0.7){_RESET} INFO: {line}",
    "sglang": lambda line: f"[2026-05-01 12:00:00 DP0 TP3] {line}",
    "tensorrt-llm": lambda line: f"[11/20/2026-09:12:33] [TRT-LLM] [RANK 0] [I] {line}",
    "mpi": lambda line: f"[1,3]<stdout>:{line}",
    "loguru": lambda line: f"2026-11-20 09:12:33.123 | INFO     | server.core:start:98 - {line}",
    "kubernetes": lambda line: f"2026-11-20T09:12:33.123456789Z stdout F {line}",
    "compose": lambda line: f"llm-server-1  | {line}",
    "docker json": lambda line: json.dumps(
        {"log": f"\x1b[32mINFO\x1b[0m: {line}\n", "stream": "stderr"}
    ),
    "windows": lambda line: f"{line}\r",
    "llama": lambda line: f"0.00.123.456 I llama_kv_cache: {line}",
    "ollama": lambda line: f"Nov 20 09:12:33 box ollama[912]: {line}",
}
# Prefixes that belong to one engine; the others stand before any engine's lines.
OWN = {
    "vllm v0": "vllm", "vllm worker": "vllm", "vllm v1": "vllm", "ray": "vllm",
    "sglang": "sglang", "tensorrt-llm": "tensorrt-llm", "mpi": "tensorrt-llm",
    "llama": "llamacpp", "ollama": "llamacpp",
}  # fmt: skip
_AROUND = (
    'INFO:     127.0.0.1:4711 - "POST /v1/chat/completions HTTP/1.1" 200 OK',
    "Loading safetensors checkpoint shards:  50% Completed | 2/4 [00:01<00:01,  1.7it/s]",
    "\x1b[33mWARNING\x1b[0m something about tokenizers",
    "",
    "    return torch._C._nn.linear(input, weight)",
)


def whole(lines: list[str], wrap: Callable[[str], str]) -> str:
    """A log with other text before, between and after the wrapped lines."""
    out = list(_AROUND)
    for index, line in enumerate(lines):
        out += [wrap(line), _AROUND[index % len(_AROUND)]]
    return "\n".join([*out, *_AROUND]) + "\n"


def records(folder: Path, wrapper: str = "plain") -> list[dict[str, Any]]:
    """The records of both files whose engine prints with such prefixes."""
    found = [
        json.loads(line)
        for name in ("engine_startups", "local_startups")
        for line in (folder / "logs" / f"{name}.jsonl").read_text().splitlines()
    ]
    owner = OWN.get(wrapper)
    return [r for r in found if owner in (None, r.get("engine", "llamacpp"))]
