from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made_logs import vllm_log

import kvproof
from kvproof.errors import UsageError
from kvproof.observe import store
from kvproof.observe.deploy import setup_of
from kvproof.observe.learn import start_of


def rows(report: Any) -> dict[str, Any]:
    return {row.name: row for row in report.rows}


def test_tokens_and_concurrency_follow_from_the_printed_memory() -> None:
    report = kvproof.check(vllm_log(), gpu="H100-80GB")
    found = rows(report)
    assert found["kv_cache_tokens"].ok
    assert found["kv_cache_tokens"].exact
    assert found["max_concurrency"].ok
    assert report.model == "Qwen/Qwen3-14B"
    assert report.engine == "vllm@0.11.0"
    assert report.gpu == "H100-80GB"


def test_a_figure_outside_its_bounds_is_off_and_says_why() -> None:
    report = kvproof.check(vllm_log(tokens="519,040", ratio="15.84"), gpu="H100-80GB")
    tokens = rows(report)["kv_cache_tokens"]
    assert not report.ok
    assert tokens in report.off
    assert "half the element size" in tokens.cause


def test_the_tolerance_accepts_a_near_miss() -> None:
    text = vllm_log(tokens="261,008", ratio="7.97")
    assert not rows(kvproof.check(text, gpu="H100-80GB"))["kv_cache_tokens"].ok
    assert rows(kvproof.check(text, gpu="H100-80GB", tolerance=0.01))["kv_cache_tokens"].ok
    with pytest.raises(UsageError, match="tolerance"):
        kvproof.check(text, tolerance=2)


def test_memory_of_another_process_is_blamed() -> None:
    text = vllm_log(memory=29.6, tokens="193,984", ratio="5.92") + (
        "INFO Free memory on device (68.50/79.18 GiB) on startup. Desired GPU memory utilization "
        "is (0.9, 71.26 GiB).\n"
    )
    row = rows(kvproof.check(text, gpu="H100-80GB"))["available_kv_memory"]
    assert not row.ok
    assert "other processes" in row.cause


def test_without_a_model_the_log_is_held_against_itself() -> None:
    text = (
        "Desired GPU memory utilization is (0.9, 71.27 GiB). Actual usage is 14.08 GiB for weight, "
        "1.97 GiB for peak activation, 0.07 GiB for non-torch memory, and 0.67 GiB for CUDAGraph "
        "memory. Current kv cache memory in use is 59212694937 bytes.\n"
    )
    report = kvproof.check(text)
    assert [row.name for row in report.ledger] == ["budget as printed"]
    assert report.ledger[0].ok
    assert not report.rows


def test_what_does_not_fit_gets_an_amount() -> None:
    text = (
        "INFO non-default args: {'model': 'Qwen/Qwen3-14B', 'max_model_len': 32768, "
        "'gpu_memory_utilization': 0.9}\n"
        "INFO the current vLLM instance can use total_gpu_memory (39.39GiB) x "
        "gpu_memory_utilization (0.90) = 35.45GiB\n"
        "ValueError: To serve at least one request with the models's max seq len (32768), (5.00 "
        "GiB KV cache is needed, which is larger than the available KV cache memory (4.45 GiB). "
        "Based on the available memory, the estimated maximum model length is 29152.\n"
    )
    report = kvproof.check(text)
    assert not report.fits
    words = " ".join(report.advice)
    assert "--max-model-len 29152 (it is 32,768)" in words
    assert "--gpu-memory-utilization 0.914 (it is 0.9)" in words
    assert "fp8" in words


def test_out_of_memory_after_the_sizing() -> None:
    text = (
        "vLLM API server version 0.11.0\n"
        "INFO Available KV cache memory: 73.53 GiB\n"
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 594.00 MiB. GPU 0 has a "
        "total capacity of 79.18 GiB of which 500.69 MiB is free.\n"
    )
    report = kvproof.check(text)
    assert report.advice[0].startswith("--gpu-memory-utilization 0.895 (it is 0.9)")


def test_state_blocks_bound_the_requests() -> None:
    text = "ValueError: max_num_seqs (256) exceeds available Mamba cache blocks (184).\n"
    advice = kvproof.check(text).advice
    assert advice == ("--max-num-seqs 184 (it is 256): one state block a request",)


