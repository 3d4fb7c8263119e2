"""Ollama's releases, as the repository's tags have them."""

from __future__ import annotations

from typing import Any

import pytest

import kvproof
from kvproof.engine.base import Deployment
from kvproof.engine.ollama.flags import as_llamacpp
from kvproof.engine.ollama.releases import build_name, default_context, release_of
from kvproof.errors import UsageError
from kvproof.model.types import Model

GIB = 2**30
QWEN = {
    "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 4,
    "hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 1000, "torch_dtype": "bfloat16",
    "max_position_embeddings": 40960,
}  # fmt: skip


def qwen(**changes: Any) -> Model:
    return kvproof.load_model({**QWEN, **changes})


@pytest.fixture(scope="module")
def gpt_oss() -> Model:
    return kvproof.load_model("openai/gpt-oss-20b", offline=True)


def asked(version: str | None, model: Model | None = None, **flags: Any) -> dict[str, Any]:
    name = f"ollama@{version}" if version else "ollama"
    return dict(as_llamacpp(Deployment(name, **flags), model or qwen()).flags)


@pytest.mark.parametrize(
    ("version", "context", "slots"),
    [
        ("0.0.5", 512, 1), ("0.1.48", 2048, 1), ("0.2.0", 2048, 4), ("0.5.13", 2048, 4),
        ("0.6.6", 2048, 4), ("0.6.7", 4096, 2), ("0.9.6", 4096, 2), ("0.10.0", 4096, 1),
        ("0.15.4", 4096, 1), ("0.32.15", 4096, 1), (None, 4096, 1),
    ],
)  # fmt: skip
def test_the_default_context_and_slots(version: str | None, context: int, slots: int) -> None:
    flags = asked(version)
    assert (flags["ctx_size"], flags["parallel"]) == (context * slots, slots)


# Driver totals: an L4 and an A10 have 22 GiB, a 4090 23.5, an L40S 44.4, an A6000 47.5.
@pytest.mark.parametrize(
    ("gpu", "context"),
    [("L4", 4096), ("RTX-4090", 32_768), ("L40S", 32_768), ("RTX-A6000", 262_144),
     ("2xRTX-4090", 262_144), ("2xL4", 32_768)],
)  # fmt: skip
def test_the_context_by_detected_memory(gpu: str, context: int) -> None:
    deployment = Deployment("ollama@0.20.0", gpu)
    long = qwen(max_position_embeddings=500_000)
    assert as_llamacpp(deployment, long).flags["ctx_size"] == context
    assert as_llamacpp(deployment, qwen()).flags["ctx_size"] == min(context, 40_960)


def test_a_context_is_cut_since_0_9_3() -> None:
    assert asked("0.9.2", num_ctx=50_000, num_parallel=1)["ctx_size"] == 50_000
    assert asked("0.9.3", num_ctx=50_000, num_parallel=1)["ctx_size"] == 40_960


def test_memory_is_that_of_all_gpus() -> None:
    assert default_context((0, 15, 5), 47 * GIB) == 262_144
    assert default_context((0, 15, 5), 47 * GIB - 1) == 32_768
    assert default_context((0, 15, 5), 23 * GIB - 1) == 4_096
    assert default_context((0, 15, 4), 80 * GIB) == 4_096


@pytest.mark.parametrize(
    ("version", "build"),
    [("0.6.8", "b0"), ("0.7.0", "b5360"), ("0.11.4", "b5360"), ("0.11.5", "b6160"),
     ("0.13.1", "b6840"), ("0.13.2", "b7108"), ("0.24.0", "b7460"), ("0.30.0", "b9452"),
     ("0.32.9", "b10353"), ("0.32.15", "b10488"), ("0.33.0", None), (None, None)],
)  # fmt: skip
def test_the_code_that_a_release_took_from_llamacpp(version: str | None, build: str | None) -> None:
    assert build_name(release_of(version)) == build


@pytest.mark.parametrize(
    ("version", "flash"),
    [("0.11.8", "off"), ("0.12.3", "off"), ("0.12.4", "on"), ("0.24.0", "on"), ("0.30.0", None)],
)
def test_flash_attention_by_release(version: str, flash: str | None) -> None:
    assert asked(version).get("flash_attn") == flash
    assert asked(version, flash_attention=True)["flash_attn"] is True


def test_flash_attention_where_llamacpp_runs_the_model() -> None:
    llama = qwen(model_type="llama", architectures=["LlamaForCausalLM"])
    assert asked("0.13.3", llama)["flash_attn"] == "off"
    assert "flash_attn" not in asked("0.13.4", llama)


@pytest.mark.parametrize(
    ("version", "flags", "kind"),
    [
        ("0.12.3", {}, "f16"),  # qwen3 has no flash attention yet: the request is dropped
        ("0.12.4", {}, "q8_0"),
        ("0.12.3", {"flash_attention": True}, "q8_0"),
        ("0.12.4", {"flash_attention": False}, "f16"),
        ("0.30.0", {}, "q8_0"),
        ("0.30.0", {"flash_attention": False}, "f16"),
    ],
)
def test_quantized_caches_need_flash_attention(
    version: str, flags: dict[str, Any], kind: str
) -> None:
    got = asked(version, kv_cache_type="q8_0", **flags)
    assert got["cache_type_k"] == got["cache_type_v"] == kind


