"""What flags and variables change of a model's config and reach, as each engine takes them."""

from __future__ import annotations

import json
from typing import Any

import pytest

import kvproof
from kvproof import Deployment
from kvproof.engine.base import served_model
from kvproof.engine.command import read_command, render_command
from kvproof.engine.vllm.lengths import derived_length
from kvproof.engine.vllm.versions import parse_version, rules_at
from kvproof.errors import KvproofError
from kvproof.model.overrides import overridden, trained_length

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
GIB = 2**30


@pytest.fixture(scope="module")
def model() -> Any:
    return kvproof.load_model("Qwen/Qwen3-8B", offline=True)


@pytest.mark.parametrize(
    ("release", "flags", "length"),
    [
        ("0.29.0", {}, 40960),
        ("0.29.0", {"hf_overrides": {"rope_scaling": YARN}}, 131072),
        ("0.9.2", {"rope_scaling": YARN}, 131072),
        # Since 0.30 the factor is taken to be in max_position_embeddings already.
        ("0.32.0", {"hf_overrides": {"rope_scaling": YARN}}, 40960),
        ("0.32.0", {"hf_overrides": {"max_position_embeddings": 131072}}, 131072),
        ("0.32.0", {"hf_overrides": {"rope_parameters": {"rope_type": "linear", "factor": 2}}},
         81920),
    ],
)  # fmt: skip
def test_vllms_length(model: Any, release: str, flags: dict[str, Any], length: int) -> None:
    deployment = Deployment(f"vllm@{release}", "H200", **flags)
    served = served_model(model, deployment)
    assert derived_length(served, flags, rules_at(parse_version(release))) == length
    assert kvproof.capacity(model, deployment, 80 * GIB).max_model_len == length


def test_a_scaled_model_is_not_past_what_it_was_trained_for(model: Any) -> None:
    plain = kvproof.plan(model, Deployment("vllm", "H200"), [131072])
    assert any("trained for 40,960" in line for line in plain.warnings)
    scaled = Deployment("vllm", "H200", hf_overrides={"rope_scaling": YARN})
    assert not any("131,072 is past" in w for w in kvproof.plan(model, scaled, [131072]).warnings)
    assert trained_length(served_model(model, scaled)) == 131072
    local = Deployment("llamacpp", "H200", rope_scale=4, yarn_orig_ctx=32768, ctx_size=131072)
    assert not any("past that" in line for line in kvproof.plan(model, local, [131072]).warnings)
    sglang = Deployment(
        "sglang", "H200", json_model_override_args=json.dumps({"max_position_embeddings": 131072})
    )
    assert kvproof.capacity(model, sglang, 80 * GIB).max_model_len == 131072


def test_a_length_that_vllm_refuses_is_named(model: Any) -> None:
    long = Deployment("vllm@0.32", "H200", max_model_len=131072)
    told = [w for w in kvproof.plan(model, long, [4096]).warnings if "refuses max_model_len" in w]
    assert len(told) == 1
    assert "131,072" in told[0]
    assert "40,960" in told[0]
    allowed = long.replace(allow_long_max_model_len=True)
    assert not any("refuses" in line for line in kvproof.plan(model, allowed, [4096]).warnings)


@pytest.mark.parametrize(
    ("name", "override"),
    [
        ("Qwen/Qwen3-8B", {"num_hidden_layers": 4}),
        ("openai/gpt-oss-20b", {"num_hidden_layers": 4}),
        ("google/gemma-3-27b-it", {"text_config": {"num_hidden_layers": 4}}),
    ],
)
def test_fewer_layers_are_the_first_ones(name: str, override: dict[str, Any]) -> None:
    """layer_types has an entry for each of the layers there were: the first of them count."""
    whole = kvproof.load_model(name, offline=True)
    served = served_model(whole, Deployment("vllm", "H200", hf_overrides=override))
    assert served.layers == 4
    assert [type(slot) for slot in served.slots] == [type(slot) for slot in whole.slots[:4]]


