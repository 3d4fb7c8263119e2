from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import kvproof
from kvproof.engine import tensorrt_llm
from kvproof.engine.base import CacheRequest, Deployment
from kvproof.errors import UsageError
from kvproof.model.types import Model

GIB = 2**30


@pytest.fixture(scope="module")
def llama() -> Model:
    return kvproof.load_model("meta-llama/Meta-Llama-3.1-8B", offline=True)


def published(data_dir: Path, name: str) -> Model:
    path = data_dir / "configs" / (name.replace("/", "--") + ".json")
    return kvproof.load_model(json.loads(path.read_text()))


# (log point, config, release, flags, printed GiB, printed tokens)
POINTS: tuple[tuple[str, str, str, dict[str, Any], float, int], ...] = (
    ("log154", "Qwen/Qwen3-8B", "1.2", {"kv_cache_dtype": "fp8"}, 2.33, 33984),
    ("log341", "EleutherAI/gpt-j-6b", "0.12.0.dev2024073000",
     {"kv_cache_dtype": "fp8", "tokens_per_block": 64}, 62.99, 294848),
    ("log343", "meta-llama/Meta-Llama-3.1-8B", "0.19.0",
     {"kv_cache_dtype": "fp8", "tokens_per_block": 32}, 16.05, 263008),
    ("log345", "Qwen/Qwen2.5-0.5B", "1.2", {}, 2.18, 190656),
    ("log348", "Qwen/Qwen3-8B", "1.2", {"kv_cache_dtype": "fp8"}, 3.17, 46208),
    ("log358", "Qwen/Qwen2.5-0.5B", "0.14", {}, 4.53, 395776),
)  # fmt: skip


@pytest.mark.parametrize("point", POINTS, ids=[p[0] for p in POINTS])
def test_tokens_lie_within_the_rounding_of_the_printed_pool(
    point: tuple[Any, ...], data_dir: Path
) -> None:
    _, name, version, flags, printed, tokens = point
    model, deployment = published(data_dir, name), Deployment(f"tensorrt_llm@{version}", **flags)
    low, high = (
        kvproof.capacity(model, deployment, int((printed + side) * GIB)) for side in (-0.005, 0.005)
    )
    assert low.tokens - low.block_size <= tokens <= high.tokens + high.block_size


@pytest.mark.parametrize(
    ("free", "share", "block", "printed", "blocks", "name", "dtype"),
    [
        (63.62, 0.99, 64, 62.99, 4607, "EleutherAI/gpt-j-6b", "fp8"),
        (17.83, 0.9, 32, 16.05, 8219, "meta-llama/Meta-Llama-3.1-8B", "fp8"),
        (21.89, 0.9, 64, 19.72, 631, "meta-llama/Llama-2-7b-hf", "auto"),
    ],
)
def test_the_pool_is_a_share_of_the_free_memory_in_whole_blocks(
    free: float, share: float, block: int, printed: float, blocks: int, name: str, dtype: str,
    data_dir: Path,
) -> None:  # fmt: skip
    deployment = Deployment(
        "tensorrt_llm@0.12", "H100-80GB", free_gpu_memory_fraction=share, tokens_per_block=block,
        kv_cache_dtype=dtype, free_memory=int(free * GIB),
    )  # fmt: skip
    model = published(data_dir, name)
    budget = kvproof.budget(model, deployment)
    assert budget.kv_bytes / GIB == pytest.approx(printed, abs=0.011)
    assert kvproof.capacity(model, deployment, budget.kv_bytes).num_blocks == pytest.approx(
        blocks, abs=3
    )


def test_blocks_of_each_release(llama: Model) -> None:
    sizes = {
        version: kvproof.capacity(llama, Deployment(f"tensorrt_llm@{version}"), GIB).block_size
        for version in ("0.12", "0.18", "0.19", "1.2")
    }
    assert sizes == {"0.12": 64, "0.18": 64, "0.19": 32, "1.2": 32}


def test_heads_are_rounded_up(llama: Model) -> None:
    def cell(ranks: int) -> int:
        return kvproof.capacity(llama, Deployment("tensorrt_llm", tp_size=ranks), GIB
                                ).bytes_per_block // 32  # fmt: skip

    assert [cell(n) for n in (1, 2, 8, 16)] == [131_072, 65_536, 16_384, 16_384]


def test_latents_are_one_vector(data_dir: Path) -> None:
    model = published(data_dir, "deepseek-ai/DeepSeek-V3")
    answer = kvproof.capacity(model, Deployment("tensorrt_llm", tp_size=8), GIB)
    assert answer.bytes_per_block == 61 * 576 * 2 * 32
    assert answer.groups[0].kind == "latent"


def test_limits_only_lower_the_pool(llama: Model) -> None:
    def pool(**flags: Any) -> int:
        deployment = Deployment("tensorrt_llm", "H100-80GB", **flags)
        return kvproof.budget(llama, deployment).kv_bytes

    assert pool(max_tokens=10_000) == 313 * 32 * 131_072
    assert pool(max_gpu_total_bytes="1GiB") <= GIB + 32 * 131_072
    assert pool(max_tokens=10**9) == pool()


def test_windows_bound_what_a_sequence_holds(llama: Model) -> None:
    windowed = Deployment("tensorrt_llm", max_attention_window=[4096], max_seq_len=131072)
    answer = kvproof.capacity(llama, windowed, 8 * GIB)
    assert answer.blocks_held(100_000) == answer.blocks_held(4096) == 128


@pytest.mark.parametrize("gpu", ["RTX-4090", "A100-40GB", "H100-80GB", "H200-141GB"])
@pytest.mark.parametrize("version", ["0.12", "1.2"])
def test_terms_add_up_to_the_gpu(llama: Model, gpu: str, version: str) -> None:
    deployment = Deployment(f"tensorrt_llm@{version}", gpu)
    budget = kvproof.budget(llama, deployment)
    assert deployment.accelerator is not None
    assert sum(term.value for term in budget.terms) == deployment.accelerator.memory_bytes
    assert budget.interval[0] <= budget.kv_bytes <= budget.interval[1]


def test_the_nested_configuration_is_understood(llama: Model) -> None:
    nested = {"free_gpu_memory_fraction": 0.5, "tokens_per_block": 64}
    a = Deployment("tensorrt_llm", "H100-80GB", kv_cache_config=nested)
    b = Deployment("trtllm", "H100-80GB", **nested)
    assert kvproof.budget(llama, a).kv_bytes == kvproof.budget(llama, b).kv_bytes


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"tokens_per_block": 48}, "power of two"),
        ({"free_gpu_memory_fraction": 2}, "share from 0 to 1"),
        ({"tp_sice": 2}, "tp_size"),
        ({"max_tokens": "many"}, "no number"),
        ({"max_batch_size": 0}, "1 or more"),
    ],
)
def test_bad_flags_are_one_clear_line(flags: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Deployment("tensorrt_llm", **flags)


def test_sequences_without_a_deployment(llama: Model) -> None:
    answer = tensorrt_llm.cache(llama, CacheRequest(lengths=(70,), dtype="bf16"))
    assert answer.bytes == 70 * 131_072 == sum(answer.slots)
    assert answer.allocated_bytes == 96 * 131_072
