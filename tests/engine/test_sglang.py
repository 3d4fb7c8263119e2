from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import kvproof
from kvproof.engine import sglang
from kvproof.engine.base import CacheRequest, Deployment
from kvproof.engine.sglang.flags import read_flags
from kvproof.engine.sglang.pools import make_pools
from kvproof.engine.sglang.share import default_fraction, static_share
from kvproof.errors import UsageError
from kvproof.model.types import Model

GIB = 2**30


def load(name: str) -> Model:
    return kvproof.load_model(name, offline=True)


@pytest.fixture(scope="module")
def qwen() -> Model:
    return load("Qwen/Qwen3-8B")


def published(data_dir: Path, name: str) -> Model:
    path = data_dir / "configs" / (name.replace("/", "--") + ".json")
    return kvproof.load_model(json.loads(path.read_text()))


# (log point, config, release, GPU, flags, printed GiB, half its rounding, printed tokens)
POINTS: tuple[tuple[str, str, str, str | None, dict[str, Any], float, float, int], ...] = (
    ("log128", "moonshotai/Kimi-K2.5", "0.5.8", "MI355X", {"tp_size": 8}, 160.63, 0.005, 2454421),
    ("log137", "Qwen/Qwen3.8-27B", "0.5.13", "GB10",
     {"disable_radix_cache": True, "max_running_requests": 32}, 32.66, 0.01, 535124),
    ("log139", "Qwen/Qwen3.5-27B", "0.5.12", None, {"tp_size": 4}, 16.0, 0.01, 1048576),
    ("log144", "Qwen/Qwen3-8B", "0.5.12", None, {"kv_cache_dtype": "bf16"}, 9.9999, 5e-5, 72816),
    ("log147", "deepseek-ai/DeepSeek-V3.2", "0.5.12", "B300",
     {"tp_size": 8, "kv_cache_dtype": "fp8"}, 186.5, 0.005, 4636736),
    ("log322", "zai-org/GLM-5-FP8", "0.5.9", "MI355X",
     {"tp_size": 8, "kv_cache_dtype": "fp8_e4m3"}, 186.77, 0.005, 3262823),
    ("log327", "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4", "0.5.21", "GB10",
     {"tp_size": 4, "kv_cache_dtype": "fp8_e4m3"}, 28.1, 0.01, 19644177),
    ("log336", "deepseek-ai/DeepSeek-V3", "0.4.6", None, {"tp_size": 8}, 17.99, 0.005, 274934),
    ("log356", "Qwen/Qwen3-30B-A3B", "0.5.16", "MI355X", {}, 203.9, 0.01, 2227073),
)  # fmt: skip


@pytest.mark.parametrize("point", POINTS, ids=[p[0] for p in POINTS])
def test_tokens_lie_within_the_rounding_of_the_printed_pool(
    point: tuple[Any, ...], data_dir: Path
) -> None:
    _, name, version, gpu, flags, printed, half, tokens = point
    deployment = Deployment(f"sglang@{version}", gpu, **flags)
    model = published(data_dir, name)
    low, high = (
        kvproof.capacity(model, deployment, int((printed + side) * GIB)) for side in (-half, half)
    )
    assert low.tokens - low.block_size <= tokens <= high.tokens + high.block_size


def test_heads_are_split_while_they_last(qwen: Model) -> None:
    sizes = [
        kvproof.capacity(qwen, Deployment("sglang", tp_size=n), 8 * GIB).bytes_per_block
        for n in (1, 2, 4, 8, 16)
    ]
    assert sizes == [147_456, 73_728, 36_864, 18_432, 18_432]


def test_latents_are_copied_to_every_rank(data_dir: Path) -> None:
    model = published(data_dir, "deepseek-ai/DeepSeek-V3")
    one, eight = (Deployment("sglang", tp_size=n) for n in (1, 8))
    sizes = {kvproof.capacity(model, d, 8 * GIB).bytes_per_block for d in (one, eight)}
    assert sizes == {61 * 576 * 2}
    split = Deployment("sglang", tp_size=8, dp_size=8, enable_dp_attention=True)
    assert kvproof.capacity(model, split, 8 * GIB).bytes_per_block == 61 * 576 * 2


