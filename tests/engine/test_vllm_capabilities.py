"""Quantizations below their least compute capability, and lengths beyond the config's, do not
start."""

from __future__ import annotations

from typing import Any

import pytest

import kvproof
from kvproof.engine.vllm.capabilities import least_capability
from kvproof.engine.vllm.versions import parse_version

REFUSED = (
    ("Qwen/Qwen3-8B-FP8", "V100-32GB", "vllm", "fp8 needs a compute capability of 7.5"),
    ("Qwen/Qwen3-8B-AWQ", "V100-32GB", "vllm", "awq needs a compute capability of 7.5"),
    ("openai/gpt-oss-20b", "V100-32GB", "vllm", "mxfp4 needs a compute capability of 8.0"),
    ("openai/gpt-oss-20b", "T4-16GB", "vllm", "mxfp4 needs a compute capability of 8.0"),
    ("Qwen/Qwen3-8B-FP8", "T4-16GB", "vllm@0.13.0", "fp8 needs a compute capability of 8.0"),
)
TAKEN = (
    ("Qwen/Qwen3-8B-FP8", "T4-16GB", "vllm@0.14.0"),
    ("Qwen/Qwen3-8B-AWQ", "T4-16GB", "vllm"),
    ("Qwen/Qwen3-8B", "V100-32GB", "vllm"),
    ("openai/gpt-oss-20b", "A100-80GB", "vllm"),
    ("Qwen/Qwen3-8B-FP8", "MI300X", "vllm"),
)


def plan(name: str, gpu: str, engine: str, **flags: Any) -> Any:
    model = kvproof.load_model(name, offline=True)
    return kvproof.plan(model, kvproof.Deployment(engine, gpu, **flags), [1024])


@pytest.mark.parametrize(("name", "gpu", "engine", "said"), REFUSED)
def test_a_quantization_that_the_gpu_lacks_does_not_start(
    name: str, gpu: str, engine: str, said: str
) -> None:
    made = plan(name, gpu, engine)
    assert not made.fits
    assert any(said in warning for warning in made.warnings)


@pytest.mark.parametrize(("name", "gpu", "engine"), TAKEN)
def test_others_are_no_matter_of_capability(name: str, gpu: str, engine: str) -> None:
    assert not any("compute capability of" in said for said in plan(name, gpu, engine).warnings)


def test_what_is_quantized_while_loading_is_asked_the_same() -> None:
    made = plan("Qwen/Qwen3-8B", "V100-32GB", "vllm", quantization="fp8")
    assert not made.fits
    assert any("fp8 needs a compute capability of 7.5" in said for said in made.warnings)


def test_a_checkpoint_of_several_schemes_is_asked_for_each_it_stores() -> None:
    plain = kvproof.load_model("Qwen/Qwen3-8B", offline=True)
    section = {"quant_method": "modelopt", "quant_algo": "FP8"}
    model = kvproof.load_model({**plain.config, "quantization_config": section})
    for release, starts in (("0.26.0", False), ("0.27.0", True)):
        deployment = kvproof.Deployment(f"vllm@{release}", "A100-80GB")
        said = kvproof.plan(model, deployment, [1024]).warnings
        assert any("modelopt fp8 needs" in line for line in said) is not starts


def test_the_oldest_of_mixed_gpus_decides() -> None:
    mixed = plan("Qwen/Qwen3-8B-FP8", "A100-80GB+V100-32GB", "vllm", pipeline_parallel_size=2)
    assert any("V100" in said and "refuses to start" in said for said in mixed.warnings)


@pytest.mark.parametrize(
    ("release", "least"), [("0.4.2", 89), ("0.9.0", 80), ("0.14.0", 75), (None, 75)]
)
def test_the_value_of_a_release(release: str | None, least: int) -> None:
    assert least_capability("fp8", parse_version(release)) == least
    assert least_capability("no such method", parse_version(release)) is None


def test_a_length_that_is_refused_does_not_fit() -> None:
    asked = plan("Qwen/Qwen3-8B", "H100-80GB", "vllm", max_model_len=131_072)
    assert not asked.fits
    assert sum("refuses max_model_len 131,072" in said for said in asked.warnings) == 1
    let = {"max_model_len": 131_072, "allow_long_max_model_len": True}
    assert plan("Qwen/Qwen3-8B", "H100-80GB", "vllm", **let).fits
    assert plan("Qwen/Qwen3-8B", "H100-80GB", "vllm", max_model_len=40_960).fits
