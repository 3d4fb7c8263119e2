"""SGLang: pipeline stages, mixed GPUs, host memory, drafts with a model of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import kvproof
from kvproof.engine import sglang
from kvproof.engine.stages import own_stages, stage_layers
from kvproof.errors import UsageError
from kvproof.model.multimodal import with_encoder_tokens
from kvproof.model.types import Model

GIB = 2**30


@pytest.fixture(scope="module")
def qwen() -> Model:
    return kvproof.load_model("Qwen/Qwen3-8B", offline=True)


def terms(model: Model, engine: str = "sglang", gpu: str = "H100-80GB", **flags: Any) -> Any:
    budget = kvproof.budget(model, kvproof.Deployment(engine, gpu, **flags))
    return {term.name: term for term in budget.terms}


@pytest.mark.parametrize(
    ("extra", "counts"), [("first", [3, 3, 2, 2]), ("last", [2, 2, 3, 3]), ("final", [2, 2, 2, 4])]
)
def test_who_holds_the_layers_left_over(extra: Any, counts: list[int]) -> None:
    parts = stage_layers(10, 4, extra)
    assert [len(part) for part in parts] == counts
    assert [layer for part in parts for layer in part] == list(range(10))


def test_a_prefill_shared_out_keeps_attention_whole() -> None:
    """SGLang 0.5.23, compute_dp_attention_world_info: tp / dp / attn_cp ranks split attention."""
    model = kvproof.load_model("deepseek-ai/DeepSeek-V3.2", offline=True)

    def weights(**flags: Any) -> float:
        found = terms(model, "sglang@0.5.23", "8xH200", tp_size=8, **flags)["weights"].value
        return float(found)

    whole = weights(attn_cp_size=8)
    assert whole == weights(dp_size=8, enable_dp_attention=True)
    assert whole == weights(enable_nsa_prefill_context_parallel=True)
    assert weights() < weights(attn_cp_size=4) < whole
    both = kvproof.Deployment(
        "sglang@0.5.23", "8xH200", tp_size=8, dp_size=2, enable_dp_attention=True, attn_cp_size=2
    )
    plan = kvproof.plan(model, both, contexts=[4096])
    assert plan.attention_copies == 2
    qwen_heads = kvproof.load_model("Qwen/Qwen3-8B", offline=True)  # 8 KV heads
    cells = [
        kvproof.capacity(
            qwen_heads, kvproof.Deployment("sglang", tp_size=8, attn_cp_size=size), 2**30
        ).tokens
        for size in (1, 4)
    ]
    assert cells[0] == pytest.approx(4 * cells[1], rel=0.001)


def test_context_ranks_that_do_not_divide() -> None:
    with pytest.raises(UsageError, match="attn_cp_size=3 does not divide tp_size=8"):
        kvproof.budget(
            kvproof.load_model("deepseek-ai/DeepSeek-V3.2", offline=True),
            kvproof.Deployment("sglang", "H200", tp_size=8, attn_cp_size=3),
        )


def test_stages_of_the_gpu_that_is_answered_for() -> None:
    mixed = kvproof.Deployment("sglang", "2xH100-80GB+2xRTX-4090-24GB", tp_size=2, pp_size=2)
    small = next(kind for _, kind in mixed.kinds if kind.name.startswith("RTX"))
    assert own_stages(mixed.on(small), 2, 2) == (1,)
    assert own_stages(kvproof.Deployment("sglang", "4xH100-80GB"), 2, 2) == (0, 1)


def test_ranks_on_mixed_gpus_hold_their_own_stage(qwen: Model) -> None:
    """35 layers on two stages: 17 and 18; whichever the small GPU is written for."""
    odd = kvproof.load_model({**qwen.config, "num_hidden_layers": 35, "layer_types": None})
    tokens = {}
    for gpu in ("RTX-4090-24GB+H100-80GB", "H100-80GB+RTX-4090-24GB"):
        deployment = kvproof.Deployment("sglang@0.5.23", gpu, pp_size=2)
        plan = kvproof.plan(odd, deployment, [4096])
        assert "the ranks on RTX-4090-24GB decide" in plan.budget.terms[-1].formula
        tokens[gpu] = plan.capacity.tokens
        each = plan.capacity.bytes_per_block
        assert each == qwen_cell(qwen) * (17 if gpu.startswith("RTX") else 18)
    first, last = tokens.values()
    assert first > last


def qwen_cell(model: Model) -> int:
    slot = model.slots[0]
    return int(slot.kv_heads * (slot.k_dim + slot.v_dim) * 2)


def test_the_scarcest_stage_decides_where_gpus_are_alike(qwen: Model) -> None:
    odd = kvproof.load_model({**qwen.config, "num_hidden_layers": 35, "layer_types": None})
    for version, layers in (("0.5.5", 13), ("0.5.23", 12)):
        deployment = kvproof.Deployment(f"sglang@{version}", "3xH100-80GB", pp_size=3)
        capacity = kvproof.capacity(odd, deployment, GIB)
        assert capacity.bytes_per_block == qwen_cell(qwen) * layers


def test_layers_in_host_memory_leave_the_gpu(qwen: Model) -> None:
    whole, offloaded = terms(qwen), terms(qwen, cpu_offload_gb=4)
    assert whole["weights"].value - offloaded["weights"].value == 4 * GIB
    assert offloaded["KV cache"].value > whole["KV cache"].value + 3.9 * GIB
    assert "in host memory" in offloaded["weights"].formula
    all_layers = terms(qwen, cpu_offload_gb=100)["weights"].value
    assert all_layers == 2 * 151936 * 4096 * 2 + 4096 * 2  # embedding, head and the last norm stay


@pytest.mark.parametrize("value", [-1, "much", float("inf")])
def test_bad_amounts_are_one_clear_line(qwen: Model, value: object) -> None:
    with pytest.raises(UsageError, match="cpu_offload_gb"):
        terms(qwen, cpu_offload_gb=value)


def test_the_host_pool_of_hierarchical_caching(qwen: Model) -> None:
    def host(**flags: Any) -> dict[str, int]:
        deployment = kvproof.Deployment("sglang", "H100-80GB", page_size=64, **flags)
        capacity = kvproof.capacity(qwen, deployment, 10 * GIB)
        found = {term.name: int(term.value) for term in capacity.terms}
        return {**found, "all": capacity.tokens}

    assert "host tokens" not in host()
    twice = host(enable_hierarchical_cache=True)
    assert twice["host tokens"] == 2 * twice["all"] + 64
    sized = host(enable_hierarchical_cache=True, hicache_size=30)
    assert sized["host cache"] == pytest.approx(30e9, rel=1e-3)


def test_drafts_with_a_model_of_their_own(qwen: Model) -> None:
    """Sizing counts a standalone draft at the target's bytes a layer, a block draft at its own."""
    path = "Qwen/Qwen3-0.6B"
    cell, own = 36 * qwen_cell(qwen), 28 * qwen_cell(qwen)  # as many KV heads of as many numbers
    plain = terms(qwen)
    for algorithm in ("STANDALONE", "DFLASH"):
        draft = terms(qwen, speculative_algorithm=algorithm, speculative_draft_model_path=path)
        tokens = draft["draft cache"].value // own
        assert draft["draft cache"].value == tokens * own
        assert draft["KV cache"].value == (tokens + 1) * cell
        assert draft["draft weights"].value == pytest.approx(1.11 * GIB, rel=0.02)
        assert draft["KV cache"].value < plain["KV cache"].value
    early = terms(qwen, "sglang@0.5.13", speculative_algorithm="STANDALONE",
                  speculative_draft_model_path=path)  # fmt: skip
    assert "draft cache" not in early