def test_sglang_pool_and_states() -> None:
    text = (
        "[2026-09-01 TP0] server_args=ServerArgs(model_path='Qwen/Qwen2.5-0.5B-Instruct', "
        "tp_size=1, mem_fraction_static=0.861, context_length=32768)\n"
        "[2026-09-01 TP0] Load weight end. type=Qwen2ForCausalLM, avail mem=35.57 GB, "
        "mem usage=0.98 GB.\n"
        "[2026-09-01 TP0] KV Cache is allocated. #tokens: 2658165, K size: 15.21 GB, "
        "V size: 15.21 GB\n"
    )
    report = kvproof.check(text, gpu="A100-40GB")
    assert rows(report)["kv_cache_tokens"].ok


@pytest.mark.parametrize(
    ("prefix", "ranks"),
    [
        ("TP8: ", None),
        ("On H100 with TP8 we see ", None),
        ("(Worker_TP1_EP1 pid=77) INFO ", 2),
        ("(Worker_DP0_TP3 pid=77) INFO ", 4),
    ],
)
def test_a_size_in_prose_is_no_workers_name(prefix: str, ranks: int | None) -> None:
    text = f"vllm 0.11.0\n{prefix}Available KV cache memory: 50.00 GiB\n"
    report = kvproof.check(text, "Qwen/Qwen3-14B", "H100-80GB")
    assert report.log.get("available_kv_memory") is not None
    assert any("by the workers' names" in line for line in report.assumptions) == bool(ranks)
    if ranks:
        assert any(line.startswith(f"{ranks} ranks") for line in report.assumptions)


SGLANG_CAPPED = """
[2026-09-01 10:00:00 TP0] Load weight begin. avail mem=78.50 GB
[2026-09-01 10:00:09 TP0] Load weight end. type=LlamaForCausalLM, avail mem=63.40 GB, mem \
usage=15.08 GB.
[2026-09-01 10:00:10 TP0] KV Cache is allocated. #tokens: 100000, K size: 6.10 GB, V size: 6.10 GB
[2026-09-01 10:00:10 TP0] Memory pool end. avail mem=%s GB
[2026-09-01 10:00:12 TP0] max_total_num_tokens=100000, context_len=131072
"""


def test_sglang_memory_left_beside_the_pools_shows_a_cap() -> None:
    args = ("meta-llama/Llama-3.1-8B", "2xH100-80GB")
    capped = kvproof.check(SGLANG_CAPPED % "50.90", *args)
    assert capped.ok
    assert any("max_total_tokens is taken for 100,000" in line for line in capped.assumptions)
    share = SGLANG_CAPPED.replace("100000", "411000").replace("6.10", "25.09") % "12.90"
    whole = kvproof.check(share, *args)
    assert not any("max_total_tokens" in line for line in whole.assumptions)


def test_sglang_two_pools_are_added_up() -> None:
    """Twelve sliding and twelve full layers of gpt-oss-20b, 80 % as many sliding tokens."""
    tokens, cell = 1_000_000, 12 * 8 * 64 * 2
    half = tokens * cell / 2**30
    text = (
        "[2026-05-01 TP0] server_args=ServerArgs(model_path='openai/gpt-oss-20b', tp_size=1, "
        "context_length=32768)\n"
        f"[2026-05-01 TP0] Use sliding window memory pool. full_layer_tokens={tokens}, "
        f"swa_layer_tokens={tokens * 8 // 10}\n"
        f"[2026-05-01 TP0] KV Cache is allocated. #tokens: {tokens * 8 // 10}, K size: "
        f"{half * 0.8:.2f} GB, V size: {half * 0.8:.2f} GB\n"
        f"[2026-05-01 TP0] KV Cache is allocated. #tokens: {tokens}, K size: {half:.2f} GB, "
        f"V size: {half:.2f} GB\n"
        f"[2026-05-01 TP0] max_total_num_tokens={tokens}, context_len=32768\n"
    )
    report = kvproof.check(text, gpu="H100-80GB")
    assert rows(report)["kv_cache_tokens"].ok


