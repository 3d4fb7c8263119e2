"""What vLLM's lines tell besides figures: runner, sequences, platform, and where they are cut."""

from __future__ import annotations

import pytest
from made_logs import vllm_log

import kvproof
from kvproof.observe.deploy import setup_of
from kvproof.observe.learn import start_of

_USAGE = (
    "INFO [gpu_worker.py:857] Free memory on device (78.8/79.18 GiB) on startup. Desired GPU "
    "memory utilization is (0.92, 72.85 GiB). Actual usage is 15.26 GiB for consumed memory "
    "(weights + non-torch), 1.44 GiB for peak activation, and 0.23 GiB for CUDAGraph memory.\n"
)
_START = (
    "INFO [api_server.py:10] vLLM API server version 0.31.0\n"
    "INFO [utils.py:233] non-default args: {'model': 'meta-llama/Llama-3.1-8B-Instruct'}\n"
)


@pytest.mark.parametrize(
    ("module", "second"), [("gpu_model_runner", False), ("model_runner", True)]
)
def test_the_module_says_which_runner_starts(module: str, second: bool) -> None:
    log = kvproof.read_log(vllm_log() + f"INFO [{module}.py:407] Model loading took 15.0 GiB\n")
    assert setup_of(log, gpu="H100-80GB").deployment.flags["use_v2_model_runner"] is second


@pytest.mark.parametrize(
    ("sizes", "sequences"),
    [("[1, 2, 4, 8, 16, 24, 32, 40]", 20), ("[1, 2]", 1), ("[1, 2, 4, 504, 512]", None)],
)
def test_captured_batches_say_how_many_sequences(sizes: str, sequences: int | None) -> None:
    line = f"INFO [core.py:9] compilation_config={{'cudagraph_capture_sizes': {sizes}, 'x': 1}}\n"
    log = kvproof.read_log(vllm_log() + line)
    assert setup_of(log, gpu="H100-80GB").deployment.flags.get("max_num_seqs") == sequences


def test_blocks_called_cuda_are_on_no_card_of_amds() -> None:
    line = "the current vLLM instance can use total_gpu_memory (16.00GiB) x "
    line += (
        "gpu_memory_utilization (0.90) = 14.40GiB\nINFO # {} blocks: 12200, # CPU blocks: 3640\n"
    )
    cards = {
        platform: setup_of(kvproof.read_log(line.format(platform))).deployment.accelerator
        for platform in ("cuda", "rocm")
    }
    assert cards["cuda"] is None
    assert cards["rocm"] is not None
    assert cards["rocm"].vendor == "AMD"


@pytest.mark.parametrize(
    ("end", "cut"),
    [("'max_num_se", True), ("'a': {'b': 1}, 'c': ", True), ("'a': {'b': 1}}", False)],
)
def test_arguments_that_are_cut_off_are_said(end: str, cut: bool) -> None:
    text = f"INFO non-default args: {{'model': 'Qwen/Qwen3-14B', 'max_model_len': 4096, {end}\n"
    notes = kvproof.read_log(text + "Available KV cache memory: 10.5 GiB\n").notes
    assert any("line 1 ends before its arguments do" in note for note in notes) is cut


def test_a_peak_beside_what_was_consumed_holds_the_estimate_of_graphs() -> None:
    """From 0.27 on: 72.85 - 15.26 - 1.44 = 56.15 GiB, though graphs are charged."""
    report = kvproof.check(_START + _USAGE, gpu="H100-80GB")
    terms = {term.name: term.value for term in report.terms}
    peak = next(row for row in report.rows if row.name == "peak_activation")
    assert peak.predicted == terms["activations"] + terms["CUDA graphs"]
    estimate = "INFO Estimated CUDA graph memory: 1.00 GiB total\n"
    apart = kvproof.check(_START + estimate + _USAGE, gpu="H100-80GB")
    peak = next(row for row in apart.rows if row.name == "peak_activation")
    assert peak.predicted == terms["activations"]
    assert peak.printed == pytest.approx(0.44 * 2**30)


def test_what_is_learned_takes_that_estimate_out() -> None:
    pool = "INFO Available KV cache memory: 56.15 GiB\n"
    start = start_of(kvproof.check(_START + pool + _USAGE, gpu="H100-80GB"))
    assert start.sums_graphs
    estimate = "INFO Estimated CUDA graph memory: 1.00 GiB total\n"
    apart = start_of(kvproof.check(_START + estimate + pool + _USAGE, gpu="H100-80GB"))
    assert not apart.sums_graphs
    assert apart.terms["peak_activation"] == pytest.approx(0.44 * 2**30)


