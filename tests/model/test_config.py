"""resolve: defaults, older names, nested configs, computed fields, and hostile input."""

from __future__ import annotations

import copy
import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvproof.engine import transformers as engine
from kvproof.engine.base import CacheRequest
from kvproof.errors import KvproofError, ModelError
from kvproof.model.config import resolve
from kvproof.model.read import read_config
from kvproof.model.types import Source

GROUND_TRUTH = Path(__file__).resolve().parent.parent / "ground_truth"
SOURCE = Source(origin="dict", location="test")
MEASURED = json.loads((GROUND_TRUTH / "transformers.json").read_bytes())["records"]


def test_a_missing_key_value_head_count_is_the_class_default() -> None:
    assert resolve({"model_type": "mistral"}).text["num_key_value_heads"] == 8
    assert resolve({"model_type": "llama"}).text["num_key_value_heads"] == 32


def test_null_means_one_key_value_head_per_query_head() -> None:
    config = {"model_type": "mistral", "num_key_value_heads": None, "num_attention_heads": 12}
    assert resolve(config).text["num_key_value_heads"] == 12


def test_standard_and_own_names_are_both_there() -> None:
    text = resolve({"model_type": "gpt2", "n_layer": 3, "n_embd": 96, "n_head": 6}).text
    names = ("num_hidden_layers", "hidden_size", "num_attention_heads")
    assert [text[name] for name in names] == [3, 96, 6]
    text = resolve({"model_type": "gpt2", "num_hidden_layers": 5}).text
    assert text["n_layer"] == 5


def test_nested_configs_get_their_own_defaults() -> None:
    found = resolve({"model_type": "llava", "text_config": {"model_type": "mistral"}})
    assert (found.model_type, found.text_model_type) == ("llava", "mistral")
    assert found.text["num_key_value_heads"] == 8
    assert found.root["vision_config"]["hidden_size"] == 1024


def test_flat_configs_move_into_the_text_config() -> None:
    flat = {"model_type": "qwen2_vl", "num_hidden_layers": 7, "vision_config": {}}
    assert resolve(flat).text["num_hidden_layers"] == 7
    assert resolve(flat).text_model_type == "qwen2_vl_text"


@pytest.mark.parametrize(
    ("config", "slides"),
    [
        ({"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 2}, [2, 3]),
        ({"model_type": "qwen2", "use_sliding_window": False}, []),
        ({"model_type": "qwen2_moe", "use_sliding_window": True, "max_window_layers": 3}, [0, 2]),
        ({"model_type": "smollm3", "use_sliding_window": True, "sliding_window": 64}, [3]),
        ({"model_type": "gemma2"}, [0, 2]),
        ({"model_type": "gemma3_text", "sliding_window_pattern": 2}, [0, 2]),
        ({"model_type": "gemma4_text"}, [0, 1, 2]),
        ({"model_type": "modernbert-decoder"}, [1, 2]),
        ({"model_type": "exaone4", "sliding_window_pattern": "LG"}, [0, 2]),
    ],
)
def test_rules_of_sliding_layers(config: dict[str, Any], slides: list[int]) -> None:
    kinds = resolve({**config, "num_hidden_layers": 4}).text["layer_types"]
    assert [i for i, kind in enumerate(kinds) if kind == "sliding_attention"] == slides


@pytest.mark.parametrize(
    ("config", "linear"),
    [
        ({"model_type": "qwen3_next", "full_attention_interval": 2}, [0, 2]),
        ({"model_type": "jamba", "attn_layer_period": 2, "attn_layer_offset": 1}, [0, 2]),
        ({"model_type": "bamba", "attn_layer_indices": [3]}, [0, 1, 2]),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "M*ME"}, [0, 2]),
        ({"model_type": "granitemoehybrid", "layer_types": ["mamba", "attention"] * 2}, [0, 2]),
        (
            {
                "model_type": "kimi_linear",
                "linear_attn_config": {"full_attn_layers": [4], "kda_layers": [1, 2, 3]},
            },
            [0, 1, 2],
        ),
    ],
)
def test_rules_of_linear_layers(config: dict[str, Any], linear: list[int]) -> None:
    kinds = resolve({**config, "num_hidden_layers": 4}).text["layer_types"]
    assert [i for i, kind in enumerate(kinds) if kind == "linear_attention"] == linear


