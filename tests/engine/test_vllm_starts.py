"""What decides a start beside the cache: who starts it, how experts exchange, units of prefixes."""

from __future__ import annotations

from typing import Any

import pytest

import kvproof
from kvproof.engine import vllm
from kvproof.engine.command import read_command, render_command
from kvproof.errors import UsageError

ASIDE = {"enable_expert_parallel": True, "all2all_backend": "deepep_low_latency"}


def planned(name: str, gpu: str, release: str = "vllm@0.32", **flags: Any) -> vllm.VllmCapacity:
    model = kvproof.load_model(name, offline=True)
    deployment = kvproof.Deployment(release, gpu, max_model_len=4096, **flags)
    return vllm.capacity(model, deployment, 20 * 10**9)


@pytest.mark.parametrize(
    ("gpu", "context", "tokens"),
    [
        ("H100-80GB", "api_server", 8192), ("H100-80GB", "llm_class", 16384),
        ("H100-80GB", "engine_context", 2048), ("L40S", "llm_class", 8192),
        ("B200", "engine_context", 2048),
    ],
)  # fmt: skip
def test_batches_by_who_starts_the_engine(gpu: str, context: str, tokens: int) -> None:
    """The real planner's answers (scripts/oracle_vllm.py asks them)."""
    assert planned("Qwen/Qwen3-8B", gpu, usage_context=context).max_num_batched_tokens == tokens


@pytest.mark.parametrize(
    ("release", "flags", "tokens"),
    [
        ("vllm@0.32", {"data_parallel_size": 4, **ASIDE}, 256),
        ("vllm@0.32", {"data_parallel_size": 4, **ASIDE, "all2all_backend": "nixl_ep"}, 256),
        ("vllm@0.32", {**ASIDE}, 8192),
        ("vllm@0.32", {"data_parallel_size": 4, **ASIDE, "enable_expert_parallel": False}, 8192),
        ("vllm@0.32", {"data_parallel_size": 4, **ASIDE, "max_num_batched_tokens": 512}, 512),
        ("vllm@0.19", {"data_parallel_size": 4, **ASIDE}, 8192),
    ],
)
def test_experts_in_batches_of_one_size(release: str, flags: dict[str, Any], tokens: int) -> None:
    """Low-latency exchanges take 256 tokens of each replica (config/scheduler.py)."""
    found = planned("Qwen/Qwen3-30B-A3B", "4xH100-80GB", release, **flags)
    assert found.max_num_batched_tokens == tokens


@pytest.mark.parametrize(
    ("name", "unit", "flags", "refused"),
    [
        ("Qwen/Qwen3-8B", 16, {}, None),
        ("Qwen/Qwen3-8B", 8, {}, "not the block of 16 tokens"),
        ("Qwen/Qwen3-8B", 8, {"enable_prefix_caching": False}, None),
        ("google/gemma-3-27b-it", 8, {}, None),
        ("google/gemma-3-27b-it", 24, {}, "does not divide the blocks of 16"),
        ("google/gemma-3-27b-it", 0, {}, "prefix_match_unit is 0"),
    ],
)
def test_the_unit_of_prefixes_suits_every_block(
    name: str, unit: int, flags: dict[str, Any], refused: str | None
) -> None:
    """As the planner refuses it: 72 cases asked, all equal."""
    if refused is None:
        assert planned(name, "H100-80GB", prefix_match_unit=unit, **flags).fits
        return
    with pytest.raises(UsageError, match=refused):
        planned(name, "H100-80GB", prefix_match_unit=unit, **flags)


@pytest.mark.parametrize("release", ["0.8.4", "0.9.2", "0.10.0", None])
def test_limits_as_pairs_until_the_release_that_takes_none(release: str | None) -> None:
    text = "vllm serve Qwen/Qwen2.5-VL-7B-Instruct --limit-mm-per-prompt image=0"
    engine = "vllm" if release is None else f"vllm@{release}"
    if release in (None, "0.10.0"):
        with pytest.raises(UsageError, match=r"to 0\.9 only") as caught:
            read_command(text, "H100-80GB", engine=engine)
        assert "JSON" in str(caught.value)
        return
    read = read_command(text, "H100-80GB", engine=engine)
    printed = render_command(str(read.model), read.deployment)
    assert printed == text if release == "0.8.4" else printed.endswith("""'{"image":0}'""")
