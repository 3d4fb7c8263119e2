"""Wrong arguments of the public calls: one KvproofError each, never another exception."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kvproof

MODEL = kvproof.load_model("meta-llama/Llama-3.1-8B")
VLLM = kvproof.Deployment(engine="vllm@0.32", gpu="H100-80GB", max_model_len=32768)
CAPACITY = kvproof.capacity(MODEL, VLLM, kv_bytes=40_000_000_000)


@pytest.mark.parametrize(
    "call",
    [
        lambda: kvproof.load_model(None),
        lambda: kvproof.load_model(5),
        lambda: kvproof.load_model([]),
        lambda: kvproof.cache("name", tokens=1),
        lambda: kvproof.cache(MODEL, tokens=1.5),
        lambda: kvproof.cache(MODEL, tokens=True),
        lambda: kvproof.cache(MODEL, tokens="x"),
        lambda: kvproof.cache(MODEL, tokens=-1),
        lambda: kvproof.cache(MODEL, lengths=5),
        lambda: kvproof.cache(MODEL, tokens=1, batch=10**12),
        lambda: kvproof.cache(MODEL, tokens=1, dtype=5),
        lambda: kvproof.cache(MODEL, tokens=1, engine=5),
        lambda: kvproof.cache(MODEL, tokens=1, encoder_tokens=-1),
        lambda: kvproof.capacity(MODEL, VLLM, kv_bytes="40GB"),
        lambda: kvproof.capacity(MODEL, VLLM, kv_bytes=float("nan")),
        lambda: kvproof.capacity(MODEL, VLLM, kv_bytes=True),
        lambda: kvproof.cache(MODEL, tokens=1, engine="vllm", static_length=64),
        lambda: kvproof.budget(MODEL, None),
        lambda: kvproof.budget(None, VLLM),
        lambda: kvproof.plan(MODEL, VLLM, contexts=4096),
        lambda: kvproof.plan(MODEL, VLLM, contexts="4k"),
        lambda: kvproof.plan(MODEL, VLLM, contexts=[-4]),
        lambda: kvproof.plan(MODEL, VLLM, contexts=[4096.5]),
        lambda: CAPACITY.sequences("4k"),
        lambda: kvproof.Deployment("vllm", "H100", used=-5),
        lambda: kvproof.Deployment("ollama", "H100", gpu_memory={}),
        lambda: kvproof.Deployment("tensorrt_llm", "H100", max_attention_window="auto"),
        lambda: kvproof.budget(MODEL, kvproof.Deployment("sglang", "H100", pp_size=10**9)),
        lambda: kvproof.Deployment("sglang", "H100", ep_size=float("inf")),
        lambda: kvproof.Deployment("tensorrt_llm", "H100", max_beam_width=float("inf")),
        lambda: kvproof.Deployment("formula", "H100", max_model_len=float("nan")),
        lambda: kvproof.Deployment("formula", "H100", bandwidth=[]),
        lambda: CAPACITY.sequences(1.5),
        lambda: CAPACITY.sequences(-1),
        lambda: CAPACITY.sequences(None),
        lambda: kvproof.without_cache(MODEL, prompt=1, output=2, parameters=float("nan")),
        lambda: kvproof.with_attention(MODEL, "gqa", groups=7),
    ],
)
def test_wrong_types_are_one_clear_line(call: Callable[[], Any]) -> None:
    with pytest.raises(kvproof.KvproofError) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_numpy_counts_are_counts() -> None:
    assert kvproof.cache(MODEL, tokens=np.int64(70)).bytes == 70 * 131_072
    assert kvproof.cache(MODEL, lengths=np.array([4, 5])).bytes == 2 * 5 * 131_072
    assert kvproof.plan(MODEL, VLLM, contexts=np.array([4096])).rows[0].context == 4096
    assert isinstance(kvproof.capacity(MODEL, VLLM, kv_bytes=4e10).num_blocks, int)


def test_a_refused_length_fits_nowhere() -> None:
    row = kvproof.plan(MODEL, VLLM, contexts=[65536]).rows[0]
    assert (row.sequences, row.limit) == (0, "max_model_len")


def test_the_checkpoints_cache_type_reaches_the_steps() -> None:
    model = kvproof.load_model("nvidia/Qwen3.6-27B-NVFP4")
    row = kvproof.plan(model, kvproof.Deployment(gpu="H100-80GB"), contexts=[32768]).rows[0]
    full = [slot for slot in model.slots if slot.kind == "full"]
    keys = sum(slot.kv_heads * (slot.k_dim + slot.v_dim) for slot in full)
    states = sum(s.bytes(1, _bf16()) for s in model.slots if s.kind == "recurrent")
    states += sum(2 * s.channels * (s.kernel - 1) for s in model.slots if s.kind == "conv")
    assert row.bytes_per_sequence == 32768 * keys + states


def _bf16() -> Any:
    from kvproof.kinds import Types, element_type

    bf16 = element_type("bf16")
    return Types(bf16, bf16, bf16)
