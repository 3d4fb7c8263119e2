"""vLLM's budget: terms that add up, weights equal to what engines printed, an interval."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvproof
from kvproof.engine import vllm
from kvproof.engine.vllm.parts import constants
from kvproof.engine.vllm.rank_weights import rank_weights
from kvproof.engine.vllm.settings import settle
from kvproof.errors import UsageError
from kvproof.model.weights import stored_bytes

GIB = 2**30


def weights(name: str, release: str, gpu: str, **flags: Any) -> float:
    model = kvproof.load_model(name, offline=True)
    deployment = kvproof.Deployment(f"vllm@{release}", gpu, **flags)
    return rank_weights(model, settle(model, deployment)).total / GIB


@pytest.mark.parametrize(
    ("name", "release", "flags", "printed"),
    [
        ("Qwen/Qwen3-VL-30B-A3B-Instruct", "0.14.1", {}, 79.29),
        ("google/gemma-3-27b-it", "0.11", {}, 51.7891),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-14B", "0.11", {"tensor_parallel_size": 2}, 14.002),
        ("RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", "0.18", {}, 68.37),
        ("RedHatAI/Qwen3-235B-A22B-FP8-dynamic", "0.11.2", {"tensor_parallel_size": 8}, 28.041),
    ],
)
def test_rocm_counts_what_its_allocator_holds(
    name: str, release: str, flags: dict[str, Any], printed: float
) -> None:
    """Padded experts cut up the blocks of those before them: 79.29 GiB where tensors take 58."""
    assert weights(name, release, "MI300X", **flags) == pytest.approx(printed, rel=0.01)


@pytest.mark.parametrize(
    ("ranks", "held"),
    [
        # One rank: both matrices are padded, and the padded down-projection is cut from the block
        # of the old up-projection, which is held whole.
        (1, 128 * (2 * 768 * (2048 * 2 + 256) + 2 * 768 * 2048 * 2)),
        # Two ranks: rows of 768 B are not padded, so nothing is cut.
        (2, 128 * (2 * 384 * (2048 * 2 + 256) + 2048 * 384 * 2)),
    ],
)
def test_padded_experts_cut_up_the_block_before(ranks: int, held: int) -> None:
    model = kvproof.load_model("Qwen/Qwen3-30B-A3B", offline=True)
    deployment = kvproof.Deployment("vllm@0.20", "MI300X", tensor_parallel_size=ranks)
    found = rank_weights(model, settle(model, deployment))
    loaded = found.total - found.remainders
    experts = 3 * 128 * 768 * 2048 * 2 // ranks
    pads = 48 * (held - experts)
    assert found.remainders == pytest.approx(pads + 0.013 * (loaded + pads), abs=1)


def test_experts_copied_back_leave_no_pads() -> None:
    name = "Qwen/Qwen3-VL-30B-A3B-Instruct"
    assert weights(name, "0.32", "MI300X") < 0.8 * weights(name, "0.20", "MI300X")
    quantized = weights("Qwen/Qwen3-30B-A3B-FP8", "0.20", "MI300X")
    assert quantized == pytest.approx(weights("Qwen/Qwen3-30B-A3B-FP8", "0.20", "H200"), rel=0.02)


def test_minimax_m3_in_mxfp4() -> None:
    """log225 prints 113.04 GiB on each of two ranks, its vision tower among them."""
    own = weights(
        "MiniMaxAI/MiniMax-M3", "0.23", "B200", tensor_parallel_size=2, quantization="mxfp4"
    )
    assert own == pytest.approx(113.04, rel=0.002)


def test_sparse_attention_gathers_what_the_longest_sequence_needs() -> None:
    model = kvproof.load_model("deepseek-ai/DeepSeek-V3.2", offline=True)
    sizes = {}
    for release in ("0.20", "0.32"):
        for length in (8_192, 524_288):
            d = kvproof.Deployment(
                f"vllm@{release}", "B200", tensor_parallel_size=8, max_model_len=length
            )
            terms = {t.name: t.value for t in vllm.budget(model, d).terms}
            sizes[release, length] = terms["sparse attention's workspace"]
    assert sizes["0.20", 8_192] == sizes["0.32", 8_192] == 8_192 * 40 * 132
    assert sizes["0.20", 524_288] == 524_288 * 40 * 132
    assert sizes["0.32", 524_288] == 524_288 * 16 * 132


@pytest.mark.parametrize(
    ("name", "release", "gpu", "flags", "printed"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "0.6", "RTX-3090", {}, 14.9888),
        ("Qwen/Qwen3-32B", "0.13", "H100-80GB", {}, 61.03),
        ("Qwen/Qwen3-8B", "0.9", "A100-40GB", {}, 15.2683),
        ("openai/gpt-oss-120b", "0.11.2", "H100-80GB", {}, 65.9651),
        ("Qwen/Qwen3-235B-A22B", "0.8.5", "H100-80GB", {"tensor_parallel_size": 8}, 54.92),
        ("deepseek-ai/DeepSeek-R1-0528", "0.13", "H200", {"tensor_parallel_size": 8}, 79.739),
        ("nvidia/DeepSeek-V3.2-NVFP4", "0.18", "B200", {"tensor_parallel_size": 8}, 48.62),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-FP8", "0.16", "H200", {}, 30.52),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-FP8", "0.19", "H200", {}, 31.40),
        (
            "RedHatAI/Llama-4-Maverick-17B-128E-Instruct-FP8",
            "0.11.2", "H200", {"tensor_parallel_size": 8}, 48.8685,
        ),
        (
            "RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic",
            "0.18", "H200", {"tensor_parallel_size": 4}, 16.96,
        ),
    ],
    ids=lambda value: str(value).split("/")[-1],
)  # fmt: skip
def test_weights_are_those_that_engines_print(
    name: str, release: str, gpu: str, flags: dict[str, Any], printed: float
) -> None:
    assert weights(name, release, gpu, **flags) == pytest.approx(printed, rel=0.002)


@pytest.mark.parametrize("release", ["0.6.4", "0.11.2", "0.18.0", "0.20.2", "0.32"])
@pytest.mark.parametrize("ranks", [1, 4])
def test_terms_add_up_to_the_gpu(release: str, ranks: int) -> None:
    model = kvproof.load_model("meta-llama/Llama-3.1-8B")
    deployment = kvproof.Deployment(f"vllm@{release}", "H100-80GB", tensor_parallel_size=ranks)
    found = vllm.budget(model, deployment)
    assert deployment.accelerator is not None
    assert sum(term.value for term in found.terms) == deployment.accelerator.memory_bytes
    assert found.terms[-1].name == "KV cache"
    assert found.terms[-1].value == found.kv_bytes
    low, high = found.interval
    assert low < found.kv_bytes < high


def test_a_model_that_is_too_large_leaves_nothing() -> None:
    model = kvproof.load_model("meta-llama/Llama-3.1-70B")
    deployment = kvproof.Deployment("vllm", "H100-80GB")
    found = vllm.budget(model, deployment)
    assert found.kv_bytes == 0
    assert found.terms[-1].name == "missing"
    assert deployment.accelerator is not None
    assert sum(term.value for term in found.terms) == deployment.accelerator.memory_bytes


def test_given_cache_bytes_are_taken() -> None:
    model = kvproof.load_model("meta-llama/Llama-3.1-8B")
    deployment = kvproof.Deployment("vllm", "H100-80GB", kv_cache_memory_bytes="10G")
    found = vllm.budget(model, deployment)
    assert found.kv_bytes == 10 * GIB
    assert found.interval == (10 * GIB, 10 * GIB)


@pytest.mark.parametrize(("given", "words"), [("30G", "cache"), ("9G", "weights"), ("8G", "")])
def test_given_cache_bytes_beyond_the_gpu_do_not_fit(given: str, words: str) -> None:
    model = kvproof.load_model("Qwen/Qwen3-8B")
    deployment = kvproof.Deployment("vllm", "RTX-4090", kv_cache_memory_bytes=given)
    memory = deployment.first.memory_bytes if deployment.first else 0
    found = kvproof.plan(model, deployment, contexts=[4096])
    assert sum(int(term.value) for term in found.budget.terms) == memory
    said = [line for line in found.warnings if "runs out of memory" in line]
    assert found.fits is (not words)
    assert len(said) == bool(words)
    assert all(words in line for line in said)


def test_weights_kept_in_host_memory_leave_room() -> None:
    whole = weights("Qwen/Qwen3-32B", "0.32", "RTX-4090")
    part = weights("Qwen/Qwen3-32B", "0.32", "RTX-4090", cpu_offload_gb=50)
    assert whole - part == pytest.approx(50, abs=1e-6)
    # Layers only: the vocabulary's embedding and head stay.
    all_layers = weights("Qwen/Qwen3-32B", "0.32", "RTX-4090", cpu_offload_gb=500)
    assert all_layers == pytest.approx(2 * 151_936 * 5_120 * 2 / GIB, rel=0.01)
    split = weights(
        "Qwen/Qwen3-32B", "0.32", "2xRTX-4090", cpu_offload_gb=500, tensor_parallel_size=2
    )
    assert split < 0.6 * all_layers


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), "x"])
def test_host_memory_that_is_no_size(value: object) -> None:
    with pytest.raises(UsageError, match="cpu_offload_gb"):
        kvproof.plan(
            kvproof.load_model("Qwen/Qwen3-8B"),
            kvproof.Deployment("vllm", "RTX-4090", cpu_offload_gb=value),
        )


@pytest.mark.parametrize(("release", "charged"), [("0.9.0", True), ("0.9.2", False)])
def test_the_first_v1_charged_the_context(release: str, charged: bool) -> None:
    """0.8.5 and 0.9.0, v1/worker/gpu_worker.py: total less free, so the process' context too."""
    model = kvproof.load_model("meta-llama/Llama-3.1-8B", offline=True)
    deployment = kvproof.Deployment(f"vllm@{release}", "A100-40GB", max_model_len=8192)
    terms = {t.name: t.value for t in vllm.budget(model, deployment).terms}
    assert ("CUDA context" not in terms) == charged
    assert (terms["framework"] > 0.3 * GIB) == charged