def test_sparse_latents_keep_an_indexer_and_scaled_rows(data_dir: Path) -> None:
    model = published(data_dir, "deepseek-ai/DeepSeek-V3.2")
    hopper = Deployment("sglang@0.5.12", "8xH100-80GB", tp_size=8, kv_cache_dtype="fp8_e4m3")
    blackwell = Deployment("sglang@0.5.12", "8xB200", tp_size=8)
    cell = kvproof.capacity(model, hopper, GIB).bytes_per_block // 64
    assert cell == 61 * (656 + 132)
    assert kvproof.capacity(model, blackwell, GIB).bytes_per_block // 64 == 61 * (576 + 132)


def test_two_pools_for_models_with_windows(data_dir: Path) -> None:
    model = published(data_dir, "openai/gpt-oss-20b")
    plain = Deployment("sglang@0.5.12", "H100-80GB", swa_full_tokens_ratio=0.5)
    answer = kvproof.capacity(model, plain, 8 * GIB)
    assert [g.kind for g in answer.groups] == ["full", "sliding"]
    terms = {term.name: term.value for term in answer.terms}
    assert terms["sliding tokens"] == answer.tokens // 2
    one = kvproof.capacity(model, Deployment("sglang@0.5.12", disable_hybrid_swa_memory=True),
                           8 * GIB)  # fmt: skip
    assert [g.kind for g in one.groups] == ["full"]
    assert one.tokens < answer.tokens
    assert answer.sequences(4096) <= answer.usable_blocks // 4096


def test_states_bound_the_requests(data_dir: Path) -> None:
    model = published(data_dir, "Qwen/Qwen3.5-27B")
    fixed = {"max_mamba_cache_size": 360, "kv_cache_dtype": "fp8_e4m3"}
    new = kvproof.capacity(model, Deployment("sglang@0.5.20", "H100-80GB", **fixed), 7 * GIB)
    old = kvproof.capacity(model, Deployment("sglang@0.5.12", "H100-80GB", **fixed), 7 * GIB)
    assert (new.max_num_seqs, old.max_num_seqs) == (72, 120)
    single = Deployment("sglang@0.5.12", disable_radix_cache=True, max_running_requests=32)
    assert kvproof.capacity(model, single, 7 * GIB).max_num_seqs == 32


def test_states_and_cache_are_solved_together(data_dir: Path) -> None:
    model = published(data_dir, "Qwen/Qwen3.5-27B")
    deployment = Deployment("sglang@0.5.13", "2xH100-80GB", tp_size=2, mamba_full_memory_ratio=0.9)
    budget = kvproof.budget(model, deployment)
    terms = {term.name: term.value for term in budget.terms}
    assert terms["state pool"] / budget.kv_bytes == pytest.approx(0.9, rel=0.02)


@pytest.mark.parametrize("version", ["0.4.6", "0.5.5", "0.5.8", "0.5.12", "0.5.23"])
@pytest.mark.parametrize("gpu", ["RTX-4090", "A100-40GB", "H100-80GB", "H200-141GB", "MI300X"])
def test_terms_add_up_to_the_gpu(qwen: Model, version: str, gpu: str) -> None:
    deployment = Deployment(f"sglang@{version}", gpu)
    budget = kvproof.budget(qwen, deployment)
    assert deployment.accelerator is not None
    assert sum(term.value for term in budget.terms) == deployment.accelerator.memory_bytes
    assert budget.interval[0] <= budget.kv_bytes <= budget.interval[1]