def test_other_keys_change_the_model(model: Any) -> None:
    fewer = {"num_hidden_layers": 18, "layer_types": ["full_attention"] * 18}
    served = overridden(model, fewer)
    assert len(served.slots) == 18
    assert served.parameters < model.parameters
    assert overridden(model, {}) is model
    with pytest.raises(KvproofError, match="whole number"):
        overridden(model, {"num_hidden_layers": "x"})


@pytest.mark.parametrize(
    "name", ["google/gemma-3-27b-it", "google/gemma-4-31B", "openai/gpt-oss-20b"]
)
def test_an_override_that_changes_nothing_leaves_every_slot(name: str) -> None:
    model = kvproof.load_model(name, offline=True)
    same = overridden(model, {"use_cache": True})
    assert (same.slots, same.tensors, same.context) == (model.slots, model.tensors, model.context)


def test_variables_of_vllm() -> None:
    found = read_command(
        "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0 "
        "VLLM_KV_CACHE_LAYOUT=HND VLLM_MLA_DISABLE=0 VLLM_LOGGING_LEVEL=DEBUG "
        "vllm serve org/name --max-model-len 100000"
    )
    assert found.deployment.flags == {
        "allow_long_max_model_len": True,
        "estimate_cudagraphs": False,
        "max_model_len": 100000,
    }
    assert found.notes == ("VLLM_KV_CACHE_LAYOUT=HND lays the blocks out otherwise: not computed",)
    again = read_command(render_command("org/name", found.deployment))
    assert again.deployment.flags == found.deployment.flags


def test_the_cache_of_vllm_on_a_cpu() -> None:
    space = "docker run -e VLLM_CPU_KVCACHE_SPACE=40 vllm/vllm-openai --model a/b"
    assert (
        read_command(f"{space} --device cpu").deployment.flags["kv_cache_memory_bytes"] == 40 * GIB
    )
    assert "kv_cache_memory_bytes" not in read_command(space).deployment.flags


def test_graphs_are_charged_as_the_variable_says() -> None:
    model = kvproof.load_model("meta-llama/Llama-3.1-8B", offline=True)
    usual = kvproof.budget(model, Deployment("vllm@0.32", "H100-80GB"))
    without = kvproof.budget(model, Deployment("vllm@0.32", "H100-80GB", estimate_cudagraphs=False))
    assert without.kv_bytes > usual.kv_bytes
    assert not any("graph" in term.name for term in without.terms)


def test_variables_of_sglang() -> None:
    found = read_command(
        "SGLANG_MAMBA_SSM_DTYPE=bfloat16 SGLANG_USE_AITER=1 SGLANG_LOG_MS=1 "
        "python -m sglang.launch_server --model-path org/name"
    )
    assert found.deployment.flags == {"mamba_ssm_dtype": "bfloat16"}
    assert len(found.notes) == 1
    assert "SGLANG_USE_AITER=1" in found.notes[0]


@pytest.mark.parametrize("factor", [float("inf"), float("nan"), -4, 0, 1e300, True, "8", None])
@pytest.mark.parametrize("kind", ["yarn", "linear", "dynamic"])
def test_a_factor_that_makes_no_sense_stretches_nothing(
    model: Any, kind: str, factor: object
) -> None:
    odd = {"rope_type": kind, "factor": factor, "original_max_position_embeddings": 40960}
    for release in ("vllm@0.29", "vllm@0.32"):
        deployment = Deployment(release, "H200", hf_overrides={"rope_scaling": odd})
        assert trained_length(served_model(model, deployment)) == 40960
        assert kvproof.capacity(model, deployment, 80 * GIB).max_model_len == 40960


def test_a_model_without_words_is_planned(model: Any) -> None:
    plan = kvproof.plan(model, Deployment("vllm", "H200", hf_overrides={"vocab_size": 0}), [4096])
    assert plan.budget.kv_bytes > 0


def test_more_experts_chosen_than_there_are_hit_all() -> None:
    model = kvproof.load_model("openai/gpt-oss-20b", offline=True)
    few = Deployment("vllm", "8xH200", tensor_parallel_size=8, hf_overrides={"num_experts": 1})
    assert kvproof.plan(model, few, [4096]).rows[0].step is not None
