"""Names that people type, and what the catalogue makes of them."""

from __future__ import annotations

import re

import pytest

import kvproof
from kvproof.errors import KvproofError
from kvproof.model import catalog
from kvproof.model.weights import weight_bytes


@pytest.mark.parametrize("name", sorted(catalog.entries()))
def test_every_entry_is_read(name: str) -> None:
    model = kvproof.load_model(name, offline=True)
    assert model.parameters > 0 or any("weights" in note for note in model.notes)
    assert model.slots
    assert model.source.origin == "catalog"


@pytest.mark.parametrize(
    ("asked", "block"),
    [
        ("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", (128, 128)),
        ("Qwen/Qwen3-8B-FP8", (128, 128)),
        ("nvidia/Qwen3-8B-FP8", None),
        ("nvidia/Llama-3.1-8B-Instruct-FP8", None),
    ],
)
def test_qwens_own_fp8_has_a_scale_per_block(asked: str, block: tuple[int, int] | None) -> None:
    model = kvproof.load_model(asked, offline=True)
    assert model.quantization is not None
    assert model.quantization.default is not None
    assert model.quantization.default.block == block


@pytest.mark.parametrize(
    ("asked", "found", "method"),
    [
        ("meta-llama/Llama-3.1-8B", "meta-llama/Meta-Llama-3.1-8B", None),
        ("Llama-3.1-8B", "meta-llama/Meta-Llama-3.1-8B", None),
        ("llama-3.1-8b-instruct", "meta-llama/Meta-Llama-3.1-8B", None),
        (
            "RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic",
            "meta-llama/Llama-3.3-70B-Instruct",
            "compressed-tensors",
        ),
        (
            "hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4",
            "meta-llama/Meta-Llama-3.1-70B",
            "awq",
        ),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "Qwen/Qwen3-30B-A3B", None),
        ("deepseek-ai/DeepSeek-R1-0528", "deepseek-ai/DeepSeek-R1", None),
        ("unsloth/gemma-3-27b-it-bnb-4bit", "google/gemma-3-27b-it", "bitsandbytes"),
        ("unsloth/phi-4-unsloth-bnb-4bit", "microsoft/phi-4", "bitsandbytes"),
        ("unsloth/Qwen3-30B-A3B-GGUF", "Qwen/Qwen3-30B-A3B", "Q4_K_M"),
        ("mlx-community/Qwen3-8B-4bit", "Qwen/Qwen3-8B", "mlx"),
        ("lmstudio-community/Qwen3-8B-MLX-8bit", "Qwen/Qwen3-8B", "mlx"),
        ("gpt-3", "openai/gpt-3-175b", None),
    ],
)
def test_names_of_fine_tunes_and_quantizations(asked: str, found: str, method: str | None) -> None:
    hit = catalog.find(asked)
    assert hit is not None
    assert hit.name == found
    assert hit.assumption
    model = kvproof.load_model(asked, offline=True)
    assert hit.assumption in model.notes
    if method:
        assert model.quantization is not None
        assert model.quantization.method == method


def test_mlx_packs_the_embedding_and_head_in_groups_of_64() -> None:
    """mlx-community/Qwen3-8B-4bit holds 4.61 GB, -8bit 8.71 GB: 4.5 and 8.5 bits a weight."""
    for bits, published in ((4, 4.61e9), (8, 8.71e9)):
        model = kvproof.load_model(f"mlx-community/Qwen3-8B-{bits}bit", offline=True)
        assert weight_bytes(model) == pytest.approx(published, rel=0.002)


def test_one_publishers_recipe_is_not_taken_for_anothers_checkpoint() -> None:
    """RedHatAI's NVFP4 leaves linear attention in 16 bits (21.86 GiB printed), NVIDIA's in 8."""
    hit = catalog.find("RedHatAI/Qwen3.6-35B-A3B-NVFP4")
    assert hit is not None
    assert hit.name == "Qwen/Qwen3.6-35B-A3B"
    other = catalog.find("nvidia/Qwen3.6-35B-A3B-NVFP4")
    assert other is not None
    assert other.name == "nvidia/Qwen3.6-35B-A3B-NVFP4"


def test_unknown_weights_are_refused_not_taken_for_none() -> None:
    unknown = [n for n in catalog.entries() if not kvproof.load_model(n).tensors]
    assert len(unknown) < 8
    deployment = kvproof.Deployment(engine="formula", gpu="H100-80GB")
    for name in unknown:
        with pytest.raises(KvproofError, match="unknown"):
            kvproof.budget(kvproof.load_model(name), deployment)


def test_an_unknown_name_offers_the_near_ones() -> None:
    with pytest.raises(KvproofError, match=r"Llama-3\.1-8B"):
        kvproof.load_model("meta-lama/Lama-3.1-8BB", offline=True)


def test_every_entry_names_its_source() -> None:
    assert all(entry.source for entry in catalog.entries().values())
    assert catalog.catalog_date() >= "2026"


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("OpenGVLab/InternVL2-8B", 8_075_365_376),
        ("tencent/Hunyuan-A13B-Instruct", 80_393_183_232),
        ("deepseek-ai/deepseek-moe-16b-base", 16_375_728_128),
    ],
)
def test_what_was_put_back_gives_the_hubs_count(name: str, count: int) -> None:
    assert kvproof.load_model(name, offline=True).parameters == count


def test_names_of_quantized_checkpoints_hold_quantized_weights() -> None:
    names = [n for n in catalog.entries() if re.search(r"(?i)-(fp8|nvfp4|awq|gptq)\b", n)]
    assert len(names) > 30
    for name in names:
        model = kvproof.load_model(name, offline=True)
        assert model.parameters is not None
        assert 8 * weight_bytes(model) / model.parameters < 9, name


def test_a_trimmed_config_says_whence_its_scheme_comes() -> None:
    model = kvproof.load_model("zai-org/GLM-4.7-FP8", offline=True)
    assert any("as its name says" in note for note in model.notes)
    base = kvproof.load_model("zai-org/GLM-4.7", offline=True)
    assert base.parameters is not None
    assert 2 * base.parameters <= weight_bytes(base) < 2.01 * base.parameters
    packed = kvproof.load_model("someone/GLM-4.7-NVFP4", offline=True)
    assert packed.parameters is not None
    assert 8 * weight_bytes(packed) / packed.parameters < 5