@pytest.mark.parametrize(
    ("version", "wanted", "kind"),
    [
        ("0.4.7", "q8_0", "f16"),  # the variable came with 0.5.0
        ("0.5.0", "q8_0", "q8_0"),
        ("0.24.0", "q5_1", "f16"),
        ("0.30.0", "q5_1", "q5_1"),
    ],
)
def test_cache_types_that_a_release_takes(version: str, wanted: str, kind: str) -> None:
    got = asked(version, kv_cache_type=wanted, flash_attention=True)
    assert got["cache_type_k"] == got["cache_type_v"] == kind


@pytest.mark.parametrize(
    ("version", "kind"), [("0.11.4", "q8_0"), ("0.12.3", "f16"), ("0.12.4", "q8_0")]
)
def test_gpt_oss_was_refused_quantized_caches(version: str, kind: str) -> None:
    from kvproof.engine.ollama.releases import cache_type, release_of

    assert cache_type(release_of(version), "gptoss", "q8_0") == kind


def test_quantized_caches_by_auto_are_dropped_before_the_server() -> None:
    llama = qwen(model_type="llama", architectures=["LlamaForCausalLM"])
    assert asked("0.20.0", llama, kv_cache_type="q4_0")["cache_type_k"] == "f16"


@pytest.mark.parametrize(
    ("flags", "batch"),
    [
        ({}, (512, 512)), ({"num_ctx": 8192}, (1024, 1024)), ({"num_ctx": 40_000}, (2048, 2048)),
        ({"num_ctx": 40_000, "num_batch": 256}, (256, 256)),
        ({"num_ctx": 4096, "num_parallel": 4}, (1024, 1024)),
        # Predicted are 0.3 GB of keys and values (of 64 numbers a head) and 0.1 of weights.
        ({"num_ctx": 40_000, "gpu_memory": "3GiB"}, (1024, 1024)),
        ({"num_ctx": 40_000, "gpu_memory": "1GiB"}, (512, 512)),
        ({"num_ctx": 8192, "flash_attention": False, "gpu": "RTX-4090"}, (512, 512)),
        ({"num_ctx": 8192, "flash_attention": False, "gpu": "RTX-3070"}, (256, 256)),
    ],
)  # fmt: skip
def test_the_batch_grows_with_the_context_since_0_30(
    flags: dict[str, Any], batch: tuple[int, int]
) -> None:
    got = as_llamacpp(Deployment("ollama@0.30.0", **flags), qwen()).flags
    assert (got["batch_size"], got["ubatch_size"]) == batch


@pytest.mark.parametrize(
    ("version", "batch"),
    [("0.12.0", (4096, 512)), ("0.13.3", (4096, 1024)), ("0.30.0", (1024, 1024))],
)
def test_batches_of_several_slots(version: str, batch: tuple[int, int]) -> None:
    got = asked(version, num_parallel=4, num_batch=1024)
    assert (got["batch_size"], got["ubatch_size"]) == batch


def test_some_architectures_have_one_slot() -> None:
    hybrid = kvproof.load_model("Qwen/Qwen3-Next-80B-A3B-Instruct", offline=True)
    assert asked("0.15.4", hybrid, num_parallel=4)["parallel"] == 4
    assert asked("0.15.5", hybrid, num_parallel=4)["parallel"] == 1


def test_gpt_oss_kept_4096_tokens_of_its_sliding_layers(gpt_oss: Model) -> None:
    def cells(version: str) -> float:
        flags = {"num_ctx": 32_768, "num_parallel": 1, "num_batch": 512, "flash_attention": True}
        kv = kvproof.budget(gpt_oss, Deployment(f"ollama@{version}", **flags)).kv_bytes
        return kv / 2048 - 12 * 32_768

    assert cells("0.11.8") == cells("0.24.0") == 12 * (4096 + 512)
    assert cells("0.30.0") == 12 * 768


def test_sliding_layers_were_whole_before_0_6_3() -> None:
    model = kvproof.load_model("google/gemma-3-4b-it", offline=True)

    def kv(version: str) -> int:
        flags = {"num_ctx": 32_768, "num_parallel": 1, "num_batch": 512}
        return kvproof.budget(model, Deployment(f"ollama@{version}", **flags)).kv_bytes

    row = 4 * 256 * 2 * 2
    assert kv("0.6.2") == 34 * 32_768 * row
    assert kv("0.6.3") == (5 * 32_768 + 29 * (1024 + 512)) * row


def test_bad_settings_are_one_line() -> None:
    for flags in ({"num_ctx": "many"}, {"num_parallel": -1}, {"num_batch": True}):
        with pytest.raises(UsageError, match="whole number"):
            Deployment("ollama", **flags)


def test_layers_that_stay_on_the_host_are_no_option_of_llama_server() -> None:
    """Ollama has no --fit; it offloads what it finds room for where num_gpu is not given."""
    model = kvproof.load_model("Qwen/Qwen3-8B", offline=True)
    for engine, by in (("ollama@0.9.0", "num_gpu is not set"), ("llamacpp", "--fit")):
        plan = kvproof.plan(model, Deployment(engine, "RTX3060-12GB"), [4096])
        (note,) = [line for line in plan.warnings if "what fits is started" in line]
        assert f"({by})" in note
