from __future__ import annotations

import io
import re
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from whole_logs import WRAPPERS, records, whole

import kvproof
from kvproof.errors import InputError
from kvproof.observe.formats import rows
from kvproof.observe.watch import BY_WORD

# Stated by the source but not by any word of the lines: a count that stands there by chance.
INFERRED = {("cells",), ("streams",), ("seqs",), ("layers",)}


def leaves(tree: dict[str, Any], path: tuple[str, ...] = ()) -> Any:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, (*path, key))
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield (*path, key), value


def printed(value: float, text: str) -> bool:
    return any(
        abs(float(number) - value) < 1e-9
        for number in re.findall(r"-?\d+(?:\.\d+)?", text.replace(",", ""))
    )


def missed(record: dict[str, Any], text: str) -> list[tuple[Any, ...]]:
    log = kvproof.read_log(text)
    got = dict(leaves(log.observed))
    out: list[tuple[Any, ...]] = []
    expected = (record.get("engine") or "llamacpp").replace("-", "_")
    if log.engine != expected:
        out.append((record["id"], log.engine))
    for path, value in leaves(record["observed"]):
        if path in INFERRED or not printed(value, "\n".join(record["lines"])):
            continue
        if abs(got.get(path, 1e99) - value) > max(0.006, 1e-6 * abs(value)):
            out.append((record["id"], path, value, got.get(path)))
    return out


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_every_printed_figure_is_read_however_the_log_is_wrapped(
    wrapper: str, data_dir: Path
) -> None:
    misses = [
        miss
        for record in records(data_dir, wrapper)
        if not (wrapper == "docker json" and '"' in "".join(record["lines"]))
        for miss in missed(record, whole(record["lines"], WRAPPERS[wrapper]))
    ]
    assert not misses


def test_figures_know_their_line_worker_and_precision() -> None:
    text = (
        "noise\n"
        "\x1b[0;36m(EngineCore_DP0 pid=77)\x1b[0;0m INFO 11-20 09:12:33 [gpu_worker.py:298] "
        "Available KV cache memory: 13.1 GiB\n"
        "INFO GPU KV cache size: 245,360 tokens, Maximum concurrency for 32,768 tokens per "
        "request: 7.49x\n"
    )
    log = kvproof.read_log(text)
    memory = log.get("available_kv_memory")
    assert memory is not None
    assert (memory.line, memory.worker, memory.text) == (2, "77", "13.1 GiB")
    assert memory.value == round(13.1 * 2**30)
    assert memory.step == 2**30 / 100
    assert memory.low < memory.value < memory.high
    assert log.value("kv_cache_tokens") == 245_360
    assert log.value("max_concurrency") == 7.49
    assert log.observed["max_concurrency_len"] == 32_768


def test_the_smallest_rank_decides() -> None:
    lines = [
        f"(Worker_TP{rank} pid={100 + rank}) INFO [gpu_worker.py] Available KV cache memory: "
        f"{value} GiB"
        for rank, value in enumerate((8.2, 8.11, 8.19))
    ]
    log = kvproof.read_log("\n".join(lines) + "\n")
    smallest = log.smallest("available_kv_memory")
    assert smallest is not None
    assert smallest.text == "8.11 GiB"
    assert len(log.all("available_kv_memory")) == 3


