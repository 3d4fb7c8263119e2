"""Options of SGLang that change memory in ways that are not computed here.

Sources: SGLang 0.4.6 and 0.5.23, server_args.py, and the modules that read each option.
"""

from __future__ import annotations

from collections.abc import Mapping

_ADAPTERS = "sets the size of the LoRA pool"
_WEIGHTS_AWAY = "keeps part of the weights in host memory"
_OTHER_WEIGHTS = "changes what the weights are stored in"
_OTHER_SPLIT = "splits experts or dense layers otherwise over the ranks"

UNCOMPUTED: Mapping[str, str] = {
    "max_lora_rank": _ADAPTERS,
    "max_loras_per_batch": _ADAPTERS,
    "offload_group_size": _WEIGHTS_AWAY,
    "offload_num_in_group": _WEIGHTS_AWAY,
    "offload_mode": _WEIGHTS_AWAY,
    "kt_weight_path": _WEIGHTS_AWAY,
    "kt_num_gpu_experts": _WEIGHTS_AWAY,
    "ple_offload_embedding": _WEIGHTS_AWAY,
    "enable_paged_experts": _WEIGHTS_AWAY,
    "paged_experts_num_resident": _WEIGHTS_AWAY,
    "torchao_config": _OTHER_WEIGHTS,
    "modelopt_quant": _OTHER_WEIGHTS,
    "quantize_and_serve": _OTHER_WEIGHTS,
    "ep_num_redundant_experts": "holds copies of hot experts",
    "moe_dense_tp_size": _OTHER_SPLIT,
    "moe_dp_size": _OTHER_SPLIT,
    "moe_data_parallel_size": _OTHER_SPLIT,
    "dwdp_size": _OTHER_SPLIT,
    "disable_mla": "keeps whole heads in place of latents",
    "hybrid_kvcache_ratio": "divides the pool between layers",
    "enable_double_sparsity": "keeps a second, smaller cache of keys",
    "enable_kv_cache_sharding": "deals the cache out over the ranks",
    "prefill_only_disable_kv_cache": "keeps no cache",
    "encoder_only": "loads the encoder alone",
    "enable_two_batch_overlap": "splits batches in two, each with workspaces",
}
"""Options, and what each does."""
