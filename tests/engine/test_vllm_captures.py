"""Graphs, drafts and copies of experts that vLLM's options ask for."""

from __future__ import annotations

from typing import Any

import pytest

import kvproof
from kvproof.engine.command import read_command, render_command
from kvproof.engine.vllm.captures import captures, compiles
from kvproof.errors import UsageError

QWEN, DEEPSEEK = "Qwen/Qwen3-8B", "deepseek-ai/DeepSeek-V3"


def terms(model: str, command: str, gpu: str = "H100-80GB") -> dict[str, float]:
    read = read_command(f"vllm serve {model} {command}", gpu)
    budget = kvproof.budget(kvproof.load_model(model), read.deployment)
    return {term.name: float(term.value) for term in budget.terms}


@pytest.mark.parametrize(
    "command",
    ["--enforce-eager", "-O0", "-O.cudagraph_mode=NONE", "-cc.cudagraph_mode NONE",
     "--compilation-config '{\"cudagraph_mode\": \"none\"}'", "-O '{\"level\": 0}'"],
)  # fmt: skip
def test_no_graphs_are_charged_where_none_are_captured(command: str) -> None:
    assert "CUDA graphs" in terms(QWEN, "")
    assert "CUDA graphs" not in terms(QWEN, command)


@pytest.mark.parametrize(
    ("command", "count"),
    [
        ("", 51 + 51),  # 1, 2, 4, 8 .. 248, 256 .. 512: pieces, and whole steps of 1,024 sequences
        ("--max-num-seqs 16", 7 + 5),
        ("--cudagraph-capture-sizes 1 2 4", 3 + 3),
        ("--cudagraph-capture-sizes 1 2 4 64 --max-num-seqs 4", 4 + 3),
        ("--max-cudagraph-capture-size 8", 4 + 4),
        ("-cc.cudagraph_mode=PIECEWISE --max-num-seqs 16", 7),
        ("-cc.cudagraph_mode=FULL_DECODE_ONLY --max-num-seqs 16", 5),
        ("-O1 --max-num-seqs 16", 7),
    ],
)
def test_graphs_are_those_of_the_batches_that_are_named(command: str, count: int) -> None:
    """Sizes as vLLM 0.20.2 sets them (config/vllm.py, _set_cudagraph_sizes)."""
    one = terms(QWEN, "--cudagraph-capture-sizes 1 -cc.cudagraph_mode=PIECEWISE")["CUDA graphs"]
    two = terms(QWEN, "--cudagraph-capture-sizes 1 2 -cc.cudagraph_mode=PIECEWISE")["CUDA graphs"]
    found = terms(QWEN, command)["CUDA graphs"]
    assert (found - one) / (two - one) + 1 == pytest.approx(count, abs=0.01)


@pytest.mark.parametrize(
    ("flags", "compiled", "captured"),
    [
        ({}, True, True),
        ({"optimization_level": "3"}, True, True),
        ({"optimization_level": "O0"}, False, False),
        ({"compilation_config": {"cudagraph_mode": "CUDAGraphMode.NONE"}}, True, False),
        ({"compilation_config": {"level": 2}}, True, False),
        ({"compilation_config": {"cudagraph_mode": "anything"}}, True, True),
    ],
)
def test_levels_and_modes(flags: dict[str, Any], compiled: bool, captured: bool) -> None:
    assert (compiles(flags), captures(flags)) == (compiled, captured)


@pytest.mark.parametrize("sizes", ["1 a", "0 1"])
def test_batches_that_are_none_are_refused(sizes: str) -> None:
    with pytest.raises(UsageError, match="a captured batch is"):
        terms(QWEN, f"--cudagraph-capture-sizes {sizes}")


def test_the_level_is_printed_as_every_release_takes_it() -> None:
    read = read_command("vllm serve a/b -O3", engine="vllm@0.11.0")
    assert render_command("a/b", read.deployment) == "vllm serve a/b -O3"
    again = read_command(render_command("a/b", read.deployment), engine="vllm@0.11.0")
    assert again.deployment.flags == read.deployment.flags


def test_the_option_that_vllms_log_recommends_sets_the_cache() -> None:
    assert terms(QWEN, "--kv-cache-memory=20000000000")["KV cache"] == 20_000_000_000


def test_short_options_of_a_draft_are_the_long_ones() -> None:
    short = "--spec-model Qwen/Qwen3-0.6B --spec-tokens 3"
    long = """--speculative-config '{"model": "Qwen/Qwen3-0.6B", "num_speculative_tokens": 3}'"""
    assert terms("Qwen/Qwen3-32B", short, "H200") == terms("Qwen/Qwen3-32B", long, "H200")
    assert terms("Qwen/Qwen3-32B", short, "H200") != terms("Qwen/Qwen3-32B", "", "H200")
    with pytest.raises(UsageError, match="no MTP modules"):
        terms("Qwen/Qwen3-32B", "--spec-method mtp --spec-tokens 1", "H200")
    with pytest.raises(UsageError, match="both name model"):
        terms("Qwen/Qwen3-32B", f"{short} {long}", "H200")


@pytest.mark.parametrize(
    "copies",
    ["--num-redundant-experts 32", "--eplb-config.num_redundant_experts 32"],
)
def test_copies_of_experts_are_held_too(copies: str) -> None:
    """DeepSeek-V3: 58 layers, an expert of 3 x 7,168 x 2,048 in FP8 with f32 scales of 128x128."""
    spread = "-tp 8 --enable-expert-parallel"
    plain = terms(DEEPSEEK, spread, "8xH200")["weights"]
    more = terms(DEEPSEEK, f"{spread} --enable-eplb {copies}", "8xH200")["weights"]
    expert = 3 * 7168 * 2048 * (1 + 4 / 128**2)
    assert more - plain == pytest.approx(32 * 58 / 8 * expert, rel=1e-3)
    assert terms(DEEPSEEK, f"{spread} {copies}", "8xH200")["weights"] == plain
