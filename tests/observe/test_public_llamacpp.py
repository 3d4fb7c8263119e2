"""Starts of llama.cpp that public threads show, looked up after the rules were made.

Each is named for its model and what is unusual about it; sizes are MiB, as printed.
"""

from __future__ import annotations

import kvproof

MIB = 2**20
TWO_CARDS = """./llama-cli -m ./Qwen3-30B-A3B-Q4_K_M.gguf -c 16384 -ngl 99 -ot ".ffn_.*_exps.=CPU"
build: 5622 (97340b4c) with cc for x86_64-linux-gnu
load_tensors: offloaded 49/49 layers to GPU
llama_context: n_seq_max     = 1
llama_context: n_ctx         = 16384
llama_context: n_batch       = 2048
llama_context: n_ubatch      = 512
llama_context: flash_attn    = 0
llama_kv_cache_unified:      CUDA0 KV buffer size =   384.00 MiB
llama_kv_cache_unified:      CUDA1 KV buffer size =  1152.00 MiB
llama_context:      CUDA0 compute buffer size =  1080.00 MiB
llama_context:      CUDA1 compute buffer size =  1080.00 MiB
llama_context:  CUDA_Host compute buffer size =    36.01 MiB
"""
GRAPH = "llama_context: graph nodes  = 3222\n"
NOTHING_MOVED = """loaded meta data with 27 key-value pairs from Qwen3-14B-Q8_0.gguf (version 3)
build: 5898 (cbc68be5) with cc for x86_64-linux-gnu
load_tensors: offloaded 0/41 layers to GPU
llama_context: n_seq_max     = 1
llama_context: n_ctx         = 4096
llama_context: n_batch       = 2048
llama_context: n_ubatch      = 512
llama_context: flash_attn    = 0
llama_kv_cache_unified:        CPU KV buffer size =   640.00 MiB
llama_context:      ROCm0 compute buffer size =  1094.99 MiB
llama_context:  ROCm_Host compute buffer size =    18.01 MiB
llama_context: graph nodes  = 1606
"""
IN_TURN = """load_tensors:        CUDA0 model buffer size =    37.86 MiB
load_tensors:        CUDA1 model buffer size =    61.08 MiB
llama_kv_cache:      CUDA0 KV buffer size =    96.00 MiB
llama_kv_cache:      CUDA1 KV buffer size =    84.00 MiB
sched_reserve:      CUDA0 compute buffer size =    48.91 MiB
sched_reserve:      CUDA1 compute buffer size =    48.91 MiB
sched_reserve:  CUDA_Host compute buffer size =    34.30 MiB
"""
CACHE_ON_HOST = """./llama-server -m Llama-4-Scout-17B-16E-Instruct.gguf -ngl 11 -nkvo -c 64000
load_tensors: offloaded 11/49 layers to GPU
init: kv_size = 64000, offload = 0, type_k = 'f16', type_v = 'f16', n_layer = 48, can_shift = 1
init:        CPU KV buffer size = 12000.00 MiB
llama_context:    Vulkan0 compute buffer size =   616.06 MiB
llama_context:    Vulkan1 compute buffer size =    72.00 MiB
llama_context: Vulkan_Host compute buffer size =  5264.01 MiB
llama_context: graph nodes  = 2514
"""
FOUR_CARDS = """llama-server -m Qwen3.5-122B-A10B-Q4_K_M.gguf -ngl 999 -c 32768 -fa 1 \
-b 1586 -ub 1586 -np 1 -ot 'blk\\.([0-9]|1[0-3]|2[0-4]|3[1-9]|4[0-7])\\.ffn_.*_exps\\.weight=CPU'
llama_kv_cache:      CUDA0 KV buffer size = 192.00 MiB
llama_kv_cache:      CUDA1 KV buffer size = 192.00 MiB
llama_kv_cache:      CUDA2 KV buffer size = 192.00 MiB
llama_kv_cache:      CUDA3 KV buffer size = 192.00 MiB
sched_reserve:      CUDA0 compute buffer size =   980.36 MiB
sched_reserve:      CUDA1 compute buffer size =   452.31 MiB
sched_reserve:      CUDA2 compute buffer size =   452.31 MiB
sched_reserve:      CUDA3 compute buffer size =  1558.12 MiB
sched_reserve:  CUDA_Host compute buffer size =   235.48 MiB
"""


def predicted(log: str, model: str) -> dict[str, float]:
    """MiB of every compute buffer."""
    rows = kvproof.check(log, model=model).rows
    return {row.name: round(row.predicted / MIB, 2) for row in rows if "ompute" in row.name}


def test_a_command_of_llama_cli_says_that_experts_stay_on_the_host() -> None:
    found = predicted(TWO_CARDS, "Qwen/Qwen3-30B-A3B")
    assert found == {"compute CUDA0": 1080.00, "compute CUDA1": 1080.00, "compute CUDA_Host": 36.01}


def test_a_log_of_the_graph_that_names_no_copies_has_none() -> None:
    """Whatever put the experts on the host: one copy of the inputs, where four would be kept."""
    silent = TWO_CARDS.partition("\n")[2]
    said = predicted(silent + GRAPH, "Qwen/Qwen3-30B-A3B")
    assert said["compute CUDA_Host"] == 36.01
    assert predicted(silent, "Qwen/Qwen3-30B-A3B")["compute CUDA_Host"] > 100


def test_the_files_name_says_how_large_the_output_is_that_is_copied() -> None:
    found = predicted(NOTHING_MOVED, "Qwen/Qwen3-14B")
    assert found == {"compute_buffer": 1094.99, "compute ROCm_Host": 18.01}
    mix = predicted(NOTHING_MOVED.replace("Q8_0", "Q4_K_M"), "Qwen/Qwen3-14B")["compute_buffer"]
    assert mix < 1000


def test_vectors_that_no_node_reads_are_kept_once() -> None:
    """SmolLM2 on two A40 in turn: the other inputs are kept four times."""
    found = predicted(IN_TURN, "HuggingFaceTB/SmolLM2-135M-Instruct")
    assert found == {"compute CUDA0": 48.91, "compute CUDA1": 48.91, "compute CUDA_Host": 34.30}


def test_attention_over_a_cache_on_the_host_is_computed_there() -> None:
    """Layers of windows have a mask of their own in builds that keep them with the others."""
    found = predicted(CACHE_ON_HOST, "meta-llama/Llama-4-Scout-17B-16E-Instruct")
    assert abs(found["compute Vulkan1"] - 72.00) < 0.1
    assert abs(found["compute Vulkan_Host"] - 5264.01) < 1.1


def test_layers_whose_experts_are_named_one_by_one_over_four_gpus() -> None:
    report = kvproof.check(FOUR_CARDS, model="Qwen/Qwen3.5-122B-A10B")
    found = {row.name: round(row.predicted / MIB, 2) for row in report.rows}
    assert found["compute CUDA1"] == found["compute CUDA2"] == 452.31
    assert (found["compute CUDA3"], found["compute CUDA_Host"]) == (1558.12, 235.48)
    first = next(row for row in report.rows if row.name == "compute CUDA0")
    assert first.low is not None
    assert first.high is not None
    assert first.low < 980.36 * MIB < first.high  # a copied expert's type is its maker's choice