def test_vllm_version_model_and_flags() -> None:
    text = """
INFO 11-20 09:00:00 [api_server.py:1839] vLLM API server version 0.11.2+rhai1
INFO 11-20 09:00:00 [utils.py:233] non-default args: {'model_tag': 'org/name', 'port': 8000, \
'model': 'org/name', 'max_model_len': 8192, 'gpu_memory_utilization': 0.92, \
'limit_mm_per_prompt': {'image': 2}, 'tensor_parallel_size': 4, 'enable_prefix_caching': False, \
'speculative_config': {'method': 'eagle', 'num_speculative_tokens': 3}}
INFO 11-20 09:00:01 [core.py:77] Initializing a V1 LLM engine (v0.11.2+rhai1) with config: \
model='org/name', speculative_config=None, dtype=torch.bfloat16, max_seq_len=8192, \
tensor_parallel_size=4, quantization=fp8, enforce_eager=False, kv_cache_dtype=auto, \
compilation_config={"level":3,"cudagraph_capture_sizes":[512,504]}
INFO 11-20 09:00:09 Using configuration from /x/E=128,N=768,device_name=NVIDIA_H200.json for MoE
"""
    log = kvproof.read_log(text)
    assert (log.engine, log.version, log.model) == ("vllm", "0.11.2+rhai1", "org/name")
    assert log.gpu == "NVIDIA_H200"
    expected = {
        "max_model_len": 8192, "gpu_memory_utilization": 0.92, "tensor_parallel_size": 4,
        "enable_prefix_caching": False, "dtype": "bfloat16", "quantization": "fp8",
        "kv_cache_dtype": "auto", "enforce_eager": False,
    }  # fmt: skip
    assert {key: log.flags.get(key) for key in expected} == expected
    assert log.flags["speculative_config"] == {"method": "eagle", "num_speculative_tokens": 3}


def test_vllm_banner_names_version() -> None:
    text = (
        "2026-05-01 21:55:02.710 | (APIServer pid=1) INFO 05-01 19:55:02 [utils.py:299]  "
        "▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.20.0\n"
        "INFO 05-01 19:58:31 [gpu_worker.py:440] Available KV cache memory: 3.07 GiB\n"
    )
    log = kvproof.read_log(text)
    assert (log.engine, log.version) == ("vllm", "0.20.0")


def test_unsloth_says_batch_and_sequences() -> None:
    text = (
        "Unsloth: Using conservativeness = 1.0. Chunked prefill tokens = 2048. "
        "Num Sequences = 160.\n"
        "INFO 05-22 11:01:19 [worker.py:267] the current vLLM instance can use total_gpu_memory "
        "(14.74GiB) x gpu_memory_utilization (0.69) = 10.22GiB\n"
    )
    log = kvproof.read_log(text)
    assert log.flags["max_num_batched_tokens"] == 2048
    assert log.flags["max_num_seqs"] == 160
    assert log.value("requested_memory") == round(10.22 * 2**30)


def test_sglang_server_args() -> None:
    text = (
        "[2026-01-01 00:00:00] server_args=ServerArgs(model_path='Qwen/Qwen3-8B', "
        "tokenizer_path='Qwen/Qwen3-8B', mem_fraction_static=0.85, tp_size=2, "
        "speculative_algorithm=None, page_size=1, json_model_override_args='{}', "
        "custom_weight_loader=[])\n"
        "[2026-01-01 00:00:09 TP1] KV Cache is allocated. #tokens: 100, K size: 0.12 GB, "
        "V size: 0.12 GB\n"
    )
    log = kvproof.read_log(text)
    assert (log.engine, log.model) == ("sglang", "Qwen/Qwen3-8B")
    assert log.flags["mem_fraction_static"] == 0.85
    assert log.flags["tp_size"] == 2
    assert log.figures[0].worker == "TP1"


def test_flags_of_a_printed_command_line() -> None:
    text = (
        "+ exec vllm serve org/name --tensor-parallel-size 4 --max-model-len 8192\n"
        "INFO Available KV cache memory: 6.51 GiB\n"
    )
    log = kvproof.read_log(text)
    assert log.model == "org/name"
    assert log.flags["tensor_parallel_size"] == 4
    assert not kvproof.read_log("see vllm serve --helpp\nGPU blocks: 7\n").flags


