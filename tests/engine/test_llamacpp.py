"""llama.cpp: byte for byte against the real program's answers, and against logs of the field."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvproof
from kvproof.engine.base import Deployment
from kvproof.engine.command import read_command, render_command
from kvproof.engine.llamacpp.builds import BUILDS, build_of
from kvproof.engine.llamacpp.devices import HOST, placement
from kvproof.engine.llamacpp.flags import flags_of
from kvproof.errors import KvproofError, UsageError
from kvproof.model.types import Model
from kvproof.terms import device_of

MIB = 2**20
NAMES = {"n_ctx": "ctx_size", "n_seq_max": "parallel", "n_batch": "batch_size",
         "n_ubatch": "ubatch_size", "type_k": "cache_type_k", "type_v": "cache_type_v",
         "fa": "flash_attn"}  # fmt: skip
# What the C API does where llama-server does otherwise.
C_API = {"parallel": 1, "kv_unified": False, "n_outputs_max": 0}


def metadata(arch: str, keys: dict[str, Any]) -> dict[str, Any]:
    return {"general.architecture": arch, **{f"{arch}.{key}": value for key, value in keys.items()}}


def load(arch: str, **keys: Any) -> Model:
    return kvproof.load_model(metadata(arch, {k.replace("__", "."): v for k, v in keys.items()}))


def dense(
    layers: int, kv_width: int, *, arch: str = "llama", heads: int = 32, **keys: Any
) -> Model:
    """A model of plain attention whose keys of one token are `kv_width` numbers a layer."""
    return load(arch, block_count=layers, embedding_length=heads * 128, context_length=131072,
                vocab_size=128256, feed_forward_length=14336, attention__head_count=heads,
                attention__head_count_kv=kv_width // 128, attention__key_length=128,
                attention__value_length=128, **keys)  # fmt: skip


GEMMA_270M = load("gemma3", block_count=18, embedding_length=640, context_length=32768,
                  vocab_size=262144, feed_forward_length=2048, attention__head_count=4,
                  attention__head_count_kv=1, attention__key_length=256,
                  attention__value_length=256, attention__sliding_window=512)  # fmt: skip
GEMMA4_12B = load("gemma4", block_count=48, embedding_length=3840, context_length=262144,
                  vocab_size=262144, feed_forward_length=15360, attention__head_count=16,
                  attention__head_count_kv=[1 if i % 6 == 5 else 8 for i in range(48)],
                  attention__key_length=512, attention__value_length=512,
                  attention__key_length_swa=256, attention__value_length_swa=256,
                  attention__sliding_window=1024,
                  attention__sliding_window_pattern=[i % 6 != 5 for i in range(48)])  # fmt: skip
GLM_5 = load("glm-dsa", block_count=79, nextn_predict_layers=1, embedding_length=6144,
             context_length=1048576, vocab_size=154880, feed_forward_length=12288,
             attention__head_count=64, attention__head_count_kv=1, attention__key_length=576,
             attention__value_length=512, attention__kv_lora_rank=512,
             attention__key_length_mla=256, attention__value_length_mla=256,
             attention__indexer__key_length=128)  # fmt: skip


def gated_delta(layers: int, kv_heads: int, *, inner: int = 4096, rank: int = 32) -> Model:
    return load("qwen35", block_count=layers, embedding_length=2048, context_length=262144,
                vocab_size=248320, feed_forward_length=6144, attention__head_count=8,
                attention__head_count_kv=kv_heads, attention__key_length=256,
                attention__value_length=256, full_attention_interval=4, ssm__conv_kernel=4,
                ssm__inner_size=inner, ssm__state_size=128, ssm__time_step_rank=rank,
                ssm__group_count=16)  # fmt: skip


def latent(layers: int, width: int) -> Model:
    return load("deepseek2", block_count=layers, embedding_length=width, context_length=163840,
                vocab_size=129280, feed_forward_length=18432, attention__head_count=128,
                attention__head_count_kv=1, attention__key_length=576, attention__value_length=512,
                attention__kv_lora_rank=512, attention__key_length_mla=192,
                attention__value_length_mla=128)  # fmt: skip


V2_EXPANDED = load("deepseek2", block_count=60, embedding_length=5120, context_length=163840,
                   vocab_size=102400, attention__head_count=128, attention__head_count_kv=128,
                   attention__key_length=192, attention__value_length=128,
                   attention__kv_lora_rank=512, rope__dimension_count=64)  # fmt: skip
LAGUNA = load("laguna", block_count=48, embedding_length=2048, context_length=1048576,
              vocab_size=100352, attention__head_count=48, attention__head_count_kv=8,
              attention__key_length=128, attention__value_length=128,
              attention__sliding_window=512)  # fmt: skip


def kv(model: Model, version: str = "b11549", **flags: Any) -> int:
    return kvproof.budget(model, Deployment(f"llamacpp@{version}", **flags)).kv_bytes


def given_cases(data_dir: Path) -> tuple[dict[str, Model], list[dict[str, Any]]]:
    whole = json.loads((data_dir / "llamacpp" / "cases.json").read_text())
    models = {
        name: kvproof.load_model(metadata(row["arch"], row["gguf_keys"]))
        for name, row in whole["models"].items()
    }
    return models, whole["cases"]


def flags_for(case: dict[str, Any]) -> dict[str, Any]:
    return C_API | {NAMES.get(name, name): value for name, value in case["params"].items()}


def test_every_given_case_equals_the_real_program_to_the_byte(data_dir: Path) -> None:
    models, cases = given_cases(data_dir)
    wrong = []
    for case in cases:
        try:
            got: int | None = kv(models[case["model"]], **flags_for(case))
        except UsageError:
            got = None
        if got != case.get("exact_context_bytes"):
            wrong.append((case["id"], got, case.get("exact_context_bytes")))
    assert not wrong
    assert len(cases) >= 300


def test_compute_buffers_are_near_the_real_ones(data_dir: Path) -> None:
    """Median error of at most 1 % for dense models and 5 % for the others."""
    models, cases = given_cases(data_dir)
    errors: dict[bool, list[float]] = {True: [], False: []}
    for case in cases:
        if "error" in case:
            continue
        model = models[case["model"]]
        budget = kvproof.budget(model, Deployment("llamacpp@b11549", **flags_for(case)))
        term = next(term for term in budget.terms if term.name == "compute buffer")
        plain = not model.experts and {s.kind for s in model.slots} <= {"full", "sliding", "shared"}
        errors[plain].append(abs(term.value / case["exact_compute_bytes"] - 1))
        assert term.exact == (term.value == case["exact_compute_bytes"])
    print(f"dense {median(errors[True]):.3%}, others {median(errors[False]):.3%}")
    assert median(errors[True]) <= 0.01
    assert median(errors[False]) <= 0.05


def test_refusals_are_the_programs_own() -> None:
    with pytest.raises(UsageError, match="quantized V cache requires flash_attn"):
        kv(dense(2, 1024), cache_type_v="q8_0", flash_attn="off", ctx_size=512)
    with pytest.raises(UsageError, match="different K \\(q8_0\\) and V \\(f16\\)"):
        kv(GLM_5, cache_type_k="q8_0", ctx_size=512)
    with pytest.raises(UsageError, match="does not divide a head of 80"):
        kv(load("llama", block_count=2, embedding_length=320, attention__head_count=4,
                context_length=512), cache_type_k="q8_0")  # fmt: skip


def test_terms_are_one_per_buffer_and_add_up() -> None:
    budget = kvproof.budget(GLM_5, Deployment("llamacpp@b11549", ctx_size=4096, parallel=1))
    sizes = {term.name: term.value for term in budget.terms}
    assert sizes["K cache"] + sizes["indexer K cache"] == budget.kv_bytes
    hybrid = kvproof.budget(gated_delta(24, 2), Deployment("llamacpp", ctx_size=4096))
    names = [term.name for term in hybrid.terms if "cache" in term.name or "state" in term.name]
    assert names == ["recurrent state R", "recurrent state S", "K cache", "V cache"]
    assert sum(t.value for t in hybrid.terms if t.name in names) == hybrid.kv_bytes


# Field logs: (id in local_startups.jsonl, model, build, flags, MiB of the whole cache)
FIELD = [
    ("p003", dense(32, 1024), "b4000", {"ctx_size": 2048}, 256),
    ("p005", dense(80, 1024, heads=64), "b4000", {"ctx_size": 8192}, 2560),
    ("p041", dense(64, 1024, heads=40), "b11549",
     {"ctx_size": 8192, "parallel": 1, "cache_type_k": "q8_0", "cache_type_v": "q8_0"}, 1088),
    ("p043", dense(32, 4096), "b11549",
     {"ctx_size": 4096, "parallel": 10, "cache_type_k": "q8_0", "cache_type_v": "q8_0"}, 1360),
    ("p044", dense(32, 4096), "b11549", {"ctx_size": 5120, "parallel": 10, "kv_unified": True,
                                         "cache_type_k": "q8_0", "cache_type_v": "q8_0"}, 1360),
    ("p045", dense(32, 4096), "b11549",
     {"ctx_size": 4096, "parallel": 1, "cache_type_k": "q8_0", "cache_type_v": "q8_0"}, 1088),
    ("p063", dense(32, 1024), "b11549", {"ctx_size": 2048}, 256),
    ("p066", dense(32, 1024), "b11549", {"ctx_size": 8192, "parallel": 4}, 1024),
    ("p084", dense(28, 1024, heads=24), "b4000", {"ctx_size": 8192, "parallel": 4}, 896),
    ("p092", dense(62, 1024, heads=48), "b11549",
     {"ctx_size": 196608, "parallel": 1, "cache_type_k": "q8_0", "cache_type_v": "q4_0"}, 19344),
    ("p093", dense(62, 1024, heads=48), "b11549",
     {"ctx_size": 65536, "parallel": 1, "cache_type_k": "q4_0", "cache_type_v": "q4_0"}, 4464),
    ("p101", dense(64, 1024, heads=64), "b11549", {"ctx_size": 131072, "parallel": 1}, 32768),
    ("p104", dense(36, 1024), "b5200", {"ctx_size": 16348, "flash_attn": "off"}, 2299.5),
    ("p113", dense(40, 5120, heads=40), "b3000", {"ctx_size": 512}, 400),
    ("p020", GEMMA_270M, "b11549", {"ctx_size": 4096, "parallel": 1}, 27),
    ("p021", GEMMA_270M, "b11549", {"ctx_size": 4096, "parallel": 2}, 42),
    ("p022", GEMMA_270M, "b11549", {"ctx_size": 4096, "parallel": 4}, 72),
    ("p023", GEMMA_270M, "b11549", {"ctx_size": 4096, "parallel": 8}, 72),
    ("p025", GEMMA_270M, "b11549", {"ctx_size": 8192, "parallel": 2}, 54),
    ("p026", GEMMA_270M, "b11549", {"ctx_size": 1024, "parallel": 3}, 27),
    ("p027", GEMMA_270M, "b11549", {"ctx_size": 1024, "parallel": 4}, 18),
    ("p095", GEMMA4_12B, "b11549",
     {"ctx_size": 16384, "parallel": 1, "cache_type_k": "q8_0", "cache_type_v": "q8_0"}, 136 + 255),
    ("p096", GEMMA4_12B, "b11549", {"ctx_size": 8192, "parallel": 2}, 128 + 960),
    ("p057", gated_delta(64, 4, inner=6144, rank=48), "b11549",
     {"ctx_size": 16384, "parallel": 1}, 1024 + 149.625),
    ("p058", gated_delta(40, 2), "b11549", {"ctx_size": 65536}, 1280 + 4 * 62.8125),
    ("p061", gated_delta(24, 2, inner=2048, rank=16), "b11549",
     {"ctx_size": 262144, "ubatch_size": 1024}, 3072 + 77.0625),
    ("p074", gated_delta(64, 4, inner=6144, rank=48), "b11549",
     {"ctx_size": 200704, "parallel": 1, "cache_type_k": "q4_0", "cache_type_v": "q4_0",
      "n_rs_seq": 4}, 3528 + 748.125),
    ("p016", gated_delta(64, 4, inner=6144, rank=48), "b11549",
     {"ctx_size": 256, "parallel": 1, "n_rs_seq": 64}, 9725.625 + 16),
    ("p088", gated_delta(24, 2, inner=2048, rank=16), "b11549",
     {"ctx_size": 32768, "parallel": 1, "cache_type_k": "q8_0", "cache_type_v": "q8_0"},
     204 + 77.0625 / 4),
    ("p002", dense(28, 256, heads=12), "b5000", {"ctx_size": 8192, "flash_attn": "on"}, 224),
    ("p014", V2_EXPANDED, "b4500", {"ctx_size": 4096, "cache_type_k": "q8_0"}, 13800),
    ("p046", dense(32, 4096), "b11549",
     {"ctx_size": 8192, "parallel": 1, "cache_type_k": "q8_0", "cache_type_v": "q8_0"}, 2176),
    ("p076", gated_delta(64, 4, inner=6144, rank=48), "b11549",
     {"ctx_size": 8192, "parallel": 4, "kv_unified": True, "n_rs_seq": 2}, 512 + 1795.5),
    ("p078", gated_delta(40, 2), "b11549", {"ctx_size": 54784, "parallel": 1}, 1070 + 62.8125),
    ("p080", dense(48, 512), "b11549", {"ctx_size": 32768, "parallel": 1}, 3072),
    ("p083", dense(32, 1024), "b4000", {"ctx_size": 8192, "parallel": 4}, 1024),
    ("p106", latent(61, 7168), "b11549", {"ctx_size": 131072, "parallel": 1,
                                          "cache_type_k": "q8_0", "cache_type_v": "q8_0"}, 4666.5),
    ("p107", latent(60, 5120), "b11549", {"ctx_size": 32768, "parallel": 1,
                                          "cache_type_k": "q8_0", "cache_type_v": "q8_0"}, 1147.5),
    ("p006", latent(61, 7168), "b11549", {"ctx_size": 32768, "parallel": 1}, 2196),
    ("p111", dense(32, 2560, heads=20), "b2500", {"ctx_size": 2048}, 640),
    ("p087", LAGUNA, "b11549", {"ctx_size": 1048576, "parallel": 1, "cache_type_k": "q4_0",
                                "cache_type_v": "q4_0"}, 13824 + 40.5),
    ("p069", GLM_5, "b11549", {"ctx_size": 524288, "parallel": 1}, 44928 + 2688),
    ("p068", GLM_5, "b11549", {"ctx_size": 768000, "parallel": 1}, 65812.5 + 768000 * 21 / 4096),
]  # fmt: skip


@pytest.mark.parametrize("row", FIELD, ids=lambda row: row[0])
def test_field_logs_are_reproduced(row: tuple[str, Model, str, dict[str, Any], float]) -> None:
    _, model, build, flags, mib = row
    assert kv(model, build, **flags) == mib * MIB


PAIRS = json.loads(
    (Path(__file__).parent.parent / "model" / "data" / "gguf_pairs.json").read_text()
)["pairs"]


@pytest.mark.parametrize("pair", PAIRS, ids=lambda p: p["name"])
def test_a_config_takes_what_its_file_takes(pair: dict[str, Any]) -> None:
    """A config.json is laid out as the GGUF file that llama.cpp's converter makes of it."""
    config, file = kvproof.load_model(pair["config"]), kvproof.load_model(pair["metadata"])
    for flags in ({"parallel": 2}, {}, {"flash_attn": "off"}, {"n_rs_seq": 2}):
        assert kv(config, ctx_size=5000, **flags) == kv(file, ctx_size=5000, **flags)