# mem_fraction_static where none is given, worked out by hand from each release's server_args.py;
# MiB of the card: H100 81,920 (the label), A100-40GB 40,960, RTX-4090 24,576, H200 144,384.
SHARES = (
    ("0.4.4", "8xH100-80GB", {"tp_size": 8}, 0.81),
    ("0.4.6", "H200-141GB", {}, (144_384 - 13 * 1024) / 144_384),
    ("0.4.6.post5", "H200-141GB", {}, (144_384 - 18 * 1024) / 144_384),
    ("0.4.7", "2xA100-40GB", {"tp_size": 2}, 0.87),
    ("0.4.7", "A100-40GB", {"speculative_algorithm": "EAGLE"}, 0.88 * 0.95),
    ("0.4.7", "H200-141GB", {"speculative_algorithm": "EAGLE"}, (144_384 - 20_480) / 144_384),
    ("0.4.8", "8xH100-80GB", {"tp_size": 8}, round(1 - 13.5 * 1024 / 81_920, 3)),
    ("0.5.2", "RTX-4090", {}, round(1 - 2.9 * 1024 / 24_576, 3)),
    ("0.5.2", "8xH200-141GB", {"tp_size": 8, "speculative_algorithm": "EAGLE"},
     round(1 - 18 * 1024 / 144_384, 3)),
    ("0.5.3", "RTX-4090", {}, round(1 - (512 + 3072 + 32 + 128) / 24_576, 3)),
    ("0.5.5", "RTX-4090", {}, round(1 - (512 + 3072 + 48 + 128) / 24_576, 3)),
    ("0.5.9", "8xH100-80GB", {"tp_size": 8}, round(1 - (512 + 12_288 + 1024 + 1024) / 81_920, 3)),
    ("0.5.9", "H100-80GB", {"chunked_prefill_size": 2048}, round(1 - 10_240 / 81_920, 3)),
    ("0.5.12", "A100-40GB", {}, round(1 - (512 + 6144 + 64 + 128 + 50 * 8) / 40_960, 3)),
    ("0.5.12", "A100-40GB", {"disable_piecewise_cuda_graph": True},
     round(1 - (512 + 6144 + 64 + 128) / 40_960, 3)),
    ("0.5.12", "H100-80GB", {"speculative_algorithm": "EAGLE"},
     round(1 - (512 + 12_288 + 512 + 128 + 58 * 8 + 4096) / 81_920, 3)),
    ("0.5.16", "H100-80GB", {"speculative_algorithm": "EAGLE"},
     round(1 - (512 + 12_288 + 512 + 128 + 58 * 8) / 81_920, 3)),
    ("0.5.16", "A100-40GB", {"disable_cuda_graph": True}, round(1 - 6784 / 40_960, 3)),
    ("0.5.20", "RTX-4090", {}, round(1 - (512 + 6144 + 96 + 128 + 50 * 8) / 24_576, 3)),
    ("0.5.23", "A100-40GB", {"max_running_requests": 8},
     round(1 - (512 + 6144 + 16 + 128 + 50 * 8) / 40_960, 3)),
)  # fmt: skip


@pytest.mark.parametrize("case", SHARES, ids=[f"{c[0]}-{c[1]}-{len(c[2])}" for c in SHARES])
def test_the_static_share_by_release(qwen: Model, case: tuple[Any, ...]) -> None:
    version, gpu, flags, share = case
    deployment = Deployment(f"sglang@{version}", gpu, **flags)
    assert default_fraction(qwen, deployment, read_flags(deployment), 0) == pytest.approx(share)


def test_the_share_that_a_log_states_is_the_default(data_dir: Path) -> None:
    """log128 states 0.8260405859375, log357 0.911: both what their releases work out."""
    kimi = published(data_dir, "moonshotai/Kimi-K2.5")
    eight = Deployment("sglang@0.5.8.post1", "8xMI355X", tp_size=8, attention_backend="triton")
    assert static_share(kimi, eight, read_flags(eight), 0) == pytest.approx(0.82604058, abs=2e-4)
    qwen = published(data_dir, "Qwen/Qwen3-30B-A3B")
    one = Deployment("sglang@0.5.16", "MI355X")
    assert default_fraction(qwen, one, read_flags(one), 0) == pytest.approx(0.911, abs=5e-4)
    assert static_share(qwen, one, read_flags(one), 0) == pytest.approx(0.911 * 0.85, abs=5e-4)


def test_sizing_forgets_the_scales_of_sparse_rows(data_dir: Path) -> None:
    """log322: 186.77 GiB allocated where 0.5.9 counted 576 of 656 bytes a row, at its default."""
    model = published(data_dir, "zai-org/GLM-5-FP8")
    flags = {"tp_size": 8, "kv_cache_dtype": "fp8_e4m3", "free_memory": round(283.62 * GIB)}
    budget = kvproof.budget(model, Deployment("sglang@0.5.9", "8xMI355X", **flags))
    assert budget.kv_bytes / GIB == pytest.approx(186.77, rel=0.005)
    later = kvproof.budget(model, Deployment("sglang@0.5.19", "8xMI355X", **flags))
    assert later.kv_bytes < 0.95 * budget.kv_bytes


@pytest.mark.parametrize(("version", "size"), [("0.5.12", 15955.85), ("0.5.16", 7705.45)])
def test_compressed_bytes_a_token_as_printed(data_dir: Path, version: str, size: float) -> None:
    """Published start-ups of DeepSeek-V4-Flash print these as bytes_per_full_token."""
    model = published(data_dir, "deepseek-ai/DeepSeek-V4-Flash")
    deployment = Deployment(f"sglang@{version}", "8xH200-141GB", tp_size=8)
    pools = make_pools(model, deployment, read_flags(deployment))
    assert round(pools.cell, 2) == size
    printed = {"0.5.12": (45.78, 3_080_960), "0.5.16": (11.89, None)}[version]
    tokens = kvproof.capacity(model, deployment, int(printed[0] * GIB)).tokens
    assert printed[1] is None or tokens == pytest.approx(printed[1], abs=0.005 * GIB / size)


