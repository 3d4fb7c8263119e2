"""Logs that hold more than one start, or more than one engine."""

from __future__ import annotations

import pytest
from made_logs import vllm_log

import kvproof

FAILED = """
INFO 11-20 08:00:00 [api_server.py:1839] vLLM API server version 0.11.0
INFO 11-20 08:00:00 [utils.py:233] non-default args: {'model': 'Qwen/Qwen3-14B', \
'max_model_len': 40960, 'kv_cache_dtype': 'fp8', 'tensor_parallel_size': 2}
(Worker_TP0 pid=1) INFO 11-20 08:00:09 Available KV cache memory: 2.10 GiB
ValueError: To serve at least one request with the models's max seq len (40960), (3.12 GiB KV \
cache is needed, which is larger than the available KV cache memory (2.10 GiB).
"""
SGLANG = """
[2026-09-01 TP0] server_args=ServerArgs(model_path='Qwen/Qwen2.5-0.5B-Instruct', tp_size=1)
[2026-09-01 TP0] Load weight end. type=Qwen2ForCausalLM, avail mem=35.57 GB, mem usage=0.98 GB.
"""


def test_flags_and_figures_of_an_earlier_start_stay_there() -> None:
    log = kvproof.read_log(FAILED + vllm_log())
    assert log.flags == {"max_model_len": 32768, "gpu_memory_utilization": 0.9}
    assert [figure.text for figure in log.all("available_kv_memory")] == ["39.6 GiB"]
    assert log.problems == ()
    assert log.notes == ("the log holds 2 starts: the one from line 7 on is read",)
    report = kvproof.check(log, gpu="H100-80GB")
    assert report.fits
    assert all(row.ok for row in report.rows if row.exact)
    assert log.notes[0] in report.warnings


def test_the_last_start_counts_though_it_failed() -> None:
    log = kvproof.read_log(vllm_log() + FAILED)
    assert log.flags["kv_cache_dtype"] == "fp8"
    assert len(log.problems) == 1
    assert not kvproof.check(log, gpu="H100-80GB").fits


def test_a_start_that_printed_nothing_yet_is_passed_over() -> None:
    args = FAILED.splitlines()[2]
    log = kvproof.read_log(f"{vllm_log()}{args}\n")
    assert log.flags["max_model_len"] == 32768
    assert log.value("kv_cache_tokens") == 259520


def test_arguments_printed_twice_before_anything_else_are_one_start() -> None:
    """The server and its engine each say what they were given."""
    lines = vllm_log().splitlines()
    log = kvproof.read_log("\n".join([*lines[:3], lines[2], *lines[3:]]))
    assert log.notes == ()


OLLAMA = """
time=2025-01-16T04:29:50Z source=routes.go:1238 msg="Listening on [::]:11434 (version 0.5.4)"
"""
LOAD = """\
time=2025-01-16T04:29:50Z source=memory.go:356 msg="offload to cuda" layers.requested=-1 \
memory.required.full="{full} GiB"
time=2025-01-16T04:29:50Z source=server.go:376 msg="starting llama server" cmd="/runner --model \
/blobs/sha256-dd --ctx-size {cells} --batch-size 512 --n-gpu-layers 29 --parallel {slots}"
llama_kv_cache_init:      CUDA0 KV buffer size =   {size}.00 MiB
llama_new_context_with_model:      CUDA0 compute buffer size =   424.00 MiB
"""
FIRST = LOAD.format(full="3.7", cells=8192, slots=4, size=896)
SECOND = LOAD.format(full="3.1", cells=4096, slots=1, size=448)


def test_every_load_of_an_ollama_server_is_a_start() -> None:
    """The estimate and the runner's command line come before what the runner prints."""
    settings = 'msg="server config" env="map[OLLAMA_KV_CACHE_TYPE:q8_0 OLLAMA_NUM_PARALLEL:4]"\n'
    log = kvproof.read_log(OLLAMA + settings + FIRST + SECOND)
    assert (log.flags["n_ctx"], log.flags["parallel"]) == (4096, 1)
    assert log.flags["ollama_kv_cache_type"] == "q8_0"
    assert [figure.text for figure in log.all("kv_buffer")] == ["448.00 MiB"]
    assert [figure.text for figure in log.all("estimate_full")] == ["3.1 GiB"]
    assert log.version == "0.5.4"
    assert "2 starts" in log.notes[0]


