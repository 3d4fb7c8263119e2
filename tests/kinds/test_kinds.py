"""The kinds of slot: exact for one length, the same for an array of lengths."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof.errors import UsageError
from kvproof.kinds import (
    ChunkedSlot,
    ConvSlot,
    FullSlot,
    IndexerSlot,
    LatentSlot,
    RecurrentSlot,
    SharedSlot,
    SlidingSlot,
    Slot,
    Types,
    element_type,
    sequence_bytes,
)

SLOTS: tuple[Slot, ...] = (
    FullSlot(layer=0, kv_heads=8, k_dim=128, v_dim=128),
    FullSlot(layer=1, kv_heads=4, k_dim=192, v_dim=128),
    SlidingSlot(layer=2, kv_heads=8, k_dim=128, v_dim=128, window=4096),
    ChunkedSlot(layer=3, kv_heads=8, k_dim=128, v_dim=128, chunk=8192),
    LatentSlot(layer=4, latent_dim=512, rope_dim=64, heads=128, nope_dim=128, value_dim=128),
    IndexerSlot(layer=5, dim=128),
    ConvSlot(layer=6, channels=8192, kernel=4, mixer="gdn"),
    RecurrentSlot(layer=6, shape=(32, 128, 128), mixer="gdn", heads=32),
    SharedSlot(layer=7, source_layer=0),
)
NAMES = ("f32", "bf16", "f16", "fp8", "int8", "int4", "q8_0", "q4_0", "mxfp4", "nvfp4")
element_names = st.sampled_from(NAMES)


def types(k: str, v: str | None = None) -> Types:
    return Types(element_type(k), element_type(v or k), element_type("bf16"))


@given(
    st.sampled_from(SLOTS),
    st.lists(st.integers(0, 2**40), min_size=1, max_size=8),
    element_names,
    element_names,
)
def test_arrays_equal_single_lengths(slot: Slot, lengths: list[int], k: str, v: str) -> None:
    array = slot.bytes(np.array(lengths, dtype=np.int64), types(k, v))
    assert np.broadcast_to(array, len(lengths)).tolist() == [
        slot.bytes(n, types(k, v)) for n in lengths
    ]


@given(st.sampled_from(SLOTS), st.integers(0, 10**7), st.integers(0, 10**7), element_names)
def test_longer_never_holds_less(slot: Slot, n: int, more: int, name: str) -> None:
    assert 0 <= slot.bytes(n, types(name)) <= slot.bytes(n + more, types(name))


@given(st.integers(0, 10**7), element_names, element_names)
def test_sequence_bytes_is_the_sum_of_slots(n: int, k: str, v: str) -> None:
    assert sequence_bytes(SLOTS, n, types(k, v)) == sum(s.bytes(n, types(k, v)) for s in SLOTS)


def test_keys_and_values_have_their_own_types() -> None:
    slot = FullSlot(layer=0, kv_heads=8, k_dim=128, v_dim=128)
    assert slot.bytes(10, types("fp8", "int4")) == 10 * 8 * (128 + 64)
    assert slot.bytes(10, types("q8_0", "q4_0")) == 10 * 8 * 128 // 32 * (34 + 18)


@pytest.mark.parametrize(("name", "elements", "size"), [
    ("q8_0", 32, 34), ("q8_0", 33, 68), ("int4", 3, 2), ("int6", 576, 432),
    ("nvfp4", 16, 9), ("mxfp4", 64, 34), ("f32", 5, 20),
])  # fmt: skip
def test_block_formats_count_their_scales(name: str, elements: int, size: int) -> None:
    assert element_type(name).bytes(elements) == size


def test_spellings_and_unknown_names() -> None:
    assert element_type("torch.bfloat16") is element_type("bf16")
    assert element_type("float8_e4m3fn").name == "fp8_e4m3"
    with pytest.raises(UsageError, match="bf16"):
        element_type("bf61")