def test_server_defaults_are_four_slots_over_one_pool() -> None:
    budget = kvproof.capacity(dense(32, 1024), Deployment("llamacpp", ctx_size=8192), 10**12)
    assert (budget.tokens, budget.max_num_seqs, budget.max_model_len) == (8192, 4, 8192)
    assert budget.sequences(2048) == 4
    assert budget.sequences(8192) == 1
    assert budget.sequences(8193) == 0
    assert budget.sequences([4096, 4000, 500]) == 2
    own = kvproof.capacity(
        dense(32, 1024), Deployment("llamacpp", ctx_size=8192, parallel=4), 10**12
    )
    assert (own.tokens, own.max_model_len, own.max_concurrency) == (8192, 2048, 4.0)
    assert own.sequences(2048) == 4
    assert own.sequences(2049) == 0


def test_drafting_keeps_states_to_roll_back_to() -> None:
    model = gated_delta(64, 4, inner=6144, rank=48)
    plain = {"ctx_size": 32768, "parallel": 1}
    state = 149.625 * MIB
    assert kv(model, **plain) == 2048 * MIB + state
    # p075: two tokens drafted by the model's own head
    assert kv(model, **plain, spec_type="draft-mtp", spec_draft_n_max=2) == 2048 * MIB + 3 * state
    assert kv(model, **plain, mtp=True) == 2048 * MIB + 4 * state
    with_head = kvproof.load_model({**model.config, "qwen35.block_count": 65,
                                    "qwen35.nextn_predict_layers": 1})  # fmt: skip
    assert kv(with_head, **plain) == kv(model, **plain)
    drafted = kvproof.budget(with_head, Deployment("llamacpp", **plain, mtp=True))
    assert drafted.kv_bytes == 2048 * MIB + 4 * state + 128 * MIB
    assert [t.value for t in drafted.terms if t.name.startswith("draft")] == [64 * MIB] * 2


