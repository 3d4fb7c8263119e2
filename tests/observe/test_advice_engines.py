"""Advice for logs whose engine, GPU or amounts are not all told, and for llama.cpp's devices."""

from __future__ import annotations

import math
import re

import pytest

import kvproof

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 50.00 MiB. GPU 0 has a total "
    "capacity of 23.64 GiB of which 21.31 MiB is free. Process 7 has 2.00 GiB memory in use.\n"
)
LLAMA = """\
llama_model_load_from_file_impl: using device CUDA0 (NVIDIA GeForce RTX 3060) - 11900 MiB free
print_info: n_layer          = 36
load_tensors: offloaded 37/37 layers to GPU
load_tensors:        CUDA0 model buffer size =  4455.34 MiB
llama_context: n_ctx         = 65536
"""
REFUSED = """\
ggml_backend_cuda_buffer_type_alloc_buffer: allocating 9216.00 MiB on device 0: cudaMalloc failed: \
out of memory
alloc_tensor_range: failed to allocate CUDA0 buffer of size 9663676416
llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache
"""
VULKAN = """\
llama_model_load_from_file_impl: using device Vulkan0 (AMD Radeon RX 7900 XTX) - 24560 MiB free
load_tensors: offloaded 65/65 layers to GPU
ggml_vulkan: Device memory allocation of size 26843545600 failed.
ggml_vulkan: vk::Device::allocateMemory: ErrorOutOfDeviceMemory
llama_model_load: error loading model: unable to allocate Vulkan0 buffer
"""


def layers_left(report: kvproof.Report) -> int:
    found = re.search(r"--n-gpu-layers (\d+)", " ".join(report.advice))
    assert found is not None, report.advice
    return int(found[1])


def test_pytorchs_lines_alone_are_no_engines() -> None:
    report = kvproof.check("Traceback (most recent call last):\n" + OOM)
    assert report.log.program == "PyTorch"
    assert not report.fits
    assert not any("version" in said for said in report.assumptions)
    words = " ".join(report.advice)
    assert "stop the other processes: they hold 2.00 GiB" in words
    assert "50.00 MiB did not fit in 21.31 MiB" in words
    assert "--" not in words


@pytest.mark.parametrize(
    "line", ["INFO vLLM API server version 0.11.0\n", "from vllm import LLM\n"]
)
def test_a_word_of_an_engine_makes_them_its(line: str) -> None:
    report = kvproof.check(line + OOM)
    assert report.log.program == "vLLM"
    assert "--tensor-parallel-size 2" in " ".join(report.advice)


def test_a_layer_that_moves_takes_its_cache_along() -> None:
    """1,771 MiB are missing; a layer holds 120 MiB of weights and 256 MiB of the cache."""
    report = kvproof.check(LLAMA + REFUSED)
    each = 4455.34 / 37 + 9216 / 36
    assert layers_left(report) == 37 - math.ceil((9216 + 4455.34 - 11900) / each)
    assert "leave room for it" in report.advice[-1]


def test_the_compute_buffer_to_come_is_counted_where_the_model_is_known() -> None:
    report = kvproof.check(LLAMA + REFUSED, "Qwen/Qwen3-8B")
    told = re.search(r"^([\d.]+) GiB less on CUDA0, with ([\d.]+) MiB", report.advice[0])
    assert told is not None, report.advice
    missing, compute = float(told[1]) * 1024, float(told[2])
    assert missing == pytest.approx(9216 + 4455.34 - 11900 + compute, abs=6)
    assert 100 < compute < 400
    found = re.search(r"--ctx-size (\d+)", report.advice[1])
    assert found is not None
    assert (65_536 - int(found[1])) * 9216 / 65_536 >= missing - 6
    assert "leave room" not in " ".join(report.advice)


def test_vulkan_says_how_much_the_weights_asked_for() -> None:
    report = kvproof.check(VULKAN)
    assert not report.fits
    assert report.advice[0] == "1.02 GiB less on the device"
    assert layers_left(report) == 65 - math.ceil((25_600 - 24_560) / (25_600 / 65))


