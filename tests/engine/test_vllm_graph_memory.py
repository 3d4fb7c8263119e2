"""CUDA graphs: how many there are, what they are estimated at, and where that is charged."""

from __future__ import annotations

from typing import Any

import pytest

import kvproof
from kvproof.engine import vllm
from kvproof.engine.vllm.graph_memory import graph_count, scan_bytes, workspace_bytes
from kvproof.engine.vllm.settings import settle

GIB = 2**30


@pytest.mark.parametrize(
    ("name", "release", "flags", "charged"),
    [
        ("Qwen/Qwen3-8B", "0.20", {}, True),
        ("Qwen/Qwen3-8B", "0.22", {}, False),
        ("meta-llama/Llama-3.1-8B", "0.22", {}, True),
        ("meta-llama/Llama-3.1-8B", "0.23", {}, False),
        ("google/gemma-3-27b-it", "0.24", {}, True),
        ("google/gemma-3-27b-it", "0.26", {}, False),
        ("openai/gpt-oss-120b", "0.28", {}, True),
        ("Qwen/Qwen3-Next-80B-A3B-Thinking", "0.28", {}, True),
        ("deepseek-ai/DeepSeek-V4-Flash", "0.28", {}, False),
        ("Qwen/Qwen3-8B", "0.29", {}, True),
        ("Qwen/Qwen3-8B", "0.29", {"enforce_eager": True}, False),
        ("Qwen/Qwen3-8B", "0.18", {}, False),
    ],
)
def test_graphs_are_charged_by_the_runner_that_estimates_them(
    name: str, release: str, flags: dict[str, Any], charged: bool
) -> None:
    model = kvproof.load_model(name, offline=True)
    deployment = kvproof.Deployment(f"vllm@{release}", "H200", **flags)
    names = {t.name for t in vllm.budget(model, deployment).terms}
    assert ("CUDA graphs" in names) == charged


def test_rocm_estimates_graphs_later() -> None:
    model = kvproof.load_model("openai/gpt-oss-120b", offline=True)
    for gpu, release, charged in (
        ("MI300X", "0.24", False), ("H200", "0.24", True), ("MI300X", "0.26", True),
    ):  # fmt: skip
        deployment = kvproof.Deployment(f"vllm@{release}", gpu)
        names = {t.name for t in vllm.budget(model, deployment).terms}
        assert ("CUDA graphs" in names) == charged


@pytest.mark.parametrize(
    ("sequences", "drafts", "graphs"),
    [(1, 0, 2 + 1), (8, 0, 5 + 4), (128, 0, 35 + 19), (256, 0, 51 + 35), (1024, 0, 51 + 51),
     (4, 3, 7 + 5)],
)  # fmt: skip
def test_graphs_of_a_start_are_counted(sequences: int, drafts: int, graphs: int) -> None:
    """The sizes of config/vllm.py (_set_cudagraph_sizes): pieces and whole decode steps."""
    model = kvproof.load_model("Qwen/Qwen3-30B-A3B", offline=True)
    spec = {"method": "ngram", "num_speculative_tokens": drafts}
    flags = {"speculative_config": spec} if drafts else {}
    deployment = kvproof.Deployment("vllm@0.21", "H200", max_num_seqs=sequences, **flags)
    assert graph_count(settle(model, deployment)) == graphs


def test_the_first_graph_of_a_hybrid_is_charged_a_scan() -> None:
    """vllm#54775: 72 KiB a token of 48 heads; vllm#50780: from 0.26 on, with the batch's tokens."""
    model = kvproof.load_model("Qwen/Qwen3.5-27B", offline=True)
    sizes = {}
    for release in ("0.25", "0.27"):
        for tokens in (2048, 8192):
            d = kvproof.Deployment(f"vllm@{release}", "RTX-5090", max_num_batched_tokens=tokens)
            sizes[release, tokens] = scan_bytes(model, settle(model, d))
    assert sizes == {
        ("0.25", 2048): 0,
        ("0.25", 8192): 0,
        ("0.27", 2048): 2048 * 72 * 1024,
        ("0.27", 8192): 8192 * 72 * 1024,
    }


@pytest.mark.parametrize(
    ("gpu", "flags", "held"),
    [
        ("RTX-5090", {"kv_cache_dtype": "fp8"}, True),
        ("RTX-5090", {}, False),
        ("RTX-5090", {"kv_cache_dtype": "fp8", "speculative_config": {"method": "ngram",
         "num_speculative_tokens": 3}}, False),
        ("B200", {}, True),
        ("H100-80GB", {}, False),
    ],
)  # fmt: skip
def test_flashinfers_workspace_lies_in_the_estimate_of_graphs(
    gpu: str, flags: dict[str, Any], held: bool
) -> None:
    """log296 prints 0.47 GiB for three graphs: 0.385 of them are the workspace."""
    model = kvproof.load_model("Qwen/Qwen3-30B-A3B", offline=True)
    given = {"max_model_len": 8192, "max_num_seqs": 1, **flags}
    deployment = kvproof.Deployment("vllm@0.24.0", gpu, **given)
    assert (workspace_bytes(model, settle(model, deployment)) == 394 * 2**20) == held
    graphs = [t for t in kvproof.budget(model, deployment).terms if t.name == "CUDA graphs"]
    assert (graphs[0].value / GIB > 0.38) == held


def test_another_runner_lies_in_the_interval() -> None:
    """log227: a dense model of 0.26, of the second runner's, with its graphs charged."""
    model = kvproof.load_model("google/gemma-4-31B", offline=True)
    given = {"gpu_memory_utilization": 0.92, "max_model_len": 16384,
             "limit_mm_per_prompt": {"image": 0, "audio": 0}}  # fmt: skip
    found = kvproof.budget(model, kvproof.Deployment("vllm@0.26.0", "B300", **given))
    assert found.interval[0] < 182.37 * GIB < found.interval[1]
    assert found.kv_bytes - found.interval[0] > found.interval[1] - found.kv_bytes
