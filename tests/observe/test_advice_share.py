"""Advice names the share that SGLang chose by card and flags, not a usual one."""

from __future__ import annotations

import kvproof

LINES = (
    "[2026-09-01 10:00:00] Load weight begin. avail mem=78.30 GB\n"
    "[2026-09-01 10:00:09] Load weight end. type=Qwen3ForCausalLM, avail mem=62.90 GB, "
    "mem usage=15.40 GB.\n"
    "[2026-09-01 10:00:10] KV Cache is allocated. #tokens: 350000, K size: 24.03 GB, V size: "
    "24.03 GB\n"
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total "
    "capacity of 79.19 GiB of which 10.00 GiB is free.\n"
)


def test_the_share_is_the_releases_default() -> None:
    deployment = kvproof.Deployment("sglang", "H100-80GB")
    from kvproof.engine import sglang

    share = sglang.share(kvproof.load_model("Qwen/Qwen3-8B"), deployment)
    report = kvproof.check(LINES, model="Qwen/Qwen3-8B", gpu="H100-80GB")
    assert any(f"(it is {share:g})" in line for line in report.advice), report.advice


def test_a_share_that_nothing_tells_is_not_made_up() -> None:
    report = kvproof.check(LINES)
    assert any(line.startswith("--mem-fraction-static lower by") for line in report.advice)


def test_a_share_that_is_given_is_named() -> None:
    given = "python -m sglang.launch_server --model-path Qwen/Qwen3-8B --mem-fraction-static 0.8\n"
    report = kvproof.check(given + LINES, gpu="H100-80GB")
    assert any("(it is 0.8)" in line for line in report.advice), report.advice
