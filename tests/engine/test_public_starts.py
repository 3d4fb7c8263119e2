"""Starts of SGLang and TensorRT-LLM that public threads show, looked up after the rules were made.

Each row names its thread. Sizes are what the engine printed, to two digits.
"""

from __future__ import annotations

from typing import Any

import pytest

import kvproof
from kvproof.engine.base import Deployment
from kvproof.model.types import Model

GIB = 2**30
TINYLLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 2048,
             "torch_dtype": "bfloat16", "num_hidden_layers": 22, "num_attention_heads": 32,
             "num_key_value_heads": 4, "intermediate_size": 5632, "vocab_size": 32000,
             "max_position_embeddings": 2048}  # fmt: skip
QWEN1_5_7B = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_size": 4096,
              "torch_dtype": "bfloat16", "num_hidden_layers": 32, "num_attention_heads": 32,
              "num_key_value_heads": 32, "intermediate_size": 11008, "vocab_size": 151936,
              "max_position_embeddings": 32768}  # fmt: skip
FP8 = {"kv_cache_dtype": "fp8_e4m3"}
DP = {"dp_size": 4, "enable_dp_attention": True, "ep_size": 4}

# Thread, model, engine, flags, tokens, bytes of the pool in GiB.
TOKENS = [
    ("sglang 11716", "meta-llama/Llama-3.1-70B-Instruct", "sglang@0.5.3", {"tp_size": 8},
     2_795_207, 2 * 53.31),
    ("ktransformers 1870", "Qwen/Qwen3.5-397B-A17B", "sglang@0.5.8", {"tp_size": 2},
     580_364, 2 * 4.15),
    ("sglang 4826", "google/gemma-3-4b-it", "sglang@0.4.4", {}, 834_615, 2 * 54.12),
    ("sglang 11830", "Qwen/Qwen2.5-VL-7B-Instruct", "sglang@0.5.6", {}, 2_243_474, 2 * 59.91),
    ("xinference 3481", "Qwen/Qwen3-14B", "sglang@0.4.6", {}, 91_749, 2 * 7.0),
    ("sglang 17392", "Qwen/Qwen3-30B-A3B", "sglang@0.5.10", {"tp_size": 4, **DP},
     1_029_388, 2 * 47.12),
    ("sglang 27537", "Qwen/Qwen3-30B-A3B-FP8", "sglang@0.5.6", {"tp_size": 2},
     1_106_304, 2 * 25.32),
    ("vllm 21348", "Qwen/Qwen3-235B-A22B-FP8", "sglang@0.4.9", {"tp_size": 4}, 367_404, 2 * 8.23),
    ("club-3090 1261", "Qwen/Qwen3.5-27B", "sglang@0.5.20", {"tp_size": 2, **FP8},
     454_112, 2 * 3.46),
    ("tutorials 150", TINYLLAMA, "tensorrt_llm@0.19.0", {}, 3_731_744, 78.30),
    ("TensorRT-LLM 1400", "meta-llama/Llama-2-7b-hf", "tensorrt_llm@0.8.0", {}, 132_608,
     69_524_783_104 / GIB),
    ("TensorRT-LLM 1188", "Qwen/Qwen2.5-0.5B", "tensorrt_llm@0.15.0", {}, 395_776, 4.53),
    ("TensorRT-LLM 2789", "Qwen/Qwen2.5-1.5B", "tensorrt_llm@0.17.0", {}, 1_121_536, 29.95),
]  # fmt: skip


@pytest.mark.parametrize("row", TOKENS, ids=lambda row: row[0].replace(" ", "-"))
def test_tokens_follow_from_the_printed_pool(row: tuple[Any, ...]) -> None:
    _, source, engine, flags, printed, gib = row
    model = kvproof.load_model(source)
    ranks = flags.get("tp_size", 1)
    deployment = Deployment(engine, gpu=f"{ranks}xH200" if ranks > 1 else "H200", **flags)
    step = 0.01 if engine.startswith("sglang") else 0.005  # two figures are rounded, or one
    low, high = (
        kvproof.capacity(model, deployment, int((gib + sign * step) * GIB)).tokens
        for sign in (-1, 1)
    )
    assert low <= printed <= high


# Thread, model, engine, GPU, flags with the printed free memory, pool in GiB, allowed share.
BUDGETS = [
    ("sglang 11716", "meta-llama/Llama-3.1-70B-Instruct", "sglang@0.5.3", "8xH200",
     {"tp_size": 8, "free_memory": "137.29GiB"}, 106.62, 0.002),
    ("sglang 4826", "google/gemma-3-4b-it", "sglang@0.4.4", "H200",
     {"free_memory": "139.21GiB"}, 108.24, 0.002),
    ("xinference 3481", "Qwen/Qwen3-14B", "sglang@0.4.6", "RTX-A6000",
     {"free_memory": "47.24GiB"}, 14.00, 0.006),
    ("sglang 11830", "Qwen/Qwen2.5-VL-7B-Instruct", "sglang@0.5.6", "B200", {}, 120.77, 0.01),
    ("TensorRT-LLM 2268", QWEN1_5_7B, "tensorrt_llm@0.13.0", "A100-40GB",
     {"free_memory": "21.89GiB"}, 631 * 64 * 524_288 / GIB, 0.001),
    ("TensorRT-LLM 2789", "Qwen/Qwen2.5-1.5B", "tensorrt_llm@0.17.0", "A100-80GB",
     {"free_memory": "74.87GiB", "free_gpu_memory_fraction": 0.4}, 29.95, 0.001),
]  # fmt: skip


@pytest.mark.parametrize("row", BUDGETS, ids=lambda row: row[0].replace(" ", "-"))
def test_pools_follow_from_flags_and_gpu(row: tuple[Any, ...]) -> None:
    _, source, engine, gpu, flags, gib, share = row
    model = kvproof.load_model(source)
    found = kvproof.budget(model, Deployment(engine, gpu=gpu, **flags)).kv_bytes
    assert found / GIB == pytest.approx(gib, rel=share)


def test_an_encoder_whose_layers_are_called_depth_counts_as_the_default() -> None:
    """SGLang reads num_hidden_layers of vision_config, which Qwen's encoders call depth."""

    def share(model: Model) -> str:
        budget = kvproof.budget(model, Deployment("sglang@0.5.6", gpu="B200"))
        return next(t.formula for t in budget.terms if t.name.startswith("kept free"))

    model = kvproof.load_model("Qwen/Qwen2.5-VL-7B-Instruct")
    vision = {**model.config["vision_config"], "num_hidden_layers": 999}
    assert share(kvproof.load_model({**model.config, "vision_config": vision})) == share(model)
    other = kvproof.load_model("google/gemma-3-4b-it")
    vision = {**other.config["vision_config"], "num_hidden_layers": 54}
    assert share(kvproof.load_model({**other.config, "vision_config": vision})) != share(other)


@pytest.mark.parametrize("flag", ["enable_hisparse", "enable_unified_memory"])
def test_pools_of_another_build_are_refused(flag: str) -> None:
    model = kvproof.load_model("zai-org/GLM-5-FP8")
    with pytest.raises(kvproof.KvproofError, match=f"{flag} .*: not computed"):
        kvproof.budget(model, Deployment("sglang", gpu="8xH200", tp_size=8, **{flag: True}))
    kvproof.budget(model, Deployment("sglang", gpu="8xH200", tp_size=8, **{flag: False}))