@pytest.mark.parametrize(
    "line",
    [
        "The current --gpu-memory-utilization=0.9400 is equivalent to "
        "--gpu-memory-utilization=0.9386 without CUDA graph memory profiling.",
        "set VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=1 and increase --gpu-memory-utilization "
        "from 0.9400 to 0.9451 to maintain the same effective KV cache size.",
    ],
)
def test_the_share_is_read_where_graphs_are_profiled(line: str) -> None:
    text = "INFO vLLM API server version 0.23.0\nINFO Available KV cache memory: 28.41 GiB\n"
    log = kvproof.read_log(text + f"INFO [gpu_worker.py:481] {line}\n")
    assert log.flags["gpu_memory_utilization"] == 0.94


def test_the_llm_class_asks_for_its_own_batch() -> None:
    deployment = setup_of(
        kvproof.read_log(vllm_log() + "INFO [llm.py:298] Supported tasks: ['generate']\n"),
        gpu="H100-80GB",
    ).deployment
    assert deployment.flags["usage_context"] == "llm_class"
    other = kvproof.read_log(vllm_log() + "INFO [vllm.py:1536] Cudagraph is disabled\n")
    assert "usage_context" not in setup_of(other, gpu="H100-80GB").deployment.flags


@pytest.mark.parametrize(
    ("server", "offline"), [("", True), ("(APIServer pid=9) INFO up\n", False)]
)
def test_an_engine_without_a_server_asks_for_the_batch_of_the_llm_class(
    server: str, offline: bool
) -> None:
    """The settings come from a process without a name, the engine's has one."""
    text = (
        "INFO 09-07 00:14:16 [vllm.py:1536] Cudagraph is disabled under eager mode\n"
        "(EngineCore pid=1) INFO 09-07 00:14:19 [core.py:123] Initializing a V1 LLM engine "
        "(v0.28.1) with config: model='Qwen/Qwen2.5-1.5B-Instruct', max_seq_len=4096\n"
    )
    flags = setup_of(kvproof.read_log(text + server), gpu="RTX-3090").deployment.flags
    assert ("usage_context" in flags) is offline


@pytest.mark.parametrize(
    ("line", "backend"),
    [
        (
            "Using 'VLLM_CUTLASS' NvFp4 MoE backend out of potential backends: ['MARLIN'].",
            "cutlass",
        ),
        ("Using TRITON Unquantized MoE backend out of potential backends: [].", "triton"),
        ("Using 'FLASHINFER_CUTEDSL' NvFp4 MoE backend out of potential backends: [].", None),
        ("Using default MoE config. Performance might be sub-optimal!", None),
    ],
)
def test_the_kernel_of_experts_is_read(line: str, backend: str | None) -> None:
    text = _START.replace("0.31.0", "0.20.0") + f"INFO [nvfp4.py:203] {line}\n"
    flags = setup_of(kvproof.read_log(text), gpu="RTX-5090").deployment.flags
    assert flags.get("moe_backend") == backend


def test_the_banner_names_the_model() -> None:
    text = "INFO [utils.py:287]   █▄█▀ █     █     █     █  model   Qwen/Qwen3-14B\n"
    log = kvproof.read_log(text + "INFO Available KV cache memory: 13.49 GiB\n")
    assert log.model == "Qwen/Qwen3-14B"


def test_a_known_total_of_another_driver_is_taken_as_printed() -> None:
    text = (
        "the current vLLM instance can use total_gpu_memory (14.74GiB) x gpu_memory_utilization "
        "(0.89) = 13.12GiB\nmodel weights take 2.89GiB; non_torch_memory takes 0.05GiB; PyTorch "
        "activation peak memory takes 0.90GiB; the rest of the memory reserved for KV Cache is "
        "9.28GiB.\n"
    )
    report = kvproof.check(text, model="Qwen/Qwen2.5-1.5B-Instruct", gpu="T4")
    total = next(row for row in report.rows if row.name == "total_gpu_memory")
    assert total.ok
    assert total.predicted == pytest.approx(14.74 * 2**30, rel=1e-4)