def test_llama_server_caches_are_told_apart() -> None:
    text = """
build: 6700 (abc) with cc for linux
llama_model_loader: loaded meta data with 30 key-value pairs and 444 tensors from /m/g.gguf (v3)
print_info: n_layer = 48
llama_context: n_ctx = 16384
llama_kv_cache_iswa: creating non-SWA KV cache, size = 16384 cells
llama_kv_cache: size =  136.00 MiB ( 16384 cells,   8 layers,  1/1 seqs), K (q8_0):   68.00 MiB, \
V (q8_0):   68.00 MiB
llama_kv_cache_iswa: creating     SWA KV cache, size = 1536 cells
llama_kv_cache: size =  255.00 MiB (  1536 cells,  40 layers,  1/1 seqs), K (q8_0):  127.50 MiB, \
V (q8_0):  127.50 MiB
llama_memory_recurrent: size =   62.81 MiB (     1 cells,  40 layers,  1 seqs), \
R (f32):    2.81 MiB, S (f32):   60.00 MiB
llama_context:      CUDA0 compute buffer size =   493.00 MiB
load_tensors:        CUDA0 model buffer size = 12000.50 MiB
"""
    log = kvproof.read_log(text)
    seen = log.observed
    assert (log.engine, log.program, log.version) == ("llamacpp", "llama.cpp", "6700")
    assert seen["kv_total_mib"] == 136.0
    assert seen["swa_cache"]["total"] == 255.0
    assert seen["rs_mib"] == 62.81
    assert seen["compute_buffer_mib"] == {"CUDA0": 493.0}
    assert log.flags["cache_type_k"] == "q8_0"


