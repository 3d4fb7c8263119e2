"""Ask vLLM which backend it picks: `python pick.py CASES.json ANSWERS.json`, one GPU a process.

A case holds the fields of kvproof's `Attention` that it sets, and "gpu". An answer: {"name": the
backend, "sizes": its kernel blocks, of which "multiple" says whether every multiple will do} or
{"refused": why}. The model's config is one that only holds what backends look at.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from ask import answer_all, on_meta

_DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}


def settings(case: dict[str, Any]) -> Any:
    """The parts of a VllmConfig that the choice of a backend reads."""
    import torch
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    text = SimpleNamespace(attn_logit_softcapping=50.0 if case.get("capped") else None)
    if case.get("latent"):
        text.qk_nope_head_dim, text.qk_rope_head_dim = case["nope_dim"], case["rope_dim"]
        text.v_head_dim, text.kv_lora_rank = case["value_dim"], case["latent_dim"]
        text.index_topk = case["picked"]
    forced, block = case.get("forced"), case.get("block_size")
    model = SimpleNamespace(
        hf_text_config=text,
        is_mm_prefix_lm=case.get("pictures", False),
        rswa_window=None,
        is_diffusion=case.get("diffusion", False),
        dtype=getattr(torch, _DTYPES[case.get("dtype", "bf16")]),
        get_num_attention_heads=lambda *_: case["query_heads"],
        get_num_kv_heads=lambda *_: case["kv_heads"],
        get_head_size=lambda: case["head_dim"],
    )
    return SimpleNamespace(
        model_config=model,
        parallel_config=SimpleNamespace(
            decode_context_parallel_size=case.get("context_ranks", 1),
            prefill_context_parallel_size=1,
        ),
        attention_config=SimpleNamespace(
            backend=AttentionBackendEnum[forced] if forced else None,
            backend_per_kind={},
            use_non_causal=case.get("both_ways", False),
            flash_attn_version=4 if case.get("flash_4") else None,
            use_trtllm_attention=None,
        ),
        cache_config=SimpleNamespace(
            user_specified_block_size=block is not None,
            block_size=block or 16,
            cache_dtype=case["kv_dtype"],
        ),
        kv_transfer_config=None,
        speculative_config=None,
    )


def pick(case: dict[str, Any]) -> dict[str, Any]:
    """The backend of one attention on the pretended GPU."""
    import torch

    with on_meta(torch.bfloat16):
        import vllm.v1.attention.backends.mla.cutlass_mla
    import vllm.config.vllm as holder
    from vllm.v1.attention import selector

    config = settings(case)
    holder._current_vllm_config = config
    selector._cached_get_attn_backend.cache_clear()
    found = selector.get_attn_backend(
        case["head_dim"],
        config.model_config.dtype,
        case["kv_dtype"],
        use_mla=case.get("latent", False),
        has_sink=case.get("sinks", False),
        use_sparse=case.get("sparse", False),
        use_mm_prefix=case.get("pictures", False),
        num_heads=case["query_heads"],
    )
    sizes = found.get_supported_kernel_block_sizes()
    multiple = any(not isinstance(size, int) for size in sizes)
    plain = [size if isinstance(size, int) else size.base for size in sizes]
    return {"name": found.get_name(), "sizes": plain, "multiple": multiple}


if __name__ == "__main__":
    answer_all(*sys.argv[1:3], pick)
