from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import kvproof
from kvproof.engine import sglang
from kvproof.engine.base import CacheRequest, Deployment
from kvproof.engine.sglang.flags import read_flags
from kvproof.engine.sglang.memory import default_fraction
from kvproof.errors import UsageError
from kvproof.model.types import Model

GIB = 2**30


def load(name: str) -> Model:
    return kvproof.load_model(name, offline=True)


@pytest.fixture(scope="module")
def qwen() -> Model:
    return load("Qwen/Qwen3-8B")


def published(data_dir: Path, name: str) -> Model:
    path = data_dir / "configs" / (name.replace("/", "--") + ".json")
    return kvproof.load_model(json.loads(path.read_text()))


# (log point, config, release, GPU, flags, printed GiB, half its rounding, printed tokens)
POINTS: tuple[tuple[str, str, str, str | None, dict[str, Any], float, float, int], ...] = (
    ("log128", "moonshotai/Kimi-K2.5", "0.5.8", "MI355X", {"tp_size": 8}, 160.63, 0.005, 2454421),
    ("log137", "Qwen/Qwen3.8-27B", "0.5.13", "GB10",
     {"disable_radix_cache": True, "max_running_requests": 32}, 32.66, 0.01, 535124),
    ("log139", "Qwen/Qwen3.5-27B", "0.5.12", None, {"tp_size": 4}, 16.0, 0.01, 1048576),
    ("log144", "Qwen/Qwen3-8B", "0.5.12", None, {"kv_cache_dtype": "bf16"}, 9.9999, 5e-5, 72816),
    ("log147", "deepseek-ai/DeepSeek-V3.2", "0.5.12", "B300",
     {"tp_size": 8, "kv_cache_dtype": "fp8"}, 186.5, 0.005, 4636736),
    ("log322", "zai-org/GLM-5-FP8", "0.5.9", "MI355X",
     {"tp_size": 8, "kv_cache_dtype": "fp8_e4m3"}, 186.77, 0.005, 3262823),
    ("log327", "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4", "0.5.21", "GB10",
     {"tp_size": 4, "kv_cache_dtype": "fp8_e4m3"}, 28.1, 0.01, 19644177),
    ("log336", "deepseek-ai/DeepSeek-V3", "0.4.6", None, {"tp_size": 8}, 17.99, 0.005, 274934),
    ("log356", "Qwen/Qwen3-30B-A3B", "0.5.16", "MI355X", {}, 203.9, 0.01, 2227073),
)  # fmt: skip


@pytest.mark.parametrize("point", POINTS, ids=[p[0] for p in POINTS])
def test_tokens_lie_within_the_rounding_of_the_printed_pool(
    point: tuple[Any, ...], data_dir: Path
) -> None:
    _, name, version, gpu, flags, printed, half, tokens = point
    deployment = Deployment(f"sglang@{version}", gpu, **flags)
    model = published(data_dir, name)
    low, high = (
        kvproof.capacity(model, deployment, int((printed + side) * GIB)) for side in (-half, half)
    )
    assert low.tokens - low.block_size <= tokens <= high.tokens + high.block_size


def test_heads_are_split_while_they_last(qwen: Model) -> None:
    sizes = [
        kvproof.capacity(qwen, Deployment("sglang", tp_size=n), 8 * GIB).bytes_per_block
        for n in (1, 2, 4, 8, 16)
    ]
    assert sizes == [147_456, 73_728, 36_864, 18_432, 18_432]


def test_latents_are_copied_to_every_rank(data_dir: Path) -> None:
    model = published(data_dir, "deepseek-ai/DeepSeek-V3")
    one, eight = (Deployment("sglang", tp_size=n) for n in (1, 8))
    sizes = {kvproof.capacity(model, d, 8 * GIB).bytes_per_block for d in (one, eight)}
    assert sizes == {61 * 576 * 2}
    split = Deployment("sglang", tp_size=8, dp_size=8, enable_dp_attention=True)
    assert kvproof.capacity(model, split, 8 * GIB).bytes_per_block == 61 * 576 * 2


def test_sparse_latents_keep_an_indexer_and_scaled_rows(data_dir: Path) -> None:
    model = published(data_dir, "deepseek-ai/DeepSeek-V3.2")
    hopper = Deployment("sglang@0.5.12", "8xH100-80GB", tp_size=8, kv_cache_dtype="fp8_e4m3")
    blackwell = Deployment("sglang@0.5.12", "8xB200", tp_size=8)
    cell = kvproof.capacity(model, hopper, GIB).bytes_per_block // 64
    assert cell == 61 * (656 + 132)
    assert kvproof.capacity(model, blackwell, GIB).bytes_per_block // 64 == 61 * (576 + 132)


