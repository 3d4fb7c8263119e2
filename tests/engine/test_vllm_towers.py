"""Towers: what an encoder of pictures costs, loaded, profiled or left out."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import kvproof
from kvproof.engine import vllm
from kvproof.engine.vllm.images import image_bytes, largest_pictures
from kvproof.engine.vllm.pictures import fixed_item
from kvproof.engine.vllm.settings import settle

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


@pytest.mark.parametrize(
    ("name", "flags", "count", "patches", "rows"),
    [
        # 8,192 tokens of 256, 64 x 64 patches each
        ("google/gemma-3-27b-it", {}, 32, 64 * 64, 32 * 256),
        # three videos of 32 frames: 70 tokens of 3 x 3 patches, 78 slots with marks
        ("google/gemma-4-31B", {}, 3, 32 * 70 * 9, 3 * 32 * 70),
        ("google/gemma-4-31B", {"limit_mm_per_prompt": {"video": 0}}, 29, 280 * 9, 29 * 280),
        # 1,540 pixels, 55 merged patches a row with a mark: two, as a public start prints
        ("mistralai/Ministral-3-8B-Instruct-2512", {}, 2, 110 * 110, 2 * 55 * 55),
        ("llava-hf/llava-1.5-7b-hf", {}, 14, 24 * 24, 14 * 576),
        # four tiles and the whole, 2,928 slots of 16,384: five, as a public start prints
        ("llava-hf/llava-v1.6-mistral-7b-hf", {"max_num_batched_tokens": 16384}, 5, 5 * 576,
         5 * 5 * 576),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", {}, 3, 17 * 24 * 24, 3 * 17 * 144),
        ("moonshotai/Kimi-K2.5", {"tensor_parallel_size": 8}, 2, 16_384, 2 * 4096),
        ("MiniMaxAI/MiniMax-M3", {"tensor_parallel_size": 8}, 14, 48 * 48, 14 * 576),
        ("OpenGVLab/InternVL2-8B", {}, 2, 13 * 32 * 32, 2 * 13 * 256),
    ],
)  # fmt: skip
def test_the_largest_pictures_of_a_batch(
    name: str, flags: dict[str, Any], count: int, patches: int, rows: int
) -> None:
    model = kvproof.load_model(name, offline=True)
    given = {"max_num_batched_tokens": 8192, "max_model_len": 8192, **flags}
    gpu = "8xH200" if "tensor_parallel_size" in flags else "H200"
    found = largest_pictures(model, settle(model, kvproof.Deployment("vllm@0.24.0", gpu, **given)))
    assert found is not None
    assert (found.count, found.item.patches, found.rows) == (count, patches, rows)


def test_frames_of_gemma_4_were_encoded_one_by_one() -> None:
    """A public start of 0.19.1 on 32 GB leaves no room for six videos at once."""
    model = kvproof.load_model("google/gemma-4-31B", offline=True)
    older, newer = (
        image_bytes(model, settle(model, kvproof.Deployment(f"vllm@{release}", "H200")))
        for release in ("0.21.0", "0.22.0")
    )
    assert older < newer / 10


def test_pictures_of_pixtral_are_kept_apart_by_a_mask() -> None:
    """24,200 patches by 24,200 in 16 bits, where xformers' blocks are gone."""
    name = "mistralai/Ministral-3-8B-Instruct-2512"
    model = kvproof.load_model(name, offline=True)
    given = {"max_num_batched_tokens": 8192, "max_model_len": 8192}
    peaks = [
        image_bytes(model, settle(model, kvproof.Deployment(f"vllm@{release}", "L40S", **given)))
        for release in ("0.28.0", "0.30.0")
    ]
    assert peaks[0] - peaks[1] == (2 * 110 * 110) ** 2 * 2


@pytest.mark.parametrize(
    "vision", [None, [], {}, {"image_size": "896"}, {"image_size": 896, "patch_size": 0}]
)
def test_a_tower_without_sizes_is_not_reckoned(vision: object) -> None:
    config = dict(kvproof.load_model("google/gemma-3-27b-it", offline=True).config)
    model = kvproof.load_model("google/gemma-3-27b-it", offline=True)
    changed = msgspec.structs.replace(model, config={**config, "vision_config": vision})
    assert fixed_item(changed, {}) is None