def test_sglang_the_drafts_own_pool_is_not_the_targets() -> None:
    """One MTP layer's pool has as many tokens as the target's 28 layers, and a line of its own."""
    cell = 8 * 128 * 2
    text = (
        "[2026-05-01 TP0] server_args=ServerArgs(model_path='Qwen/Qwen3-0.6B', tp_size=1, "
        "speculative_algorithm='EAGLE', context_length=32768)\n"
        + "".join(
            f"[2026-05-01 TP0] KV Cache is allocated. #tokens: 500000, K size: {size:.2f} GB, "
            f"V size: {size:.2f} GB\n"
            for size in (500_000 * cell * 28 / 2**30, 500_000 * cell / 2**30)
        )
        + "[2026-05-01 TP0] max_total_num_tokens=500000, context_len=32768\n"
    )
    assert rows(kvproof.check(text, gpu="H100-80GB"))["kv_cache_tokens"].ok


def test_sglang_sliding_pools_are_printed_together() -> None:
    tokens, cell = 1_000_000, 12 * 8 * 64 * 2 * 2
    text = (
        "[2026-05-01 TP0] server_args=ServerArgs(model_path='openai/gpt-oss-20b', tp_size=1, "
        "context_length=32768)\n"
        f"[2026-05-01 TP0] SWAKVPool mem usage: {tokens * cell * 1.8 / 2**30:.2f} GB, "
        f"swa size: {tokens * 8 // 10}, full size: {tokens}\n"
        f"[2026-05-01 TP0] max_total_num_tokens={tokens}, context_len=32768\n"
    )
    assert rows(kvproof.check(text, gpu="H100-80GB"))["kv_cache_tokens"].ok


def test_sglang_compressed_pools() -> None:
    """A public start of DeepSeek-V4-Flash on 0.5.12: 15,955.85 B a token."""
    available, tokens = 24.0, int(24.0 * 2**30 / 15955.85) // 256 * 256
    text = (
        "[2026-06-01 TP0] server_args=ServerArgs(model_path='deepseek-ai/DeepSeek-V4-Flash', "
        "tp_size=8, kv_cache_dtype='fp8_e4m3', context_length=32768)\n"
        "[2026-06-01 TP0] sglang version: 0.5.12\n"
        "[2026-06-01 TP0] DSV4 memory calculation: bytes_per_full_token=15955.85, "
        f"available_bytes={available:.2f} GB, full_token={tokens}\n"
        f"[2026-06-01 TP0] DSV4 pool sizes: full={tokens}, swa={tokens // 10}, c4=1, c128=1\n"
        f"[2026-06-01 TP0] max_total_num_tokens={tokens}, context_len=32768\n"
    )
    log = kvproof.read_log(text)
    assert log.value("available_kv_memory") == available * 2**30
    assert log.value("full_tokens") == tokens
    assert log.value("observed_kv_bytes_per_token") == 15955.85


def test_sglangs_free_memory_is_taken_from_the_log() -> None:
    lines = (
        "[2026-09-01 TP0] server_args=ServerArgs(model_path='Qwen/Qwen2.5-0.5B-Instruct', "
        "tp_size=1, mem_fraction_static=0.861, context_length=32768)\n"
    )
    begin = "[2026-09-01 TP0] Load weight begin. avail mem=36.55 GB\n"
    end = (
        "[2026-09-01 TP0] Load weight end. type=Qwen2ForCausalLM, avail mem=35.57 GB, "
        "mem usage=0.98 GB.\n"
    )
    pool = (
        "[2026-09-01 TP0] KV Cache is allocated. #tokens: 2658165, K size: 15.21 GB, "
        "V size: 15.21 GB\n"
    )
    for given in (begin, end):
        report = kvproof.check(lines + given + pool, gpu="A100-40GB")
        assert any("36.55 GiB, as printed" in text for text in report.assumptions)
        row = rows(report)["available_kv_memory"]
        assert abs(row.predicted - row.printed) < 0.01 * row.printed


def test_tensorrt_llms_pytorch_backend() -> None:
    """A public start of gpt-oss-120b on memory shared with the CPU; the last pool counts."""
    text = (
        "[TensorRT-LLM] TensorRT LLM version: 1.2.0\n"
        "[TRT-LLM] [I] Memory dynamically allocated during inference (inside torch) in memory "
        "usage profiling: 0.85 GiB\n"
        "[TRT-LLM] [I] Peak memory during memory usage profiling (torch + non-torch): 113.65 GiB, "
        "available KV cache memory when calculating max tokens: 5.95 GiB, fraction is set "
        "0.8999999761581421, kv size is 73728. device total memory 119.70 GiB, , tmp kv_mem "
        "0.56 GiB\n"
        "[TRT-LLM] [I] Estimated max memory in KV cache : 5.95 GiB\n"
        "[TensorRT-LLM][INFO] [MemUsageChange] Allocated 5.95 GiB for max tokens in paged KV "
        "cache (86720).\n"
    )
    report = kvproof.check(text, model="openai/gpt-oss-120b", gpu="GB10")
    pool = rows(report)["available_kv_memory"]
    assert pool.predicted == pytest.approx(5.95 * 2**30, rel=2e-3)
    assert any("6.61 GiB, as printed" in line for line in report.assumptions)
    assert report.log.value("temporary_kv") == pytest.approx(0.56 * 2**30)
    assert report.log.value("activation") == pytest.approx(0.85 * 2**30)
    assert rows(report)["kv_cache_tokens"].ok


