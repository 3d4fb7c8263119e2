"""SGLang's pools: bytes of a token in each, and of a request's state, on one GPU.

Source: sglang/srt/model_executor/pool_configurator.py (0.5.23; model_runner.py before 0.5.9),
sglang/srt/mem_cache/memory_pool.py, sglang/srt/configs/mamba_utils.py. Differences to vLLM: a
model whose sliding layers SGLang does not list keeps all positions of every layer; layers that
share another's cache still have one allocated; heads are split by whole division.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from kvproof.engine.base import Deployment
from kvproof.engine.sglang.flags import Flags
from kvproof.errors import UsageError
from kvproof.kinds import (
    ChunkedSlot,
    CompressedSlot,
    ConvSlot,
    FullSlot,
    IndexerSlot,
    LatentSlot,
    RecurrentSlot,
    SharedSlot,
    SlidingSlot,
    Slot,
)
from kvproof.kinds.elements import ElementType, element_type
from kvproof.model.types import Model

_TYPES = {
    "fp8": "fp8_e4m3", "half": "f16", "fp4_e2m1": "fp4", "fp4_mx_block16": "fp4", "nvfp4": "fp4",
    "bfloat16": "bf16", "float16": "f16",
}  # fmt: skip
_STATE_WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2}
_INDEXER_BLOCK = 128


class Pools(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes a token on one GPU: of full layers and, where there are two pools, of sliding ones.

    `state` bytes of one request's states. `window` of the sliding pool; None: one pool.
    """

    full: int
    full_layers: int
    sliding: int = 0
    sliding_layers: int = 0
    window: int | None = None
    ratio: float = 1.0
    state: int = 0
    state_layers: int = 0
    page: int = 1
    dtype: str = "bf16"

    @property
    def cell(self) -> float:
        """Bytes of one token of the total: the sliding pool has `ratio` as many."""
        return self.full + self.ratio * self.sliding


def make_pools(model: Model, deployment: Deployment, flags: Flags) -> Pools:
    """The pools of `model`; UsageError for caches that SGLang lays out in ways not modelled."""
    if any(isinstance(slot, CompressedSlot) for slot in model.slots):
        raise UsageError(
            f"SGLang's pools for the compressed attention of {model.name} are not known",
            hint="use engine vllm, or give max_total_tokens",
        )
    dtype = kv_type(model, deployment, flags)
    two = _two_pools(model, flags)
    slots = list(_stage(model, flags))
    sliding = [s for s in slots if two and isinstance(s, SlidingSlot | ChunkedSlot)]
    full = [s for s in slots if s not in sliding]
    state = [s for s in slots if isinstance(s, ConvSlot | RecurrentSlot)]
    windows = [s.window if isinstance(s, SlidingSlot) else s.chunk
               for s in sliding if isinstance(s, SlidingSlot | ChunkedSlot)]  # fmt: skip
    return Pools(
        full=sum(_cell(model, deployment, flags, s, dtype) for s in full),
        full_layers=len({s.layer for s in full if not isinstance(s, ConvSlot | RecurrentSlot)}),
        sliding=sum(_cell(model, deployment, flags, s, dtype) for s in sliding),
        sliding_layers=len(sliding),
        window=max(windows, default=None),
        ratio=flags.get("swa_full_tokens_ratio", 0.8) if windows else 1.0,
        state=sum(_state(model, flags, s) for s in state),
        state_layers=len({s.layer for s in state}),
        page=page_size(model, deployment, flags),
        dtype=dtype.name,
    )


def slot_bytes(model: Model, deployment: Deployment, flags: Flags, slot: Slot, tokens: int) -> int:
    """Bytes that one slot holds of a sequence of `tokens`, windows kept to their size."""
    if isinstance(slot, ConvSlot | RecurrentSlot):
        return _state(model, flags, slot)
    kept = tokens
    if _two_pools(model, flags) and isinstance(slot, SlidingSlot | ChunkedSlot):
        kept = slot.held(tokens)
    own = slot if not isinstance(slot, SharedSlot) else next(
        (s for s in _stage(model, flags) if s.layer == slot.layer), slot
    )  # fmt: skip
    return kept * _cell(model, deployment, flags, own, kv_type(model, deployment, flags))


