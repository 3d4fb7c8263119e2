"""What a log says does not fit: what to change, by how much, fed back through the planner."""

from __future__ import annotations

import re

import pytest

import kvproof
from kvproof.engine.base import engine_module

GIB = 2**30
ARGS = (
    "INFO vLLM API server version 0.11.0\n"
    "INFO non-default args: {'model': 'Qwen/Qwen3-14B', 'max_model_len': 32768, "
    "'gpu_memory_utilization': 0.9}\n"
)
CARD = (
    "INFO the current vLLM instance can use total_gpu_memory (39.39GiB) x gpu_memory_utilization "
    "(0.90) = 35.45GiB\n"
)


def number(pattern: str, words: str) -> float:
    found = re.search(pattern, words)
    assert found is not None, words
    return float(found[1].replace(",", ""))


def test_a_length_that_does_not_fit_gets_the_longest_that_does() -> None:
    text = ARGS + (
        "ValueError: To serve at least one request with the models's max seq len (32768), (5.00 "
        "GiB KV cache is needed, which is larger than the available KV cache memory (4.45 GiB). "
        "Try increasing `gpu_memory_utilization` or decreasing `max_model_len`.\n"
    )
    report = kvproof.check(text, gpu="A100-40GB")
    assert not report.fits
    length = int(number(r"--max-model-len (\d+)", report.advice[0]))
    model = kvproof.load_model("Qwen/Qwen3-14B")
    d = kvproof.Deployment("vllm@0.11.0", "A100-40GB", max_model_len=length)
    pool = round(4.45 * GIB)
    assert kvproof.capacity(model, d, pool).fits
    assert not kvproof.capacity(model, d.replace(max_model_len=length + 64), pool).fits


def test_a_share_that_is_raised_makes_room_for_what_is_missing() -> None:
    text = (
        ARGS
        + CARD
        + (
            "ValueError: To serve at least one request with the models's max seq len (32768), "
            "(5.00 GiB KV cache is needed, which is larger than the available KV cache memory "
            "(4.45 GiB).\n"
        )
    )
    words = " ".join(kvproof.check(text, gpu="A100-40GB").advice)
    share = number(r"--gpu-memory-utilization ([\d.]+) \(it is 0.9\)", words)
    model = kvproof.load_model("Qwen/Qwen3-14B")
    d = kvproof.Deployment("vllm@0.7.3", "A100-40GB", max_model_len=32768)
    more = kvproof.budget(model, d.replace(gpu_memory_utilization=share)).kv_bytes
    less = kvproof.budget(model, d.replace(gpu_memory_utilization=0.9)).kv_bytes
    assert more - less >= 0.55 * GIB
    assert more - less < 0.6 * GIB


def test_v0_names_both_lengths() -> None:
    text = CARD + (
        "INFO model weights take 27.5GiB; non_torch_memory takes 0.10GiB; PyTorch activation peak "
        "memory takes 4.00GiB; the rest of the memory reserved for KV Cache is 3.85GiB.\n"
        "ValueError: The model's max seq len (32768) is larger than the maximum number of tokens "
        "that can be stored in KV cache (25216). Try increasing `gpu_memory_utilization` or "
        "decreasing `max_model_len` when initializing the engine.\n"
    )
    report = kvproof.check(text, model="Qwen/Qwen3-14B")
    words = " ".join(report.advice)
    assert "--max-model-len 25216 (it is 32,768)" in words
    assert 0.925 < number(r"--gpu-memory-utilization ([\d.]+)", words) < 0.94


def test_no_memory_for_the_cache_at_all() -> None:
    text = ARGS + (
        "INFO Model loading took 67.72 GiB memory and 9.1 seconds\n"
        "INFO Available KV cache memory: -1.44 GiB\n"
        "ValueError: No available memory for the cache blocks. Try increasing "
        "`gpu_memory_utilization` when initializing the engine.\n"
        "INFO Free memory on device (78.60/79.18 GiB) on startup. Desired GPU memory utilization "
        "is (0.9, 71.26 GiB).\n"
    )
    words = " ".join(kvproof.check(text, gpu="H100-80GB").advice)
    assert 0.979 < number(r"--gpu-memory-utilization ([\d.]+)", words) < 0.99