def test_tensorrt_llm_pool_is_a_share_of_free_memory() -> None:
    text = (
        "[TensorRT-LLM] TensorRT LLM version: 0.19.0\n"
        "[TensorRT-LLM][INFO] Memory usage when calculating max tokens in paged kv cache: total: "
        "31.84 GiB, available: 17.83 GiB\n"
        "[TensorRT-LLM][INFO] Number of blocks in KV cache primary pool: 8219\n"
        "[TensorRT-LLM][INFO] Number of tokens per block: 32.\n"
        "[TensorRT-LLM][INFO] [MemUsageChange] Allocated 16.05 GiB for max tokens in paged KV "
        "cache (263008)\n"
    )
    report = kvproof.check(text, model="nvidia/Llama-3.1-8B-Instruct-FP8")
    assert report.ledger[0].ok
    assert report.log.version == "0.19.0"
    assert rows(report)["tokens_per_block"].ok


OLD_ENGINE = (
    "[TensorRT-LLM][INFO] Engine version 0.8.0 found in the config file, assuming engine(s) built "
    "by new builder API.\n"
    "[TensorRT-LLM][INFO] Allocate 69524783104 bytes for k/v cache. \n"
    "[TensorRT-LLM][INFO] Using 132608 tokens in paged KV cache.\n"
)


def test_an_engine_of_tensorrt_llms_first_releases() -> None:
    """A public start: the bytes are printed before the tokens, the version as the engine's."""
    model, gpu = "meta-llama/Llama-2-7b-hf", "A100-80GB"
    report = kvproof.check(OLD_ENGINE, model, gpu)
    assert report.log.version == "0.8.0"
    assert rows(report)["kv_cache_tokens"].predicted == 132_608
    assert rows(report)["kv_cache_tokens"].exact
    newer = kvproof.read_log("[TensorRT-LLM] TensorRT-LLM version: 0.9.0\n" + OLD_ENGINE)
    assert newer.version == "0.9.0"


def test_rules_that_leave_figures_off_are_not_said_to_give_them() -> None:
    lines = OLD_ENGINE.splitlines(keepends=True)
    alone, both = ": nothing printed tells them apart", ", all of which give the figures that "
    for kept, said in ((lines[2:], alone), (lines[1:], both + "follow from others")):
        report = kvproof.check("".join(kept), "meta-llama/Llama-2-7b-hf", "A100-80GB")
        assert report.off
        (note,) = [line for line in report.assumptions if "no TensorRT-LLM version" in line]
        assert note.endswith(said)
        assert not any("kvproof check" in row.cause for row in report.rows)


def test_llama_cpp_parts_add_up() -> None:
    text = (
        "llama_kv_cache: size = 1280.00 MiB (65536 cells, 10 layers, 4/1 seqs), K (f16): 640.00 "
        "MiB, V (f16): 640.00 MiB\n"
    )
    assert all(row.ok for row in kvproof.check(text).ledger)


def test_learning_from_a_report() -> None:
    report = kvproof.check(vllm_log(), gpu="H100-80GB")
    learned = start_of(report)
    assert learned.gpu == "H100-80GB"
    assert learned.model == "Qwen/Qwen3-14B"
    assert learned.printed == round(39.6 * 2**30)
    with pytest.raises(UsageError, match="nothing to learn"):
        start_of(kvproof.check("GPU KV cache size: 1,000 tokens\n"))


