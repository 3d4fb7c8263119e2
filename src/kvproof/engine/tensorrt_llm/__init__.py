"""TensorRT-LLM: a paged pool that takes a share of what is free once everything else is there.

tokens = floor(share x free / bytes a token); blocks = tokens over tokens_per_block, rounded up
(cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp, calculateMaxNumBlocks, 0.10 to 1.x). The share
is free_gpu_memory_fraction, 0.9 by default; max_tokens and max_gpu_total_bytes only lower it
(llmapi/llm_args.py, KvCacheConfig, 1.4). Heads are split over ranks and rounded up; latent
attention keeps one vector (SELFKONLY) on every rank. All layers keep all positions unless
max_attention_window says otherwise. Free memory depends on buffers that grow with max_batch_size
and the vocabulary, so budgets are estimates; a log that prints `available` makes them exact
(free_memory=).
"""

from __future__ import annotations

from typing import Any

import msgspec

from kvproof.engine.base import Budget, Cache, CacheRequest, Capacity, Deployment, Group
from kvproof.engine.rank_weights import rank_weight_bytes
from kvproof.errors import UsageError, unknown_name
from kvproof.kinds import (
    CompressedSlot,
    ConvSlot,
    FullSlot,
    IndexerSlot,
    LatentSlot,
    RecurrentSlot,
    Slot,
)
from kvproof.kinds.elements import ElementType, element_type
from kvproof.model.types import Model
from kvproof.terms import Term
from kvproof.units import GIB, parse_bytes

_SOURCE = "TensorRT-LLM, cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp"
_CONTEXT = 0.6 * GIB
_ALIASES = {
    "tp": "tp_size", "tensor_parallel_size": "tp_size", "pp": "pp_size",
    "pipeline_parallel_size": "pp_size", "ep_size": "moe_expert_parallel_size",
    "kv_cache_free_gpu_mem_fraction": "free_gpu_memory_fraction",
    "kv_cache_free_gpu_memory_fraction": "free_gpu_memory_fraction",
    "max_tokens_in_paged_kv_cache": "max_tokens", "kv_cache_host_memory_bytes": "host_cache_size",
    "max_model_len": "max_seq_len", "dtype_kv": "kv_cache_dtype",
}  # fmt: skip
_NAMES = (
    "tp_size", "pp_size", "moe_expert_parallel_size", "moe_tensor_parallel_size",
    "gpus_per_node", "free_gpu_memory_fraction", "max_tokens", "max_gpu_total_bytes",
    "host_cache_size", "tokens_per_block", "max_attention_window", "sink_token_length",
    "enable_block_reuse", "enable_partial_reuse", "copy_on_partial_reuse", "use_uvm",
    "kv_cache_dtype", "max_batch_size", "max_num_tokens", "max_seq_len", "max_input_len",
    "max_beam_width", "enable_attention_dp", "enable_chunked_prefill", "cuda_graph_config",
    "backend", "dtype", "quantization", "trust_remote_code", "mamba_ssm_cache_dtype",
    "mamba_state_cache_interval", "speculative_config", "multiple_profiles", "kv_cache_config",
    "onboard_blocks", "cross_kv_cache_fraction", "secondary_offload_min_priority",
    "event_buffer_max_size", "attention_dp_events_gather_period_ms", "use_kv_cache_manager_v2",
    "max_util_for_resume", "pool_ratio", "avg_seq_len", "gpu_memory", "free_memory", "used",
)  # fmt: skip
_WHOLE = (
    "tp_size", "pp_size", "max_tokens", "tokens_per_block", "max_batch_size", "max_num_tokens",
    "max_seq_len", "max_input_len", "max_beam_width",
)  # fmt: skip
_SIZES = ("gpu_memory", "free_memory", "used", "host_cache_size", "max_gpu_total_bytes")
_KV_NAMES = {"fp8": "fp8_e4m3", "nvfp4": "nvfp4", "int8": "int8", "float16": "f16",
             "bfloat16": "bf16", "half": "f16", "float32": "f32"}  # fmt: skip
_STATE_WIDTHS = {"float32": 4, "float16": 2, "bfloat16": 2}