def test_a_pool_too_small_for_any_request_of_tensorrt_llm() -> None:
    text = (
        "[TRT-LLM] [I] TensorRT-LLM version: 1.0.0\n"
        "[TensorRT-LLM][INFO] Number of tokens per block: 32.\n"
        "[TRT-LLM] [E] AssertionError: Impossible to fit in any sequence in kvCache\n"
    )
    report = kvproof.check(text)
    assert not report.fits
    assert report.advice[0].startswith("more GPUs (--tp_size)")


NOTHING = (
    "INFO Initializing an LLM engine (v0.5.4) with config: model='meta-llama/Llama-3.1-8B', "
    "dtype=torch.bfloat16, max_seq_len=8192, tensor_parallel_size=1\n"
    "INFO Loading model weights took 14.9888 GB\nINFO # GPU blocks: 0, # CPU blocks: 2048\n"
    "ValueError: No available memory for the cache blocks. Try increasing "
    "`gpu_memory_utilization` when initializing the engine.\n"
)


def test_blocks_that_are_none_are_reckoned_on_a_named_gpu() -> None:
    words = " ".join(kvproof.check(NOTHING, gpu="RTX-4060-Ti-16GB").advice)
    assert "--gpu-memory-utilization can't do it alone" in words
    assert "twice the GPUs a replica" in words
    assert kvproof.check(NOTHING).advice[0].startswith("more GPUs")


def test_the_share_waits_for_the_gpu_where_no_line_tells_its_memory() -> None:
    text = NOTHING.replace("0, # CPU", "64, # CPU").replace(
        "No available memory for the cache blocks.",
        "The model's max seq len (8192) is larger than the maximum number of tokens that can be "
        "stored in KV cache (1024).",
    )
    words = " ".join(kvproof.check(text).advice)
    told = re.search(r"name the GPU \(--gpu\) for the share that gives ([\d.]+) MiB more", words)
    assert told is not None, words
    assert 896 <= float(told[1]) < 900
    assert "name the GPU" not in " ".join(kvproof.check(text, gpu="L4-24GB").advice)


def test_a_share_that_should_do_is_not_lowered() -> None:
    text = (
        "server_args=ServerArgs(model_path='Qwen/Qwen3-32B', tp_size=1, mem_fraction_static=0.8)\n"
        "Load weight begin. avail mem=78.58 GB\n"
        "Load weight end. type=Qwen3ForCausalLM, dtype=torch.bfloat16, avail mem=17.30 GB, mem "
        "usage=61.28 GB.\n"
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.\n"
    )
    first = kvproof.check(text).advice[0]
    assert first.startswith("--mem-fraction-static higher (it is 0.8)")


@pytest.mark.parametrize(
    "said",
    [
        "GPU 0 has a total capacty of 23.65 GiB of which 608.94 MiB is free. Including",
        "GPU 0 has a total capacity of 23.65 GiB of which 608.94 MiB is free. Process 1 has",
        "(GPU 0; 23.65 GiB total capacity; 11.70 GiB already allocated; 608.94 MiB free; 15.57 GiB "
        "reserved in total by PyTorch)",
        "GPU 0 has 23.65 GiB of which 608.94 MiB is free.",
    ],
)
def test_every_wording_of_torchs_error_is_read(said: str) -> None:
    log = kvproof.read_log(
        f"OutOfMemoryError: CUDA out of memory. Tried to allocate 3.63 GiB {said}\n"
    )
    for name, text in (("oom_request", "3.63 GiB"), ("oom_free", "608.94 MiB"),
                       ("total_gpu_memory", "23.65 GiB")):  # fmt: skip
        found = log.get(name)
        assert found is not None
        assert found.text == text


def test_a_named_gpu_gives_amounts_where_no_line_tells_its_memory() -> None:
    text = (
        "INFO vLLM API server version 0.11.0\n"
        "INFO non-default args: {'model': 'Qwen/Qwen3-32B', 'max_model_len': 8192}\n"
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 50.00 MiB.\n"
    )
    assert "name the GPU (--gpu) for amounts" in kvproof.check(text).advice[0]
    told = kvproof.check(text, gpu="L40S").advice[0]
    assert told.startswith("--tensor-parallel-size 2 (it is 1): 30.51 GiB of weights on each GPU")
    unnamed = text.replace("'model': 'Qwen/Qwen3-32B', ", "")
    assert "name the model (--model) for amounts" in kvproof.check(unnamed).advice[0]
