"""SGLang's FP4 caches: what is printed, sized and held, by release, recipe and attention."""

from __future__ import annotations

from typing import Any

import pytest

import kvproof
from kvproof.engine.base import Deployment
from kvproof.model.types import Model

GIB = 2**30
# Qwen2.5-1.5B: 28 layers, 2 heads of 128, so 512 numbers a token and layer.
PACKED, SCALES, LAYER = 28 * 256, 28 * 32, 512


@pytest.fixture(scope="module")
def small() -> Model:
    return kvproof.load_model("Qwen/Qwen2.5-1.5B-Instruct", offline=True)


@pytest.mark.parametrize(
    ("release", "gpu", "flags", "printed"),
    [
        ("0.5.11", "GB10", {"kv_cache_dtype": "fp4_e2m1"}, PACKED),
        ("0.5.16", "B200", {"kv_cache_dtype": "nvfp4"}, PACKED + SCALES + LAYER),
        ("0.5.16", "B200", {"kv_cache_dtype": "fp4_mx_block16"}, PACKED + SCALES),
        ("0.5.23", "B200", {"kv_cache_dtype": "nvfp4"}, PACKED + SCALES),
        ("0.5.23", "RTX-5090", {"kv_cache_dtype": "nvfp4"}, PACKED + SCALES + LAYER),
        ("0.5.23", "B200", {"kv_cache_dtype": "nvfp4", "prefill_attention_backend": "flashinfer"},
         PACKED + 2 * SCALES + LAYER),
        ("0.5.23", "B200",
         {"kv_cache_dtype": "nvfp4", "prefill_kv_cache_dequant_dtype": "fp8_e4m3"},
         PACKED + 2 * SCALES + LAYER),
        ("0.5.23", "B200", {"kv_cache_dtype": "fp4_mx_block16"}, PACKED + SCALES),
    ],
)  # fmt: skip
def test_bytes_a_token_that_the_line_counts(
    small: Model, release: str, gpu: str, flags: dict[str, Any], printed: int
) -> None:
    deployment = Deployment(f"sglang@{release}", gpu, page_size=1, **flags)
    assert kvproof.capacity(small, deployment, GIB).bytes_per_block == printed


@pytest.mark.parametrize(
    ("release", "dtype", "counted"),
    [
        ("0.5.11", "fp4_e2m1", PACKED + SCALES),
        ("0.5.16", "fp4_mx_block16", PACKED + SCALES + LAYER),
        ("0.5.23", "fp4_mx_block16", PACKED + SCALES),
    ],
)
def test_sizing_counts_scales(small: Model, release: str, dtype: str, counted: int) -> None:
    flags = {"mem_fraction_static": 0.5, "page_size": 1, "kv_cache_dtype": dtype}
    deployment = Deployment(f"sglang@{release}", "B200", **flags)
    budget = kvproof.budget(small, deployment)
    terms = {term.name: term.value for term in budget.terms}
    tokens = kvproof.capacity(small, deployment, budget.kv_bytes).tokens
    total = kvproof.hardware.accelerator("B200").memory_bytes
    pools = total - sum(
        value for name, value in terms.items()
        if name in ("context and other processes", "weights",
                    "kept free for activations and graphs")
    )  # fmt: skip
    assert tokens == pytest.approx(pools / counted, rel=1e-6)
    assert sum(terms.values()) == total
    hidden = terms.get("scales", 0)
    assert hidden == ((tokens + 1) * SCALES if release == "0.5.11" else 0)


def test_printed_pools_of_a_public_start(small: Model) -> None:
    """GB10, 0.5.11: 18.47 GB each, 5,534,509 tokens (github.com/jethac/dgx-spark-hijinks)."""
    deployment = Deployment("sglang@0.5.11", "GB10", kv_cache_dtype="fp4_e2m1")
    low, high = (
        kvproof.capacity(small, deployment, int((36.94 + side) * GIB)).tokens
        for side in (-0.01, 0.01)
    )
    assert low <= 5_534_509 <= high