def test_all_of_a_gpu_in_use_is_no_share_to_lower_to() -> None:
    model = kvproof.load_model("Qwen/Qwen3-8B")
    found = kvproof.plan(model, kvproof.Deployment("vllm", "H100-80GB", used="85GB"))
    assert not found.fits
    said = next(line for line in found.warnings if "refuses to start" in line)
    assert "end what holds it" in said


def test_no_gpu_is_named() -> None:
    model = kvproof.load_model("meta-llama/Llama-3.1-8B")
    with pytest.raises(UsageError, match="no GPU"):
        vllm.budget(model, kvproof.Deployment("vllm"))


def test_what_takes_memory_leaves_less_for_the_cache() -> None:
    model = kvproof.load_model("meta-llama/Llama-3.1-8B")

    def cache(**flags: Any) -> int:
        return vllm.budget(model, kvproof.Deployment("vllm", "H100-80GB", **flags)).kv_bytes

    plain = cache()
    assert cache(gpu_memory_utilization=0.95) > plain
    assert cache(max_num_seqs=256) > plain
    assert cache(enforce_eager=True) > plain
    assert cache(enable_lora=True, max_loras=4, max_lora_rank=64) < plain
    assert cache(max_num_batched_tokens=65536) < plain
    assert cache(speculative_config={"method": "eagle", "num_speculative_tokens": 3}) < plain
    assert cache(quantization="fp8") > plain