def test_compressed_states_and_windows_by_request(data_dir: Path) -> None:
    """A published start-up of 0.5.16: 1641472 tokens of 11.89 GB less 0.11, as for 8 requests."""
    model = published(data_dir, "deepseek-ai/DeepSeek-V4-Flash")
    few = Deployment("sglang@0.5.16", "8xH200-141GB", tp_size=8, max_running_requests=8)
    assert kvproof.capacity(model, few, int(11.89 * GIB)).tokens == pytest.approx(
        1_641_472, rel=5e-4
    )
    many = few.replace(max_running_requests=512)
    assert kvproof.capacity(model, many, int(11.89 * GIB)).tokens < 1_000_000
    capped = Deployment("sglang@0.5.21", "8xH200-141GB", tp_size=8, max_running_requests=10)
    pools = make_pools(model, capped, read_flags(capped))
    assert pools.pinned == 10 * (128 + 128 + 512) + 2 * 8192 + 256 + 40 * 384
    assert pools.cell < 7705.45


def test_a_draft_of_the_model_takes_part_of_the_pool(data_dir: Path) -> None:
    model = published(data_dir, "deepseek-ai/DeepSeek-V3")
    old, new = (
        kvproof.budget(model, Deployment(f"sglang@{v}", "8xH200-141GB", tp_size=8,
                                         speculative_algorithm="EAGLE", mem_fraction_static=0.9))
        for v in ("0.5.13", "0.5.14")
    )  # fmt: skip
    terms = {term.name: term.value for term in new.terms}
    assert terms["draft cache"] / new.kv_bytes == pytest.approx(1 / 61, rel=1e-3)
    assert terms["draft weights"] > 0
    assert "draft cache" not in {term.name for term in old.terms}
    assert new.kv_bytes < old.kv_bytes


def test_states_of_draft_tokens(data_dir: Path) -> None:
    """A published start-up of 0.5.2x: 64 slots, 48.75 GB of states for 16 draft tokens."""
    model = published(data_dir, "Qwen/Qwen3.5-27B")
    flags = {"speculative_algorithm": "EAGLE", "speculative_num_draft_tokens": 16,
             "max_mamba_cache_size": 320, "max_running_requests": 64}  # fmt: skip
    deployment = Deployment("sglang@0.5.20", "H200-141GB", **flags)
    read = read_flags(deployment)
    from kvproof.engine.sglang.states import state_pool

    pools = make_pools(model, deployment, read)
    states = state_pool(model, 90 * GIB, read, pools)
    assert states.slots == 320
    assert states.drafted == pools.state * 16 * 65
    assert states.counted == pools.state * 321 + states.drafted


def test_a_log_states_what_was_free(qwen: Model) -> None:
    deployment = Deployment("sglang@0.5.9", "H100-80GB", mem_fraction_static=0.8,
                            free_memory=60 * GIB)  # fmt: skip
    budget = kvproof.budget(qwen, deployment)
    weights = next(term.value for term in budget.terms if term.name == "weights")
    assert budget.kv_bytes == pytest.approx(0.8 * 60 * GIB - weights, abs=2 * 147_456)
    assert sum(term.value for term in budget.terms) == deployment.accelerator.memory_bytes  # type: ignore[union-attr]


def test_flags_in_their_other_spellings(qwen: Model) -> None:
    a = Deployment("sglang", tp=4, context_length=8192)
    b = Deployment("sglang", tensor_parallel_size=4, max_model_len=8192)
    one, other = (kvproof.capacity(qwen, d, 4 * GIB) for d in (a, b))
    assert (one.tokens, one.max_model_len) == (other.tokens, other.max_model_len)