def test_the_share_before_0_4(qwen: Model) -> None:
    for version, share in (("0.3.6", 0.82), ("0.4.0", 0.81)):
        deployment = kvproof.Deployment(f"sglang@{version}", "8xH100-80GB", tp_size=8)
        assert sglang.share(qwen, deployment) == share


def mllama(data_dir: Path) -> Model:
    path = data_dir / "configs" / "meta-llama--Llama-3.2-11B-Vision.json"
    return kvproof.load_model(json.loads(path.read_text()))


def test_images_lie_in_the_pool_of_all_layers(data_dir: Path) -> None:
    """An image's tokens take entries of all 40 layers, before the text's."""
    plain = mllama(data_dir)
    image = with_encoder_tokens(plain, 6404)
    deployment = kvproof.Deployment("sglang", "H100-80GB")
    texts, images = (kvproof.capacity(m, deployment, 20 * GIB) for m in (plain, image))
    assert texts.bytes_per_block == images.bytes_per_block == 40 * 2 * 8 * 128 * 2
    assert texts.sequences(4096) == texts.tokens // 4096
    assert images.sequences(4096) == images.tokens // (4096 + 6404)
    cache = kvproof.cache(plain, tokens=100, engine="sglang", encoder_tokens=6404)
    assert cache.bytes == (32 * 100 + 8 * 6404) * 4096
    assert cache.allocated_bytes == 6504 * 40 * 4096


