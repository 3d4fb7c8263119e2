"""What SGLang picks by GPU and model: attention backend, page size, element type of the cache.

Sources: server_args.py (`_get_default_attn_backend`, `_handle_attention_backend_compatibility`,
`_set_default_dsa_*`) up to 0.5.15, arg_groups/overrides.py and model_override_base.py after.
"""

from __future__ import annotations

from kvproof.engine.base import Deployment
from kvproof.engine.sglang.flags import Flags
from kvproof.kinds import CompressedSlot, IndexerSlot, LatentSlot
from kvproof.kinds.elements import ElementType, element_type
from kvproof.model.types import Model

_TYPES = {
    "fp8": "fp8_e4m3", "half": "f16", "fp4_e2m1": "fp4", "fp4_mx_block16": "fp4", "nvfp4": "fp4",
    "bfloat16": "bf16", "float16": "f16",
}  # fmt: skip
_PAGED = {
    "flashmla": 64, "trtllm_mla": 64, "cutedsl_mla": 64, "trtllm_mha": 64, "hpc_ops": 64,
    "cutlass_mla": 128, "intel_xpu": 128, "ascend": 128,
}  # fmt: skip
"""Tokens a page that a backend needs where none is asked for."""
_COMPRESSED_PAGE = 256
_TRTLLM_MLA_ARCHS = ("DeepseekV3ForCausalLM", "KimiK25ForConditionalGeneration",
                     "MistralLarge3ForCausalLM")  # fmt: skip
_AITER_HEADS = (16, 128)
_RAW_ON_ROCM = {"tilelang", "triton", "aiter"}


def on_rocm(deployment: Deployment) -> bool:
    """Whether the GPU is AMD's."""
    gpu = deployment.accelerator
    return gpu is not None and gpu.vendor.lower().startswith("amd")


def capability(deployment: Deployment) -> float | None:
    """CUDA compute capability; None on AMD, 9.0 where the GPU is not named."""
    gpu = deployment.accelerator
    if gpu is None:
        return 9.0
    try:
        return float(gpu.compute_capability or "")
    except ValueError:
        return None if on_rocm(deployment) else 9.0


def is_sparse(model: Model) -> bool:
    """Sparse latent attention (DeepSeek-V3.2, GLM-5): an indexer beside the latents."""
    return any(isinstance(slot, IndexerSlot) for slot in model.slots)


def is_latent(model: Model) -> bool:
    """Latent attention: one vector a token for all heads."""
    return any(isinstance(slot, LatentSlot) for slot in model.slots)


def is_compressed(model: Model) -> bool:
    """DeepSeek-V4's compressed attention."""
    return any(isinstance(slot, CompressedSlot) for slot in model.slots)


def attention_backend(model: Model, deployment: Deployment, flags: Flags) -> str:
    """The backend that decodes: as asked, else the release's choice for the GPU and model."""
    asked = flags.get("decode_attention_backend") or flags.get("attention_backend")
    if asked:
        return str(asked)
    if is_compressed(model):
        return "dsv4"
    if is_sparse(model):
        return "dsa"
    if on_rocm(deployment):
        heads = int(model.text_config.get("num_attention_heads") or 0) // flags.attention_tp
        return "aiter" if not is_latent(model) or heads in _AITER_HEADS else "triton"
    major = int(capability(deployment) or 0)
    if major == 10 and deployment.accelerator is not None:
        if is_latent(model):
            return "trtllm_mla" if model.architecture in _TRTLLM_MLA_ARCHS else "flashinfer"
        if model.architecture == "GptOssForCausalLM":
            return "trtllm_mha"
        topk_unknown = flags.drafts and flags.get("speculative_eagle_topk") is None
        return "trtllm_mha" if flags.rules.trtllm_mha and not topk_unknown else "flashinfer"
    return "fa3" if major == 9 else "flashinfer"


def page_size(model: Model, deployment: Deployment, flags: Flags) -> int:
    """Tokens a page: as asked, what the model or backend needs, else 1."""
    if is_compressed(model):
        return _COMPRESSED_PAGE
    if is_sparse(model):
        return 1 if on_rocm(deployment) and not flags.rules.paged_rocm_indexer else 64
    if flags.get("page_size"):
        return int(flags.get("page_size"))
    return _PAGED.get(attention_backend(model, deployment, flags), 1)


def kv_type(model: Model, deployment: Deployment, flags: Flags) -> ElementType:
    """The cache's element type: as asked; `auto` follows checkpoint, sparse MLA and model."""
    asked = str(flags.get("kv_cache_dtype", "auto"))
    if asked != "auto":
        return element_type(_TYPES.get(asked, asked))
    if is_compressed(model):
        return element_type("fp8_e4m3")
    number = capability(deployment)
    if is_sparse(model) and number is not None:
        if number >= 10:
            return element_type("fp8_e4m3")
        return element_type("bf16")
    own = model.quantization.kv_dtype if model.quantization is not None else None
    if own and own.startswith("fp8") and flags.rules.checkpoint_kv_dtype:
        return element_type("fp8_e4m3")
    return element_type(model.dtype)


def raw_rows(model: Model, deployment: Deployment, flags: Flags) -> bool:
    """Whether FP8 rows of sparse MLA are stored without scales (576 bytes, not 656)."""
    rules = flags.rules
    asked = {flags.get("dsa_prefill_backend"), flags.get("dsa_decode_backend")} - {None}
    if "trtllm" in asked:
        return True
    if on_rocm(deployment):
        return rules.raw_fp8_on_rocm and (not asked or bool(asked & _RAW_ON_ROCM))
    if asked:
        return asked == {"tilelang"} and rules.scaled_glm_on_sm12
    number = capability(deployment) or 0
    if model.architecture == "GlmMoeDsaForCausalLM" and number >= 12 and rules.scaled_glm_on_sm12:
        return False
    return number >= 10 and rules.raw_fp8_on_blackwell
