"""vLLM's capacity against its own planner's answers, and the rules that changed by release."""

from __future__ import annotations

import json
import shlex
import warnings
from typing import Any

import pytest
from tests.conftest import GROUND_TRUTH
from tests.engine.vllm_truth import capacity_of, check, name_of

import kvproof
from kvproof.engine import vllm
from kvproof.engine.command import render_command
from kvproof.engine.vllm.versions import CHANGES, parse_version, rules_at, rules_for
from kvproof.errors import KvproofError, UsageError

TRUTH = json.loads((GROUND_TRUTH / "vllm_cases.json").read_text())


OWN = ("ValidationError", "AssertionError", "ZeroDivisionError", "NotImplementedError")
"""Refusals of vLLM's own; other errors come from what the pretended GPU lacks."""
ANSWERED = [case for case in TRUTH["cases"] if "refused" not in case["answer"]]


@pytest.mark.parametrize("case", ANSWERED, ids=name_of)
def test_every_figure_equals_the_planner(case: dict[str, Any]) -> None:
    own = capacity_of(TRUTH["configs"], case)
    check(own, case["answer"])
    if "error" not in case["answer"]:
        assert own.attention_backend in case["answer"]["backends"]


@pytest.mark.parametrize(
    "case",
    [c for c in TRUTH["cases"] if c["answer"].get("refused", "").startswith(OWN)],
    ids=name_of,
)
def test_what_vllm_refuses_is_refused(case: dict[str, Any]) -> None:
    with pytest.raises(KvproofError):
        capacity_of(TRUTH["configs"], case)


def llama(**flags: Any) -> vllm.VllmCapacity:
    model = kvproof.load_model("meta-llama/Llama-3.1-8B")
    return vllm.capacity(model, kvproof.Deployment(gpu="H100-80GB", **flags), 20_000_000_000)


def test_llama_by_hand() -> None:
    # 32 layers x 2 x 8 heads x 128 x 2 B x 16 tokens = 2 MiB a block
    found = llama(max_model_len=8192)
    assert found.bytes_per_block == 2 * 2**20
    assert found.num_blocks == 20_000_000_000 // (2 * 2**20)
    assert found.tokens == found.num_blocks * 16
    assert found.usable_blocks == found.num_blocks - 1
    assert found.sequences(8192) == (found.num_blocks - 1) // 512


def test_more_ranks_than_heads_are_copies() -> None:
    model = kvproof.load_model("meta-llama/Llama-3.1-70B")
    eight, sixteen = (
        vllm.capacity(
            model,
            kvproof.Deployment(gpu="H100-80GB", tensor_parallel_size=ranks, max_model_len=8192),
            10**10,
        )
        for ranks in (8, 16)
    )
    assert eight.bytes_per_block == sixteen.bytes_per_block


def test_auto_fit_finds_the_longest_that_fits() -> None:
    found = llama(max_model_len=-1, kv_cache_dtype="auto")
    assert found.fits
    again = llama(max_model_len=found.max_model_len)
    assert again.fits
    if found.max_model_len < 131072:
        assert not llama(max_model_len=found.max_model_len + 16).fits


def test_a_request_that_does_not_fit_tells_the_longest_that_does() -> None:
    model = kvproof.load_model("meta-llama/Llama-3.1-8B")
    deployment = kvproof.Deployment(gpu="H100-80GB", max_model_len=131072)
    found = vllm.capacity(model, deployment, 2_000_000_000)
    assert not found.fits
    assert found.error is not None
    assert "15232" in found.error
    assert found.estimated_max_model_len == 15232


def test_nothing_for_the_cache() -> None:
    found = vllm.capacity(
        kvproof.load_model("Qwen/Qwen3-8B"), kvproof.Deployment(gpu="H100-80GB"), 0
    )
    assert not found.fits
    assert found.num_blocks == 0
    assert "No available memory" in (found.error or "")


def test_blocks_that_an_indexer_picks_are_pages() -> None:
    model = kvproof.load_model("MiniMaxAI/MiniMax-M3")
    deployment = kvproof.Deployment("vllm@0.32", "H100-80GB", tensor_parallel_size=8)
    assert vllm.capacity(model, deployment, 60 * 2**30).block_size == 128


def test_unknown_flags_offer_near_ones() -> None:
    with pytest.raises(UsageError, match="tensor_parallel_size"):
        kvproof.Deployment(gpu="H100-80GB", tensor_paralel_size=2)


