"""Starts of vLLM that public files and threads show; none took part in a fit.

Each row: where it was found, model, release, GPU, flags, the cache's memory in GiB as printed, and
the share that the prediction may differ by.
"""

from __future__ import annotations

from typing import Any

import pytest

import kvproof
from kvproof.engine.base import Budget
from kvproof.engine.vllm.expert_kernels import kernel_of, passing_bytes
from kvproof.engine.vllm.graph_memory import graph_part
from kvproof.engine.vllm.images import held_bytes
from kvproof.engine.vllm.parts import constants
from kvproof.engine.vllm.peaks import layer_bytes
from kvproof.engine.vllm.settings import Settings, settle
from kvproof.units import GIB

GEMMA, QWEN_VL = "RedHatAI/gemma-4-26B-A4B-it-NVFP4", "Qwen/Qwen3-VL-8B-Instruct"
CUTLASS = {"kv_cache_dtype": "fp8_e4m3", "moe_backend": "cutlass"}
STARTS = [
    ("a session's log", "Qwen/Qwen3.8-27B", "0.27.1", "GB10",
     {"max_model_len": 32_768, "enable_prefix_caching": False}, 51.7, 0.04),
    ("a lesson's log", "Qwen/Qwen2.5-72B-Instruct", "0.19.0", "4xL40S",
     {"tensor_parallel_size": 4, "max_model_len": 8192}, 5.11, 0.02),
    ("a bisection's log", "zai-org/GLM-5.1-FP8", "0.19.1", "8xH200",
     {"tensor_parallel_size": 8, "enforce_eager": True}, 32.06, 0.02),
    ("a compose file's log", GEMMA, "0.19.1", "RTX-5090",
     {**CUTLASS, "gpu_memory_utilization": 0.85, "max_model_len": 256_000, "max_num_seqs": 2,
      "max_num_batched_tokens": 16_384}, 7.15, 0.04),
    ("a disaggregation's log", QWEN_VL, "0.19.1", "RTX-A6000",
     {"gpu_memory_utilization": 0.85, "max_model_len": 4096, "max_num_seqs": 5,
      "max_num_batched_tokens": 8192, "enforce_eager": True, "limit_mm_per_prompt": {"image": 1},
      "mm_processor_kwargs": {"max_pixels": 1_003_520}}, 22.46, 0.01),
    ("notes on a Radeon", "Qwen/Qwen3-0.6B", "0.7.3", "RX-9070-XT",
     {"max_model_len": 40_960}, 11.10, 0.02),
    ("a lab's report", "TechxGenus/Meta-Llama-3-70B-Instruct-AWQ", "0.16.0", "2xL40S",
     {"tensor_parallel_size": 2}, 20.16, 0.01),
    ("a KVM's manual", "Qwen/Qwen3-VL-30B-A3B-Instruct", "0.11.0", "4xRTX-3090",
     {"tensor_parallel_size": 4, "max_model_len": 65_536}, 2.31, 0.05),
    ("a benchmark of Ollama", "Qwen/Qwen3-30B-A3B-Instruct-2507-FP8", "0.10.2", "2xL40S",
     {"tensor_parallel_size": 2, "enable_expert_parallel": True, "max_model_len": "32K",
      "gpu_memory_utilization": 0.95}, 25.91, 0.01),
    ("a run on a Radeon", "Qwen/Qwen3-14B", "0.16.0", "W7900-48GB", {}, 13.49, 0.01),
    ("a notebook", "Qwen/Qwen3.5-9B", "0.19.0", "L40S",
     {"usage_context": "llm_class", "enable_prefix_caching": False}, 20.27, 0.005),
]  # fmt: skip


def _left(name: str, release: str, gpu: str, flags: dict[str, Any]) -> Budget:
    model = kvproof.load_model(name, offline=True)
    return kvproof.budget(model, kvproof.Deployment(f"vllm@{release}", gpu, **flags))


@pytest.mark.parametrize("row", STARTS, ids=lambda row: f"{row[1].split('/')[1]}-{row[3]}")
def test_what_is_left_follows_from_flags_and_gpu(row: tuple[Any, ...]) -> None:
    _, name, release, gpu, flags, printed, share = row
    budget = _left(name, release, gpu, flags)
    assert budget.kv_bytes / GIB == pytest.approx(printed, rel=share)
    assert budget.interval[0] <= printed * GIB <= budget.interval[1]


def test_a_named_backend_is_the_kernel_of_experts() -> None:
    """Cutlass' kernel for NVFP4 deals the batch out in copies; FlashInfer's states are its own."""
    model = kvproof.load_model(GEMMA, offline=True)

    def settled(backend: str, gpu: str = "RTX-5090") -> Settings:
        return settle(model, kvproof.Deployment("vllm@0.20.0", gpu, moe_backend=backend))

    row = model.experts_per_token * model.hidden_size * 2
    assert passing_bytes(model, settled("cutlass")) == 3 * row
    assert passing_bytes(model, settled("marlin")) == passing_bytes(model, settled("auto")) == 0
    named = {name: kernel_of(model, settled(name)) for name in ("marlin", "flashinfer_cutlass")}
    assert named == {"marlin": "marlin", "flashinfer_cutlass": kernel_of(model, settled("auto"))}
    own, asked = (layer_bytes(model, settled(name, "B300")) for name in ("auto", "cutlass"))
    assert asked > own  # TensorRT-LLM's runs experts from end to end