def test_capacity_says_what_is_too_much() -> None:
    model = dense(32, 1024)
    held = kvproof.capacity(model, Deployment("llamacpp", ctx_size=8192), 10**9)
    assert not held.fits
    assert "1.00 GiB" in str(held.error)
    fitted = kvproof.capacity(model, Deployment("llamacpp"), 10**9)
    assert fitted.fits
    assert fitted.tokens == 7424
    kept = kvproof.capacity(model, Deployment("llamacpp", fit="off"), 10**9)
    assert not kept.fits


def test_builds_change_the_rules() -> None:
    model = dense(2, 1024)
    row = kv(model, ctx_size=256, parallel=1) // 256
    assert kv(model, "b5000", ctx_size=100) == 128 * row
    assert kv(model, "b5000", ctx_size=100, flash_attn="on") == 256 * row
    assert kv(model, "b6900", ctx_size=100, parallel=1) == 100 * row
    assert kv(model, "b7000", ctx_size=100, parallel=1) == 256 * row
    assert kv(GEMMA_270M, "b5000", ctx_size=4096) == 18 * 4096 * 1024
    whole = V2_EXPANDED
    assert kv(latent(60, 5120), "b5134", ctx_size=4096) == kv(whole, "b5134", ctx_size=4096)
    assert kv(latent(60, 5120), "b5135", ctx_size=4096) == 60 * 4096 * 576 * 2
    assert build_of(None) == BUILDS[-1]
    with pytest.raises(UsageError, match="builds"):
        build_of("0.32.1")


