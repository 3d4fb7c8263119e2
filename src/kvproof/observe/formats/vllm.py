"""vLLM's start-up lines, 0.4 to 0.33: the V0 engine's, the V1 engine's, errors, and as quoted.

Sources are vLLM's modules of the versions named; rows marked "quoted" read the same figures in
reports that shorten the line.
"""

from __future__ import annotations

from kvproof.engine.vllm.versions import V0_MODULE as _V0
from kvproof.observe.formats.torch import TORCH_ROWS
from kvproof.observe.formats.vllm_dates import CACHE as _V1_CACHE
from kvproof.observe.formats.vllm_dates import DATES
from kvproof.observe.formats.vllm_dates import RUNNER as _RUNNER
from kvproof.observe.formats.vllm_dates import WORKER as _V1
from kvproof.observe.rows import Row

_CPU = "vllm/v1/worker/cpu_worker.py"
_QUOTED = "quoted"

ROWS = (
    # What is running.
    Row("llm engine (v", r"initializing an? (?:V\d )?LLM engine \({version:ver}\)", "0.2+",
        "vllm/engine/llm_engine.py"),
    Row("api server version", r"vLLM API server version {version:ver}", "0.2+",
        "vllm/entrypoints/openai/api_server.py"),
    Row("version", r"[▀▄█] {1,4}version {version:ver}", "0.16+", "vllm/entrypoints/utils.py"),
    Row("model ", r"█ {1,4}model {1,8}{model:word}", "0.16+", "vllm/entrypoints/utils.py"),
    Row("version", r"vllm[ _-]?(?:version)?[ :=]+{version:ver}", "any", _QUOTED),
    Row("device_name=", r"device_name={gpu:word}\.json", "0.3+", "fused_moe/fused_moe.py"),
    Row("max model len", r"using max model len {flag.max_model_len:int}", "0.9+",
        "vllm/config"),
    Row("chunked prefill is enabled", r"chunked prefill is enabled with "
        r"max_num_batched_tokens={flag.max_num_batched_tokens:int}", "0.5+",
        "vllm/config/scheduler.py"),
    Row("attention backend", r"using {flag.attention_backend:word} (?:attention )?backend",
        "0.4+", "vllm/platforms/cuda.py"),
    Row("attentionbackendenum.", r"using AttentionBackendEnum\.{flag.attention_backend:word}",
        "0.12+", "vllm/platforms/cuda.py"),
    Row("sampling", r"using {flag.top_k_sampler:word} for top-p & top-k sampling", "0.8+",
        "vllm/v1/sample/ops/topk_topp_sampler.py"),
    Row("falling back to the pytorch", r"falling back to the {flag.top_k_sampler:word} "
        r"implementation of top-p & top-k sampling", "0.8+",
        "vllm/v1/sample/ops/topk_topp_sampler.py"),
    Row("moe backend", r"using '?{flag.experts_kernel:word}'? [\w-]{2,16} MoE backend", "0.14+",
        "vllm/model_executor/layers/fused_moe/oracle"),
    Row("model_runner.py:", r"\[{flag.runner_module:word}\.py:\d{1,6}\]", "any", _RUNNER),
    Row("llm.py:", r"\[(?=llm\.py){flag.entry_module:word}\.py:\d{1,6}\]", "any",
        "vllm/entrypoints/llm.py"),
    Row("[vllm.py:", r"^(?:INFO|WARNING) [\d-]{5} [\d:]{8} \[(?=vllm\.py:){flag.plain_module:word}",
        "0.11+", "vllm/config/vllm.py"),
    Row("(enginecore", r"^\((?=EngineCore){flag.core_process:word}", "0.10.1+",
        "vllm/utils/system_utils.py (decorate_logs)"),
    Row("(apiserver", r"^\((?=APIServer){flag.server_process:word}", "0.10.1+",
        "vllm/utils/system_utils.py (decorate_logs)"),
    Row("cudagraph_capture_sizes", r"cudagraph_capture_sizes.{0,2}: ?\[1, (?:\d{1,4}, ){0,600}"
        r"{flag.captured_most:int}\]", "0.11.1+", "vllm/config/vllm.py"),
    Row("chunked prefill tokens", r"chunked prefill tokens = {flag.max_num_batched_tokens:int}\. "
        r"num sequences = {flag.max_num_seqs:int}\.", "0.7+", "unsloth_zoo/vllm_utils.py"),
    # Weights.
    Row("weights took", r"loading model weights took {weights:size}", "0.2-0.9", _V0),
    Row("model loading took", r"model loading took {weights:size}", "0.8+", _RUNNER),
    # V0: profiling and blocks.
    Row("memory profiling results", r"memory profiling results: .{0,120}?"
        r"total_gpu_memory={total_gpu_memory:size} "
        r"initial_memory_usage={initial_memory_usage:size} "
        r"peak_torch_memory={peak_torch_memory:size} "
        r"memory_usage_post_profile={memory_usage_post_profile:size} "
        r"non_torch_memory={non_torch:size} "
        r"kv_cache_size={available_kv_memory:size} "
        r"gpu_memory_utilization={flag.gpu_memory_utilization:num}", "0.6.4", _V0),
    Row("total_gpu_memory", r"can use total_gpu_memory \({total_gpu_memory:size}\) x "
        r"(?:gpu_memory_utilization )?\(?{flag.gpu_memory_utilization:num}", "0.6.5-0.10.2", _V0),
    Row("gpu_memory_utilization", r"gpu_memory_utilization \(\d\.\d{2}\) = {requested_memory:size}",
        "0.6.5-0.10.2", _V0),
    Row("model weights take", r"model weights take {1,8}{weights:size}", "0.6.5-0.10.2", _V0),
    Row("non_torch_memory", r"non_torch_memory {1,8}(?:takes )?{non_torch:size}",
        "0.6.5-0.10.2", _V0),
    Row("activation peak memory", r"activation peak memory(?: takes)? {1,8}{peak_activation:size}",
        "0.6.5-0.10.2", _V0),
    Row("reserved for kv cache", r"the rest (?:of the memory )?reserved for KV Cache is "
        r"{available_kv_memory:size}", "0.6.5-0.10.2", _V0),
    Row("blocks:", r"# ?(?:gpu|cuda|rocm|hpu|tpu|xpu|neuron|npu) blocks: ?{num_blocks:int}",
        "0.2-0.11.0", "vllm/executor/executor_base.py"),
    Row(" blocks: ", r"^(?:(?!blocks:).){0,300}# ?(?!gpu\b){flag.printed_platform:word} "
        r"blocks: ?\d",
        "0.7-0.11.0",
        "vllm/executor/executor_base.py"),
    Row("# cpu blocks", r"# ?cpu blocks: ?{cpu_blocks:int}", "0.2-0.11.0",
        "vllm/executor/executor_base.py"),
    Row("stored in kv cache", r"max seq len \({flag.max_model_len:int}\) is larger than the "
        r"maximum number of tokens that can be stored in KV cache \({kv_cache_tokens:int}\)",
        "0.3-0.10.2", "vllm/worker/worker.py: raise_if_cache_size_invalid"),
    # V1: profiling.
    Row("free memory on device", r"free memory on device(?: \S{1,20})? \({free_memory:gib}/"
        r"{total_gpu_memory:size}\) on startup", "0.9.1+", _V1),
    Row("desired gpu memory utilization", r"desired GPU memory utilization (?:is )?"
        r"\({flag.gpu_memory_utilization:num}, {requested_memory:size}\)", "0.9.1+", _V1),
    Row("requested memory", r"requested memory: {flag.gpu_memory_utilization:num} \(util\), "
        r"{requested_memory:size}", "0.10.1+", _V1),
    Row("initial free memory", r"initial free memory:? {free_memory:size}", "0.5.1+", _V1),
    Row("for consumed memory", r"{consumed:size} for consumed memory", "0.27+", _V1),
    Row(" for weight", r"{weights:size} for weights?\b", "0.10.2+", _V1),
    Row("for peak activation", r"{peak_activation:size} for peak activation", "0.10.2+", _V1),
    Row("for non-torch memory", r"{non_torch:size} for non-torch memory", "0.10.2+", _V1),
    Row("for cudagraph memory", r"{cuda_graph:size} for CUDAGraph memory", "0.10.2+", _V1),
    Row("cache memory in use", r"current kv cache memory in use is {available_kv_memory:size}",
        "0.10.2+", _V1),
    Row("within requested", r"free memory after profiling: {free_after_profiling:size} "
        r"\(total\), {free_within_requested:size} \(within requested\)", "0.10.1+", _V1),
    Row("non kv cache memory", r"total non KV cache memory: {non_kv_memory:size}", "0.8+",
        "vllm/utils/mem_utils.py"),
    Row("torch peak memory increase", r"torch peak memory increase: {peak_activation:size}",
        "0.8+", "vllm/utils/mem_utils.py"),
    Row("non-torch forward increase", r"non-torch forward increase memory: {non_torch:size}",
        "0.8+", "vllm/utils/mem_utils.py"),
    Row("weights memory:", r"weights memory: {weights:size}", "0.8+",
        "vllm/utils/mem_utils.py"),
    Row("available kv cache memory", r"available KV cache memory(?: is)?:? "
        r"{available_kv_memory:size}", "any", _V1),
    Row("explicitly set (", r"explicitly set \({available_kv_memory:gib}/{node_memory:gib}\) "
        r"GiB for KV cache", "0.11+ on CPU", _CPU),
    Row("auto set (", r"auto set \({available_kv_memory:gib}/{node_memory:gib}\) GiB for KV cache "
        r"on node \d{1,4}, with {requested_memory:size} requested memory for the worker\. "
        r"{consumed:size} memory was consumed", "0.11+ on CPU", _CPU),
    Row("less than desired cpu", r"memory on node \d{1,4} \({free_memory:gib}/{node_memory:gib} "
        r"GiB\) on startup is less than desired CPU memory utilization "
        r"\({flag.gpu_memory_utilization:num}, {requested_memory:size}\)", "0.11+ on CPU", _CPU),
    Row("less than requested memory for kv", r"memory on node \d{1,4} \({free_memory:gib}/"
        r"{node_memory:gib} GiB\) on kv cache allocation is less than requested memory for kv "
        r"\({requested_kv_memory:gib}", "0.11+ on CPU", _CPU),
    Row("device_config=cpu", r"device_config={flag.device:word}", "0.8+ on CPU",
        "vllm/v1/engine/core.py"),
    Row("ssm cache type", r"reset SSM cache type to {flag.mamba_ssm_cache_dtype:word}",
        "0.31+ on CPU", "vllm/platforms/cpu.py"),
    Row("cpu kv cache size", r"\b{flag.device:word} KV cache size", "0.11+ on CPU", _V1_CACHE),
    Row("memory for kv cache as specified", r"reserved {available_kv_memory:size} memory for "
        r"KV Cache as specified", "0.11+", _V1),
    # V1: graphs.
    Row("estimated cuda graph memory", r"estimated CUDA graph memory: "
        r"{cuda_graph_estimated:size}", "0.18+", _RUNNER),
    Row("cuda graph pool memory", r"CUDA graph pool memory: {cuda_graph:size} \(actual\), "
        r"{cuda_graph_estimated:size} \(estimated\)", "0.18+", _V1),
    Row("graph capturing", r"graph capturing.{0,60}?took {cuda_graph:size}", "0.6+", _RUNNER),
    Row("gpu-memory-utilization=", r"equivalent to --gpu-memory-utilization="
        r"{equivalent_utilization:num}", "0.18+", _V1),
    Row("the current --gpu-memory-utilization=", r"the current --gpu-memory-utilization="
        r"{flag.gpu_memory_utilization:num} is equivalent", "0.20+", _V1),
    Row("increase --gpu-memory-utilization from", r"increase --gpu-memory-utilization from "
        r"{flag.gpu_memory_utilization:num} to", "0.18+", _V1),
    # V1: the plan of the cache.
    Row("kv cache size", r"(?:GPU|CPU|TPU|XPU|NPU|HPU) KV cache size:? "
        r"{kv_cache_tokens:int}(?: tokens)?", "0.8+", _V1_CACHE),
    Row("maximum concurrency", r"maximum concurrency for {max_concurrency_len:int} tokens "
        r"per request: {max_concurrency:num}x", "0.6.3+", _V1_CACHE),
    Row("num_gpu_blocks", r"num_gpu_blocks(?: is)?:? {num_blocks:int}", "any",
        "vllm/v1/engine/core.py"),
    Row("num_gpu_blocks_override", r"num_gpu_blocks_override={flag.num_gpu_blocks_override:int}",
        "0.6+", _V1_CACHE),
    Row("attention block size to", r"setting attention block size to {attention_block_size:int}",
        "0.10+", "vllm/model_executor/models/config.py"),
    Row("cache block size to", r"setting kv cache block size to {block_size:int}", "0.10+",
        "vllm/platforms/cuda.py"),
    Row("mamba page size by", r"padding mamba page size by {mamba_page_padding:num}%", "0.10+",
        "vllm/model_executor/models/config.py"),
    Row("padding layers", r"add {padding_layers:int} padding layers, may waste at most "
        r"{padding_waste:num}%", "0.9.1+", _V1_CACHE),
    Row("exceeds available mamba", r"max_num_seqs \({flag.max_num_seqs:int}\) exceeds available "
        r"Mamba cache blocks \({mamba_blocks:int}\)", "0.20+", _RUNNER),
    Row("auto-fit max_model_len", r"auto-fit max_model_len: reduced from "
        r"{requested_max_model_len:int} to {flag.max_model_len:int}", "0.14+", _V1_CACHE),
    # V1: it does not fit.
    Row("max seq len", r"max seq len \({kv_needed_for_len:int}\)", "any", _V1_CACHE),
    Row("cache is needed", r"{kv_needed:size} KV cache is needed", "0.7+", _V1_CACHE),
    Row("larger than the available kv", r"available KV cache memory \({available_kv_memory:size}\)",
        "0.7+", _V1_CACHE),
    Row("estimated maximum model length", r"estimated maximum model length is "
        r"{est_max_model_len:int}", "0.8.1+", _V1_CACHE),
    *TORCH_ROWS,
    # The same figures as reports shorten them: a label and its value, or the value and its label.
    Row("kv cache", r"\bKV cache(?: size| tokens)?[:=]? {kv_cache_tokens:int}(?: tokens\b|$)",
        "any", _QUOTED),
    Row(" tokens", r"GiB(?: ?[/(;|]{1,2} ?{num_blocks:int})? ?[/(;|]{1,2} ?{kv_cache_tokens:int} "
        r"tokens\b", "any", _QUOTED),
    Row(" tokens", r"tokens ?[/(;|]{1,2} ?{max_concurrency:num}x"
        r"(?: ?@ ?{max_concurrency_len:int})?", "any", _QUOTED),
    # A row of a table: length, tokens, concurrency; a sum over ranks: count x bytes of one.
    Row("x", r"{max_concurrency_len:int} ?[|/;] ?{kv_cache_tokens:int}(?: tokens)? ?[|/;] ?"
        r"{max_concurrency:num}x\b", "any", _QUOTED),
    Row("gib", r"\b\d{1,3} ?[x*] ?{available_kv_memory:gib}(?: GiB)? = [\d.]{1,9} GiB (?:KV )?"
        r"(?:cache|pool)\b", "any", _QUOTED),
    Row("concurrency", r"concurrency for {max_concurrency_len:int}(?: tokens)?(?: per request)?"
        r"[:=]? {max_concurrency:num}x", "any", _QUOTED),
    Row("concurrency", r"concurrency[:= ~]{1,3}{max_concurrency:num}x", "any", _QUOTED),
    Row("concurrency", r"{max_concurrency:num}x (?:max(?:imum)? )?concurrency", "any", _QUOTED),
    Row("num_gpu_blocks", r"num_gpu_blocks ?[=:] ?{num_blocks:int}", "any", _QUOTED),
    Row("gpu blocks", r"\bGPU blocks:? {num_blocks:int}", "any", _QUOTED),
    Row("available kv cache memory", r"available KV cache memory[^\d-]{1,80}{available_kv_memory:"
        r"size}", "any", _QUOTED),
    Row("kv", r"\bKV(?: cache)?(?: memory| available)?[:=]? {available_kv_memory:size}", "any",
        _QUOTED),
    Row("kv", r"{available_kv_memory:size} (?:of )?KV(?: cache)? memory\b", "any", _QUOTED),
    Row("weights", r"\bweights?(?: memory| take| took)?[:=]? {weights:size}", "any", _QUOTED),
    Row("activation", r"activations?(?: memory| peak memory)?(?: takes?)?[:=]? "
        r"{peak_activation:size}", "any", _QUOTED),
    Row("torch", r"\bnon[-_]torch(?: memory)?[:=]? {non_torch:size}", "any", _QUOTED),
    Row("cudagraph", r"CUDAGraphs?(?: memory| pool)?[:=]? {cuda_graph:size}", "any", _QUOTED),
    Row("graph", r"(?<!estimated )CUDA[- ]graphs?(?: memory| pool| took)?[:=]? {cuda_graph:size}",
        "any", _QUOTED),
    Row("total ", r"\btotal(?: GPU memory)?[:=]? {total_gpu_memory:size}", "any", _QUOTED),
    *DATES,
)  # fmt: skip