class Flags(msgspec.Struct, frozen=True, kw_only=True):
    """The flags that decide memory, defaults filled in."""

    tp: int
    pp: int
    attention_tp: int
    fraction: float
    tokens_per_block: int
    max_batch_size: int
    max_num_tokens: int
    given: dict[str, Any]
    compiled: bool
    """The C++ engine of releases before 1.0, with its buffers for every sequence of a batch."""
    logit_copies: float

    def get(self, name: str, default: Any = None) -> Any:
        """A flag as given, else `default`."""
        return self.given.get(name, default)


def read_flags(deployment: Deployment) -> Flags:
    """The deployment's flags under TensorRT-LLM's names; nested kv_cache_config is flattened."""
    given: dict[str, Any] = {}
    nested = deployment.flags.get("kv_cache_config")
    flat = {**(nested if isinstance(nested, dict) else {}), **deployment.flags}
    for name, value in flat.items():
        key = _ALIASES.get(name, "kv_cache_dtype" if name == "dtype" and nested else name)
        if key not in _NAMES:
            raise unknown_name("TensorRT-LLM flag", name, list(_NAMES), see="write tp_size=8")
        if value is not None:
            given[key] = _value(key, value)
    compiled = _compiled(deployment.engine.version, given)
    block = given.get("tokens_per_block", 64 if _before(deployment.engine.version, 0, 19) else 32)
    if block & (block - 1):
        raise UsageError(f"tokens_per_block={block} is no power of two", hint="use 32, 64 or 128")
    tp = given.get("tp_size", 1)
    return Flags(
        tp=tp,
        pp=given.get("pp_size", 1),
        attention_tp=1 if given.get("enable_attention_dp") else tp,
        fraction=given.get("free_gpu_memory_fraction", 0.9),
        tokens_per_block=block,
        max_batch_size=given.get("max_batch_size", 2048),
        max_num_tokens=given.get("max_num_tokens", 8192),
        given=given,
        compiled=compiled,
        logit_copies=_copies(deployment.engine.version) if compiled else 1.0,
    )


def _copies(version: str | None) -> float:
    return 7.0 if _before(version, 0, 17) else 4.5


def _compiled(version: str | None, given: dict[str, Any]) -> bool:
    backend = str(given.get("backend", "")).lower()
    return backend in ("cpp", "tensorrt", "trt") or (not backend and _before(version, 1, 0))


def _before(version: str | None, major: int, minor: int) -> bool:
    parts = (version or "").split(".")
    if len(parts) < 2 or not (parts[0].isdigit() and parts[1].isdigit()):
        return False
    return (int(parts[0]), int(parts[1])) < (major, minor)


def _value(name: str, value: Any) -> Any:
    try:
        if name in _SIZES:
            return parse_bytes(value)
        if name in _WHOLE:
            value = int(value)
        elif name == "free_gpu_memory_fraction":
            value = float(str(value).split()[0])
    except (TypeError, ValueError, IndexError):
        raise UsageError(f"{name}={str(value)[:40]!r} is no number", hint="give one") from None
    if name in _WHOLE and value < 1:
        raise UsageError(f"{name} is {value}", hint="give 1 or more")
    if name == "free_gpu_memory_fraction" and not 0 <= value <= 1:
        raise UsageError(f"{name} is {value}", hint="give a share from 0 to 1")
    return value


def canonical_flag(name: str) -> str:
    """TensorRT-LLM's own name of a flag that has several spellings."""
    return _ALIASES.get(name, name)


def flag_names() -> tuple[str, ...]:
    """Every flag that is read, with its other spellings."""
    return (*_NAMES, *_ALIASES)


def is_read(name: str) -> bool:
    """Whether the flag bears on what is computed here."""
    return canonical_flag(name) in _NAMES


def check_flags(deployment: Deployment) -> None:
    """Raise UsageError for an unknown flag or a value out of range."""
    read_flags(deployment)


def kv_type(model: Model, flags: Flags) -> ElementType:
    """The cache's type: as asked, else the checkpoint's own, else the model's."""
    asked = str(flags.get("kv_cache_dtype", "auto")).split()[0]
    if asked == "auto":
        own = model.quantization.kv_dtype if model.quantization is not None else None
        asked = own or model.dtype
    return element_type(_KV_NAMES.get(asked, asked))


