"""Models whose tensors no recipe gives: what is said, and plans from a checkpoint's bytes alone."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

import kvproof
from kvproof.errors import KvproofError
from kvproof.surfaces.cli import cli

GB = 10**9
KIMI = kvproof.load_model("moonshotai/Kimi-K3", offline=True)
STORED = msgspec.structs.replace(KIMI, stored_weight_bytes=600 * GB)


@pytest.mark.parametrize("engine", ["vllm@0.32", "sglang", "tensorrt_llm", "formula"])
def test_the_error_names_what_can_be_done(engine: str) -> None:
    with pytest.raises(KvproofError, match=r"unknown: only its cache is read; name the folder of"):
        kvproof.budget(KIMI, kvproof.Deployment(engine, "8xB200"))


@pytest.mark.parametrize(
    ("engine", "flags"),
    [
        ("vllm@0.32", {"tensor_parallel_size": 8}),
        ("sglang", {"tp_size": 8}),
        ("tensorrt_llm", {"tp_size": 8}),
        ("vllm@0.32", {"tensor_parallel_size": 4, "pipeline_parallel_size": 2}),
    ],
)
def test_a_checkpoints_bytes_are_shared_out_evenly(engine: str, flags: dict[str, Any]) -> None:
    """As the error says: a folder's headers are enough."""
    plan = kvproof.plan(STORED, kvproof.Deployment(engine, "8xB200", **flags), contexts=[4096])
    weights = next(t.value for t in plan.budget.terms if t.name == "weights")
    assert weights == pytest.approx(75 * GB, rel=0.02)
    assert plan.rows[0].alone is not None
    assert plan.rows[0].alone.weight_bytes == 600 * GB


def test_the_formula_takes_given_weights() -> None:
    """As the error says; a step then reads all of them."""
    given = kvproof.Deployment("formula", "H100", gpu_memory=2000 * GB, weight_bytes=600 * GB)
    row = kvproof.plan(KIMI, given, contexts=[4096]).rows[0]
    assert row.alone is not None
    assert row.alone.weight_bytes == 600 * GB


def test_the_catalogue_marks_them() -> None:
    shown = CliRunner().invoke(cli, ["models", "unknown"]).output
    assert "moonshotai/Kimi-K3" in shown
    assert "Qwen/Qwen3-8B" not in shown
    assert "known" in CliRunner().invoke(cli, ["models", "Qwen/Qwen3-8B"]).output
