"""Weight bytes under each scheme that configs declare, and what each leaves alone."""

from __future__ import annotations

import pytest

import kvproof
from kvproof.errors import ModelError
from kvproof.model.quantization import (
    Quantization,
    Scheme,
    canonical,
    matches,
    read_quantization,
)
from kvproof.model.weights import stored_bytes, weight_bytes, weight_terms

LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256,
    "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 1000, "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}  # fmt: skip
LINEAR = 2 * (256 * 256 * 2 + 2 * 128 * 256 + 3 * 256 * 512)
OTHER = 2 * 1000 * 256 + 5 * 256


def model(section: dict | None) -> kvproof.model.types.Model:
    return kvproof.load_model(LLAMA | ({"quantization_config": section} if section else {}))


def rows(per_layer: int) -> int:
    return per_layer * 2


MATRICES = [(256, 256), (128, 256), (128, 256), (256, 256), (512, 256), (512, 256), (256, 512)]


@pytest.mark.parametrize(
    ("section", "matrix"),
    [
        (None, lambda r, c: 2 * r * c),
        ({"quant_method": "fp8"}, lambda r, c: r * c + 8),
        (
            {"quant_method": "fp8", "weight_block_size": [128, 128]},
            lambda r, c: r * c + 4 * (r // 128) * (c // 128),
        ),
        (
            {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True},
            lambda r, c: r * c // 2 + r * c // 128 * 2 + r * c // 128 // 2,
        ),
        (
            {"quant_method": "gptq", "bits": 4, "group_size": 128},
            lambda r, c: r * c // 2 + r * c // 128 * 2 + r * c // 128 // 2 + 4 * c,
        ),
        (
            {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]},
            lambda r, c: r * c // 2 + r * c // 16 + 8,
        ),
        ({"quant_method": "mxfp4"}, lambda r, c: r * c // 2 + r * c // 32),
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
            lambda r, c: r * c // 2 + r * c // 64 * 4,
        ),
        (
            {
                "quant_method": "compressed-tensors", "format": "float-quantized",
                "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
                    "num_bits": 8, "type": "float", "strategy": "channel"}}},
            },
            lambda r, c: r * c + 2 * r,
        ),
    ],
)  # fmt: skip
def test_bytes_of_each_scheme(section: dict | None, matrix: object) -> None:
    read = model(section)
    linear = 2 * sum(matrix(r, c) for r, c in MATRICES)  # type: ignore[operator]
    assert weight_bytes(read) == linear + 2 * OTHER
    assert sum(term.value for term in weight_terms(read)) == weight_bytes(read)


def test_named_modules_stay_in_the_models_type() -> None:
    kept = {"quant_method": "fp8", "modules_to_not_convert": ["model.layers.0.self_attn"]}
    plain, part = model({"quant_method": "fp8"}), model(kept)
    attention = [g for g in part.tensors if ".self_attn." in g.name and g.linear]
    saved = sum(stored_bytes(part, g) - stored_bytes(plain, g) for g in attention)
    first_layer = 256 * 256 * 2 + 2 * 128 * 256
    assert saved == first_layer - 4 * 8
    assert weight_bytes(part) - weight_bytes(plain) == saved


@pytest.mark.parametrize(
    ("pattern", "name", "hit"),
    [
        ("gate", "layers.0.mlp.gate", True),
        ("gate", "layers.0.mlp.gate_proj", False),
        ("re:.*self_attn.*", "layers.3.self_attn.q_proj", True),
        ("model.layers.*.self_attn", "layers.7.self_attn.o_proj", True),
        ("model.layers.0*", "layers.0.mlp.up_proj", True),
        ("model.layers.1.*", "layers.10.mlp.up_proj", False),
        ("*.mlp.shared_expert.*", "layers.1.mlp.shared_expert.up_proj", True),
        ("experts", "layers.1.mlp.shared_experts.up_proj", False),
        ("*.attn.*", "layers.1.self_attn.kv_proj", True),
        ("language_model.model.layers.2.self_attn*", "layers.2.self_attn.q_proj", True),
    ],
)
def test_three_spellings_of_exclusions(pattern: str, name: str, hit: bool) -> None:
    assert matches(pattern, canonical(name)) is hit


@pytest.mark.parametrize(
    "section",
    [
        {"quant_method": "magic"},
        {"quant_method": "awq"},
        {"quant_method": "awq", "bits": -4, "group_size": 128},
        {"quant_method": "awq", "bits": True, "group_size": 128},
        {"quant_method": "gptq", "bits": 10**12},
        {"quant_method": "fp8", "weight_block_size": [0, 128]},
        {"quant_method": "fp8", "weight_block_size": "128"},
        {"quant_method": "fp8", "modules_to_not_convert": "lm_head"},
        {"quant_method": "compressed-tensors", "config_groups": []},
        {"quant_method": "modelopt", "quant_algo": "NVFP99"},
        {"quant_method": "gptq", "bits": 4, "group_size": 0},
        [],
        "fp8",
    ],
)
def test_broken_sections_are_one_clear_line(section: object) -> None:
    with pytest.raises(ModelError) as caught:
        read_quantization({"quantization_config": section})
    assert "\n" not in str(caught.value)


def test_a_pattern_that_never_ends_is_refused() -> None:
    section = {"quant_method": "fp8", "modules_to_not_convert": ["re:(a+)+$"]}
    quantization = read_quantization({"quantization_config": section})
    assert quantization is not None
    with pytest.raises(ModelError, match="unbounded"):
        quantization.scheme("a" * 40)


def test_the_cache_type_that_a_checkpoint_asks_for() -> None:
    asked = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}
    read = read_quantization({"quantization_config": asked})
    assert read is not None
    assert read.kv_dtype == "fp8_e4m3"


def test_a_scheme_counts_partial_groups_whole() -> None:
    scheme = Scheme(name="g", bits=4, group=128, scale_bits=16)
    assert scheme.bytes(10, 130) == 650 + 10 * 2 * 2


def test_an_encoder_is_not_streamed_while_decoding() -> None:
    t5 = kvproof.load_model({"model_type": "t5"})
    encoder = sum(g.elements for g in t5.tensors if g.name.startswith("encoder."))
    assert encoder > 0
    assert t5.streamed_parameters <= t5.parameters - encoder


@pytest.mark.parametrize(
    ("pattern", "module", "covered"),
    [
        ("model.layers.*.block_sparse_moe.experts.*.w1", "mlp.experts.gate_up_proj", True),
        ("model.layers.*.block_sparse_moe.experts.*.w2", "mlp.experts.down_proj", True),
        ("backbone.layers.*.mixer.experts.*.up_proj", "mixer.experts.up_proj", True),
        ("model.layers.*.mlp.gate_proj", "mlp.gate_up_proj", True),
        ("model.layers.*.mlp.experts.*.w2", "mlp.experts.gate_up_proj", False),
        ("model.layers.*.mlp.experts.*.down_proj", "mlp.shared_experts.down_proj", False),
    ],
)
def test_a_named_part_names_the_fused_weight(pattern: str, module: str, covered: bool) -> None:
    scheme = Scheme(name="nvfp4", bits=4, group=16, source="here")
    read = Quantization(method="modelopt", default=None, named=((pattern, scheme),))
    assert (read.scheme(f"model.layers.{{}}.{module}") is scheme) is covered