def test_a_model_that_cannot_be_had_leaves_the_log_against_itself() -> None:
    report = kvproof.check(vllm_log(), model="no/such-model", gpu="H100-80GB", offline=True)
    assert report.unread is not None
    assert [row.name for row in report.ledger] == ["concurrency x length"]
    assert "not predicted: weights, available_kv_memory" in report.warnings[0]
    with pytest.raises(UsageError):
        kvproof.check(vllm_log(), model=5)  # type: ignore[arg-type]


UNNAMED = """
Model loading took 15.2683 GiB and 3.617503 seconds
Available KV cache memory: 18.69 GiB
GPU KV cache size: 136,080 tokens
Maximum concurrency for 40,960 tokens per request: 3.32x
"""


def test_a_log_without_a_version_is_dated_by_its_wording() -> None:
    report = kvproof.check(UNNAMED, model="Qwen/Qwen3-8B", gpu="A100-40GB")
    assert (report.log.wording.since, report.log.wording.until) == ("0.9", "0.11.0")
    assert report.log.wording.holds("0.10.2")
    assert not report.log.wording.holds("0.11.1")
    assert report.engine == "vllm@0.11.0"
    assert "is that of 0.9 to 0.11.0" in report.assumptions[0]
    assert report.ok


def test_a_build_without_tags_names_no_release() -> None:
    log = kvproof.read_log(vllm_log().replace("0.11.0", "0.1.dev1+gda1daf40b"))
    assert log.version == "0.1.dev1+gda1daf40b"
    report = kvproof.check(log, gpu="H100-80GB")
    assert report.engine != "vllm@0.1.dev1+gda1daf40b"
    assert rows(report)["kv_cache_tokens"].ok
    assert any("no vLLM version is named" in line for line in report.assumptions)


@pytest.mark.parametrize(
    ("line", "flag"),
    [
        ("[topk_topp_sampler.py:50] Using FlashInfer for top-p & top-k sampling.", True),
        (
            "[topk_topp_sampler.py:69] FlashInfer is not available. Falling back to the "
            "PyTorch-native implementation of top-p & top-k sampling.",
            False,
        ),
    ],
)
def test_the_log_says_whose_kernels_sample(line: str, flag: bool) -> None:
    log = kvproof.read_log(vllm_log() + f"INFO 11-20 09:00:00 {line}\n")
    deployment = setup_of(log, gpu="H100-80GB").deployment
    assert deployment.flags["flashinfer_sampler"] is flag


def test_a_gpu_named_by_its_memory_alone_is_no_tpu() -> None:
    text = (
        "INFO 04-04 17:58:00 [worker.py:268] the current vLLM instance can use total_gpu_memory "
        "(16.00GiB) x gpu_memory_utilization (0.90) = 14.40GiB\n"
        "INFO 04-04 17:58:00 [executor_base.py:111] # cuda blocks: 12200, # CPU blocks: 3640\n"
    )
    setup = setup_of(kvproof.read_log(text), release="0.7.3")
    board = setup.deployment.accelerator
    assert board is None or board.vendor in ("NVIDIA", "AMD", "Intel")


def test_the_first_engine_of_a_later_release_is_dated_by_its_wording() -> None:
    text = (
        "INFO 04-04 17:57:59 [model_runner.py:1146] Model loading took 27.52 GB and 9.95 seconds\n"
        "INFO 04-04 17:58:00 [worker.py:268] the current vLLM instance can use total_gpu_memory "
        "(79.18GiB) x gpu_memory_utilization (0.90) = 71.26GiB\n"
        "INFO 04-04 17:58:00 [worker.py:268] model weights take 27.52GiB; non_torch_memory takes "
        "0.15GiB; PyTorch activation peak memory takes 1.40GiB; the rest of the memory reserved "
        "for KV Cache is 42.19GiB.\n"
        "INFO 04-04 17:58:00 [executor_base.py:111] # cuda blocks: 17281, # CPU blocks: 1638\n"
    )
    report = kvproof.check(text, model="Qwen/Qwen3-14B", gpu="H100-80GB")
    assert report.engine == "vllm@0.7.3"
    assert rows(report)["num_blocks"].ok


