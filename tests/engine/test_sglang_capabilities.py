"""GPUs that are older than SGLang, or a quantization in it, needs do not start."""

from __future__ import annotations

from typing import Any

import pytest

import kvproof

REFUSED = (
    ("Qwen/Qwen3-8B", "V100-32GB", "sglang", "it needs a compute capability of 7.5"),
    ("Qwen/Qwen3-8B-FP8", "T4-16GB", "sglang", "fp8 needs a compute capability of 8.0"),
    ("openai/gpt-oss-20b", "T4-16GB", "sglang", "mxfp4 needs a compute capability of 8.0"),
    ("nvidia/Qwen3-8B-NVFP4", "H100-80GB", "sglang@0.5.12", "nvfp4 needs a compute capability of"),
    ("RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", "8xT4-16GB", "sglang", "fp8 needs a compute"),
)
TAKEN = (
    ("Qwen/Qwen3-8B", "T4-16GB", "sglang"),
    ("Qwen/Qwen3-8B-FP8", "A100-40GB", "sglang"),
    ("Qwen/Qwen2.5-7B-Instruct-AWQ", "T4-16GB", "sglang"),
    ("nvidia/Qwen3-8B-NVFP4", "H100-80GB", "sglang@0.5.13"),
    ("Qwen/Qwen3-8B-FP8", "MI300X", "sglang"),
)


def plan(name: str, gpu: str, engine: str, **flags: Any) -> Any:
    model = kvproof.load_model(name, offline=True)
    if gpu.startswith("8x"):
        flags["tp_size"] = 8
    return kvproof.plan(model, kvproof.Deployment(engine, gpu, **flags), [1024])


@pytest.mark.parametrize(("name", "gpu", "engine", "said"), REFUSED)
def test_what_the_gpu_lacks_does_not_start(name: str, gpu: str, engine: str, said: str) -> None:
    made = plan(name, gpu, engine)
    assert not made.fits
    assert any(said in warning for warning in made.warnings)


@pytest.mark.parametrize(("name", "gpu", "engine"), TAKEN)
def test_what_it_has_starts(name: str, gpu: str, engine: str) -> None:
    made = plan(name, gpu, engine)
    assert not any("refuses to start" in warning for warning in made.warnings)


def test_an_asked_quantization_counts_too() -> None:
    made = plan("Qwen/Qwen3-8B", "A100-40GB", "sglang", quantization="w8a8_fp8")
    assert any("w8a8_fp8 needs a compute capability of 8.9" in said for said in made.warnings)


def test_older_gpus_run_in_float16() -> None:
    model = kvproof.load_model("Qwen/Qwen3-8B", offline=True)
    served = kvproof.engine.sglang.served_model(
        model, kvproof.Deployment("sglang", "T4-16GB", dtype="float32")
    )
    assert served.dtype == "f16"
    assert any("below compute capability 8.0" in note for note in served.notes)