def _stage(model: Model, flags: Flags) -> Iterator[Slot]:
    """The slots of the largest pipeline stage; shared layers with their own full geometry."""
    last = -(-model.layers // flags.pp)
    by_layer = {s.layer: s for s in model.slots if isinstance(s, FullSlot)}
    for slot in model.slots:
        if slot.layer >= last:
            continue
        if isinstance(slot, SharedSlot):
            source = by_layer.get(slot.source_layer) if slot.source_layer is not None else None
            if source is not None:
                yield msgspec.structs.replace(source, layer=slot.layer)
        elif slot.kind != "cross":
            yield slot


def _two_pools(model: Model, flags: Flags) -> bool:
    if flags.get("disable_hybrid_swa_memory") or not flags.rules.hybrid_swa:
        return False
    return model.architecture in flags.rules.swa_archs


def _cell(
    model: Model, deployment: Deployment, flags: Flags, slot: Slot, dtype: ElementType
) -> int:
    """Bytes a token of one slot on one GPU."""
    if isinstance(slot, FullSlot):
        heads = max(1, slot.kv_heads // flags.attention_tp)
        elements = heads * (slot.k_dim + slot.v_dim)
        return dtype.bytes(elements) + (elements // 16 if dtype.name == "fp4" else 0)
    if isinstance(slot, LatentSlot):
        sparse = any(isinstance(s, IndexerSlot) for s in model.slots)
        width = slot.latent_dim + slot.rope_dim
        if sparse and dtype.name.startswith("fp8") and not _raw_rows(deployment, flags):
            return slot.latent_dim + slot.latent_dim // 128 * 4 + slot.rope_dim * 2
        return dtype.bytes(width)
    if isinstance(slot, IndexerSlot):
        row = slot.dim + slot.dim // _INDEXER_BLOCK * 4
        if flags.rules.shared_indexer:
            return row
        layers = {s.layer for s in model.slots if isinstance(s, LatentSlot)}
        owners = sum(isinstance(s, IndexerSlot) for s in model.slots)
        return row * len(layers) // owners
    return 0


def _raw_rows(deployment: Deployment, flags: Flags) -> bool:
    """Whether FP8 rows of sparse MLA are stored without scales (576 bytes, not 656)."""
    backends = {flags.get("dsa_prefill_backend"), flags.get("dsa_decode_backend")} - {None}
    if backends:
        return "trtllm" in backends or backends == {"tilelang"}
    capability = _capability(deployment)
    if capability is None:
        return flags.rules.raw_fp8_on_rocm
    return capability >= 10


def _capability(deployment: Deployment) -> float | None:
    """CUDA compute capability; None on AMD, 9.0 where the GPU is not named."""
    gpu = deployment.accelerator
    text = gpu.compute_capability if gpu is not None else "9.0"
    try:
        return float(text or "9.0")
    except ValueError:
        return None


def _state(model: Model, flags: Flags, slot: Slot) -> int:
    """Bytes of one request's state in one slot on one GPU."""
    if isinstance(slot, ConvSlot):
        channels = slot.channels
        if slot.groups and slot.groups % flags.attention_tp:
            width = slot.group_channels // slot.groups
            channels += (flags.attention_tp - slot.groups) * width
        return channels // flags.attention_tp * (slot.kernel - 1) * 2
    if isinstance(slot, RecurrentSlot):
        named = flags.get("mamba_ssm_dtype") or model.text_config.get("mamba_ssm_dtype")
        return slot.elements // flags.attention_tp * _STATE_WIDTHS.get(str(named), 4)
    return 0


def kv_type(model: Model, deployment: Deployment, flags: Flags) -> ElementType:
    """The cache's element type: as asked; `auto` follows checkpoint, sparse MLA and model."""
    asked = str(flags.get("kv_cache_dtype", "auto"))
    if asked != "auto":
        return element_type(_TYPES.get(asked, asked))
    sparse = any(isinstance(slot, IndexerSlot) for slot in model.slots)
    capability = _capability(deployment)
    if sparse and capability is not None and capability >= 10:
        return element_type("fp8_e4m3")
    own = model.quantization.kv_dtype if model.quantization is not None else None
    if own and own.startswith("fp8") and flags.rules.checkpoint_kv_dtype:
        return element_type("fp8_e4m3")
    asked = str(flags.get("dtype", "auto"))
    return element_type(model.dtype if asked == "auto" else _TYPES.get(asked, asked))


def page_size(model: Model, deployment: Deployment, flags: Flags) -> int:
    """Tokens a page: as asked, 64 where the backend needs it, else 1."""
    if flags.get("page_size"):
        return int(flags.get("page_size"))
    if any(isinstance(slot, IndexerSlot) for slot in model.slots):
        return 1 if _capability(deployment) is None else 64
    latent = any(isinstance(slot, LatentSlot) for slot in model.slots)
    backend = str(flags.get("attention_backend") or flags.get("decode_attention_backend") or "")
    if backend in ("flashmla", "trtllm_mla", "cutedsl_mla", "trtllm_mha", "hpc_ops"):
        return 64
    capability = _capability(deployment)
    named = deployment.accelerator is not None and not backend
    datacentre = capability is not None and 10 <= capability < 11
    return 64 if named and datacentre and not latent and flags.rules.piecewise else 1
