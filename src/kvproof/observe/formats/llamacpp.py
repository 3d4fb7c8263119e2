"""llama.cpp's start-up lines (2023 to b11549), its forks', and those of Ollama and LM Studio.

Sizes printed as MB before 2024 are MiB as well. `size = ... MiB (cells, layers, seqs)` prints
n_seq_max and, since late 2025, streams behind a slash.
"""

from __future__ import annotations

from kvproof.observe.rows import Row

_CACHE = "src/llama-kv-cache.cpp"
_CONTEXT = "src/llama-context.cpp"
_OLD = "llama.cpp"
_OLLAMA = "ollama: llm/memory.go"
_OLLAMA_ENGINE = "ollama: ml/device.go, llm/server.go"
_SERVER = "ollama: server/routes.go (server config), envconfig/config.go"
_REQUEST = "ollama: runner/ollamarunner/runner.go, llm/server.go (LoadRequest)"
_QUOTED = "quoted"

ROWS = (
    Row("build: ", r"\bbuild: {version:int} \(", "2024+", "common/common.cpp"),
    Row("build_info", r"build_info: b?{version:int}\b", "2025+", "tools/server"),
    Row("build      :", r"build +: b?{version:int}\b", "2025+", "tools/server"),
    Row("listening on", r"listening on .{1,60}?\(version {version:ver}\)", "ollama",
        "ollama: server/routes.go"),
    Row("ollama_context_length:", r"OLLAMA_CONTEXT_LENGTH:{flag.ollama_context_length:int}",
        "ollama", _SERVER),
    Row("ollama_num_parallel:", r"OLLAMA_NUM_PARALLEL:{flag.ollama_num_parallel:int}", "ollama",
        _SERVER),
    Row("ollama_kv_cache_type:", r"OLLAMA_KV_CACHE_TYPE:{flag.ollama_kv_cache_type:word}",
        "ollama", _SERVER),
    Row("ollama_flash_attention:", r"OLLAMA_FLASH_ATTENTION:{flag.ollama_flash_attention:word}",
        "ollama", _SERVER),
    Row("loaded meta data", r"loaded meta data with .{1,80}? from {model:word}", "2023+",
        "src/llama-model-loader.cpp"),
    Row("device ", r"\bdevice {device:int}: {gpu:text}, (?:compute capability|gfx\d)"
        r"(?:.{0,120}?\bVRAM: {total_gpu_memory:size})?", "2023+", "ggml-cuda.cu"),
    Row("ggml_vulkan: ", r"ggml_vulkan: {device:int} = {gpu:text} \([^()]{1,80}\) \| uma", "2024+",
        "ggml-vulkan.cpp"),
    Row("gpu name:", r"GPU name: +(?:MTL{device:int} \()?{gpu:text}\)?$", "2023+",
        "ggml-metal.m, ggml-metal-device.m"),
    Row("recommendedmaxworkingsetsize", r"recommendedMaxWorkingSetSize += +{total_gpu_memory:mb}",
        "2023+", "ggml-metal.m, ggml-metal-device.m"),
    Row(":gpu:", r"\| *{device:int}\| *\[\w{1,20}:gpu:\d{1,3}\]\| *{gpu:text}\|"
        r"(?:[^|]{1,20}\|){4} *{total_gpu_memory:size}\|", "2024+", "ggml-sycl.cpp"),
    Row(" mib free)", r"- (?!CPU|BLAS){device:word} *: {gpu:text} \({total_gpu_memory:size}, "
        r"{device_free:size} free\)", "2025+", "common/arg.cpp, tools/server"),
    Row("kvsize:", r"\bKvSize:(?!0\b){flag.n_ctx:int}\b", "ollama", _REQUEST),
    Row("kvsize:", r"\bParallel:{flag.parallel:int} BatchSize:{flag.ubatch_size:int} "
        r"FlashAttention:{flag.flash_attn:word} KvSize:(?!0\b)", "ollama", _REQUEST),
    Row("kvcachetype:", r"\bKvCacheType:{flag.cache_type_k:word} ", "ollama", _REQUEST),
    Row("kvcachetype:", r"\bKvCacheType:{flag.cache_type_v:word} ", "ollama", _REQUEST),
    Row(" name=", r"(?:\bid=\"?{device:word}\"? .{0,200}?)?\bname=(?!\w{1,20} description=)\"?"
        r"{gpu:text}\"? total=\"?{total_gpu_memory:size}", "ollama",
        "ollama: discover/types.go"),
    Row("description=", r"(?:\bid=\"?{device:word}\"? .{0,200}?)?"
        r"\bdescription=\"?{gpu:text}\"? libdirs=.{0,200}? "
        r"total=\"?{total_gpu_memory:size}", "ollama", "ollama: discover/types.go"),
    Row("n_ctx", r"\bn_ctx(?:_seq)? += {flag.n_ctx:int}", "2023+", _CONTEXT),
    Row("n_seq_max", r"\bn_seq_max += {flag.parallel:int}", "2024+", _CONTEXT),
    Row("n_batch", r"\bn_batch += {flag.batch_size:int}", "2023+", _CONTEXT),
    Row("n_ubatch", r"\bn_ubatch += {flag.ubatch_size:int}", "2024+", _CONTEXT),
    Row("flash_attn", r"\bflash_attn += {flag.flash_attn:word}", "2024+", _CONTEXT),
    Row("kv_unified", r"\bkv_unified += {flag.kv_unified:word}", "2025+", _CONTEXT),
    Row("n_layer", r"\bn_layer += {model_layers:int}", "2023+", "src/llama-model.cpp"),
    Row("kv_size", r"\bkv_size = {cells:int}, .{0,80}?n_layer = {layers:int}", "2024-2025",
        _CACHE),
    Row("creating indexer", r"creating indexer KV cache, size = {indexer_cells:int} cells",
        "2026+", _CACHE),
    Row("cells", r"\bsize = +{kv_total:size} \( *{cells:int} cells, +{layers:int} layers"
        r"(?!, +\d{1,6} seqs(?: +\d{1,6} rs_seq|\), +R \())"
        r"(?:, +{seqs:int}(?:/{streams:int})? seqs)?", "2025+", _CACHE),
    Row("cells", r"\bsize = +{rs:size} \( *{rs_cells:int} cells, +{rs_layers:int} layers, +"
        r"{rs_seqs:int} seqs(?: +{rs_rollback:int} rs_seq|\), +R \()", "2025+",
        "src/llama-memory-recurrent.cpp"),
    Row("ratio = ", r"ratio = \d{1,6}, .{0,120}?\bsize = +{compressor_state:size}", "2026+",
        "src/llama-kv-cache-dsv4.cpp"),
    Row("rs_seq", r"rs_seq = {flag.n_rs_seq:int}", "2026+", "src/llama-kv-cache-dsv4.cpp"),
    Row(" rs_seq", r" {flag.n_rs_seq:int} rs_seq", "2026+", "src/llama-memory-recurrent.cpp"),
    Row(", k (", r", +K \({dtype:word}\): +{k:size}, +V \(\w{1,16}\): +{v:size}", "2023+",
        _CACHE),
    Row(", v (", r", +V \({flag.cache_type_v:word}\): ", "2023+", _CACHE),
    Row(", k (", r", +K \({flag.cache_type_k:word}\): ", "2023+", _CACHE),
    Row("c^kv (", r"c\^KV \({flag.cache_type_k:word}\): +{k:size}", "ik_llama.cpp", _OLD),
    Row(", r (f", r"\bR \(\w{1,8}\): +{rs_r:size}, +S \(\w{1,8}\): +{rs_s:size}", "2025+",
        "src/llama-memory-recurrent.cpp"),
    Row("kv self size", r"\bKV self size += +{kv_total:size}", "2023-2025", _OLD),
    Row("kv buffer size", r"(?:{device:word} )?(?:\w{1,16} compressed )?KV buffer size = +"
        r"{kv_buffer:size}", "2023+", _CACHE),
    Row("rs buffer size", r"{device:word} RS buffer size = +{rs_buffer:size}", "2025+",
        "src/llama-memory-recurrent.cpp"),
    Row("compute buffer", r"{device:word} +compute buffer(?: size =)? +{compute_buffer:size}",
        "2023+", _CONTEXT),
    Row("model buffer size", r"{device:word} model buffer size = +{model_buffer:size}", "2024+",
        "src/llama-model.cpp"),
    Row("output buffer size", r"{device:word} +output buffer size = +{output_buffer:size}",
        "2024+", _CONTEXT),
    Row("sched copies", r"sched copies = {sched_copies:int}", "2026+", _CONTEXT),
    Row("n_copies", r"pipeline parallelism enabled \(n_copies={sched_copies:int}\)", "2024-2025",
        _CONTEXT),
    Row("graph nodes", r"\bgraph nodes += {graph_nodes:int}", "2024+", _CONTEXT),
    Row("layers to gpu", r"offloaded {offloaded_layers:int}/{offloadable_layers:int} layers to "
        r"GPU", "2023+", "src/llama-model.cpp"),
    Row("memory_breakdown", r"\| +- {device:word}[^|]{0,80}\| *{breakdown_total:mib} = "
        r"{breakdown_free:mib} \+ "
        r"\( *{breakdown_used:mib} = *{breakdown_model:mib} \+ *{breakdown_context:mib} \+ *"
        r"{breakdown_compute:mib}\)", "2025+", "src/llama-context.cpp"),
    Row("projected to use", r"projected to use {fit_projected:size} of device memory vs\. "
        r"{fit_free:size} of free", "2025+", "src/llama.cpp: llama_params_fit"),
    Row("free memory target", r"free memory target of {fit_target:size}, need to reduce device "
        r"memory by {fit_reduce:size}", "2025+", "src/llama.cpp: llama_params_fit"),
    Row("kv cache ", r"\bKV cache {kv_total:size} @ {cells:int}", "any", _QUOTED),
    Row("/f16 self", r"self {kv_plus_rs:size}", "any", _QUOTED),
    Row(" server ", r"parallel {seqs:int} ctx {flag.n_ctx:int} server "
        r"{kv_total:size}", "any", _QUOTED),
    Row(" slots: ", r"{seqs:int} slots: {total_cells:int} cells / {kv_total:size}",
        "any", _QUOTED),
    # It does not fit.
    Row("using device", r"using device {device:word} \({gpu:text}\)(?: \([^)]{0,80}\))? - "
        r"{device_free:size} free", "2023+", "src/llama.cpp"),
    Row("failed to allocate", r"failed to allocate {device:word} buffer of size {alloc_failed:int}",
        "2023+", "ggml/src/ggml-alloc.c"),
    Row("failed to allocate", r"gallocr_\w{1,40}: failed to allocate {device:word} buffer of size "
        r"{compute_refused:bytes}", "2024+", "ggml/src/ggml-alloc.c"),
    Row("device memory allocation", r"device memory allocation of size {alloc_failed:int} failed",
        "2024+", "ggml/src/ggml-vulkan/ggml-vulkan.cpp"),
    Row("failed: out of memory", r"allocating {alloc_failed:size} on device \d{1,3}: "
        r"\w{1,16}Malloc failed", "2023+", "ggml/src/ggml-cuda/ggml-cuda.cu"),
    Row("more system memory", r"requires more system memory \({system_needed:size}\) than is "
        r"available \({system_free:size}\)", "ollama", "ollama: llm/server.go"),
    Row("too large for system", r"too large for system\"? requested=\"?{system_needed:size}\"? "
        r"available=\"?{system_free:size}", "ollama", "ollama: llm/server.go"),
    # Ollama: its estimate before it starts a runner.
    Row("required.full", r"memory\.required\.full=\"?{estimate_full:size}", "ollama", _OLLAMA),
    Row("required.partial", r"memory\.required\.partial=\"?{estimate_partial:size}", "ollama",
        _OLLAMA),
    Row("required.kv", r"memory\.required\.kv=\"?{kv_total:size}", "ollama", _OLLAMA),
    Row("weights.total", r"memory\.weights\.total=\"?{weights:size}", "ollama", _OLLAMA),
    Row("graph.full", r"memory\.graph\.full=\"?{graph_full:size}", "ollama", _OLLAMA),
    Row("graph.partial", r"memory\.graph\.partial=\"?{graph_partial:size}", "ollama", _OLLAMA),
    Row("projector.weights", r"projector\.weights=\"?{projector:size}", "ollama", _OLLAMA),
    Row("layers.offload", r"layers\.offload={offloaded_layers:int}", "ollama", _OLLAMA),
    Row("layers.model", r"layers\.model={offloadable_layers:int}", "ollama", _OLLAMA),
    Row("memory.available", r"memory\.available=\"?\[?{free_memory:size}", "ollama", _OLLAMA),
    # Ollama's own engine.
    Row("\"kv cache\"", r"\"kv cache\" device={device:word} size=\"?{kv_buffer:size}", "ollama",
        _OLLAMA_ENGINE),
    Row("\"compute graph\"", r"\"compute graph\" device={device:word} "
        r"size=\"?{compute_buffer:size}", "ollama", _OLLAMA_ENGINE),
    Row("\"model weights\"", r"\"model weights\" device={device:word} "
        r"size=\"?{model_buffer:size}", "ollama", _OLLAMA_ENGINE),
    Row("\"total memory\"", r"\"total memory\" size=\"?{total_used:size}", "ollama",
        _OLLAMA_ENGINE),
)  # fmt: skip
