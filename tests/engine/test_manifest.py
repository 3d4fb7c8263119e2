"""Kubernetes manifests and compose files that start an engine."""

from __future__ import annotations

import pytest

from kvproof.engine.manifest import read_manifest
from kvproof.errors import InputError

KUBERNETES = """
apiVersion: v1
kind: Service
metadata: {name: llama}
---
apiVersion: apps/v1
kind: Deployment
spec:
  template:
    spec:
      initContainers:
        - {name: wait, image: busybox, command: [sleep, "1"]}
      containers:
        - name: server
          image: vllm/vllm-openai:v0.11.0
          args: ["--model", "meta-llama/Llama-3.1-8B", "--max-model-len", "32768",
                 "--tensor-parallel-size", "2"]
          resources: {limits: {nvidia.com/gpu: 2}}
"""
SHELL = """
kind: Pod
spec:
  containers:
    - name: server
      image: registry.local/any
      command: ["/bin/sh", "-c"]
      args: ["vllm serve Qwen/Qwen3-8B --kv-cache-dtype fp8 --max-model-len 8192"]
"""
COMPOSE = """
services:
  web: {image: nginx}
  llm:
    image: vllm/vllm-openai:latest
    command: --model Qwen/Qwen3-8B --gpu-memory-utilization 0.85
    environment: [HF_TOKEN=x]
"""


@pytest.mark.parametrize(
    ("text", "model", "flag", "value"),
    [
        (KUBERNETES, "meta-llama/Llama-3.1-8B", "tensor_parallel_size", 2),
        (SHELL, "Qwen/Qwen3-8B", "kv_cache_dtype", "fp8"),
        (COMPOSE, "Qwen/Qwen3-8B", "gpu_memory_utilization", 0.85),
    ],
)
def test_the_one_server(text: str, model: str, flag: str, value: object) -> None:
    read = read_manifest(text, "2xH100-80GB")
    assert read.model == model
    assert read.deployment.flags[flag] == value


def test_kubernetes_variables_are_filled_in() -> None:
    text = SHELL.replace("8192", "$(LENGTH)") + "      env: [{name: LENGTH, value: '4096'}]\n"
    assert read_manifest(text, "H100-80GB").deployment.flags["max_model_len"] == 4096


def test_the_images_tag_names_the_release() -> None:
    assert str(read_manifest(KUBERNETES, "2xH100-80GB").deployment.engine) == "vllm@0.11.0"
    assert str(read_manifest(COMPOSE, "H100-80GB").deployment.engine) == "vllm"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "kind: Pod",
        "{",
        "a: &a [*a]",
        "- [" * 3000,
        SHELL + "\n---\n" + COMPOSE,
        "command: 'unclosed",
        "x: !!python/object/apply:os.system [echo]",
        "&a [" + "*a," * 5,
    ],
)
def test_what_serves_nothing_or_too_much(text: str) -> None:
    with pytest.raises(InputError) as caught:
        read_manifest(text, "H100-80GB")
    assert "\n" not in str(caught.value)