def test_a_server_that_was_started_again_keeps_its_runners_words() -> None:
    log = kvproof.read_log(OLLAMA + FIRST + OLLAMA + FIRST)
    assert (log.flags["n_ctx"], log.flags["parallel"]) == (8192, 4)
    assert [figure.text for figure in log.all("kv_buffer")] == ["896.00 MiB"]


NOTEBOOK = """
INFO 11-25 15:08:01 [scheduler.py:216] Chunked prefill is enabled with max_num_batched_tokens=4096.
INFO 11-25 15:08:02 [core.py:93] Initializing a V1 LLM engine (v0.11.2) with config: \
model='meta-llama/Llama-3.2-1B', dtype=torch.bfloat16, max_seq_len=2048, tensor_parallel_size=1
INFO 11-25 15:08:24 [gpu_worker.py:276] Available KV cache memory: 17.20 GiB
INFO 11-25 15:08:24 [kv_cache_utils.py:1229] GPU KV cache size: 563,744 tokens
"""


@pytest.mark.parametrize("before", [NOTEBOOK, vllm_log()])
def test_a_notebooks_engine_keeps_what_was_printed_before_its_own_line(before: str) -> None:
    log = kvproof.read_log(before + NOTEBOOK)
    assert log.flags["max_num_batched_tokens"] == 4096
    assert log.flags["max_model_len"] == 2048
    assert "gpu_memory_utilization" not in log.flags
    assert [figure.text for figure in log.all("kv_cache_tokens")] == ["563,744"]
    assert "2 starts" in log.notes[0]


def test_another_model_in_an_engines_line_is_another_start() -> None:
    bare = NOTEBOOK[NOTEBOOK.index("INFO 11-25 15:08:02") :]
    log = kvproof.read_log(NOTEBOOK + bare.replace("3.2-1B", "3.2-3B"))
    assert log.model == "meta-llama/Llama-3.2-3B"
    assert "max_num_batched_tokens" not in log.flags
    assert kvproof.read_log(NOTEBOOK + bare).notes[0].startswith("the log holds 2 starts")


def test_engines_that_begin_late_are_of_their_server() -> None:
    """Data-parallel engines print the same line, some of them behind the first one's cache."""
    line = NOTEBOOK.splitlines()[2]
    served = "INFO 11-25 15:08:00 [utils.py:233] non-default args: {'max_model_len': 2048}\n"
    log = kvproof.read_log(served + NOTEBOOK + line + "\n" + NOTEBOOK.splitlines()[3])
    assert log.notes == ()


def test_another_engines_lines_are_named() -> None:
    log = kvproof.read_log(vllm_log() + SGLANG)
    assert log.engine == "sglang"
    assert log.notes == ("lines of vLLM are in the log too: those of SGLang are read",)


def test_thousands_of_starts_are_bounded() -> None:
    log = kvproof.read_log(FAILED * 3000 + vllm_log())
    assert log.value("kv_cache_tokens") == 259520
    assert "3,001 starts" in log.notes[0]


def test_a_flag_left_aside_says_why() -> None:
    text = vllm_log().replace("'max_model_len'", "'kv_cache_dtype': 'nvfp4', 'max_model_len'")
    report = kvproof.check(text, gpu="H100-80GB")
    assert any(
        line.startswith("left aside, kv_cache_dtype: vLLM 0.11.0 has no kv_cache_dtype nvfp4")
        for line in report.warnings
    )


def test_engines_of_one_server_are_one_start() -> None:
    """Each data-parallel engine says its version and configuration when it begins."""
    lines = vllm_log().splitlines()
    engine = "Initializing a V1 LLM engine (v0.11.0) with config: model='Qwen/Qwen3-14B'"
    text = [*lines[:3]]
    for rank in (0, 1):
        text += [f"(EngineCore_DP{rank} pid={rank}) {line}" for line in (engine, *lines[3:])]
    log = kvproof.read_log("\n".join(text))
    assert log.notes == ()
    assert log.flags["max_model_len"] == 32768
    assert len(log.all("kv_cache_tokens")) == 2


def test_torchs_own_lines_name_no_other_engine() -> None:
    torch = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
        "capacity of 39.39 GiB of which 1.00 GiB is free.\n"
    )
    assert kvproof.read_log(vllm_log() + torch).notes == ()
