"""Logs that hold more than one start, or more than one engine."""

from __future__ import annotations

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