@settings(max_examples=200, deadline=None)
@given(
    cells=st.integers(1, 300_000),
    sequences=st.integers(1, 256),
    unified=st.booleans(),
    ubatch=st.sampled_from([1, 64, 512, 2048]),
)
def test_more_context_never_takes_less(
    cells: int, sequences: int, unified: bool, ubatch: int
) -> None:
    flags = {"parallel": sequences, "kv_unified": unified, "ubatch_size": ubatch}
    assert kv(GEMMA_270M, ctx_size=cells, **flags) <= kv(GEMMA_270M, ctx_size=cells + 256, **flags)


def test_layers_go_where_the_flags_say() -> None:
    model = dense(32, 1024)
    half = placement(model, flags_of(Deployment("llamacpp", n_gpu_layers=17)), 1)
    assert half.layers.count(HOST) == 16
    assert half.output == 0
    none = placement(model, flags_of(Deployment("llamacpp", n_gpu_layers=0)), 1)
    assert set(none.layers) == {HOST}
    two = placement(model, flags_of(Deployment("llamacpp", tensor_split="3,1")), 2)
    assert two.layers.count(0) == 25
    one = placement(model, flags_of(Deployment("llamacpp", split_mode="none", main_gpu=1)), 2)
    assert set(one.layers) == {1}