def test_two_pools_for_models_with_windows(data_dir: Path) -> None:
    model = published(data_dir, "openai/gpt-oss-20b")
    plain = Deployment("sglang@0.5.12", "H100-80GB", swa_full_tokens_ratio=0.5)
    answer = kvproof.capacity(model, plain, 8 * GIB)
    assert [g.kind for g in answer.groups] == ["full", "sliding"]
    terms = {term.name: term.value for term in answer.terms}
    assert terms["sliding tokens"] == answer.tokens // 2
    one = kvproof.capacity(model, Deployment("sglang@0.5.12", disable_hybrid_swa_memory=True),
                           8 * GIB)  # fmt: skip
    assert [g.kind for g in one.groups] == ["full"]
    assert one.tokens < answer.tokens
    assert answer.sequences(4096) <= answer.usable_blocks // 4096


def test_states_bound_the_requests(data_dir: Path) -> None:
    model = published(data_dir, "Qwen/Qwen3.5-27B")
    fixed = {"max_mamba_cache_size": 360, "kv_cache_dtype": "fp8_e4m3"}
    new = kvproof.capacity(model, Deployment("sglang@0.5.20", "H100-80GB", **fixed), 7 * GIB)
    old = kvproof.capacity(model, Deployment("sglang@0.5.12", "H100-80GB", **fixed), 7 * GIB)
    assert (new.max_num_seqs, old.max_num_seqs) == (72, 120)
    single = Deployment("sglang@0.5.12", disable_radix_cache=True, max_running_requests=32)
    assert kvproof.capacity(model, single, 7 * GIB).max_num_seqs == 32


def test_states_and_cache_are_solved_together(data_dir: Path) -> None:
    model = published(data_dir, "Qwen/Qwen3.5-27B")
    deployment = Deployment("sglang@0.5.13", "2xH100-80GB", tp_size=2, mamba_full_memory_ratio=0.9)
    budget = kvproof.budget(model, deployment)
    terms = {term.name: term.value for term in budget.terms}
    assert terms["state pool"] / budget.kv_bytes == pytest.approx(0.9, rel=0.02)


@pytest.mark.parametrize("version", ["0.4.6", "0.5.5", "0.5.8", "0.5.12", "0.5.23"])
@pytest.mark.parametrize("gpu", ["RTX-4090", "A100-40GB", "H100-80GB", "H200-141GB", "MI300X"])
def test_terms_add_up_to_the_gpu(qwen: Model, version: str, gpu: str) -> None:
    deployment = Deployment(f"sglang@{version}", gpu)
    budget = kvproof.budget(qwen, deployment)
    assert deployment.accelerator is not None
    assert sum(term.value for term in budget.terms) == deployment.accelerator.memory_bytes
    assert budget.interval[0] <= budget.kv_bytes <= budget.interval[1]


def test_the_static_share_by_release(qwen: Model) -> None:
    shares = {
        version: default_fraction(
            qwen, d := Deployment(f"sglang@{version}", "8xH100-80GB", tp_size=8), read_flags(d),
            80 * GIB)
        for version in ("0.4.6", "0.5.5")
    }  # fmt: skip
    assert shares["0.4.6"] == 0.81
    assert 0.80 < shares["0.5.5"] < 0.88


def test_flags_in_their_other_spellings(qwen: Model) -> None:
    a = Deployment("sglang", tp=4, context_length=8192)
    b = Deployment("sglang", tensor_parallel_size=4, max_model_len=8192)
    one, other = (kvproof.capacity(qwen, d, 4 * GIB) for d in (a, b))
    assert (one.tokens, one.max_model_len) == (other.tokens, other.max_model_len)


def test_a_token_limit_lowers_the_pool(qwen: Model) -> None:
    answer = kvproof.capacity(qwen, Deployment("sglang", max_total_tokens=20480), 40 * GIB)
    assert answer.tokens == 20480
    budget = kvproof.budget(qwen, Deployment("sglang", "H100-80GB", max_total_tokens=20480))
    assert budget.kv_bytes == 20481 * 147_456


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"tp_sise": 2}, "tp_size"),
        ({"mem_fraction_static": 1.5}, "share above 0"),
        ({"mem_fraction_static": "lots"}, "no number"),
        ({"tp_size": 0}, "1 or more"),
        ({"kv_cache_dtype": "fp9"}, "fp8"),
        ({"tp_size": 4, "dp_size": 3, "enable_dp_attention": True}, "does not divide"),
    ],
)
def test_bad_flags_are_one_clear_line(flags: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Deployment("sglang", **flags)


def test_compressed_pools_are_refused(data_dir: Path) -> None:
    model = published(data_dir, "deepseek-ai/DeepSeek-V4-Flash")
    with pytest.raises(UsageError, match="compressed"):
        kvproof.capacity(model, Deployment("sglang"), GIB)


def test_sequences_without_a_deployment(qwen: Model) -> None:
    request = CacheRequest(lengths=(70, 30), dtype="bf16")
    answer = sglang.cache(qwen, request)
    assert answer.bytes == 100 * 147_456 == sum(answer.slots) == sum(answer.layers)
    assert answer.allocated_bytes == answer.bytes


def test_a_request_that_does_not_fit_is_an_answer(qwen: Model) -> None:
    answer = kvproof.capacity(qwen, Deployment("sglang", context_length=40960), GIB)
    assert not answer.fits
    assert "40,960" in (answer.error or "")