def test_the_gpus_memory_is_the_tables_where_no_line_has_it() -> None:
    text = ARGS + (
        "INFO Model loading took 64.72 GiB memory and 9.1 seconds\n"
        "INFO Available KV cache memory: -0.44 GiB\n"
        "ValueError: No available memory for the cache blocks. Try increasing "
        "`gpu_memory_utilization` when initializing the engine.\n"
    )
    words = " ".join(kvproof.check(text, gpu="H100-80GB").advice)
    assert 0.96 < number(r"--gpu-memory-utilization ([\d.]+)", words) < 0.98
    assert "utilization" not in " ".join(kvproof.check(text).advice)


def test_an_fp8_cache_is_no_way_out_where_there_is_no_cache() -> None:
    text = (
        "INFO Model loading took 64.72 GiB memory and 9.1 seconds\n"
        "ValueError: No available memory for the cache blocks.\n"
    )
    (words,) = kvproof.check(text).advice
    assert words.startswith("more GPUs")
    assert "FP8" not in words


def test_a_start_that_is_refused() -> None:
    text = ARGS + (
        "ValueError: Free memory on device (60.21/79.18 GiB) on startup is less than desired GPU "
        "memory utilization (0.9, 71.26 GiB). Decrease GPU memory utilization or reduce GPU memory "
        "used by other processes.\n"
    )
    advice = kvproof.check(text, gpu="H100-80GB").advice
    assert advice[0].startswith("--gpu-memory-utilization 0.76 (it is 0.9)")
    assert advice[1] == "or free 11.05 GiB: other processes hold 18.97 GiB"