CONFIG = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "vocab_size": 128256,
          "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
          "max_position_embeddings": 131072, "torch_dtype": "bfloat16"}  # fmt: skip


@pytest.mark.parametrize("gpu", ["H100-80GB", "2xH100-80GB"])
@pytest.mark.parametrize("layers", [0, 10, 99])
def test_terms_of_a_gpu_add_up_to_its_memory(gpu: str, layers: int) -> None:
    model = kvproof.load_model(CONFIG)
    deployment = Deployment("llamacpp", gpu=gpu, n_gpu_layers=layers, ctx_size=32768)
    budget = kvproof.budget(model, deployment)
    assert deployment.accelerator is not None
    devices = {device_of(term) for term in budget.terms}
    assert devices == {"host", *([""] if gpu[0] == "H" else ["GPU 0", "GPU 1"])}
    for device in devices - {"host"}:
        own = [term.value for term in budget.terms if device_of(term) == device]
        assert sum(own) == deployment.accelerator.memory_bytes
    cache = sum(t.value for t in budget.terms if "cache" in t.name)
    assert cache == budget.kv_bytes == 32768 * 32 * 4096
    weights = sum(t.value for t in budget.terms if "weights" in t.name)
    assert weights == model.parameters * 2


@pytest.mark.parametrize(
    ("gpus", "split", "share"),
    [("2xRTX-4090-24GB", "3,1", 0.75), ("2xRTX-4090-24GB", "", 0.5), ("2xRTX-4090-24GB", "1,0", 1)],
)
def test_rows_are_dealt_by_the_tensor_split(gpus: str, split: str, share: float) -> None:
    """ggml-cuda.cu, ggml_backend_cuda_split_buffer_type."""
    flags = {"tensor_split": split} if split else {}
    d = Deployment("llamacpp", gpus, split_mode="row", ctx_size=4096, **flags)
    model = kvproof.load_model("Qwen/Qwen3-8B")
    terms = {t.name: int(t.value) for t in kvproof.budget(model, d).terms}
    first, second = (terms.get(f"weights, GPU {n}", 0) for n in (0, 1))
    assert first / (first + second) == pytest.approx(share, abs=1e-6)


