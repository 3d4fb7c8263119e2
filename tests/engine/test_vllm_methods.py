"""--quantization: names that vLLM has, and those that need a checkpoint which is quantized so."""

from __future__ import annotations

import pytest

import kvproof
from kvproof.engine.base import Deployment

PLAIN, AWQ = "Qwen/Qwen3-8B", "Qwen/Qwen3-8B-AWQ"


@pytest.mark.parametrize(
    ("name", "method", "said"),
    [
        (PLAIN, "bogus", "knows no quantization 'bogus'"),
        (PLAIN, "compressed_tensors", "did you mean compressed-tensors?"),
        (PLAIN, "awq", "Qwen/Qwen3-8B is not"),
        (PLAIN, "gptq_marlin", "Qwen/Qwen3-8B is not"),
        (PLAIN, "fp8", None),
        (PLAIN, "bitsandbytes", None),
        (AWQ, "awq", None),
        (AWQ, "awq_marlin", None),
    ],
)
def test_a_method_that_does_not_start_is_said(name: str, method: str, said: str | None) -> None:
    model = kvproof.load_model(name, offline=True)
    deployment = Deployment("vllm", "H100-80GB", quantization=method, max_model_len=4096)
    plan = kvproof.plan(model, deployment)
    assert plan.fits == (said is None)
    found = [line for line in plan.warnings if "quantization" in line and "refuses" in line]
    assert len(found) == (said is not None)
    assert all(said is not None and said in line for line in found)