def test_a_share_that_was_cut_to_two_decimals_is_taken_from_the_memory() -> None:
    text = (
        "INFO 05-22 11:01:13 [llm_engine.py:240] Initializing a V0 LLM engine (v0.8.5.post1) with "
        "config: model='Qwen/Qwen3-14B', max_seq_len=2048\n"
        "INFO 05-22 11:01:19 [worker.py:267] the current vLLM instance can use total_gpu_memory "
        "(14.74GiB) x gpu_memory_utilization ({share}) = {asked}GiB\n"
    )
    odd = setup_of(kvproof.read_log(text.format(share="0.69", asked="10.22")), gpu="T4")
    assert odd.deployment.flags["gpu_memory_utilization"] == pytest.approx(0.6934, abs=1e-3)
    plain = setup_of(kvproof.read_log(text.format(share="0.90", asked="13.27")), gpu="T4")
    assert plain.deployment.flags["gpu_memory_utilization"] == 0.9


def test_a_start_without_a_version_is_kept_with_its_range(tmp_path: Path) -> None:
    learned = start_of(kvproof.check(UNNAMED, model="Qwen/Qwen3-8B", gpu="A100-40GB"))
    assert (learned.version, learned.since, learned.until) == ("", "0.9", "0.11.0")
    place = tmp_path / "x.sqlite"
    store.remember([learned], place)
    assert store.recall(path=place)[0] == learned
    assert store.import_lines(store.export_lines(place), tmp_path / "y.sqlite") == 1


def test_inside_a_wide_interval_is_not_ok() -> None:
    """Weights of 8 ranks of Qwen3-235B; activations of a batch that the log does not name."""
    text = (
        "INFO the current vLLM instance can use total_gpu_memory (79.15GiB) x "
        "gpu_memory_utilization (0.90) = 71.24GiB\n"
        "INFO model weights take 54.92GiB; non_torch_memory takes 2.10GiB; PyTorch activation peak "
        "memory takes 3.44GiB; the rest of the memory reserved for KV Cache is 10.77GiB.\n"
    )
    report = kvproof.check(text, model="Qwen/Qwen3-235B-A22B", gpu="H100-80GB")
    row = rows(report)["available_kv_memory"]
    assert "8 ranks (tensor_parallel_size)" in report.assumptions[0]
    assert rows(report)["weights"].verdict == "ok"
    assert row.verdict != "ok"
    assert row.shares[0].term == "activations"
    assert sum(share.size for share in row.shares) == pytest.approx(row.difference, abs=2**28)


def test_no_log_makes_check_fail_in_another_way(data_dir: Path) -> None:
    from whole_logs import records

    for record in records(data_dir):
        report = kvproof.check("\n".join(record["lines"]) + "\n", offline=True)
        assert report.log.lines


def test_sglangs_settled_requests_size_nothing() -> None:
    text = (
        "[2026-09-01 TP0] sglang version: 0.5.23\n"
        "[2026-09-01 TP0] server_args=ServerArgs(model_path='Qwen/Qwen2.5-0.5B-Instruct', "
        "tp_size=1)\n"
        "[2026-09-01 TP0] max_total_num_tokens=2658165, chunked_prefill_size=8192, "
        "max_prefill_tokens=16384, max_running_requests=41, context_len=32768\n"
    )
    flags = setup_of(kvproof.read_log(text), "H100-80GB").deployment.flags
    assert "max_running_requests" not in flags
    assert flags["context_length"] == 32768


def test_the_command_shows_the_log_against_itself_and_names_the_model(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from kvproof.surfaces.cli.check import check

    path = tmp_path / "server.log"
    path.write_text(vllm_log())
    options = ["--model", "no/such-model", "--offline"]
    result = CliRunner().invoke(check, [str(path), *options], standalone_mode=False)
    assert result.return_value in (2, 3)
    assert "The log against itself" in result.stdout
    assert "no/such-model" in result.stderr


def test_smaller_weights_alone_are_not_more_ranks() -> None:
    text = "INFO Model loading took 13.8 GiB memory and 3.6 seconds\n" + CARD_OF_80
    fp8 = kvproof.check(text, model="Qwen/Qwen3-14B", gpu="H100-80GB")
    assert not any("ranks" in line for line in fp8.assumptions)
    two = kvproof.check(
        text
        + "INFO Available KV cache memory: 20.00 GiB\nINFO GPU KV cache size: 262,144 tokens\n",
        model="Qwen/Qwen3-14B",
        gpu="H100-80GB",
    )
    assert any("2 ranks" in line for line in two.assumptions)


CARD_OF_80 = (
    "INFO Free memory on device (78.60/79.18 GiB) on startup. Desired GPU memory utilization is "
    "(0.9, 71.26 GiB).\n"
)
