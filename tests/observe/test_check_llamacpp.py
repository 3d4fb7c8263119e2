from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

import kvproof
from kvproof.observe.formats import llamacpp
from kvproof.observe.read import read_log


def test_every_given_log_agrees_with_its_flags(data_dir: Path) -> None:
    """The caches of the real program's logs, from the flags in the log and GGUF metadata."""
    whole = json.loads((data_dir / "llamacpp" / "cases.json").read_text())
    models = {
        name: kvproof.load_model(
            {"general.architecture": row["arch"]}
            | {f"{row['arch']}.{key}": value for key, value in row["gguf_keys"].items()}
        )
        for name, row in whole["models"].items()
    }
    seen: Counter[tuple[str, bool]] = Counter()
    wrong = []
    for case in whole["cases"]:
        if not case.get("lines"):
            continue
        report = kvproof.check("\n".join(case["lines"]) + "\n", model=models[case["model"]])
        for row in report.rows:
            seen[row.name, row.ok] += 1
            if not row.ok and row.exact:
                wrong.append((case["id"], row.name, row.predicted, row.printed))
        assert all(row.ok for row in report.ledger)
    assert not wrong
    assert seen["base cache", True] > 280
    assert seen["compute_buffer", True] > 0.95 * (seen["compute_buffer", False] + 1)


def _ollama(cache: str, context: str = "") -> str:
    return (
        'time=2025-09-15T10:00:00.000Z level=INFO source=routes.go:1332 msg="Listening on '
        '127.0.0.1:11434 (version 0.11.10)"\n'
        "time=2025-09-15T10:00:01.000Z level=INFO source=server.go:177 msg=offload library=cuda "
        f'memory.required.full="6.2 GiB" memory.required.kv="{cache}"\n{context}'
    )


def test_an_ollama_log_without_a_context_is_no_miss() -> None:
    report = kvproof.check(_ollama("576.0 MiB"), "Qwen3-8B", "RTX4090")
    assert not report.off
    assert not report.compared
    (note,) = [line for line in report.warnings if "num_ctx is not known" in line]
    assert "576.0 MiB of cache mean 4,096 tokens" in note


def test_bytes_that_no_context_gives_name_none() -> None:
    report = kvproof.check(_ollama("600.1 MiB"), "Qwen3-8B", "RTX4090")
    (note,) = [line for line in report.warnings if "num_ctx is not known" in line]
    assert "tokens" not in note


def test_an_ollama_log_with_a_context_is_compared() -> None:
    log = _ollama("576.0 MiB", "llama_context: n_ctx      = 8192\n")
    (row,) = kvproof.check(log, "Qwen3-8B", "RTX4090").off
    assert row.predicted == 2 * row.printed


TWO_GPUS = """\
build: 4450 (8d59d911) with cc (Debian 12.2.0-14) 12.2.0 for x86_64-linux-gnu
llm_load_tensors: offloaded 65/65 layers to GPU
llama_new_context_with_model: n_ctx      = 32768
llama_new_context_with_model: n_batch    = 2048
llama_new_context_with_model: n_ubatch   = 256
llama_new_context_with_model: flash_attn = 1
llama_kv_cache_init:      CUDA0 KV buffer size =  2788.00 MiB
llama_kv_cache_init:      CUDA1 KV buffer size =  1564.00 MiB
llama_new_context_with_model: KV self size  = 4352.00 MiB, K (q8_0): 2176.00 MiB, V (q8_0): 2176.00 MiB
llama_new_context_with_model: pipeline parallelism enabled (n_copies=4)
llama_new_context_with_model:      CUDA0 compute buffer size =   233.00 MiB
llama_new_context_with_model:      CUDA1 compute buffer size =   237.51 MiB
llama_new_context_with_model:  CUDA_Host compute buffer size =   133.01 MiB
"""  # noqa: E501
PARTLY = """\
build: 6000 (abc) with cc (Debian 12.2.0-14) 12.2.0 for x86_64-linux-gnu
load_tensors: offloaded 29/65 layers to GPU
llama_context: n_ctx         = 8192
llama_context: n_ubatch      = 512
llama_context: flash_attn    = 1
llama_kv_cache:        CPU KV buffer size =   595.00 MiB
llama_kv_cache:      CUDA0 KV buffer size =   493.00 MiB
llama_kv_cache: size = 1088.00 MiB (  8192 cells,  64 layers,  1/ 1 seqs), K (q8_0):  544.00 MiB, V (q8_0):  544.00 MiB
llama_context:      CUDA0 compute buffer size =   916.08 MiB
llama_context:  CUDA_Host compute buffer size =    26.01 MiB
"""  # noqa: E501


def buffers(log: str, model: str) -> dict[str, tuple[float, float, bool]]:
    rows = kvproof.check(log, model=model).rows
    return {row.name: (round(row.predicted / 2**20, 2), round(row.printed / 2**20, 2), row.ok)
            for row in rows if row.name.startswith("compute")}  # fmt: skip


