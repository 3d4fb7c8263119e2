"""Towers: what an encoder of pictures costs, loaded, profiled or left out."""

from __future__ import annotations

from typing import Any

import pytest

import kvproof
from kvproof.engine import vllm

_ENCODED = ("encoder weights", "encoder profiling", "buffers of a batch")


def _terms(name: str, release: str, **flags: Any) -> dict[str, float]:
    model = kvproof.load_model(name, offline=True)
    deployment = kvproof.Deployment(f"vllm@{release}", "H200", **flags)
    return {t.name: t.value for t in kvproof.budget(model, deployment).terms}


def _activations(name: str, release: str, gpu: str, **flags: Any) -> int:
    model = kvproof.load_model(name, offline=True)
    deployment = kvproof.Deployment(f"vllm@{release}", gpu, **flags)
    return next(
        int(t.value) for t in vllm.budget(model, deployment).terms if t.name == "activations"
    )


def test_an_image_is_held_while_the_decoder_runs() -> None:
    """Qwen3-VL: 16.8 M pixels in 16 bits for two frames, 16,384 embeddings for four layers."""
    name = "Qwen/Qwen3-VL-30B-A3B-Instruct"
    with_image, without = (
        _activations(name, "0.18", "H200", language_model_only=only) for only in (False, True)
    )
    inputs = 16_777_216 * 3 * 2 * 2
    embeddings = 16_384 * 2048 * 4 * 2
    assert with_image - without == inputs + embeddings


@pytest.mark.parametrize("limits", ['{"image": 0, "video": 0}', "image=0,video=0",
                                    {"image": {"count": 0}, "video": 0}])  # fmt: skip
def test_limits_of_0_leave_the_tower_out(limits: Any) -> None:
    """vLLM 0.32, _mark_tower_model: as --language-model-only, where every limit is 0."""
    name = "Qwen/Qwen3-VL-30B-A3B-Instruct"
    closed = _terms(name, "0.32", limit_mm_per_prompt=limits)
    assert closed == _terms(name, "0.32", language_model_only=True)
    assert not closed.keys() & set(_ENCODED)


def test_a_tower_stays_while_one_of_its_modalities_is_open() -> None:
    name, image = "Qwen/Qwen3-VL-30B-A3B-Instruct", '{"image": 0}'
    assert _terms(name, "0.32", limit_mm_per_prompt=image) == _terms(name, "0.32")
    gemma = _terms("google/gemma-3-27b-it", "0.32", limit_mm_per_prompt=image)
    assert "encoder weights" not in gemma  # takes no videos
    older = _terms("google/gemma-3-27b-it", "0.13", limit_mm_per_prompt=image)
    assert "encoder weights" in older
    assert "encoder profiling" not in older


def test_a_tower_that_is_not_profiled_is_loaded() -> None:
    name = "Qwen/Qwen3-VL-30B-A3B-Instruct"
    quiet, usual = _terms(name, "0.32", skip_mm_profiling=True), _terms(name, "0.32")
    assert "encoder profiling" in usual.keys() - quiet.keys()
    assert quiet["encoder weights"] == usual["encoder weights"]
    assert quiet["activations"] < usual["activations"]