def test_sound_lies_in_the_pool_before_the_text() -> None:
    model = kvproof.load_model("openai/whisper-large-v3", offline=True)
    deployment = kvproof.Deployment("sglang", "L40S")
    plan = kvproof.plan(model, deployment, [448])
    row, pool = plan.rows[0], plan.capacity
    assert pool.blocks_held(448) == 448 + 1500
    assert row.sequences == pool.tokens // (448 + 1500)
    assert row.sequences * row.bytes_per_sequence < plan.budget.kv_bytes


@pytest.mark.parametrize("kept", ["float32", "bfloat16"])
def test_states_are_of_one_type_in_the_pool_and_in_a_sequence(kept: str) -> None:
    model = kvproof.load_model("Qwen/Qwen3-Next-80B-A3B-Instruct", offline=True)
    deployment = kvproof.Deployment("sglang", "H200", mamba_ssm_dtype=kept)
    plan = kvproof.plan(model, deployment, [256])
    state = next(group for group in plan.capacity.groups if group.kind == "recurrent")
    fixed = plan.rows[0].bytes_per_sequence - 256 * plan.bytes_per_token
    assert fixed == state.page_bytes * state.layers


def test_other_models_with_cross_attention_are_refused() -> None:
    bart = kvproof.load_model(
        {"architectures": ["BartForConditionalGeneration"], "model_type": "bart", "d_model": 64,
         "decoder_layers": 2, "encoder_layers": 2, "decoder_attention_heads": 4,
         "encoder_attention_heads": 4, "vocab_size": 512, "decoder_ffn_dim": 128,
         "encoder_ffn_dim": 128, "max_position_embeddings": 128}
    )  # fmt: skip
    with pytest.raises(UsageError, match="SGLang serves no BartForConditionalGeneration"):
        kvproof.capacity(bart, kvproof.Deployment("sglang", "H100-80GB"), GIB)


def test_a_figure_that_rests_on_one_log_says_so(qwen: Model) -> None:
    context = terms(qwen, gpu="GB10")["context and other processes"]
    assert "one start" in context.formula
    assert context.high == 3 * context.value
    assert "one start" not in terms(qwen)["context and other processes"].formula


def test_mimo_flash_counted_its_sliding_layers_twice() -> None:
    """0.5.8's own arithmetic: all 48 layers as full ones and 39 again, then shared out alike."""
    model = kvproof.load_model("XiaomiMiMo/MiMo-V2-Flash", offline=True)
    early, later = (
        kvproof.Deployment(f"sglang@{release}", "8xH200", tp_size=8)
        for release in ("0.5.8", "0.5.9")
    )
    room = kvproof.budget(model, later).kv_bytes
    layer = 1 * (192 + 128) * 2
    found = room // (layer * 48 + layer * 39)
    tokens = kvproof.capacity(model, early, kv_bytes=kvproof.budget(model, early).kv_bytes).tokens
    assert tokens == pytest.approx(int(found * 48 / (0.8 * 39 + 9)), abs=256)
    assert kvproof.budget(model, early).kv_bytes < 0.6 * room


def test_amd_keeps_tables_of_the_order_of_packed_experts_inputs() -> None:
    """Kimi-K2.5 over eight MI355X: 73.58 GiB printed."""
    model = kvproof.load_model("moonshotai/Kimi-K2.5")
    amd, other = (
        terms(model, "sglang@0.5.9", f"8x{gpu}", tp_size=8)["weights"]
        for gpu in ("MI355X-288GB", "B300-288GB")
    )
    assert amd.value - other.value == 60 * 384 * (7168 + 2048 // 8) * 8
    assert amd.low < 73.58 * GIB < amd.high


def test_amd_keeps_no_tables_of_what_is_not_packed(qwen: Model) -> None:
    amd, other = (terms(qwen, "sglang@0.5.9", gpu)["weights"].value
                  for gpu in ("MI355X-288GB", "B300-288GB"))  # fmt: skip
    assert amd == other