def test_weights_that_do_not_fit_get_a_number_of_gpus() -> None:
    text = (
        "INFO vLLM API server version 0.11.0\n"
        "INFO non-default args: {'model': 'meta-llama/Llama-3.3-70B-Instruct'}\n"
        "ERROR torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 448.00 MiB. GPU 0 has "
        "a total capacity of 79.18 GiB of which 300.00 MiB is free. Process 11 has 78.80 GiB "
        "memory in use.\n"
    )
    report = kvproof.check(text, gpu="H100-80GB")
    words = " ".join(report.advice)
    ranks = int(number(r"--tensor-parallel-size (\d+)", words))
    model = kvproof.load_model("meta-llama/Llama-3.3-70B-Instruct")
    kinds = [
        kvproof.plan(
            model,
            kvproof.Deployment("vllm@0.11.0", f"{n}xH100-80GB", tensor_parallel_size=n,
                               max_model_len=4096),
        ).fits
        for n in (ranks // 2, ranks)
    ]  # fmt: skip
    assert kinds == [False, True]


@pytest.mark.parametrize("line", [
    "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
    "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: "
    "self.server_args.mem_fraction_static=0.7",
])  # fmt: skip
def test_sglangs_static_share(line: str) -> None:
    text = (
        "[2026-05-01 TP0] server_args=ServerArgs(model_path='Qwen/Qwen3-14B', tp_size=1, "
        "mem_fraction_static=0.7, context_length=8192)\n"
        "[2026-05-01 TP0] Init torch distributed begin. avail mem=39.10 GB\n"
        "[2026-05-01 TP0] Load weight begin. avail mem=39.00 GB\n"
        "[2026-05-01 TP0] Load weight end. type=Qwen3ForCausalLM, avail mem=11.40 GB, "
        f"mem usage=27.60 GB.\n[2026-05-01 TP0] {line}\n"
    )
    report = kvproof.check(text, gpu="A100-40GB")
    share = number(r"--mem-fraction-static ([\d.]+) \(it is 0.7\)", report.advice[0])
    left = 11.40 - 39.10 * (1 - share)
    model = kvproof.load_model("Qwen/Qwen3-14B")
    d = kvproof.Deployment("sglang", "A100-40GB", context_length=4096)
    tokens = engine_module("sglang").capacity(model, d, int(left * GIB)).tokens
    assert 4096 <= tokens < 6000


def test_llama_cpp_gets_a_context_and_a_type_that_fit() -> None:
    text = (
        "llama_model_load_from_file_impl: using device CUDA0 (NVIDIA GeForce RTX 3090) - 23306 MiB "
        "free\n"
        "load_tensors: offloaded 49/49 layers to GPU\n"
        "load_tensors:        CUDA0 model buffer size = 17500.00 MiB\n"
        "llama_context: n_ctx         = 65536\n"
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 6144.00 MiB on device 0: "
        "cudaMalloc failed: out of memory\n"
        "alloc_tensor_range: failed to allocate CUDA0 buffer of size 6442450944\n"
        "llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv "
        "cache\n"
    )
    report = kvproof.check(text)
    assert not report.fits
    assert report.advice[0] == "338.00 MiB less on CUDA0"
    cells = number(r"--ctx-size (\d+) \(it is 65536\)", report.advice[1])
    assert 6144 * cells / 65536 + 17500 <= 23306 < 6144 * (cells + 512) / 65536 + 17500
    assert report.advice[2].startswith("--cache-type-k/-v q8_0 frees 2.81 GiB")
    assert report.advice[3] == "--n-gpu-layers 48 (it is 49)"
    assert report.advice[4].startswith("the compute buffer is made after the cache")


def test_a_retry_that_succeeds_fits() -> None:
    text = (
        "ggml_gallocr_reserve_n_impl: failed to allocate CUDA0 buffer of size 54262464512\n"
        "sched_reserve: compute buffer allocation failed, retrying without pipeline parallelism\n"
        "sched_reserve:      CUDA0 compute buffer size =   900.00 MiB\n"
        "llama_kv_cache: size = 1280.00 MiB (65536 cells, 10 layers, 4/1 seqs), K (f16): 640.00 "
        "MiB, V (f16): 640.00 MiB\n"
    )
    assert kvproof.check(text).fits


def test_ollama_says_what_is_missing() -> None:
    text = (
        'time=2026-03-25T09:28:05Z level=INFO source=memory.go:356 msg="offload to cuda" '
        "layers.model=65 layers.offload=20 "
        'memory.required.full="30.0 GiB" memory.required.kv="8.0 GiB" n_ctx = 32768\n'
        'time=2026-03-25T09:28:06Z level=INFO source=sched.go:450 msg="Load failed" error="model '
        'requires more system memory (17.5 GiB) than is available (15.4 GiB)"\n'
    )
    report = kvproof.check(text)
    assert not report.fits
    words = " ".join(report.advice)
    assert "2.10 GiB less in memory" in words
    assert "OLLAMA_KV_CACHE_TYPE=q8_0 frees 3.75 GiB" in words


def test_tensorrt_llm_shortens_the_length() -> None:
    text = (
        "[TensorRT-LLM] TensorRT LLM version: 0.19.0\n"
        "[TensorRT-LLM][INFO] TRTGptModel maxSequenceLen: 131072\n"
        "[TensorRT-LLM][INFO] [MemUsageChange] Allocated 3.17 GiB for max tokens in paged KV cache "
        "(46208).\n"
        "[TensorRT-LLM][WARNING] maxAttentionWindow and maxSequenceLen are too large for at least "
        "one sequence to fit in kvCache. they are reduced to 46208\n"
    )
    report = kvproof.check(text)
    assert not report.fits
    assert "--max_seq_len 46208 (it is 131,072)" in " ".join(report.advice)


def test_a_refused_buffer_of_unknown_room_claims_no_exact_shortfall() -> None:
    text = (
        "llama_kv_cache: size = 16384.00 MiB (131072 cells, 32 layers, 1/1 seqs), "
        "K (f16): 8192.00 MiB, V (f16): 8192.00 MiB\n"
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 16384.00 MiB on device 0: "
        "cudaMalloc failed: out of memory\n"
        "alloc_tensor_range: failed to allocate CUDA0 buffer of size 17179869184\n"
        "llama_init_from_model: failed to initialize the context: failed to allocate buffer "
        "for kv cache\n"
    )
    advice = kvproof.check(text).advice
    assert advice == (
        "less than 16.00 GiB was free on CUDA0; the log does not say more",
        "--ctx-size 65536 (it is 131072) frees 8.00 GiB",
        "--cache-type-k/-v q8_0 frees 7.50 GiB (with flash attention)",
    )