def test_undeclared_fields_win_over_computed_ones() -> None:
    text = resolve({"model_type": "falcon_mamba", "hidden_size": 64, "intermediate_size": 96}).text
    assert text["intermediate_size"] == 96


def test_the_given_config_is_left_as_it_was() -> None:
    for record in MEASURED:
        before = copy.deepcopy(record["config"])
        resolve(record["config"])
        assert record["config"] == before


def test_published_types_outside_transformers() -> None:
    found = resolve({"model_type": "kimi_k2", "num_hidden_layers": 61})
    assert (found.model_type, found.published_type) == ("deepseek_v3", "kimi_k2")
    assert found.exact_weights


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({}, "model_type"),
        ({"model_type": "no_such_model"}, "no_such_model"),
        ({"model_type": 7}, "model_type"),
        ({"model_type": "llama", "num_hidden_layers": -1}, "num_hidden_layers"),
        ({"model_type": "llama", "num_hidden_layers": 10**12}, "num_hidden_layers"),
        ({"model_type": "llama", "num_hidden_layers": True}, "num_hidden_layers"),
        ({"model_type": "llama", "num_hidden_layers": "32"}, "num_hidden_layers"),
        ({"model_type": "llama", "num_hidden_layers": 32.0}, "num_hidden_layers"),
        ({"model_type": "llama", "num_attention_heads": 0}, "num_attention_heads"),
        ({"model_type": "llama", "hidden_size": None}, "hidden_size"),
        ({"model_type": "gemma2", "layer_types": ["full_attention"]}, "layer_types"),
        ({"model_type": "gemma2", "layer_types": [1] * 26}, "layer_types"),
        ({"model_type": "gemma2", "layer_types": ["odd"] * 26}, "odd"),
        ({"model_type": "llava", "text_config": 5}, "text_config"),
        ({"model_type": "llava", "text_config": {"model_type": "nothing"}}, "nothing"),
        ({"model_type": "clip"}, "clip"),
        ({"model_type": "blt"}, "blt"),
        ({"model_type": "deepseek_v3", "kv_lora_rank": None}, "kv_lora_rank"),
        ({"model_type": "deepseek_v4", "qk_rope_head_dim": "64"}, "qk_rope_head_dim"),
        ({"model_type": "deepseek_v4", "qk_rope_head_dim": [64]}, "qk_rope_head_dim"),
        ({"model_type": "dots3_note", "swa_head_dim": "x"}, "swa_head_dim"),
        ({"model_type": "llama", "torch_dtype": 16}, "torch_dtype"),
        ({"model_type": "llama", "torch_dtype": "float7"}, "float7"),
    ],
)
def test_what_is_wrong_is_named(config: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelError, match=named) as caught:
        read_config(config, name="model", source=SOURCE)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_deep_and_huge_configs_are_refused() -> None:
    deep: Any = {"model_type": "llama"}
    for _ in range(100):
        deep = {"model_type": "llava", "text_config": deep}
    with pytest.raises(ModelError, match="deep"):
        resolve(deep)
    with pytest.raises(ModelError, match="large"):
        resolve({"model_type": "llama", "x": [0] * 2_000_000})


def test_a_config_is_resolved_in_milliseconds() -> None:
    resolve({"model_type": "llava"})
    start = time.perf_counter()
    for _ in range(20):
        resolve({"model_type": "llava"})
    assert (time.perf_counter() - start) / 20 < 0.02


