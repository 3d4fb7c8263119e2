"""Corners as vLLM 0.32's planner saw them: heads of 256, windows of 0, modules, drafts.

`python scripts/oracle_vllm.py --corner KIND --save FILE` asks for new ones.
"""

from __future__ import annotations

from tests.engine.vllm_truth import answered, truth

import kvproof
from kvproof.engine import vllm

TRUTH = truth("vllm_corners")
ANSWERED = answered("vllm_corners")


def test_the_cases_touch_the_corners() -> None:
    flags = [case["flags"] for case in ANSWERED]
    assert sum("speculative_config" in asked for asked in flags) >= 10
    assert sum(asked.get("attention_backend") == "FLASH_ATTN" for asked in flags) >= 8
    windows = [config.get("sliding_window") for config in TRUTH["configs"].values()]
    assert windows.count(0) >= 5


def test_releases_before_the_one_read_keep_their_blocks() -> None:
    """FlashAttention 4's pages are known of 0.32 only."""
    model = kvproof.load_model("google/gemma-3-27b-it").config
    text = {**model["text_config"], "head_dim": 256} if "text_config" in model else model
    flags = {"attention_backend": "FLASH_ATTN", "max_model_len": 8192}
    sizes = [
        vllm.capacity(
            kvproof.load_model({**model, "text_config": text}),
            kvproof.Deployment(f"vllm@{release}", "B200", language_model_only=True, **flags),
            20_000_000_000,
        ).block_size
        for release in ("0.31", "0.32")
    ]
    assert sizes == [16, 128]