def slot_bytes(slot: Slot, flags: Flags, dtype: ElementType) -> int:
    """Bytes that a token adds in one slot on one GPU."""
    if isinstance(slot, FullSlot):
        heads = -(-slot.kv_heads // flags.attention_tp)
        return dtype.bytes(heads * slot.k_dim) + dtype.bytes(heads * slot.v_dim)
    if isinstance(slot, LatentSlot):
        return dtype.bytes(slot.latent_dim + slot.rope_dim)
    if isinstance(slot, IndexerSlot):
        return slot.dim + slot.dim // 128 * 4
    return 0


def _state(model: Model, slot: Slot, flags: Flags) -> int:
    if isinstance(slot, ConvSlot):
        return slot.channels // flags.attention_tp * (slot.kernel - 1) * 2
    if isinstance(slot, RecurrentSlot):
        asked = str(flags.get("mamba_ssm_cache_dtype", "auto"))
        own = str(model.text_config.get("mamba_ssm_dtype", "float32"))
        width = _STATE_WIDTHS.get(own if asked == "auto" else asked, 4)
        return slot.elements // flags.attention_tp * width
    return 0


def _windows(flags: Flags, layers: int, length: int) -> list[int]:
    """The positions that each layer keeps: max_attention_window repeats over the layers."""
    asked = flags.get("max_attention_window")
    if not asked:
        return [length] * layers
    sizes = [int(w) for w in asked] if isinstance(asked, list | tuple) else [int(asked)]
    return [min(length, sizes[i % len(sizes)]) for i in range(layers)]


def token_bytes(model: Model, flags: Flags) -> int:
    """Bytes of a token over the layers of the largest pipeline stage."""
    if any(isinstance(slot, CompressedSlot) for slot in model.slots):
        raise UsageError(
            f"TensorRT-LLM's pools for the compressed attention of {model.name} are not known",
            hint="use engine vllm",
        )
    last, dtype = -(-model.layers // flags.pp), kv_type(model, flags)
    return sum(slot_bytes(s, flags, dtype) for s in model.slots if s.layer < last)


def capacity(model: Model, deployment: Deployment, kv_bytes: int) -> Capacity:
    """Blocks and tokens of a pool of `kv_bytes` on one GPU, as the log prints them."""
    flags = read_flags(deployment)
    cell, size = token_bytes(model, flags), flags.tokens_per_block
    length = int(flags.get("max_seq_len") or model.context or 2048)
    blocks = kv_bytes // (cell * size) if cell else 0
    if flags.get("max_tokens"):
        blocks = min(blocks, -(-int(flags.get("max_tokens")) // size))
    held = _holder(flags, model.layers, length)
    whole = held(length)
    fits = 0 < whole <= blocks
    misfit = f"max_seq_len {length:,} needs {whole:,} blocks of {size} tokens of {blocks:,}"
    return Capacity(
        num_blocks=blocks,
        block_size=size,
        bytes_per_block=cell * size,
        groups=_groups(model, flags, cell, whole),
        blocks_per_sequence=whole,
        tokens=blocks * size,
        max_concurrency=blocks / whole if whole else 0.0,
        max_model_len=length,
        fits=fits,
        error=None if fits else misfit,
        terms=(
            _term("bytes per token", cell, f"{kv_type(model, flags).name}, one GPU", "B/token"),
            _term("blocks", blocks, f"{kv_bytes:,} B // ({cell:,} B x {size})", "1"),
            _term("tokens", blocks * size, f"{blocks:,} x {size}", "token"),
        ),
        usable_blocks=blocks,
        max_num_seqs=flags.max_batch_size,
        blocks_held=held,
    )


def _holder(flags: Flags, layers: int, length: int) -> Any:
    widest = max(_windows(flags, layers, length), default=length)

    def held(context: int) -> int:
        return -(-min(context, widest) // flags.tokens_per_block)

    return held


def _groups(model: Model, flags: Flags, cell: int, whole: int) -> tuple[Group, ...]:
    layers = len({s.layer for s in model.slots if slot_bytes(s, flags, kv_type(model, flags))})
    latent = any(isinstance(slot, LatentSlot) for slot in model.slots)
    group = Group(
        kind="latent" if latent else "full",
        layers=layers,
        block_size=flags.tokens_per_block,
        page_bytes=cell * flags.tokens_per_block // max(1, layers),
        blocks_per_sequence=whole,
    )
    return (group,)


def _buffers(model: Model, flags: Flags) -> tuple[int, int]:
    """Activations of a full batch of tokens, and what sampling keeps for a full batch.

    The C++ engine kept five copies of the logits of max_batch_size sequences for its decoder and
    two more at run time (logs of 0.12 and 0.14), later less (4.5 in all by a log of 0.19); the
    PyTorch one keeps one.
    """
    logits = flags.max_batch_size * model.vocab_size * 4
    activation = flags.max_num_tokens * model.hidden_size * 2 * 8 // flags.tp
    return activation, int(logits * flags.logit_copies)


def budget(model: Model, deployment: Deployment) -> Budget:
    """Memory of one GPU; exact from `free_memory` (the log's `available`), else estimated."""
    flags = read_flags(deployment)
    gpu = deployment.accelerator
    total = flags.get("gpu_memory") or (gpu.memory_bytes if gpu is not None else None)
    if total is None:
        raise UsageError("no GPU is named", hint="give gpu=... or gpu_memory=...")
    weights = rank_weight_bytes(model, flags.tp, flags.pp)
    activation, sampling = _buffers(model, flags)
    states = flags.max_batch_size * sum(_state(model, s, flags) for s in model.slots)
    context, used = int(_CONTEXT), flags.get("used", 0)
    known = flags.get("free_memory")
    taken = weights + activation + sampling + states + context + used
    free = max(0, known if known is not None else total - taken)
    kv = _pool(model, flags, free)
    terms = [
        _term("context", context, "CUDA context and other processes"),
        *([_term("other processes", used, "in use before the start")] if used else []),
        _term("weights", weights, f"tensor shapes over {flags.tp} ranks"),
        _term("activations", activation, f"a batch of {flags.max_num_tokens:,} tokens"),
        _term("buffers of the batch", sampling, f"logits of {flags.max_batch_size:,} sequences"),
    ]
    if states:
        terms.append(_term("states", states, f"{flags.max_batch_size:,} sequences"))
    terms += [
        _term("left free", free - kv, f"{free:,} B x (1 - {flags.fraction:g}) and rounding"),
        _term("KV cache", kv, f"{free:,} B x {flags.fraction:g} in blocks"),
    ]
    rest = total - sum(int(term.value) for term in terms)
    if rest:
        terms.append(_term("not accounted for", rest, "the free memory given, or a missing part"))
    spread = 0 if known is not None else int((activation + sampling + 0.02 * weights) * 0.5 + GIB)
    low = _pool(model, flags, max(0, free - spread))
    return Budget(
        kv_bytes=kv, interval=(low, _pool(model, flags, free + spread)), terms=tuple(terms)
    )


def _pool(model: Model, flags: Flags, free: int) -> int:
    """Bytes of the pool that `free` bytes give: tokens cut, blocks rounded up."""
    cell, size = token_bytes(model, flags), flags.tokens_per_block
    limit = int(free * flags.fraction)
    if flags.get("max_gpu_total_bytes"):
        limit = min(limit, flags.get("max_gpu_total_bytes"))
    tokens = limit // cell if cell else 0
    if flags.get("max_tokens"):
        tokens = min(tokens, int(flags.get("max_tokens")))
    return -(-tokens // size) * size * cell


def cache(model: Model, request: CacheRequest, version: str | None = None) -> Cache:
    """Bytes of sequences on one GPU; whole blocks are allocated."""
    name = f"tensorrt_llm@{version}" if version else "tensorrt_llm"
    flags = read_flags(Deployment(name, kv_cache_dtype=request.dtype or "auto"))
    dtype, size = kv_type(model, flags), flags.tokens_per_block
    lengths = [length + request.decode_steps for length in request.lengths]
    rows = [slot_bytes(slot, flags, dtype) for slot in model.slots]
    fixed = [_state(model, slot, flags) for slot in model.slots]
    slots = tuple(sum(n * row + own for n in lengths) for row, own in zip(rows, fixed, strict=True))
    layers = [0] * model.layers
    for slot, value in zip(model.slots, slots, strict=True):
        layers[slot.layer] += value
    allocated = sum(-(-n // size) * size * sum(rows) + sum(fixed) for n in lengths)
    return Cache(bytes=sum(slots), allocated_bytes=allocated, slots=slots, layers=tuple(layers))


def _term(name: str, value: int, formula: str, unit: Any = "B") -> Term:
    return Term(name=name, value=value, unit=unit, formula=f"{formula} = {value:,}", source=_SOURCE)