ODD = st.sampled_from(
    [None, True, False, 0, -1, 3, 10**12, 10**40, 1.5, float("nan"), float("inf"), "", "x" * 9000,
     [], [1], ["x"], {}, {"a": 1}, [[]], "10", "auto", {"model_type": "llama"}]
)  # fmt: skip


@st.composite
def mutated_configs(draw: st.DrawFn) -> dict[str, Any]:
    """A measured config with up to three fields dropped or replaced by odd values."""
    config: dict[str, Any] = copy.deepcopy(draw(st.sampled_from(MEASURED))["config"])
    for _ in range(draw(st.integers(1, 3))):
        target = config
        inner = [value for value in target.values() if isinstance(value, dict) and value]
        if inner and draw(st.booleans()):
            target = draw(st.sampled_from(inner))
        key = draw(st.sampled_from(sorted(target)))
        if draw(st.booleans()):
            target.pop(key)
        else:
            target[key] = copy.deepcopy(draw(ODD))
        if not config:
            break
    return config


@settings(max_examples=1000, deadline=2000, suppress_health_check=list(HealthCheck))
@given(mutated_configs())
def test_a_mutated_config_gives_an_answer_or_one_clear_error(config: dict[str, Any]) -> None:
    try:
        model = read_config(config, name="model", source=SOURCE)
        answer = engine.cache(model, CacheRequest(lengths=(33,), encoder_tokens=21), None)
    except KvproofError as error:
        message = str(error)
    else:
        message = ""
        assert answer.bytes == sum(answer.slots) == sum(answer.layers)
        assert answer.allocated_bytes >= 0
        assert model.parameters >= 0
    assert "\n" not in message


# The installed transformers ----------------------------------------------------------------------

CACHE_FIELDS = (
    "layer_types", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "sliding_window", "attention_chunk_size", "kv_lora_rank", "qk_rope_head_dim", "v_head_dim",
    "qk_nope_head_dim", "index_head_dim", "indexer_types", "num_kv_shared_layers", "conv_kernel",
    "state_size", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim",
    "mamba_d_head", "mamba_n_heads", "intermediate_size", "mlp_layer_types", "num_local_experts",
    "hidden_size", "vocab_size", "decoder_layers", "num_decoder_layers", "layers_block_type",
)  # fmt: skip
# Equal in effect: transformers leaves a null that its modeling code fills the same way.
FILLED_LATER = {"head_dim", "num_key_value_heads", "sliding_window", "layer_types"}


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("record", MEASURED, ids=[r["model_type"] for r in MEASURED])
def test_resolved_configs_equal_those_of_the_installed_classes(record: dict[str, Any]) -> None:
    auto = pytest.importorskip("transformers.models.auto.configuration_auto")
    config = copy.deepcopy(record["config"])
    for section in (config, *(v for v in config.values() if isinstance(v, dict))):
        section.pop("layer_types", None)
        section.pop("mlp_layer_types", None)
        section.pop("time_step_limit", None)  # saved in a form that only from_json_file reads
    try:
        real = auto.CONFIG_MAPPING[config["model_type"]].from_dict(copy.deepcopy(config))
    except Exception as error:  # a class may want its own list
        pytest.skip(f"transformers refuses the config: {error}")
    ours = resolve(config).root
    assert differences(real, ours) == []


def differences(real: Any, ours: dict[str, Any]) -> list[Any]:
    """Fields of a transformers config, and of its nested ones, that resolve gives otherwise."""
    out: list[Any] = []
    for key in CACHE_FIELDS:
        try:
            value = getattr(real, key)
        except Exception:  # absent, or set per layer only
            continue
        if value is None and key in FILLED_LATER:
            continue
        if ours.get(key) != (list(value) if isinstance(value, tuple) else value):
            out.append((type(real).__name__, key, value, ours.get(key)))
    for key in real.sub_configs:
        inner = getattr(real, key, None)
        if inner is not None and isinstance(ours.get(key), dict):
            out += differences(inner, ours[key])
    return out