@pytest.mark.parametrize(
    "flags",
    [
        {"max_model_len": "abc"},
        {"gpu_memory_utilization": 1.5},
        {"tensor_parallel_size": 0},
        {"kv_cache_dtype": "fp7"},
        {"enable_prefix_caching": "maybe"},
        {"usage_context": "batch"},
        {"tensor_parallel_size": 4, "decode_context_parallel_size": 3},
        {"speculative_config": "{not json"},
    ],
    ids=str,
)
def test_bad_values_are_named(flags: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        kvproof.Deployment(gpu="H100-80GB", **flags)


@pytest.mark.parametrize(
    ("text", "value"), [("32k", 32_000), ("32K", 32_768), ("25.6k", 25_600), ("8192", 8192)]
)
def test_lengths_are_read_as_vllm_reads_them(text: str, value: int) -> None:
    assert llama(max_model_len=text).max_model_len == value


def test_versions_map_to_the_rules_of_their_release() -> None:
    assert parse_version("0.11.2+rhai1") == (0, 11, 2)
    assert parse_version("0.18.1.dev8") == (0, 18, 1)
    assert rules_for("0.20.0").token_line == "blocks"
    assert rules_for("0.20.2").token_line == "concurrency"
    assert not rules_for("0.25.1").in_flight
    assert rules_for("0.26.0").in_flight
    assert rules_for("0.8.5").v1
    assert not rules_for("0.6.4").v1
    assert rules_for("0.19").utilization == 0.9
    assert rules_for("0.20").utilization == 0.92


def test_changes_are_in_order_and_name_their_source() -> None:
    assert [c.since for c in CHANGES] == sorted(c.since for c in CHANGES)
    for change in CHANGES:
        assert change.source
        rules_at(change.since)


def test_a_newer_release_uses_the_newest_rules_and_says_so() -> None:
    with pytest.warns(UserWarning, match="newer than the newest"):
        rules = rules_for("9.1")
    assert rules.token_line == "concurrency"


def test_cache_of_a_sequence() -> None:
    model = kvproof.load_model("meta-llama/Llama-3.1-8B")
    found = kvproof.cache(model, tokens=70, engine="vllm")
    assert found.bytes == 70 * 131_072
    assert found.allocated_bytes == 5 * 2 * 2**20
    assert sum(found.layers) == sum(found.slots) == found.bytes


def test_sliding_layers_keep_a_window() -> None:
    model = kvproof.load_model("google/gemma-3-27b-it")
    found = vllm.capacity(model, kvproof.Deployment(gpu="H200", max_model_len=65536), 40 * 10**9)
    full = next(g for g in found.groups if g.kind == "full")
    sliding = [g for g in found.groups if g.kind == "sliding"]
    assert found.blocks_held(65536) < full.blocks_per_sequence + len(sliding) * 70
    assert found.sequences(65536) >= int(found.max_concurrency)


def test_the_derivation_is_in_the_terms() -> None:
    names = [term.name for term in llama().terms]
    assert names == ["bytes per block", "blocks", "blocks of a request", "concurrency", "tokens"]


def test_no_warning_for_known_releases() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rules_for("0.32.1")


def test_falcon_keeps_its_own_cache_type() -> None:
    """Asked of the planner of 0.32: falcon-7b on B200 with fp8 keeps pages of 4,096 B."""
    model = kvproof.load_model("tiiuae/falcon-7b-instruct")
    pages = [
        kvproof.capacity(
            model,
            kvproof.Deployment("vllm@0.32", gpu="B200", max_model_len=1024, kv_cache_dtype=kind),
            kv_bytes=5 * 10**9,
        ).bytes_per_block
        for kind in ("auto", "fp8_e4m3", "nvfp4")
    ]
    assert pages == [131_072] * 3


def test_a_command_has_the_flags_of_its_release() -> None:
    flags: dict[str, Any] = {"swap_space": 4, "max_model_len": 4096, "task": "generate"}
    for engine, kept in (("vllm@0.17.1", True), ("vllm@0.18.0", False), ("vllm", False)):
        line = render_command("org/m", kvproof.Deployment(engine, "H100-80GB", **flags))
        assert ("--swap-space 4" in line) is kept
        assert "--max-model-len 4096" in line
    assert "--task generate" in render_command(
        "org/m", kvproof.Deployment("vllm@0.10.0", "H100-80GB", **flags)
    )
    assert "--task" not in line


def test_a_rope_scaling_becomes_an_override_where_it_has_no_flag() -> None:
    flags = {
        "rope_scaling": {"rope_type": "yarn", "factor": 2.0},
        "hf_overrides": {"rope_theta": 5.0},
    }
    old, new = (
        render_command("org/m", kvproof.Deployment(engine, "H100-80GB", **flags))
        for engine in ("vllm@0.10.2", "vllm@0.32")
    )
    assert "--rope-scaling" in old
    assert "--rope-scaling" not in new
    both = {**flags["hf_overrides"], "rope_scaling": flags["rope_scaling"]}
    assert shlex.split(new)[-2:] == ["--hf-overrides", json.dumps(both, separators=(",", ":"))]


@pytest.mark.parametrize("length", ["auto", -1])
def test_releases_before_0_14_fit_no_length_to_memory(length: Any) -> None:
    model = kvproof.load_model("meta-llama/Llama-3.1-8B")
    for engine in ("vllm@0.13.0", "vllm@0.8.5"):
        with pytest.raises(UsageError, match=r"0\.14\.0 is the first"):
            kvproof.Deployment(engine, "H100-80GB", max_model_len=length)
    new = kvproof.Deployment("vllm@0.14.0", "H100-80GB", max_model_len=length)
    assert vllm.capacity(model, new, 4 * 10**9).max_model_len < 131072
