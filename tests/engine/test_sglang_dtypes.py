"""SGLang's --dtype: weights and an `auto` cache in the type that a start runs in."""

from __future__ import annotations

import pytest

import kvproof
from kvproof.errors import UsageError

MODEL = "Qwen/Qwen3-8B"


def _terms(model: kvproof.Model, **flags: object) -> dict[str, int]:
    found = kvproof.budget(model, kvproof.Deployment("sglang", "H100-80GB", **flags))
    return {term.name: int(term.value) for term in found.terms}


def _tokens(model: kvproof.Model, **flags: object) -> int:
    deployment = kvproof.Deployment("sglang", "H100-80GB", **flags)
    return kvproof.capacity(model, deployment, kv_bytes=2**34).tokens


@pytest.mark.parametrize("name", ["float32", "float"])
def test_32_bits_double_weights_and_cache(name: str) -> None:
    model = kvproof.load_model(MODEL, offline=True)
    assert _terms(model, dtype=name)["weights"] == pytest.approx(2 * _terms(model)["weights"])
    assert _tokens(model, dtype=name) == _tokens(model) // 2


def test_an_asked_cache_type_stays() -> None:
    model = kvproof.load_model(MODEL, offline=True)
    both = {"dtype": "float32", "kv_cache_dtype": "fp8_e4m3"}
    assert _tokens(model, **both) == _tokens(model, kv_cache_dtype="fp8_e4m3")


def test_auto_halves_a_checkpoint_of_32_bits() -> None:
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 1024,
        "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 4,
        "intermediate_size": 4096, "vocab_size": 32000,
    }  # fmt: skip
    wide, plain = (
        kvproof.load_model({**config, "torch_dtype": name}) for name in ("float32", "float16")
    )
    assert _terms(wide)["weights"] == _terms(plain)["weights"]
    assert _terms(wide, dtype="float32")["weights"] == 2 * _terms(plain)["weights"]


def test_another_name_is_refused() -> None:
    model = kvproof.load_model(MODEL, offline=True)
    with pytest.raises(UsageError, match="dtype of SGLang"):
        _terms(model, dtype="float64")
