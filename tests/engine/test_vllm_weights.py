"""Weights on a rank against what starts print and what vLLM's own classes hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import kvproof
from kvproof.engine.vllm.pieces import piece_of, tensor_sizes
from kvproof.engine.vllm.rank_weights import RankWeights, rank_weights
from kvproof.engine.vllm.rotary import rotary_bytes
from kvproof.engine.vllm.settings import Settings, settle
from kvproof.engine.vllm.torch_blocks import block_bytes
from kvproof.model.types import Model
from kvproof.model.weights import stored_bytes
from kvproof.units import GIB, MIB

TRUTH = json.loads((Path(__file__).parents[1] / "ground_truth/vllm_weights.json").read_text())


def settled(name: str, release: str, gpu: str, **flags: Any) -> tuple[Model, Settings]:
    model = kvproof.load_model(name, offline=True)
    return model, settle(model, kvproof.Deployment(f"vllm@{release}", gpu, **flags))


def weights(name: str, release: str, gpu: str, **flags: Any) -> RankWeights:
    return rank_weights(*settled(name, release, gpu, **flags))


@pytest.mark.parametrize(
    ("name", "release", "gpu", "ranks", "printed"),
    [
        # vLLM pull requests 10511 and 17122, issues 13061, 23278 and 18446
        ("meta-llama/Meta-Llama-3-8B", "0.6.5", "H100-80GB", 1, 14.96),
        ("meta-llama/Meta-Llama-3-8B", "0.6.5", "H100-80GB", 2, 7.48),
        ("meta-llama/Llama-3.1-8B-Instruct", "0.8.4", "L40S", 1, 14.9889),
        ("Qwen/Qwen2.5-14B", "0.7.2", "RTX-4090", 2, 13.9476),
        ("openai/gpt-oss-120b", "0.10.1", "H100-80GB", 1, 65.9651),
        ("openai/gpt-oss-120b", "0.14.1", "H100-80GB", 1, 64.38),  # issue 33155, Triton's kernels
        ("Qwen/Qwen3-235B-A22B", "0.8.5", "H100-80GB", 8, 54.9206),
        # log004, log101, log097, srv-5b7217d7 of the gathered starts
        ("meta-llama/Llama-3.1-8B-Instruct", "0.6", "RTX-3090", 1, 14.9888),
        ("Qwen/Qwen3-8B", "0.9", "A100-40GB", 1, 15.27),
        ("Qwen/Qwen3-32B", "0.11", "H100-80GB", 1, 61.03),
        ("Qwen/Qwen3-VL-30B-A3B-Instruct", "0.16", "H200", 1, 58.23),
    ],
)
def test_printed_weights(name: str, release: str, gpu: str, ranks: int, printed: float) -> None:
    """To 0.05 % where nothing repacks: tensors, tables and the ends of torch's blocks."""
    own = weights(name, release, gpu, tensor_parallel_size=ranks)
    assert own.total / GIB == pytest.approx(printed, rel=5e-4)


def test_a_ranks_own_part_of_gpt_oss_is_padded() -> None:
    """Four A100 of a published start (0.10.1.1) hold 17.2217 GiB each: 720 wide, padded to 768."""
    own = weights("openai/gpt-oss-120b", "0.10.1", "A100-80GB", tensor_parallel_size=4)
    assert own.total / GIB == pytest.approx(17.2217, rel=2e-3)


@pytest.mark.parametrize("row", TRUTH, ids=lambda row: f"{row['model']}-{row['ranks']}")
def test_the_classes_own_tensors(row: dict[str, Any]) -> None:
    """scripts/oracle_vllm_weights.py: bytes of parameters, buffers and tables, as built."""
    flags = {"tensor_parallel_size": row["ranks"]} if row["ranks"] > 1 else {}
    own = weights(row["model"], "0.32", "H100-80GB", **flags)
    stored = own.total - own.absorbed - own.remainders
    assert stored == pytest.approx(row["bytes"], rel=0.002)
    assert own.tables == pytest.approx(row["tables"], rel=0.01, abs=MIB)


