"""Memory that others use, MIG slices, memory shared with the CPU, ranks on different GPUs."""

from __future__ import annotations

from typing import Any

import pytest

import kvproof
from kvproof.surfaces.cli import main

GIB = 2**30
MODEL = "meta-llama/Meta-Llama-3.1-8B"
ENGINES = ("vllm", "vllm@0.9.0", "sglang", "tensorrt_llm", "formula")


def ask(engine: str, gpu: str, **flags: Any) -> Any:
    return kvproof.budget(kvproof.load_model(MODEL), kvproof.Deployment(engine, gpu, **flags))


@pytest.mark.parametrize("engine", ENGINES)
def test_others_are_a_term_and_terms_add_up(engine: str) -> None:
    found = ask(engine, "H100-80GB", used="20GiB")
    assert {t.name: t.value for t in found.terms}["other processes"] == 20 * GIB
    assert sum(t.value for t in found.terms) == sum(t.value for t in ask(engine, "H100-80GB").terms)
    assert found.kv_bytes < ask(engine, "H100-80GB").kv_bytes


def test_llamacpp_fits_around_others() -> None:
    model = kvproof.load_model(MODEL)
    alone, beside = (
        kvproof.capacity(model, kvproof.Deployment("llamacpp", "RTX-4090", used=u), 1 << 50)
        for u in (0, "6GiB")
    )
    names = [t.name for t in ask("llamacpp", "RTX-4090", used="6GiB").terms]
    assert "other processes" in names
    assert ask("llamacpp", "RTX-4090", used="6GiB").kv_bytes < ask("llamacpp", "RTX-4090").kv_bytes
    assert beside.tokens <= alone.tokens


@pytest.mark.parametrize("engine", [*ENGINES, "llamacpp"])
@pytest.mark.parametrize("gpu", ["A100-80GB:3g.40gb", "GB10-128GB", "Ryzen AI Max+ 395"])
def test_slices_and_shared_memory_have_plans(engine: str, gpu: str) -> None:
    if engine == "tensorrt_llm" and gpu.startswith("Ryzen"):
        with pytest.raises(kvproof.KvproofError, match="no rules for AMD's"):
            kvproof.Deployment(engine, gpu)
        return
    deployment = kvproof.Deployment(engine, gpu)
    plan = kvproof.plan(kvproof.load_model(MODEL), deployment, [4096])
    assert plan.fits
    assert deployment.accelerator is not None
    told = any("shares its memory" in line for line in plan.warnings)
    assert told == deployment.accelerator.unified_memory


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt_llm", "formula"])
@pytest.mark.parametrize("gpu", ["H100-80GB+L40S", "L40S,H100-80GB"])
def test_the_rank_that_leaves_least_decides(engine: str, gpu: str) -> None:
    deployment = kvproof.Deployment(engine, gpu, tensor_parallel_size=2)
    assert deployment.gpu_count == 2
    assert kvproof.Deployment(engine, deployment.gpu, **deployment.flags).gpu == deployment.gpu
    plan = kvproof.plan(kvproof.load_model(MODEL), deployment, [4096])
    assert plan.budget.kv_bytes < ask(engine, "H100-80GB", tensor_parallel_size=2).kv_bytes
    assert any("L40S-48GB decide for all" in term.formula for term in plan.budget.terms)
    assert plan.budget == kvproof.budget(kvproof.load_model(MODEL), deployment)


def test_llamacpp_deals_layers_by_free_memory() -> None:
    found = {t.name: t.value for t in ask("llamacpp", "H100-80GB+L40S").terms}
    assert 1.4 < found["weights, GPU 0"] / found["weights, GPU 1"] < 2.2


def test_a_refused_start_has_status_1() -> None:
    words = ["plan", MODEL, "--gpu", "H100-80GB", "--used", "20GiB", "--json", "--fresh"]
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 1
