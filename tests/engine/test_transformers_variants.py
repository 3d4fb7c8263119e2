"""Quantized and offloaded caches of transformers."""

from __future__ import annotations

import pytest

from kvproof.engine.base import CacheRequest
from kvproof.engine.transformers_variants import offloaded_cache, quantized_cache
from kvproof.errors import UsageError
from kvproof.model.read import read_config
from kvproof.model.types import Model, Source


def tiny(kind: str = "llama", **fields: object) -> Model:
    config = {
        "model_type": kind, "num_hidden_layers": 1, "num_attention_heads": 4,
        "num_key_value_heads": 4, "hidden_size": 128, "head_dim": 32, **fields,
    }  # fmt: skip
    return read_config(config, name="tiny", source=Source(origin="dict", location="test"))


@pytest.mark.parametrize(("bits", "size"), [(4, 9216), (2, 5120), (8, 17408), (1, 3072)])
def test_hqq_blocks_as_measured(bits: int, size: int) -> None:
    assert quantized_cache(tiny(), 64, bits=bits, dtype="bf16").bytes == size


def test_the_residual_as_measured() -> None:
    late = quantized_cache(tiny(), 64, decode_steps=127, dtype="bf16")
    packed = quantized_cache(tiny(), 64, decode_steps=128, dtype="bf16")
    assert (late.bytes, packed.bytes) == (74240, 27648)
    assert late.worst_bytes == late.bytes
    assert packed.residual_bytes == 0


def test_fp8_keeps_a_byte_an_element_and_two_scales() -> None:
    model = tiny()
    assert quantized_cache(model, 64, backend="fp8", bits=8, dtype="bf16").bytes == 16384 + 8


def test_only_full_attention_is_quantized() -> None:
    with pytest.raises(UsageError, match="full attention"):
        quantized_cache(tiny("gemma2"), 64)
    with pytest.raises(UsageError, match="3 bits"):
        quantized_cache(tiny(), 64, bits=3)


def test_offloading_leaves_two_layers_on_the_device() -> None:
    request = CacheRequest(lengths=(10,), dtype="bf16")
    found = offloaded_cache(tiny(num_hidden_layers=6), request, None)
    assert (found.device_bytes, found.host_bytes) == (found.bytes // 3, found.bytes * 2 // 3)


def test_states_are_never_offloaded() -> None:
    model = read_config(
        {"model_type": "mamba2", "num_hidden_layers": 3},
        name="m",
        source=Source(origin="dict", location="test"),
    )
    found = offloaded_cache(model, CacheRequest(lengths=(10,)), None)
    assert (found.device_bytes, found.host_bytes) == (found.bytes, 0)