def test_experts_are_dealt_out() -> None:
    model = kvproof.load_model("Qwen/Qwen3-235B-A22B")
    flags = {"tensor_parallel_size": 4, "data_parallel_size": 2}
    shared = rank_weights(model, settle(model, kvproof.Deployment("vllm", "H200", **flags)))
    alone = rank_weights(
        model, settle(model, kvproof.Deployment("vllm", "H200", tensor_parallel_size=4))
    )
    assert shared.decoder < 0.6 * alone.decoder


def test_the_fullest_stage_counts() -> None:
    one = weights("meta-llama/Llama-3.1-70B", "0.32", "H100-80GB", tensor_parallel_size=4)
    two = weights(
        "meta-llama/Llama-3.1-70B", "0.32", "H100-80GB",
        tensor_parallel_size=4, pipeline_parallel_size=2,
    )  # fmt: skip
    assert 0.5 * one < two < 0.52 * one


def test_each_gpu_of_a_mixed_pipeline_holds_its_own_stage() -> None:
    """The first stage has the embedding, the last the head: no rank is charged another's."""
    model = kvproof.load_model("meta-llama/Llama-3.1-8B", offline=True)
    mixed = kvproof.Deployment("vllm@0.28", "H100-80GB+L40S", pipeline_parallel_size=2)
    by_gpu = {}
    for _, kind in mixed.kinds:
        terms = {t.name: t.value for t in vllm.budget(model, mixed.on(kind)).terms}
        by_gpu[kind.name] = terms["weights"]
    layer = sum(stored_bytes(model, g) / len(g.layers) for g in model.tensors if g.layers)
    table = 128_256 * 4096 * 2
    norm = 4096 * 2
    assert by_gpu["H100-80GB"] == pytest.approx(16 * layer + table, rel=1e-6)
    assert by_gpu["L40S-48GB"] == pytest.approx(16 * layer + table + norm, rel=1e-6)