def test_the_buffers_of_all_devices_are_compared() -> None:
    found = buffers(TWO_GPUS, "Qwen/Qwen2.5-32B")
    assert found == {"compute CUDA0": (233.0, 233.0, True), "compute CUDA1": (237.51, 237.51, True),
                     "compute CUDA_Host": (133.01, 133.01, True)}  # fmt: skip
    alone = buffers(TWO_GPUS.replace("(n_copies=4)", "(n_copies=1)"), "Qwen/Qwen2.5-32B")
    assert not alone["compute CUDA_Host"][2]


def test_a_start_that_failed_prints_only_some_gpus_buffers() -> None:
    """What GPUs hold is known by their caches too; layers of unprinted buffers are no gap."""
    whole = buffers(TWO_GPUS, "Qwen/Qwen2.5-32B")
    for last in ("CUDA1", "CUDA0"):
        cut = "\n".join(line for line in TWO_GPUS.splitlines() if "compute buffer" not in line
                        or f"{last} compute" in line) + "\n"  # fmt: skip
        for gpu in (None, "2xRTX3090", "RTX3090+RTX3060"):
            rows = kvproof.check(cut, "Qwen/Qwen2.5-32B", gpu).rows
            found = {row.name: round(row.predicted / 2**20, 2) for row in rows}
            assert found[f"compute {last}"] == whole[f"compute {last}"][0]


def test_a_negative_buffer_is_no_fault() -> None:
    log = TWO_GPUS.replace("CUDA1 KV buffer size =  1564.00", "CUDA1 KV buffer size = -1564.00")
    assert kvproof.check(log, "Qwen/Qwen2.5-32B").compared


CARD = "  Device {}: NVIDIA GeForce RTX {}, compute capability 8.6, VMM: yes\n"
USED = "llama_model_load: using device CUDA{} (NVIDIA GeForce RTX {}) - 23000 MiB free\n"
HERE = (
    'time=2025-11-10T17:37:37 level=INFO source=types.go:42 msg="inference compute" id=GPU-{} '
    'filter_id="" library=CUDA compute=8.6 name=CUDA{} description="NVIDIA GeForce RTX {}" '
    'libdirs=ollama,cuda_v12 driver=12.4 pci_id=01 type=discrete total="24.0 GiB" '
    'available="23.1 GiB"\n'
)


@pytest.mark.parametrize(
    ("said", "gpu"),
    [
        (CARD.format(0, 3090) + CARD.format(1, 3060), "RTX-3090-24GB+RTX-3060-12GB"),
        (CARD.format(0, 3090) + CARD.format(1, 3090), "2xRTX-3090-24GB"),
        # Cards without a buffer take no part; the lines of those in use count before the others.
        ("".join(CARD.format(i, 3090) for i in range(4)), "2xRTX-3090-24GB"),
        (CARD.format(2, 3060) + CARD.format(0, 3090) + CARD.format(1, 3090), "2xRTX-3090-24GB"),
        (CARD.format(0, 3060) + CARD.format(1, 3060) + USED.format(0, 3090) + USED.format(1, 3090),
         "2xRTX-3090-24GB"),
        (HERE.format("aa", 0, 3090) + HERE.format("bb", 1, 3060), "RTX-3090-24GB+RTX-3060-12GB"),
        (CARD.format(0, 3090), "RTX-3090-24GB"),
        ("  Device 0: AMD Radeon RX 7900 XTX, gfx1100 (0x1100), VMM: no, Wave Size: 32\n"
         "  Device 1: AMD Radeon RX 7900 XTX, gfx1100 (0x1100), VMM: no, Wave Size: 32\n",
         "2xRX-7900-XTX-24GB"),
    ],
)  # fmt: skip
def test_every_gpu_that_a_log_names_counts(said: str, gpu: str) -> None:
    assert kvproof.check(said + TWO_GPUS, "Qwen/Qwen2.5-32B").gpu == gpu


def test_one_of_several_cards_is_one_gpu() -> None:
    alone = TWO_GPUS.replace("CUDA1", "CUDA0")
    said = CARD.format(0, 3090) + CARD.format(1, 3060)
    assert kvproof.check(said + alone, "Qwen/Qwen2.5-32B").gpu == "RTX-3090-24GB"


def test_micro_batches_that_are_not_printed_follow_from_the_hosts_buffer() -> None:
    silent = "\n".join(line for line in TWO_GPUS.splitlines() if "n_ubatch" not in line
                       and "n_batch" not in line)  # fmt: skip
    assert buffers(silent, "Qwen/Qwen2.5-32B") == buffers(TWO_GPUS, "Qwen/Qwen2.5-32B")


def test_layers_on_the_host_follow_from_the_caches_buffers() -> None:
    """p041: the output's weight is copied to the GPU; the config does not say its bits."""
    found = buffers(PARTLY, "Qwen/Qwen3-32B")
    assert found["compute CUDA_Host"] == (26.01, 26.01, True)
    predicted, printed, ok = found["compute_buffer"]
    assert ok
    assert abs(predicted / printed - 1) < 0.02  # six bits a weight are taken


