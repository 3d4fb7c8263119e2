"""TensorRT-LLM's start-up lines: the C++ batch manager's and the PyTorch backend's.

Both print GiB; the C++ counters call them GB in some lines.
"""

from __future__ import annotations

from kvproof.observe.formats.torch import TORCH_ROWS
from kvproof.observe.rows import Row

_CACHE = "cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp"
_TORCH = "tensorrt_llm/_torch/pyexecutor/_util.py"
_TENSORRT = "TensorRT's own logger"
_QUOTED = "quoted"

ROWS = (
    Row("version", r"TensorRT[- _]LLM version:? {version:ver}", "0.5+",
        "tensorrt_llm/_common.py"),
    # The builder's version, which the runtime that loads the engine shares; its own line counts.
    Row("found in the config file", r"engine version {version:ver} found in the config file",
        "any", _QUOTED),
    Row("loaded engine size", r"loaded engine size: {engine:size}", "0.5+",
        "cpp/tensorrt_llm/runtime/tllmRuntime.cpp"),
    Row("engine deserialization", r"managed allocation in engine deserialization: "
        r"CPU [+-]\d{1,9}, GPU \+{engine:mib}, now", "0.5+", _TENSORRT),
    Row("iexecutioncontext creation", r"managed allocation in IExecutionContext creation: "
        r"CPU [+-]\d{1,9}, GPU \+(?!0,){activation:mib}, now", "0.5+", _TENSORRT),
    Row("[memusagechange] init", r"\[MemUsageChange\] Init \w{1,20}(?:/\w{1,20})?: "
        r"CPU [+-]\d{1,9}, GPU [+-]\d{1,9}, now: CPU \d{1,9}, GPU {device_used:mib} \(MiB\)",
        "0.5+", _TENSORRT),
    Row("execution context memory", r"allocated {activation:size} for execution context memory",
        "0.10+", "cpp/tensorrt_llm/runtime/tllmRuntime.cpp"),
    Row("for runtime buffers", r"allocated {runtime_buffers:size}(?: GPU memory)? for runtime "
        r"buffers", "0.10+", "cpp/tensorrt_llm/batch_manager"),
    Row("for decoder", r"allocated {decoder:size}(?: GPU memory)? for decoder", "0.10+",
        "cpp/tensorrt_llm/batch_manager"),
    Row("max tokens in paged kv cache", r"memory usage when calculating max tokens in paged kv "
        r"cache: total: {total_gpu_memory:size}, available: {available_before_kv:size}", "0.10+",
        _CACHE),
    Row("primary pool", r"number of blocks in KV cache primary pool: {num_blocks:int}", "0.10+",
        _CACHE),
    Row("secondary pool", r"number of blocks in KV cache secondary pool: {host_blocks:int}",
        "0.10+", _CACHE),
    Row("tokens per block", r"number of tokens per block: {tokens_per_block:int}", "0.9+",
        _CACHE),
    Row("tokens per block=", r"tokens per block={tokens_per_block:int}", "0.20+", _CACHE),
    Row("primary blocks=", r"primary blocks={num_blocks:int}", "0.20+", _CACHE),
    Row("secondary blocks=", r"secondary blocks={host_blocks:int}", "0.20+", _CACHE),
    Row("window size=", r"blocks per sequence: {blocks_per_sequence:int} \[window size="
        r"{window_size:int}", "0.20+", _CACHE),
    Row("pages per sequence", r"max KV cache (?:pages|blocks) per sequence: "
        r"{blocks_per_sequence:int}", "0.9+", _CACHE),
    Row("max tokens in paged kv", r"allocated {available_kv_memory:size} for max tokens in paged "
        r"KV cache \({kv_cache_tokens:int}\)", "0.10+", _CACHE),
    Row("tokens in paged kv cache", r"using {kv_cache_tokens:int} (?:total )?tokens in paged KV "
        r"cache", "0.5-0.9", "cpp/tensorrt_llm/runtime/gptSession.cpp"),
    Row("k/v cache", r"allocate {available_kv_memory:size} for k/v cache", "0.5-0.9",
        "cpp/tensorrt_llm/runtime/gptSession.cpp"),
    Row("token", r"KV(?: cache)?[:=]? {available_kv_memory:size} for (?:an? )?"
        r"{kv_cache_tokens:int}[- ]tokens?\b", "any", _QUOTED),
    Row("available kv cache memory when", r"available KV cache memory when calculating max "
        r"tokens: {available_kv_memory:size}", "0.17+", _TORCH),
    Row("fraction is set", r"fraction is set {flag.free_gpu_memory_fraction:num}", "0.17+",
        _TORCH),
    Row("kv size per token is", r"kv size per token is {kv_bytes_per_token:num}", "1.3+", _TORCH),
    Row("estimated max memory in kv", r"estimated max memory in KV cache ?: "
        r"{available_kv_memory:size}", "0.20+", _TORCH),
    Row("temporary kv cache memory", r"temporary KV cache memory during profiling.{0,40}? "
        r"{temporary_kv:size}", "1.3+", _TORCH),
    Row("tmp kv_mem", r"tmp kv_mem {temporary_kv:size}", "0.17+", _TORCH),
    Row("dynamically allocated during", r"dynamically allocated during inference "
        r"\(inside torch\) in memory usage profiling: {activation:size}", "0.17+", _TORCH),
    Row("primary_blocks:", r"window size ?= ?{window_size:int}, primary_blocks: {num_blocks:int}, "
        r"secondary_blocks: {host_blocks:int}", "1.0+", _CACHE),
    Row("kv size is", r"kv size is {kv_bytes_per_token:num}", "0.17+", _TORCH),
    Row("device total memory", r"device total memory {total_gpu_memory:size}", "0.17+", _TORCH),
    Row("peak memory during memory usage", r"peak memory during memory usage profiling "
        r"\(torch \+ non-torch\): {peak_memory:size}", "0.17+", _TORCH),
    Row("estimated max tokens", r"estimated max tokens in KV cache ?: {kv_cache_tokens:int}",
        "0.17+", _TORCH),
    Row("after loading model weights", r"memory used after loading model weights "
        r"\(inside torch\) in memory usage profiling: {weights:size}", "0.17+", _TORCH),
    # get_rank_model_storage: parameters and buffers as they are made, before kernels repack them.
    Row("for model weights", r"\] Use {weights:size} for model weights", "0.17+",
        "tensorrt_llm/_torch/pyexecutor/model_loader.py"),
    Row("and max_tokens are set", r"both free_gpu_memory_fraction and max_tokens are set \(to "
        r"[\d.]{1,24} and {flag.max_tokens:int}, respectively", "0.9+", _CACHE),
    Row("outside torch", r"memory used outside torch .{0,60}?: {non_torch:size}", "0.17+",
        _TORCH),
    Row("max_num_requests", r"max_seq_len={flag.max_seq_len:int}, "
        r"max_num_requests={flag.max_batch_size:int}, max_num_tokens={flag.max_num_tokens:int}",
        "0.17+", _TORCH),
    Row("maxnumsequences", r"TRTGptModel maxNumSequences: {flag.max_batch_size:int}", "0.9+",
        "cpp/tensorrt_llm/batch_manager"),
    Row("maxnumtokens", r"TRTGptModel maxNumTokens: {flag.max_num_tokens:int}", "0.9+",
        "cpp/tensorrt_llm/batch_manager"),
    Row("maxsequencelen", r"TRTGptModel maxSequenceLen: {flag.max_seq_len:int}", "0.9+",
        "cpp/tensorrt_llm/batch_manager"),
    Row("kv cache", r"KV cache:? {available_kv_memory:size}[^\w]{1,4}{kv_cache_tokens:int} tokens",
        "any", _QUOTED),
    *TORCH_ROWS,
)  # fmt: skip