def test_blocks_of_torch() -> None:
    def held(*sizes: int, limited: bool = False) -> int:
        return block_bytes(sizes, limited=limited)

    assert held(1, 513) == 512 + 1024
    assert held(MIB + 1) == MIB + 512  # cut from a segment of 20 MiB
    assert held(19 * MIB + 512) == 20 * MIB  # 512 B less than 1 MiB would stay
    assert held(9 * MIB, 9 * MIB + 1) == 9 * MIB + 11 * MIB - 2 * MIB + 512
    assert held(24 * MIB + MIB // 2) == 24 * MIB + MIB // 2  # 1.5 MiB are cut off
    assert held(24 * MIB + MIB // 2, limited=True) == 26 * MIB
    assert held(25 * MIB) == 26 * MIB


def test_what_is_cut_off_serves_the_next() -> None:
    first = 24 * MIB + MIB // 2
    assert block_bytes([first, MIB + 512], limited=False) == first + 3 * MIB // 2


def test_blocks_are_not_cut_since_0_21() -> None:
    """The down-projections' and the outputs' ends of Qwen2.5-7B: 14.25 GiB, then 14.29."""
    old, new = (weights("Qwen/Qwen2.5-7B-Instruct", v, "RTX-4090") for v in ("0.20", "0.21"))
    assert old.total / GIB == pytest.approx(14.2488, abs=5e-4)
    assert (new.remainders - old.remainders) / MIB == pytest.approx(28 * 1.5, abs=0.1)


def test_zero_points_of_gptq_are_dropped() -> None:
    own = weights("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", "0.10", "L40S")
    model, settings = settled("Qwen/Qwen2.5-7B-Instruct-AWQ", "0.10", "L40S")
    zeros = sum(g.elements for g in model.tensors if g.linear and g.role != "head") * 4 // 8 // 128
    other = rank_weights(model, settings).decoder
    assert other - own.decoder == pytest.approx(zeros, rel=0.02)


@pytest.mark.parametrize(
    ("config", "release", "rows", "width"),
    [
        ({"rope_scaling": {"rope_type": "linear", "factor": 8.0}}, "0.32", 8 * 4096, 64),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "0.32", 2 * 4096, 64),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "0.32", 4096, 64),
        ({"partial_rotary_factor": 0.5}, "0.32", 4096, 32),
        ({"rope_scaling": {"type": "mrope", "mrope_section": [8, 12, 12]}}, "0.32", 4 * 4096, 64),
    ],
)
def test_tables_go_by_the_scaling(
    config: dict[str, Any], release: str, rows: int, width: int
) -> None:
    base = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256,
        "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2,
        "intermediate_size": 512, "vocab_size": 1024, "max_position_embeddings": 4096,
    }  # fmt: skip
    model = kvproof.load_model({**base, **config})
    settings = settle(model, kvproof.Deployment(f"vllm@{release}", "H100-80GB"))
    assert rotary_bytes(model, settings) == [rows * width * 2]


def test_longer_videos_have_no_rows_since_0_32() -> None:
    old, new = (weights("Qwen/Qwen3-VL-8B-Instruct", v, "H200") for v in ("0.31", "0.32"))
    assert old.tables == 4 * new.tables


def test_parts_of_a_product_are_one_tensor() -> None:
    model, _ = settled("Qwen/Qwen3-8B", "0.32", "H200")
    own = [g for g in model.tensors if "self_attn" in g.name and g.linear]
    pieces = [piece_of(model, group, float(2 * group.elements)) for group in own]
    sizes = tensor_sizes(pieces, range(1))
    assert sizes == [6144 * 4096 * 2, 4096 * 4096 * 2]


def test_hyper_connections_are_never_quantized() -> None:
    """Their linear layers are made without a scheme (qwen4_exp/common/hyperconnection.py)."""
    names = ("Qwen/Qwen3.8-Flash-Next", "Qwen/Qwen3.8-Flash-Next-FP8")
    plain, quantized = (
        {
            group.name: stored_bytes(model, group)
            for group in model.tensors
            if "hyper_connection" in group.name
        }
        for model in (kvproof.load_model(name, offline=True) for name in names)
    )
    assert plain == quantized
    assert plain


@pytest.mark.parametrize(("release", "gib"), [("0.7.1", 8.49), ("0.9.1", 8.49), ("0.10.2", 9.06)])
def test_scales_of_two_levels_are_unpacked_since_0_9_2(release: str, gib: float) -> None:
    """Unsloth's notebook prints 8.49 GiB for Phi-4 under 0.7.1 (with a LoRA's buffers)."""
    model = kvproof.load_model("unsloth/phi-4-bnb-4bit", offline=True)
    found = kvproof.budget(model, kvproof.Deployment(f"vllm@{release}", "A100-40GB"))
    weights = sum(term.value for term in found.terms if term.name == "weights")
    assert weights / GIB == pytest.approx(gib, rel=0.01)