def test_what_lines_print_of_a_model_is_no_flag() -> None:
    """A table names flags that the engine takes; general.name is none."""
    known = {"n_ctx", *(f"ollama_{name}" for name in
             ("context_length", "num_parallel", "kv_cache_type", "flash_attention"))}  # fmt: skip
    names = {
        name[5:] for row in llamacpp.ROWS for name in re.findall(r"\{(flag\.\w+):", row.pattern)
    }
    assert {"parallel", "cache_type_k"} < names
    for name in names - known:
        kvproof.Deployment("llamacpp", **{name: "f16" if "type" in name else 1})
    log = TWO_GPUS + "print_info: general.name     = Qwen2.5 32B\n"
    assert kvproof.check(log, "Qwen/Qwen2.5-32B").warnings == ()


HYBRID = """\
load_tensors: offloaded 65/65 layers to GPU
load_tensors:   CPU_Mapped model buffer size =   682.03 MiB
load_tensors:        CUDA0 model buffer size = 14032.23 MiB
llama_context: n_ctx         = 200192
llama_context: n_batch       = 2048
llama_context: n_ubatch      = 512
llama_context: flash_attn    = enabled
llama_kv_cache:      CUDA0 KV buffer size =  6647.00 MiB
llama_kv_cache: size = 6647.00 MiB (200192 cells,  16 layers,  1/1 seqs), K (q8_0): 3323.50 MiB, \
V (q8_0): 3323.50 MiB
llama_memory_recurrent:      CUDA0 RS buffer size =   149.62 MiB
sched_reserve:      CUDA0 compute buffer size =   654.78 MiB
sched_reserve:  CUDA_Host compute buffer size =   411.29 MiB
"""


def test_compute_buffers_tell_the_build() -> None:
    """A public start on an RTX 3090: logits of every token, masks in f32, quantized keys turned."""
    report = kvproof.check(HYBRID, "Qwen/Qwen3.5-27B", "RTX-3090-24GB")
    assert report.engine == "llamacpp@b9403"
    found = buffers(HYBRID, "Qwen/Qwen3.5-27B")
    assert found["compute_buffer"] == (654.78, 654.78, True)
    predicted, printed, ok = found["compute CUDA_Host"]
    assert ok
    assert abs(predicted - printed) < 0.011


def test_offloaded_layers_place_what_no_buffer_does() -> None:
    """None of 66 layers on the GPU: the batch's work goes there all the same."""
    text = (
        "load_tensors: offloaded 0/66 layers to GPU\n"
        "llama_context: n_ctx                 = 262144\n"
        "llama_kv_cache: size = 8704.00 MiB (262144 cells,  16 layers,  1/1 seqs), "
        "K (q8_0): 4352.00 MiB, V (q8_0): 4352.00 MiB\n"
        "sched_reserve:      CUDA0 compute buffer size =  1959.73 MiB\n"
        "sched_reserve:  CUDA_Host compute buffer size =   276.02 MiB\n"
    )
    found = buffers(text, "Qwen/Qwen3.5-27B")
    assert all(ok for _, _, ok in found.values())


REFUSED = """\
build: 6050 (abcdef12) with cc for x86_64-linux-gnu
llama_context: n_seq_max     = 1
llama_context: n_ctx         = 70016
llama_context: n_ubatch      = 512
llama_context: flash_attn    = 0
llama_kv_cache_unified:    Vulkan0 KV buffer size =  6564.00 MiB
llama_kv_cache_unified: size = 6564.00 MiB ( 70016 cells,  48 layers,  1/ 1 seqs), \
K (f16): 3282.00 MiB, V (f16): 3282.00 MiB
ggml_vulkan: Device memory allocation of size 4757131264 failed.
ggml_gallocr_reserve_n: failed to allocate Vulkan0 buffer of size 4757131264
"""


def test_a_compute_buffer_that_was_refused_is_compared() -> None:
    """A public start on a GPU of AMD (llama.cpp#15009): what its graph wanted, to the byte."""
    report = kvproof.check(REFUSED, model="Qwen/Qwen3-30B-A3B")
    row = next(row for row in report.rows if row.name.startswith("compute"))
    assert row.predicted == row.printed == 4757131264
    assert not report.fits


COMMAND = """\
$ ./build/bin/llama-server -m /models/Qwen2.5-32B-Q4_K_M.gguf \\
    -c 65000 -np 4 -ctk q8_0 -ot "ffn_.*_exps=CPU" --no-mmap
"""


def test_a_servers_command_says_what_its_lines_do_not() -> None:
    """Lines hold before it: what is printed is what came of the command."""
    log = read_log(COMMAND + TWO_GPUS)
    printed = read_log(TWO_GPUS)
    assert log.flags["override_tensor"] == "ffn_.*_exps=CPU"
    assert log.flags["n_ctx"] == printed.flags["n_ctx"]
    assert {**log.flags, **printed.flags} == log.flags
    assert buffers(COMMAND + TWO_GPUS, "Qwen/Qwen2.5-32B") == buffers(TWO_GPUS, "Qwen/Qwen2.5-32B")
    words = read_log("main: llama-server is listening\n" + TWO_GPUS)
    assert (words.flags, words.model) == (printed.flags, printed.model)
