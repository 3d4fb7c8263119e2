"""Start-up logs with chosen figures."""

from __future__ import annotations

VLLM = """
INFO 11-20 09:00:00 [api_server.py:1839] vLLM API server version 0.11.0
INFO 11-20 09:00:00 [utils.py:233] non-default args: {'model': 'Qwen/Qwen3-14B', \
'max_model_len': 32768, 'gpu_memory_utilization': 0.9}
INFO 11-20 09:00:09 Model loading took 27.5185 GiB and 3.6 seconds
INFO 11-20 09:00:09 Available KV cache memory: %s GiB
INFO 11-20 09:00:09 GPU KV cache size: %s tokens
INFO 11-20 09:00:09 Maximum concurrency for 32,768 tokens per request: %sx
"""


def vllm_log(memory: float = 39.6, tokens: str = "259,520", ratio: str = "7.92") -> str:
    return VLLM % (memory, tokens, ratio)