def test_without_the_compiler_no_all_reduce_is_fused() -> None:
    flags: dict[str, Any] = {"tensor_parallel_size": 8}
    name = "meta-llama/Llama-3.1-70B-Instruct"
    compiled, eager = (
        _left(name, "0.19.0", "8xH200", {**flags, "enforce_eager": plain})
        for plain in (False, True)
    )
    base = constants()["communication_gib"]["since_0.18"]["base"]
    assert eager.kv_bytes - compiled.kv_bytes == pytest.approx(base * GIB, rel=0.01)


def test_a_bridge_is_no_switch() -> None:
    """NCCL's buffers over PCIe are the same for two ranks and for eight."""

    def outside(gpu: str, ranks: int, release: str = "0.16.0") -> float:
        flags = {"tensor_parallel_size": ranks}
        budget = _left("meta-llama/Llama-3.1-8B-Instruct", release, f"{ranks}x{gpu}", flags)
        return next(t.value for t in budget.terms if t.name == "communication") / GIB

    assert outside("L40S", 8) == outside("L40S", 2) == outside("RTX-3090", 4) < 0.2
    assert outside("H200", 8) > outside("H200", 2) > outside("L40S", 2)
    assert outside("L40S", 8, "0.28.0") > outside("L40S", 2, "0.28.0")


def test_embeddings_were_kept_in_rows_of_the_whole_budget() -> None:
    model = kvproof.load_model(QWEN_VL, offline=True)
    flags = {"limit_mm_per_prompt": {"image": 1, "video": 0}, "max_num_batched_tokens": 8192,
             "max_num_seqs": 5, "mm_processor_kwargs": {"max_pixels": 1_003_520}}  # fmt: skip

    def held(release: str, **more: Any) -> int:
        deployment = kvproof.Deployment(f"vllm@{release}", "A100-80GB", **{**flags, **more})
        return held_bytes(model, settle(model, deployment))

    row = model.hidden_size * 4 * 2  # three deep layers more
    assert held("0.12.0") - held("0.13.0") == 5 * (8192 - 980) * row
    video = held("0.12.0", limit_mm_per_prompt={"image": 1})
    inputs = 12_288 * 32 * 32 * 3 * 2 * 2
    assert video == 153_600 * row + inputs


def test_memory_shared_with_the_cpu_holds_the_systems_pages() -> None:
    """What the host takes between two looks at what is free counts as the GPU's (log315)."""
    model = kvproof.load_model("Qwen/Qwen3-8B", offline=True)
    spark = kvproof.budget(model, kvproof.Deployment("vllm@0.28", "GB10", max_num_seqs=16))
    card = kvproof.budget(model, kvproof.Deployment("vllm@0.28", "H100", max_num_seqs=16))
    held = {term.name: term.value / GIB for term in spark.terms}["pages of the host"]
    assert 3 < held < 6
    assert spark.kv_bytes - spark.interval[0] > 3 * GIB
    assert "pages of the host" not in {term.name for term in card.terms}


@pytest.mark.parametrize(
    ("gpu", "sequences", "batch"),
    [("GB10", 256, 2048), ("Strix-Halo", 256, 2048), ("GH200", 1024, 8192), ("MI300A", 1024, 8192)],
)
def test_memory_that_no_library_reports_has_small_defaults(
    gpu: str, sequences: int, batch: int
) -> None:
    """Public logs of GB10 (0.20 to 0.27.1) and Strix Halo, where nothing is asked for."""
    model = kvproof.load_model("Qwen/Qwen3-8B", offline=True)
    found = settle(model, kvproof.Deployment("vllm@0.27.1", gpu))
    assert (found.max_num_seqs, found.max_num_batched_tokens) == (sequences, batch)


@pytest.mark.parametrize(
    ("name", "release", "gpu", "printed"),
    [("Qwen/Qwen3.8-27B", "0.27.1", "GB10", 1.56), ("Qwen/Qwen3.6-35B-A3B", "0.21.0", "GB10", 0.93),
     ("Qwen/Qwen3.5-9B", "0.21.0", "L40S", 0.78), ("Qwen/Qwen3-8B", "0.21.0", "A5000", 0.52)],
)  # fmt: skip
def test_graphs_of_whole_steps_hold_the_layers_of_states(
    name: str, release: str, gpu: str, printed: float
) -> None:
    """Estimates that public starts print for 51 and 35 graphs, GiB; GDN's kernel of 0.28 is one."""
    model = kvproof.load_model(name, offline=True)
    given = {"max_num_seqs": 256, "max_num_batched_tokens": 2048, "max_model_len": 8192}
    part = graph_part(model, settle(model, kvproof.Deployment(f"vllm@{release}", gpu, **given)))
    later = graph_part(model, settle(model, kvproof.Deployment("vllm@0.28", gpu, **given)))
    assert part is not None
    assert later is not None
    assert part.value / GIB == pytest.approx(printed, abs=0.27)
    assert later.value / GIB < 0.75