def test_a_context_that_is_not_named_is_fitted_to_the_gpu() -> None:
    model = kvproof.load_model(CONFIG)
    deployment = Deployment("llamacpp", gpu_memory=24 * 2**30)
    budget, held = kvproof.budget(model, deployment), kvproof.capacity(model, deployment, 10**12)
    left = next(term.value for term in budget.terms if term.name == "left free")
    assert 2**30 <= left < 2**30 + 100 * MIB
    assert 4096 < held.tokens < 131072
    assert held.tokens * 32 * 4096 == budget.kv_bytes
    small = kvproof.capacity(model, Deployment("llamacpp", gpu_memory="10GiB", fit="off"), 10**12)
    assert not small.fits
    assert "lacks" in str(small.error)


def test_cache_of_sequences() -> None:
    cache = kvproof.cache(GEMMA_270M, tokens=70, engine="llamacpp")
    assert cache.bytes == 18 * 70 * 1024
    assert cache.allocated_bytes == 18 * 256 * 1024
    long = kvproof.cache(GEMMA_270M, lengths=[4096, 100], engine="llamacpp@b11549")
    assert long.bytes == 3 * 4196 * 1024 + 15 * 612 * 1024
    assert long.allocated_bytes == 2 * (3 * 4096 + 15 * 1024) * 1024
    assert sum(long.slots) == sum(long.layers) == long.bytes
    halved = kvproof.cache(dense(2, 1024), tokens=256, engine="llamacpp", dtype="q8_0")
    assert halved.bytes == 2 * 256 * 2 * 1024 * 34 // 32


