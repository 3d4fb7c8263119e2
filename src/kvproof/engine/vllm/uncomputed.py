"""Options of vLLM that change memory in ways that are not computed here.

Sources: vLLM 0.33, engine/arg_utils.py and the configs that it fills (config/offload.py,
config/multimodal.py, config/parallel.py, config/cache.py, config/scheduler.py).
"""

from __future__ import annotations

from collections.abc import Mapping

_WEIGHTS_AWAY = "keeps part of the weights in host memory"
_OTHER_WEIGHTS = "changes what the weights are stored in"
_PICTURES = "takes GPU memory for pictures"
_OTHER_CONFIG = "names another config or other weights than the model's"

UNCOMPUTED: Mapping[str, str] = {
    "cpu_offload_params": _WEIGHTS_AWAY,
    "offload_backend": _WEIGHTS_AWAY,
    "offload_group_size": _WEIGHTS_AWAY,
    "offload_num_in_group": _WEIGHTS_AWAY,
    "offload_params": _WEIGHTS_AWAY,
    "offload_prefetch_step": _WEIGHTS_AWAY,
    "quantization_config": _OTHER_WEIGHTS,
    "mm_ipc_gpu_memory_gb": _PICTURES,
    "mm_processor_device": _PICTURES,
    "enable_dbo": "splits batches in two, each with workspaces",
    "ubatch_size": "splits batches, each with workspaces",
    "watermark": "keeps blocks free of new requests",
    "model_weights": _OTHER_CONFIG,
    "hf_config_path": _OTHER_CONFIG,
    "model_class_overrides": _OTHER_CONFIG,
    "engram_config": "keeps a table of n-grams",
    "lora_target_modules": "leaves modules out of the LoRA slots",
    "enable_prompt_adapter": "keeps prompt adapters beside the weights",
}
"""Options, and what each does."""
