"""SGLang's start-up lines, 0.4 to 0.5.23. SGLang prints GiB under the name GB."""

from __future__ import annotations

from kvproof.observe.formats.torch import TORCH_ROWS
from kvproof.observe.rows import Row

_RUNNER = "sglang/srt/model_executor/model_runner.py"
_POOL = "sglang/srt/mem_cache/memory_pool.py"
_SWA = "sglang/srt/mem_cache/swa_memory_pool.py"
_CONFIGURATOR = "sglang/srt/model_executor/pool_configurator.py"
_QUOTED = "quoted"

ROWS = (
    Row("sglang", r"sglang[ _-]?(?:version)?[ :=]+{version:ver}", "any", _QUOTED),
    Row("load weight begin", r"load weight begin\. avail mem={avail_mem_before:size}", "0.4+",
        _RUNNER),
    Row("init torch distributed", r"init torch distributed begin\. avail mem="
        r"{avail_mem_start:size}", "0.4+", _RUNNER),
    Row("load weight end", r"load weight end\. .{0,200}?avail mem={avail_mem_loaded:size}",
        "0.4+", _RUNNER),
    Row("load weight end", r"load weight end\. .{0,240}?mem usage={weights:size}", "0.4.2+",
        _RUNNER),
    Row("cache is allocated", r"\bKV Cache is allocated\. .{0,80}?#tokens: "
        r"{kv_cache_tokens:int}", "0.4+", _POOL),
    Row("k size", r"\bK size: {k_size:size}, V size: {v_size:size}", "0.4+",
        _POOL),
    Row("kv size", r"#tokens: .{0,40}?KV size: {kv_size:size}", "0.4.3+", _POOL),
    Row("cache is allocated", r"\bKV Cache is allocated\. dtype: (?:torch\.)?"
        r"{flag.kv_cache_dtype_used:word}", "0.5+", _POOL),
    Row("using kv cache dtype", r"using KV cache dtype: (?:torch\.)?"
        r"{flag.kv_cache_dtype_used:word}", "0.5+", _RUNNER),
    Row("max_mamba_cache_size", r"max_mamba_cache_size: {mamba_slots:int}", "0.5.5+", _POOL),
    Row("conv_state", r"conv_state(?: size)?: {mamba_conv:size}", "0.5.5+", _POOL),
    Row("ssm_state", r"(?<!intermediate_)ssm_state(?: size)?: {mamba_ssm:size}", "0.5.5+",
        _POOL),
    Row("intermediate_ssm_state", r"intermediate_ssm_state_cache size: "
        r"{mamba_intermediate_ssm:size}", "0.5.5+", _POOL),
    Row("intermediate_conv_window", r"intermediate_conv_window_cache size: "
        r"{mamba_intermediate_conv:size}", "0.5.5+", _POOL),
    Row("memory pool end", r"memory pool end\. avail mem={avail_mem_after:size}", "0.4+",
        _RUNNER),
    Row("capture", r"capture .{0,60}?end\. .{0,60}?mem usage={cuda_graph:size}", "0.4.2+",
        _RUNNER),
    Row("capture", r"capture .{0,60}?end\. .{0,80}?avail mem={avail_mem_after:size}", "0.4.2+",
        _RUNNER),
    Row("avail mem", r"avail mem[ =]{avail_mem_after:size} after (?:the )?(?:memory )?pools?\b",
        "any", _QUOTED),
    Row("max_total_num_tokens", r"max_total_num_tokens ?[=:] ?{kv_cache_tokens:int}", "0.4+",
        "sglang/srt/managers/scheduler.py"),
    Row("max_total_num_tokens", r"max_total_num_tokens=.{0,40}?chunked_prefill_size="
        r"{flag.chunked_prefill_size:int}", "0.4+", "sglang/srt/managers/scheduler.py"),
    Row("max_total_num_tokens", r"max_total_num_tokens=.{0,160}?max_running_requests="
        r"{flag.max_running_requests_used:int}", "0.4+", "sglang/srt/managers/scheduler.py"),
    Row("max_total_num_tokens", r"max_total_num_tokens=.{0,200}?context_len="
        r"{flag.context_length_used:int}", "0.4+", "sglang/srt/managers/scheduler.py"),
    Row("available_gpu_mem", r"available_gpu_mem={avail_mem_after:size}", "0.4.7+",
        "sglang/srt/managers/scheduler.py"),
    Row("sliding window memory pool", r"full_layer_tokens={full_tokens:int}, "
        r"swa_layer_tokens={swa_tokens:int}", "0.5+", _CONFIGURATOR),
    Row("swakvpool mem usage", r"SWAKVPool mem usage: {kv_size:size}, swa size: {swa_tokens:int}, "
        r"full size: {full_tokens:int}", "0.5.11+", _SWA),
    Row("dsv4 pool sizes", r"DSV4 pool sizes: full={full_tokens:int}, swa={swa_tokens:int}",
        "0.5.12+", _CONFIGURATOR),
    Row("memory calculation", r"DSV4 memory calculation: .{0,80}?bytes_per_full_token="
        r"{observed_kv_bytes_per_token:num}", "0.5.12+", _CONFIGURATOR),
    Row("memory calculation", r"DSV4 memory calculation: .{0,200}?available_bytes="
        r"{available_kv_memory:size}", "0.5.12+", _CONFIGURATOR),
    Row("larger than the profiled value", r"max_total_tokens={flag.max_total_tokens:int} is "
        r"larger than the profiled value {kv_cache_tokens:int}", "0.4+", _RUNNER),
    Row("mem_fraction_static=", r"server_args\.mem_fraction_static={flag.mem_fraction_static:num}",
        "0.5.3+", _RUNNER),
    Row("_per_token", r"bytes_per_token ?[=:] ?{observed_kv_bytes_per_token:num}", "any", _QUOTED),
    Row(" slots", r"{kv_cache_tokens:int} tokens, {kv_slots:int} slots\b", "any", _QUOTED),
    Row("tensor bytes", r"KV tensor bytes[:=]? {kv_tensor_bytes:int}", "any", _QUOTED),
    Row("(target)", r"\bweights?[:=]? {weights:gib} \(target\)", "any", _QUOTED),
    Row("draft)", r"\+ {draft_weights:gib} \((?:\w{1,20} )?draft\)", "any", _QUOTED),
    *TORCH_ROWS,
)  # fmt: skip