def seconds(gpu: str, **flags: Any) -> float:
    """A step of one sequence at 4k."""
    model = kvproof.load_model(CONFIG)
    plan = kvproof.plan(
        model, Deployment("llamacpp", gpu=gpu, ctx_size=16384, **flags), contexts=[4096]
    )
    step = plan.rows[0].alone
    assert step is not None
    assert sum(t.value for t in step.terms if t.unit == "s" and t.name == "reading") == step.seconds
    return step.seconds


def test_what_stays_on_the_host_is_read_at_the_hosts_speed() -> None:
    whole, half = seconds("RTX-4090"), seconds("RTX-4090", n_gpu_layers=17)
    none = seconds("RTX-4090", n_gpu_layers=0)
    assert whole < half < none
    fast = seconds("RTX-4090", n_gpu_layers=0, host_bandwidth="179.2GB/s")
    assert none == pytest.approx(2 * fast)
    cached = seconds("RTX-4090", kv_offload=False)
    assert whole < cached < half
    assert seconds("M3-Max-64GB", n_gpu_layers=0) < none / 2  # one memory for both


def test_gpus_with_layers_of_their_own_wait_for_each_other() -> None:
    one, two = seconds("RTX-4090"), seconds("2xRTX-4090")
    assert two == pytest.approx(one)
    assert seconds("2xRTX-4090", split_mode="row") == pytest.approx(one / 2)


def test_commands_are_read_and_written() -> None:
    text = (
        "llama-server -m m.gguf -c 16384 -np 4 -ngl 99 -fa on -ctk q8_0 -ctv q8_0 --port 80 -ts 3,1"
    )
    command = read_command(text)
    assert command.model == "m.gguf"
    assert command.ignored == ("port",)
    assert command.deployment.flags["ctx_size"] == 16384
    again = read_command(render_command("m.gguf", command.deployment))
    assert again.deployment.flags == command.deployment.flags
    image = read_command(
        "docker run ghcr.io/ggml-org/llama.cpp:server-cuda-b11549 -hf a/b --no-kv-unified"
    )
    assert (image.model, str(image.deployment.engine)) == ("a/b:latest", "llamacpp@b11549")
    assert image.deployment.flags == {"kv_unified": False}
    with pytest.raises(UsageError, match="did you mean --ctx-size"):
        read_command("llama-server --ctx-sise 10")


def test_ollama_is_llamacpp_with_its_own_defaults() -> None:
    model = dense(32, 1024)
    row = 32 * 4096
    assert kvproof.budget(model, Deployment("ollama")).kv_bytes == 4096 * row
    assert (
        kvproof.budget(model, Deployment("ollama", gpu_memory=32 * 2**30)).kv_bytes == 32768 * row
    )
    two = Deployment("ollama@0.12.1", num_ctx=8192, num_parallel=2)
    assert kvproof.budget(model, two).kv_bytes == 16384 * row
    small = Deployment("ollama", num_ctx=8192, kv_cache_type="q8_0", flash_attention=True)
    assert kvproof.budget(model, small).kv_bytes == 8192 * row * 34 // 64
    with pytest.raises(UsageError, match="num_ctx"):
        Deployment("ollama", num_context=1)
    command = read_command("OLLAMA_NUM_PARALLEL=2 ollama run llama3.2:3b")
    assert (command.model, command.deployment.flags) == ("ollama:llama3.2:3b", {"num_parallel": 2})


@pytest.mark.parametrize("flags", [
    {"ctx_size": -1}, {"parallel": 0}, {"parallel": 1000}, {"cache_type_k": "q3_k"}, {"no_such": 1},
    {"flash_attn": "maybe"}, {"tensor_split": "a,b"}, {"batch_size": 0, "ubatch_size": 0},
    {"split_mode": "diagonal"}, {"kv_unified": 7}, {"ctx_size": "many"},
])  # fmt: skip
def test_wrong_flags_give_one_line(flags: dict[str, Any]) -> None:
    with pytest.raises(KvproofError) as caught:
        Deployment("llamacpp", **flags)
    assert "\n" not in str(caught.value)