def test_a_token_limit_lowers_the_pool(qwen: Model) -> None:
    answer = kvproof.capacity(qwen, Deployment("sglang", max_total_tokens=20480), 40 * GIB)
    assert answer.tokens == 20480
    budget = kvproof.budget(qwen, Deployment("sglang", "H100-80GB", max_total_tokens=20480))
    assert budget.kv_bytes == 20481 * 147_456


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"tp_sise": 2}, "tp_size"),
        ({"mem_fraction_static": 1.5}, "share above 0"),
        ({"mem_fraction_static": "lots"}, "no number"),
        ({"tp_size": 0}, "1 or more"),
        ({"kv_cache_dtype": "fp9"}, "fp8"),
        ({"tp_size": 4, "dp_size": 3, "enable_dp_attention": True}, "does not divide"),
    ],
)
def test_bad_flags_are_one_clear_line(flags: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Deployment("sglang", **flags)


def test_compressed_sequences(data_dir: Path) -> None:
    model = published(data_dir, "deepseek-ai/DeepSeek-V4-Flash")
    answer = sglang.cache(model, CacheRequest(lengths=(1024,)))
    assert answer.bytes == 43 * 128 * 584 + 21 * 256 * (584 + 132) + 20 * 8 * 584
    assert answer.allocated_bytes >= answer.bytes


def test_sequences_without_a_deployment(qwen: Model) -> None:
    request = CacheRequest(lengths=(70, 30), dtype="bf16")
    answer = sglang.cache(qwen, request)
    assert answer.bytes == 100 * 147_456 == sum(answer.slots) == sum(answer.layers)
    assert answer.allocated_bytes == answer.bytes


def test_a_request_that_does_not_fit_is_an_answer(qwen: Model) -> None:
    answer = kvproof.capacity(qwen, Deployment("sglang", context_length=40960), GIB)
    assert not answer.fits
    assert "40,960" in (answer.error or "")


@pytest.mark.parametrize("engine", ["sglang", "tensorrt_llm"])
def test_ranks_that_do_not_divide_the_heads_are_refused(engine: str) -> None:
    model = kvproof.load_model("Qwen/Qwen3-8B")
    three = kvproof.Deployment(engine, "3xRTX-4090", tp_size=3)
    with pytest.raises(kvproof.KvproofError, match="do not divide the 32 attention heads"):
        kvproof.budget(model, three)
    with pytest.raises(kvproof.KvproofError, match="do not divide the 32 attention heads"):
        kvproof.capacity(model, three, 2**30)


def test_nothing_is_missing_where_a_cache_fits(qwen: Model) -> None:
    terms = sglang.budget(qwen, Deployment("sglang", "H100-80GB")).terms
    below = [term for term in terms if term.value < 0]
    assert [term.name for term in below] == ["taken from what is kept free"]
    with_none = sglang.budget(qwen, Deployment("sglang", "RTX-4060-8GB")).terms
    assert "missing" in {term.name for term in with_none}


@pytest.mark.parametrize(("version", "printed"), [("0.5.16", 1), ("0.5.17", 8), ("0.5.23", 8)])
def test_tokens_of_latents_are_dealt_out_over_context_ranks(version: str, printed: int) -> None:
    """0.5.23: mem_cache/kv_cache_configurator.py (logical_token_capacity): rows x ranks."""
    model = kvproof.load_model("deepseek-ai/DeepSeek-V3", offline=True)
    alone, dealt = (
        kvproof.capacity(
            model,
            kvproof.Deployment(f"sglang@{version}", "8xH200", tp_size=8, dcp_size=ranks),
            20 * 2**30,
        )
        for ranks in (1, 8)
    )
    assert dealt.tokens == printed * alone.tokens
    assert (dealt.num_blocks, dealt.block_size) == (alone.num_blocks, 8 * alone.block_size)
    assert dealt.bytes_per_block == alone.bytes_per_block
    assert dealt.max_concurrency == pytest.approx(8 * alone.max_concurrency)
    assert dealt.sequences(163_840) >= 8 * alone.sequences(163_840) > 0


@pytest.mark.parametrize(
    ("version", "name", "ranks"),
    [
        ("0.5.14", "deepseek-ai/DeepSeek-V3", 8),
        ("0.5.23", "deepseek-ai/DeepSeek-V3", 3),
        ("0.5.23", "deepseek-ai/DeepSeek-V3.2", 8),
        ("0.5.23", "Qwen/Qwen3-8B", 2),
    ],
)
def test_tokens_that_are_not_dealt_out(version: str, name: str, ranks: int) -> None:
    model = kvproof.load_model(name, offline=True)

    def asked() -> None:
        flags = {"tp_size": 8, "dcp_size": ranks}
        kvproof.budget(model, kvproof.Deployment(f"sglang@{version}", "8xH200", **flags))

    with pytest.raises(UsageError, match="dcp_size"):
        asked()