def test_uneven_stages_are_charged_to_their_gpu() -> None:
    """Two layers of three on the second GPU: what does not divide goes before the last stage."""
    model = kvproof.load_model(
        {
            "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 1024,
            "intermediate_size": 4096, "num_hidden_layers": 5, "num_attention_heads": 8,
            "num_key_value_heads": 8, "vocab_size": 32000, "torch_dtype": "bfloat16",
        }
    )  # fmt: skip
    mixed = kvproof.Deployment("vllm@0.28", "H100-80GB+L40S", pipeline_parallel_size=2)
    weights = [
        next(t.value for t in vllm.budget(model, mixed.on(kind)).terms if t.name == "weights")
        for _, kind in mixed.kinds
    ]
    layer = sum(stored_bytes(model, g) / len(g.layers) for g in model.tensors if g.layers)
    assert weights[0] - weights[1] == pytest.approx(layer, rel=0.01)


@settings(max_examples=80, deadline=None)
@given(
    name=st.sampled_from(
        ["meta-llama/Llama-3.1-8B", "deepseek-ai/DeepSeek-V3.2", "deepseek-ai/DeepSeek-V4-Flash",
         "Qwen/Qwen3-VL-30B-A3B-Instruct", "Qwen/Qwen3.8-Flash-Next", "zai-org/GLM-5.3-Flash",
         "openai/gpt-oss-120b", "thinkingmachines/Inkling-Small"]
    ),
    gpu=st.sampled_from(["H100-80GB", "B200", "MI300X", "RTX-4090", "L40S", "H100-80GB+L40S"]),
    release=st.sampled_from(["0.6.4", "0.11.2", "0.18.0", "0.22", "0.24.0", "0.28", "0.32"]),
    ranks=st.sampled_from([1, 2, 4, 8]),
    options=st.fixed_dictionaries(
        {},
        optional={
            "enable_lora": st.just(True),
            "max_loras": st.integers(1, 4),
            "enforce_eager": st.booleans(),
            "enable_expert_parallel": st.booleans(),
            "max_num_seqs": st.sampled_from([1, 16, 512]),
            "max_model_len": st.sampled_from([4096, 131072, 524288]),
            "gpu_memory_utilization": st.floats(0.3, 0.98),
            "used": st.integers(0, 3 * 10**9),
            "speculative_config": st.sampled_from(
                [{"method": "mtp", "num_speculative_tokens": 2},
                 {"method": "ngram", "num_speculative_tokens": 3}]
            ),
        },
    ),
)  # fmt: skip
def test_terms_of_any_deployment_add_up_and_say_how(
    name: str, gpu: str, release: str, ranks: int, options: dict[str, Any]
) -> None:
    """What is left for the cache, and all that takes from it, is the GPU's memory to the byte."""
    model = kvproof.load_model(name, offline=True)
    flags = {**options, "tensor_parallel_size": ranks}
    try:
        deployment = kvproof.Deployment(f"vllm@{release}", gpu, **flags)
        found = vllm.budget(model, deployment)
    except UsageError:  # what vLLM refuses, or a GPU count that its ranks do not divide
        return
    assert deployment.accelerator is not None
    assert sum(t.value for t in found.terms) == deployment.accelerator.memory_bytes
    names = [t.name for t in found.terms]
    assert len(set(names)) == len(names)
    assert all(t.unit == "B" and t.formula and t.source for t in found.terms)
    assert all(t.value >= 0 for t in found.terms if t.name != "missing")
    assert found.interval[0] <= found.kv_bytes <= found.interval[1]
    assert ("LoRA slots" in names) == bool(options.get("enable_lora"))
    assert ("communication" in names) == (ranks > 1)
    drafted = options.get("speculative_config", {}).get("method") == "mtp"
    assert ("draft model" in names) <= drafted


