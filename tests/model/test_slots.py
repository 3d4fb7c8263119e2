"""read_slots: what each layer caches, by kind, for published shapes."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kvproof.errors import ModelError
from kvproof.kinds import (
    ChunkedSlot,
    CompressedSlot,
    ConvSlot,
    CrossSlot,
    FullSlot,
    IndexerSlot,
    LatentSlot,
    RecurrentSlot,
    SharedSlot,
    SlidingSlot,
    Slot,
)
from kvproof.model.classes import base
from kvproof.model.config import resolve
from kvproof.model.slots import read_slots


def slots(model_type: str, **fields: Any) -> tuple[Slot, ...]:
    return read_slots(resolve({"model_type": model_type, **fields}))


def kinds(model_type: str, **fields: Any) -> dict[str, int]:
    return dict(Counter(slot.kind for slot in slots(model_type, **fields)))


def test_llama() -> None:
    found = slots("llama", num_hidden_layers=2, num_key_value_heads=8, hidden_size=4096)
    assert found == tuple(FullSlot(layer=i, kv_heads=8, k_dim=128, v_dim=128) for i in range(2))


def test_a_window_without_layer_types_makes_every_layer_slide() -> None:
    assert kinds("mistral", num_hidden_layers=3) == {"sliding": 3}
    assert kinds("mistral", num_hidden_layers=3, sliding_window=None) == {"full": 3}


def test_gemma4_full_layers_are_wider() -> None:
    found = slots("gemma4_text", num_hidden_layers=6)
    full = next(slot for slot in found if slot.kind == "full")
    assert isinstance(full, FullSlot)
    assert (full.layer, full.k_dim) == (5, 512)
    shared = slots(
        "gemma4_text", num_hidden_layers=6, attention_k_eq_v=True, num_global_key_value_heads=2
    )
    assert isinstance(shared[5], FullSlot)
    assert shared[5].kv_heads == 2


def test_shared_layers_name_their_source() -> None:
    found = slots("gemma3n_text", num_hidden_layers=10, num_kv_shared_layers=4)
    assert [s.source_layer for s in found if isinstance(s, SharedSlot)] == [5, 5, 5, 4]


def test_mimo_keys_are_wider_and_sliding_layers_have_twice_the_heads() -> None:
    full, slide = slots("mimo_v2_flash", num_hidden_layers=2, num_key_value_heads=4)
    assert isinstance(full, FullSlot)
    assert isinstance(slide, SlidingSlot)
    assert (full.kv_heads, slide.kv_heads) == (4, 8)
    assert (full.k_dim, full.v_dim) == (192, 128)


def test_falcon_states_its_true_heads() -> None:
    fields = {"num_hidden_layers": 1, "num_attention_heads": 8, "hidden_size": 512}
    new = slots("falcon", new_decoder_architecture=True, num_kv_heads=2, **fields)[0]
    old = slots("falcon", multi_query=True, **fields)[0]
    assert isinstance(new, FullSlot)
    assert isinstance(old, FullSlot)
    assert (new.kv_heads, old.kv_heads) == (2, 1)


def test_latent_attention_carries_both_forms() -> None:
    found = slots("deepseek_v3", num_hidden_layers=1)[0]
    assert found == LatentSlot(
        layer=0, latent_dim=512, rope_dim=64, heads=128, nope_dim=128, value_dim=128
    )


def test_indexers_marked_shared_keep_nothing() -> None:
    found = slots("glm_moe_dsa", num_hidden_layers=6, index_topk_freq=2)
    assert [s.layer for s in found if isinstance(s, IndexerSlot)] == [0, 1, 3, 5]


def test_deepseek_v4_by_published_ratios() -> None:
    found = slots("deepseek_v4", num_hidden_layers=3, compress_ratios=[0, 4, 128])
    assert [slot.kind for slot in found] == ["sliding", "compressed", "compressed"]
    sparse, heavy = found[1], found[2]
    assert isinstance(sparse, CompressedSlot)
    assert isinstance(heavy, CompressedSlot)
    assert (sparse.ratio, sparse.index_dim, heavy.ratio, heavy.index_dim) == (4, 128, 128, 0)


def test_mamba2_states() -> None:
    conv, state = slots("mamba2", num_hidden_layers=1)
    assert isinstance(conv, ConvSlot)
    assert isinstance(state, RecurrentSlot)
    assert (conv.channels, conv.groups, conv.group_channels) == (8192 + 2 * 8 * 128, 8, 2048)
    assert (state.shape, state.mixer) == ((128, 64, 128), "mamba2")


def test_gated_delta_states() -> None:
    conv, state, *_ = slots("qwen3_next", num_hidden_layers=4)
    assert isinstance(conv, ConvSlot)
    assert isinstance(state, RecurrentSlot)
    assert (conv.channels, conv.kernel) == (2 * 16 * 128 + 32 * 128, 4)
    assert (state.shape, state.heads, state.mixer) == ((32, 128, 128), 32, "gdn")


def test_falcon_h1_layers_hold_both() -> None:
    assert kinds("falcon_h1", num_hidden_layers=2) == {"full": 2, "conv": 2, "recurrent": 2}


def test_chunked_layers_of_llama4() -> None:
    found = slots("llama4_text", num_hidden_layers=4)
    assert [slot.kind for slot in found] == ["chunked"] * 3 + ["full"]
    assert isinstance(found[0], ChunkedSlot)
    assert found[0].chunk == 8192


def test_encoder_decoder_models_hold_cross_attention() -> None:
    found = slots("whisper", decoder_layers=2, encoder_layers=6)
    assert [slot.kind for slot in found] == ["full", "cross"] * 2
    assert isinstance(found[1], CrossSlot)
    assert found[1].default_tokens == 1500
    alone = slots("whisper", decoder_layers=2, architectures=["WhisperForCausalLM"])
    assert [slot.kind for slot in alone] == ["full"] * 2


def test_layers_that_run_twice_have_slots_of_their_own() -> None:
    assert len(slots("longcat_flash", num_layers=3)) == 6
    assert len(slots("hrm_text", num_hidden_layers=2, H_cycles=2, L_cycles=3)) == 2 * 2 * 4
    loop = {"n_input_layers": 1, "n_output_layers": 1, "num_hidden_layers": 4}
    assert len(slots("dory", n_recurrent_loops=3, **loop)) == 4 + 2 * 2
    assert len(slots("dory", recurrent_kv_cache_mode="last_loop", **loop)) == 4


def test_blocks_of_nemotron_nas_have_their_own_heads() -> None:
    blocks = [
        {"attention": {"n_heads_in_group": 8, "no_op": False}},
        {"attention": {"n_heads_in_group": None, "no_op": True}},
        {"attention": {"n_heads_in_group": 4, "no_op": False}},
    ]
    found = slots(
        "nemotron-nas", num_hidden_layers=3, num_attention_heads=64, hidden_size=8192,
        block_configs=blocks,
    )  # fmt: skip
    assert found == (
        FullSlot(layer=0, kv_heads=8, k_dim=128, v_dim=128),
        FullSlot(layer=2, kv_heads=16, k_dim=128, v_dim=128),
    )


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (
            {
                "model_type": "chatglm", "num_layers": 2, "kv_channels": 128,
                "multi_query_attention": True, "multi_query_group_num": 2,
                "num_attention_heads": 32, "hidden_size": 4096, "ffn_hidden_size": 13696,
                "padded_vocab_size": 65024,
            },
            (2, 128),
        ),
        ({"model_type": "qwen", "num_attention_heads": 32, "hidden_size": 4096}, (32, 128)),
        (
            {
                "model_type": "internvl_chat",
                "llm_config": {"model_type": "internlm2", "num_key_value_heads": 8},
            },
            (8, 128),
        ),
        (
            {
                "model_type": "RefinedWeb", "n_head": 128, "n_head_kv": 8, "n_layer": 2,
                "hidden_size": 8192,
            },
            (8, 64),
        ),
    ],
)  # fmt: skip
def test_types_outside_transformers(config: dict[str, Any], expected: tuple[int, int]) -> None:
    first = read_slots(resolve(config))[0]
    assert isinstance(first, FullSlot)
    assert (first.kv_heads, first.k_dim) == expected


@pytest.mark.parametrize("family", sorted(base().families))
def test_every_generating_type_is_read_or_refused_by_name(family: str) -> None:
    for kind, architecture in base().families[family].items():
        config = {"model_type": kind, "architectures": [architecture]}
        if kind in ("blt", "pi0", "qwen4_exp", "qwen4_exp_text"):
            with pytest.raises(ModelError):
                read_slots(resolve(config))
            continue
        found = read_slots(resolve(config))
        assert found, kind
        assert [slot.layer for slot in found] == sorted(slot.layer for slot in found), kind


def test_every_published_config_is_read(data_dir: Path) -> None:
    for path in sorted((data_dir / "configs").glob("*.json")):
        assert read_slots(resolve(json.loads(path.read_bytes()))), path.name