def test_errors_that_a_model_does_not_fit_are_kept() -> None:
    text = (
        "ValueError: To serve at least one request with the models's max seq len (32768), (4.00 "
        "GiB KV cache is needed, which is larger than the available KV cache memory (3.45 GiB). "
        "Based on the available memory, the estimated maximum model length is 28208.\n"
    )
    log = kvproof.read_log(text)
    assert log.problems
    assert log.value("est_max_model_len") == 28_208
    assert log.value("kv_needed_for_len") == 32_768
    assert log.value("available_kv_memory") == round(3.45 * 2**30)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("no/such/file.log", "no file"),
        ("just\nsome\nwords\n", "no start-up line"),
        ("\n", "no start-up line"),
        ("", "no file"),
        (io.BytesIO(b"\x7fELF\0\0\0"), "not a text log"),
        ("/", "can't read"),
    ],
)
def test_what_is_no_log_is_one_clear_line(source: Any, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        kvproof.read_log(source)
    assert "\n" not in str(caught.value)


def test_every_row_can_be_found_by_a_word_of_its_literal() -> None:
    filed = {thing for things in BY_WORD.values() for _, thing in things}
    assert set(rows()) <= filed
    for row in rows():
        assert row.row.literal == row.row.literal.lower()


def test_a_million_lines_take_seconds() -> None:
    line = "(APIServer pid=1) INFO Engine 000: Running: 3 reqs, GPU KV cache usage: %d.2%%\n"
    other = 'INFO: 10.0.0.1:%d - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
    block = "".join(pattern % n for n in range(5000) for pattern in (line, other)).encode()
    start = b"INFO Available KV cache memory: 6.51 GiB\n"
    began = time.process_time()
    log = kvproof.read_log(io.BytesIO(start + block * 100))
    assert log.lines == 1_000_001
    assert len(log.figures) == 1
    assert time.process_time() - began < 20


HOSTILE = st.lists(
    st.one_of(
        st.text(max_size=80),
        st.sampled_from(
            [
                "GPU KV cache size: 999999999999999999999999 tokens",
                "Available KV cache memory: -0.0 GiB",
                "Available KV cache memory: nan GiB",
                "non-default args: {" + "{" * 500,
                "server_args=ServerArgs(" + "(" * 500 + "x=1",
                "# GPU blocks: , # CPU blocks: ,",
                "size = 1e999 MiB (1 cells, 1 layers, 1/1 seqs), K (f16): , V",
                "\x1b[" + "9" * 40 + "m Available KV cache memory: 1.00 GiB",
                "KV Cache is allocated. " + "#tokens: " * 100,
                "1,1,1,1,1,1,1,1,1,1,1 GiB for weight",
            ]
        ),
    ),
    max_size=20,
)


def outcome(source: Any) -> str:
    """The message of the InputError, empty when the log was read; other errors come through."""
    try:
        log = kvproof.read_log(source)
    except InputError as error:
        return str(error)
    return "" if log.observed is not None else "no figures"


@given(HOSTILE)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_hostile_text_never_escapes_as_another_error(lines: list[str]) -> None:
    assert "\n" not in outcome("\n".join(lines) + "\n")


@given(st.binary(max_size=2000))
@settings(max_examples=100, deadline=None)
def test_hostile_bytes(data: bytes) -> None:
    assert "\n" not in outcome(io.BytesIO(data))


def test_repeated_figures_are_bounded() -> None:
    text = "\n".join(f"GPU KV cache size: {n} tokens" for n in range(60_000))
    began = time.process_time()
    log = kvproof.read_log(text + "\n")
    assert len(log.figures) <= 20_000
    assert log.dropped > 0
    assert time.process_time() - began < 20


def test_one_endless_line_is_bounded() -> None:
    began = time.process_time()
    text = "Available KV cache memory: 6.51 GiB\n" + "size = 1,1,1 GiB for weight, " * 400_000
    assert kvproof.read_log(text).value("available_kv_memory") is not None
    assert time.process_time() - began < 20


@pytest.mark.parametrize("text", ["1e999", "1.5e3", "12E+4", "3,000e2"])
def test_digits_before_an_exponent_are_no_number_of_their_own(text: str) -> None:
    line = f"INFO 06-01 12:01:00 [kv_cache_utils.py:1305] GPU KV cache size: {text} tokens\n"
    size = "INFO 06-01 12:01:00 [gpu_worker.py:356] Available KV cache memory: {} GiB\n"
    log = kvproof.read_log(line + size.format("5.25"))
    assert log.get("kv_cache_tokens") is None
    assert log.value("available_kv_memory") == 5.25 * 2**30
    assert (
        kvproof.read_log(line + size.format(text) + size.format("2")).value("available_kv_memory")
        == 2 * 2**30
    )


def test_memory_below_nothing_is_said() -> None:
    size = "INFO 06-01 12:01:00 [gpu_worker.py:356] Available KV cache memory: {} GiB\n"
    assert any("line 1 prints -5" in note for note in kvproof.read_log(size.format("-5")).notes)
    assert not kvproof.read_log(size.format("5")).notes


def test_tensorrts_own_memory_lines() -> None:
    """Engine and execution context as TensorRT's logger counts them, and what the GPU holds."""
    text = (
        "[TensorRT-LLM][INFO] TRTGptModel maxNumSequences: 8\n"
        "[TensorRT-LLM][INFO] [MemUsageChange] Init cuBLAS/cuBLASLt: CPU +0, GPU +8, now: "
        "CPU 13854, GPU 7789 (MiB)\n"
        "[TensorRT-LLM][INFO] [MemUsageChange] Init cuDNN: CPU +1, GPU +16, now: CPU 13855, "
        "GPU 7805 (MiB)\n"
        "[TensorRT-LLM][INFO] [MemUsageChange] TensorRT-managed allocation in engine "
        "deserialization: CPU +0, GPU +6867, now: CPU 0, GPU 6867 (MiB)\n"
        "[TensorRT-LLM][INFO] [MemUsageChange] TensorRT-managed allocation in IExecutionContext "
        "creation: CPU +0, GPU {}, now: CPU 0, GPU 6867 (MiB)\n"
    )
    bare, held = (kvproof.read_log(text.format(more)).observed for more in ("+0", "+128"))
    assert bare["engine_mib"] == 6867
    assert bare["device_used_mib"] == 7805
    assert "activation_mib" not in bare
    assert held["activation_mib"] == 128
