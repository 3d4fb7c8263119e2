"""Parameter recipes against measured models, published counts and hostile configs."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from kvproof.errors import KvproofError, ModelError
from kvproof.model.config import resolve
from kvproof.model.tensors import known_model_types, parameter_count, tensor_groups

# exact counts that the checkpoints' safetensors headers state
PUBLISHED = {
    "Qwen--Qwen2.5-7B-Instruct": 7_615_616_512,
    "Qwen--Qwen2.5-VL-7B-Instruct": 8_292_166_656,
    "Qwen--Qwen3-VL-235B-A22B-Instruct": 235_670_022_896,
    "deepseek-ai--DeepSeek-V2": 235_741_434_880,
    "google--gemma-3-27b-it": 27_432_406_640,
    "ai21labs--Jamba-v0.1": 51_570_323_328,
    "tiiuae--falcon-mamba-7b": 7_272_665_088,
    "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": 31_577_937_344,
    "ibm-granite--granite-4.0-h-1b": 1_461_538_368,
    "MiniMaxAI--MiniMax-M1-80k": 456_089_655_296,
    "internlm--internlm2_5-7b-chat": 7_737_708_544,
    "LiquidAI--LFM2.5-VL-1.6B": 1_596_625_904,
    "deepseek-ai--deepseek-moe-16b-base": 16_375_728_128,
}
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
}


def _decoded(pairs: dict[str, Any]) -> Any:
    return float("inf") if set(pairs) == {"__float__"} else pairs


def _records(data_dir: Path) -> list[dict[str, Any]]:
    path = data_dir / "transformers" / "oracle.json"
    records: list[dict[str, Any]] = json.loads(path.read_text(), object_hook=_decoded)
    return records


def test_measured_models_are_exact(data_dir: Path) -> None:
    wrong = []
    for record in _records(data_dir):
        resolved = resolve(record["config"])
        count = parameter_count(resolved.model_type, resolved.root)
        if count != record["n_params"]:
            wrong.append((record["model_type"], record["variant"], count, record["n_params"]))
    assert wrong == []


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_published_counts(data_dir: Path, name: str) -> None:
    resolved = resolve(json.loads((data_dir / "configs" / f"{name}.json").read_text()))
    assert parameter_count(resolved.model_type, resolved.root) == PUBLISHED[name]


def test_every_group_of_a_measured_model_is_well_formed(data_dir: Path) -> None:
    for record in _records(data_dir):
        resolved = resolve(record["config"])
        for group in tensor_groups(resolved.model_type, resolved.root):
            assert group.count > 0
            assert all(size >= 0 for size in group.shape)
            assert list(group.layers) == sorted(set(group.layers))
            assert len(group.layers) <= group.count


def test_layers_of_a_mixture(data_dir: Path) -> None:
    config = json.loads((data_dir / "configs" / "deepseek-ai--DeepSeek-V3.json").read_text())
    resolved = resolve(config)
    groups = tensor_groups(resolved.model_type, resolved.root)
    experts = [g for g in groups if g.role == "expert"]
    assert {g.layers for g in experts} == {tuple(range(3, 61))}
    assert all(g.linear and g.shape[0] == 256 for g in experts)
    assert {g.role for g in groups} >= {"embedding", "head", "attention", "mlp", "router", "norm"}


def test_a_tied_embedding_counts_once_and_says_so() -> None:
    untied = tensor_groups("llama", LLAMA)
    tied = tensor_groups("llama", {**LLAMA, "tie_word_embeddings": True})
    assert sum(g.elements for g in untied) - sum(g.elements for g in tied) == 64 * 1000
    assert [g.tied for g in tied if g.role == "embedding"] == [True]
    assert [g.tied for g in untied if g.role == "embedding"] == [False]
    assert not [g for g in tied if g.role == "head"]


def test_shapes_of_a_small_llama() -> None:
    groups = {g.name: g for g in tensor_groups("llama", LLAMA)}
    assert groups["model.layers.{}.self_attn.k_proj.weight"].shape == (32, 64)
    assert groups["model.layers.{}.mlp.down_proj.weight"].layers == (0, 1, 2)
    assert groups["model.embed_tokens.weight"].linear is False
    assert groups["lm_head.weight"].role == "head"


@pytest.mark.parametrize(
    "change",
    [
        {"num_hidden_layers": 10**12},
        {"num_hidden_layers": 10**400},
        {"num_hidden_layers": 1.5},
        {"num_hidden_layers": "many"},
        {"num_hidden_layers": float("nan")},
        {"hidden_size": -64},
        {"hidden_size": 10**30},
        {"hidden_size": "64"},
        {"hidden_size": None},
        {"vocab_size": [1]},
    ],
)
def test_hostile_configs_give_one_clear_error(change: dict[str, Any]) -> None:
    started = time.perf_counter()
    with pytest.raises(KvproofError) as caught:
        tensor_groups("llama", {**LLAMA, **change})
    assert time.perf_counter() - started < 1
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("junk", [None, -1, 10**18, "text", [], {}, [[1]], {"a": 1}, True, 0.5])
def test_any_value_of_the_wrong_kind_is_an_error_or_a_count(data_dir: Path, junk: Any) -> None:
    for record in _records(data_dir)[::9]:
        resolved = resolve(record["config"])
        for key in resolved.root:
            try:
                groups = tensor_groups(resolved.model_type, {**resolved.root, key: junk})
            except KvproofError:
                continue
            assert all(group.elements >= 0 for group in groups)


def test_a_missing_key_is_named() -> None:
    config = {k: v for k, v in LLAMA.items() if k != "intermediate_size"}
    with pytest.raises(ModelError, match="intermediate_size"):
        tensor_groups("llama", config)


@pytest.mark.parametrize("name", ["", "no_such_model", "../secrets", "a/b", "x" * 300])
def test_an_unknown_model_type_is_refused(name: str) -> None:
    with pytest.raises(ModelError, match="no parameter recipe"):
        tensor_groups(name, LLAMA)


def test_a_large_model_takes_milliseconds(data_dir: Path) -> None:
    config = json.loads((data_dir / "configs" / "deepseek-ai--DeepSeek-V3.json").read_text())
    resolved = resolve(config)
    best = min(_timed(resolved.model_type, resolved.root) for _ in range(5))
    assert best < 0.05  # about 3 ms on a free core; the margin is for shared machines


def _timed(model_type: str, config: dict[str, Any]) -> float:
    started = time.perf_counter()
    tensor_groups(model_type, config)
    return time.perf_counter() - started


def test_every_recipe_can_be_read() -> None:
    assert len(known_model_types()) > 500
    for name in known_model_types():
        # an empty config is an error that names a key, never another exception
        with pytest.raises(KvproofError):
            tensor_groups(name, {})


@pytest.mark.oracle
def test_random_configs_against_transformers() -> None:
    import subprocess
    import sys

    script = Path(__file__).parents[2] / "scripts" / "check_parameters.py"
    done = subprocess.run(
        [sys.executable, str(script), "--rounds", "1"], capture_output=True, text=True, check=True
    )
    last = done.stdout.strip().splitlines()[-1]
    assert "'wrong'" not in last, done.stdout[-4000:]