def _slots(name: str, release: str = "0.32", **flags: Any) -> int:
    model = kvproof.load_model(name, offline=True)
    deployment = kvproof.Deployment(f"vllm@{release}", "H200", enable_lora=True, **flags)
    return next(int(t.value) for t in vllm.budget(model, deployment).terms if "LoRA" in t.name)


def test_lora_slots_are_two_matrices_of_every_layer() -> None:
    """Llama 3.1 8B by hand: A of rank x inputs and B of outputs x rank, embedding and head too."""
    hidden, inner, kv, vocabulary = 4096, 14336, 1024, 128_256
    attention = 2 * (hidden + hidden) + 2 * (hidden + kv)
    feed = 3 * (hidden + inner)
    whole = 32 * (attention + feed) + 2 * (vocabulary + hidden)
    assert _slots("meta-llama/Llama-3.1-8B", max_loras=3, max_lora_rank=32) == 3 * 32 * whole * 2
    split = 32 * (
        (hidden + hidden // 2)  # queries: outputs shared out
        + 2 * (hidden + kv // 2)
        + (hidden // 2 + hidden)  # the output: inputs shared out
        + 2 * (hidden + inner // 2)
        + (inner // 2 + hidden)
    ) + 2 * (vocabulary + hidden)
    assert _slots("meta-llama/Llama-3.1-8B", tensor_parallel_size=2) == 16 * split * 2


def test_experts_have_slots_of_their_own() -> None:
    """Qwen3-30B-A3B: 128 experts a layer, with gate and up apart."""
    hidden, inner = 2048, 768
    experts = 48 * 128 * (2 * (hidden + inner) + (inner + hidden))
    more = _slots("Qwen/Qwen3-30B-A3B") - _slots("Qwen/Qwen3-30B-A3B", "0.10.2")
    assert more == 16 * experts * 2


def test_the_context_lies_outside_the_requested_share() -> None:
    model = kvproof.load_model("Qwen/Qwen3-8B", offline=True)
    wide, full = (
        {t.name: t for t in vllm.budget(model, kvproof.Deployment(
            "vllm@0.32", "H100-80GB", gpu_memory_utilization=share)).terms}
        for share in (0.9, 0.999)
    )  # fmt: skip
    assert wide["CUDA context"].value == pytest.approx(0.56 * GIB, abs=1)
    assert full["CUDA context"].value <= 0.001 * 85.1e9
    assert full["left unused"].value == 0


def test_gpus_that_the_sizes_do_not_divide_are_named_by_the_sizes() -> None:
    asked = kvproof.Deployment("vllm", "2xH100-80GB", tensor_parallel_size=2, data_parallel_size=2)
    sizes = "no multiple of the 4 of data_parallel_size 2 x tensor_parallel_size 2"
    with pytest.raises(UsageError, match=sizes):
        vllm.budget(kvproof.load_model("Qwen3-8B"), asked)


def test_flashinfers_sampler_sorts_nothing() -> None:
    """Starts of 0.11.0 on H200 leave 3.3 GiB more than with torch's sampler (srv-b5b1da6d)."""
    name, flags = "RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", {"tensor_parallel_size": 4}
    model = kvproof.load_model(name, offline=True)
    own, other = (
        kvproof.budget(
            model, kvproof.Deployment("vllm@0.11.0", "H200", flashinfer_sampler=on, **flags)
        ).kv_bytes
        for on in (True, False)
    )
    assert (own - other) / GIB == pytest.approx(3.3, abs=0.2)


@pytest.mark.parametrize("blocks", [1000, 25_000, 1_000_000])
def test_blocks_asked_for_are_the_cache_that_is_allocated(blocks: int) -> None:
    model = kvproof.load_model("Qwen/Qwen3-8B")
    plain = kvproof.Deployment("vllm@0.32", "H100-80GB", max_model_len=8192)
    asked = plain.replace(num_gpu_blocks_override=blocks)
    found, free = (kvproof.plan(model, one, contexts=[4096]) for one in (asked, plain))
    assert plain.accelerator is not None
    size = blocks * found.capacity.bytes_per_block
    assert found.budget.kv_bytes == size == found.budget.interval[0]
    assert sum(int(term.value) for term in found.budget.terms) == plain.accelerator.memory_bytes
    unused = next(t.value for t in free.budget.terms if t.name == "left unused")
    lacks = size > free.budget.kv_bytes + unused
    assert found.fits is not lacks
    assert lacks == any("num_gpu_blocks_override" in said for said in found.warnings)
    # What profiling leaves, which logs print, is the same with it.
    assert kvproof.budget(model, asked).kv_bytes == free.budget.kv_bytes


def _half(gpu: str, release: str = "0.18.0") -> float:
    model = kvproof.load_model("Qwen/Qwen3-8B", offline=True)
    batch = {"max_num_seqs": 256, "max_num_batched_tokens": 2048}
    found = kvproof.budget(model, kvproof.Deployment(f"vllm@{release}", gpu, **batch))
    return (found.interval[1] - found.interval[0]) / 2 / GIB


def test_what_no_log_was_seen_of_is_in_more_doubt() -> None:
    """A GPU, or a minor release, that took no part in the fit: doubts times the larger factor."""
    table = constants()["interval"]
    wider = table["unseen_scale"] / table["scale"]
    assert wider > 1
    seen, unseen = "A100-80GB", "A800-80GB"
    assert seen in table["gpus"]
    assert not any(name.startswith(unseen) for name in table["gpus"])
    assert "0.18" in table["releases"]
    assert "0.15" not in table["releases"]
    assert _half(unseen) == pytest.approx(wider * _half(seen), rel=0.001)
    assert _half(seen, "0.15.0") == pytest.approx(wider * _half(seen, "0.16.0"), rel=0.001)


def test_a_small_card_has_less_that_nothing_names() -> None:
    """None of the three took part in the fit; the weights and the terms are the same on each."""
    assert _half("L4") < _half("L40S") < _half("A800-80GB")
