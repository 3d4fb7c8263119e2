"""A printed command starts the deployment that it was printed for, whatever its flags."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvproof
from kvproof.engine.base import ranks_of
from kvproof.engine.command import read_command, render_command
from kvproof.engine.ollama.flags import as_llamacpp

COUNT = st.integers(1, 16)
SHARE = st.floats(0.05, 1.0).map(lambda x: round(x, 3))
SWITCH = st.booleans()
TOKENS = st.integers(1, 2**21)
FLAGS: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "vllm": {
        "tensor_parallel_size": COUNT, "pipeline_parallel_size": COUNT, "data_parallel_size": COUNT,
        "max_model_len": TOKENS | st.just(-1), "max_num_seqs": COUNT, "block_size": st.just(16),
        "max_num_batched_tokens": TOKENS, "gpu_memory_utilization": SHARE,
        "kv_cache_dtype": st.sampled_from(["auto", "fp8", "fp8_e5m2", "bfloat16"]),
        "enable_prefix_caching": SWITCH, "async_scheduling": SWITCH, "enforce_eager": SWITCH,
        "disable_hybrid_kv_cache_manager": SWITCH, "enable_chunked_prefill": SWITCH,
        "kv_cache_memory_bytes": st.integers(1, 2**40), "cpu_offload_gb": st.just(4.0),
        "num_gpu_blocks_override": TOKENS, "dtype": st.sampled_from(["auto", "half"]),
        "attention_backend": st.sampled_from(["FLASHINFER", "FLASH_ATTN"]),
        "speculative_config": st.just({"method": "mtp", "num_speculative_tokens": 2}),
        "hf_overrides": st.just({"a": {"b": [1, 2.5, "x y", None, True]}, "c": "it's"}),
        "used": st.integers(0, 2**34),
    },
    "sglang": {
        "tp_size": COUNT, "pp_size": COUNT, "mem_fraction_static": SHARE, "page_size": COUNT,
        "context_length": TOKENS, "max_total_tokens": TOKENS, "max_running_requests": COUNT,
        "chunked_prefill_size": TOKENS | st.just(-1), "disable_radix_cache": st.just(True),
        "kv_cache_dtype": st.sampled_from(["auto", "fp8_e4m3", "fp8_e5m2"]),
        "attention_backend": st.sampled_from(["fa3", "flashinfer"]),
        "swa_full_tokens_ratio": SHARE,
    },
    "tensorrt_llm": {
        "tp_size": COUNT, "pp_size": COUNT, "free_gpu_memory_fraction": SHARE,
        "max_batch_size": COUNT, "max_num_tokens": TOKENS, "max_seq_len": TOKENS,
        "kv_cache_dtype": st.sampled_from(["auto", "fp8"]),
        "trust_remote_code": st.just(True),
    },
    "llamacpp": {
        "ctx_size": st.integers(0, 2**20), "parallel": COUNT, "batch_size": TOKENS,
        "ubatch_size": TOKENS, "kv_unified": SWITCH, "swa_full": st.just(True),
        "cache_type_k": st.sampled_from(["f16", "q8_0", "q4_0"]),
        "cache_type_v": st.sampled_from(["f16", "q8_0", "q4_0"]),
        "flash_attn": st.sampled_from(["on", "off", "auto"]), "kv_offload": SWITCH,
        "n_gpu_layers": st.integers(0, 99), "split_mode": st.sampled_from(["layer", "row", "none"]),
        "tensor_split": st.sampled_from(["3,1", "1,1,2"]), "fit": st.sampled_from(["on", "off"]),
        "cache_ram": st.integers(-1, 8192), "n_cpu_moe": COUNT,
    },
    "ollama": {
        "context_length": TOKENS, "num_parallel": COUNT, "used": st.integers(0, 2**34),
        "kv_cache_type": st.sampled_from(["f16", "q8_0", "q4_0"]),
        "flash_attention": st.sampled_from([0, 1]),
    },
}  # fmt: skip
MODELS = {
    "vllm": ["org/name", "./folder/with space", "org/name@abc123"],
    "sglang": ["org/name", "/models/x", "org/name@abc123"],
    "tensorrt_llm": ["org/name", "/models/x", "org/name@abc123"],
    "llamacpp": ["org/x:Q4_K_M", "org/x:latest", "org/x/sub/m.gguf", "./m.gguf", "/m/x.gguf"],
    "ollama": ["ollama:llama3.2:3b", "ollama:hf.co/org/x:Q8_0"],
}


@pytest.mark.parametrize("engine", FLAGS)
@given(data=st.data())
def test_the_printed_command_is_the_deployment(engine: str, data: st.DataObject) -> None:
    strategies = FLAGS[engine]
    names = data.draw(st.lists(st.sampled_from(sorted(strategies)), unique=True, max_size=8))
    flags = {name: data.draw(strategies[name], label=name) for name in names}
    model = data.draw(st.sampled_from(MODELS[engine]))
    deployment = kvproof.Deployment(engine, **flags)
    again = read_command(render_command(model, deployment))
    assert again.deployment.engine == deployment.engine
    assert again.model == model
    assert not again.notes
    assert dict(again.deployment.flags) == {k: v for k, v in flags.items() if k != "used"}
    assert ranks_of(again.deployment) == ranks_of(deployment)


def test_ollamas_context_is_the_servers_default() -> None:
    text = render_command("ollama:tiny", kvproof.Deployment("ollama", num_ctx=8192))
    again = read_command(text).deployment
    assert as_llamacpp(again).flags == as_llamacpp(kvproof.Deployment("ollama", num_ctx=8192)).flags


def test_options_of_a_request_are_a_modelfiles() -> None:
    given = kvproof.Deployment("ollama", num_batch=64, num_gpu=20, kv_cache_type="q8_0")
    text = render_command("ollama:tiny:1b", given)
    assert text.splitlines() == [
        "OLLAMA_KV_CACHE_TYPE=q8_0 ollama serve &",
        "cat > Modelfile <<'EOF'",
        "FROM tiny:1b",
        "PARAMETER num_batch 64",
        "PARAMETER num_gpu 20",
        "EOF",
        "ollama create planned -f Modelfile",
        "ollama run planned",
    ]
    again = read_command(text)
    assert (again.model, again.notes) == ("ollama:tiny:1b", ())
    assert again.deployment.flags == given.flags
