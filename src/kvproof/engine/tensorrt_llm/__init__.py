"""TensorRT-LLM: a paged pool that takes a share of what is free once everything else is there.

tokens = floor(share x free / bytes a token); blocks = tokens over tokens_per_block, rounded up to
release 1.2 and down since (kvCacheManager.cpp, calculateMaxNumBlocks). The share is
free_gpu_memory_fraction, 0.9 by default; max_tokens and max_gpu_total_bytes only lower it
(llmapi/llm_args.py, KvCacheConfig). All layers keep all positions unless max_attention_window says
otherwise. Free memory depends on buffers that grow with max_batch_size and the vocabulary, so
budgets are estimates; a log that prints `available` makes them exact (free_memory=).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from kvproof.engine import formula
from kvproof.engine.base import Budget, Cache, CacheRequest, Capacity, Deployment, Group
from kvproof.engine.convolutions import before_current, keeping
from kvproof.engine.heads import check_heads
from kvproof.engine.hooks import Copies, Traits
from kvproof.engine.indexers import with_scaled_keys
from kvproof.engine.stages import own_stages, scarcest, stage_layers
from kvproof.engine.tensorrt_llm.flags import (
    Flags,
    canonical_flag,
    flag_names,
    is_read,
    read_flags,
    releases,
)
from kvproof.engine.tensorrt_llm.pools import (
    Pool,
    kv_type,
    pools,
    slot_bytes,
    state_bytes,
    typed_states,
    windowed,
)
from kvproof.engine.tensorrt_llm.states import state_capacity
from kvproof.engine.tensorrt_llm.weights import weight_bytes
from kvproof.errors import KvproofError, UsageError
from kvproof.kinds import CrossSlot, LatentSlot, Types
from kvproof.model.types import Model
from kvproof.terms import Term, Unit
from kvproof.units import GIB

__all__ = (
    "budget", "cache", "canonical_flag", "capacity", "check_flags", "flag_names", "is_read",
    "served_model", "types_for",
)  # fmt: skip

_SOURCE = "TensorRT-LLM, cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp"
_STATES_SOURCE = "TensorRT-LLM 1.x, tensorrt_llm/_torch/pyexecutor/mamba_cache_manager.py"
_WEIGHTS_SOURCE = "tensor shapes of the architecture; 1 % in doubt"
_AGREED = "budgets of the four public starts whose model and card are known lie within 4.3 %"
_CONTEXT_SOURCE = f"estimate, 1 GiB in doubt with all that no other term names; {_AGREED}"
_ACTIVATIONS_SOURCE = f"estimate, half of it in doubt; {_AGREED}"
TRAITS = Traits(
    unlike_ranks="tokens",
    newest=releases()[-1],
    reliefs=(
        ("buffers of the batch", "a smaller --max_batch_size (of {})"),
        ("activations", "a smaller --max_num_tokens (of {})"),
        ("states", "a smaller --max_batch_size (states of {})"),
    ),
)
_CONTEXT = 0.6 * GIB
_ROWS = 8
"""Rows as wide as the hidden state, in 16 bits, that a token has at once while a batch runs."""
_ONE_LOG = "rests on one start (0.19.0, Llama 3.1 8B in FP8 on an RTX 5090)"


def check_flags(deployment: Deployment) -> None:
    """Raise UsageError for an unknown flag or a value out of range."""
    read_flags(deployment)


def copies_for(deployment: Deployment) -> Copies:
    """Ranks of one tensor-parallel group that each keep requests of their own (attention_dp).

    Source: TensorRT-LLM 1.x, _torch/pyexecutor/resource_manager.py: without tensor parallelism
    every rank's pool holds all KV heads.
    """
    flags = read_flags(deployment)
    return Copies(attention=flags.tp // flags.attention_tp)


def types_for(model: Model, deployment: Deployment) -> Types:
    """Element types of the deployment's cache, wherever its type is named."""
    return formula.types_of(model, kv_type(model, read_flags(deployment)).name)


def served_model(model: Model, deployment: Deployment) -> Model:
    """The model with what its convolutions keep, its states' types and its layers' windows.

    Source: TensorRT-LLM 1.x, _torch/pyexecutor/mamba_cache_manager.py (d_conv - 1), config_utils.py
    (resolve_ssm_cache_dtype: the checkpoint's mamba_ssm_dtype is of no account).
    """
    flags = read_flags(deployment)
    typed = typed_states(keeping(model, before_current), flags)
    return with_scaled_keys(windowed(typed, flags, _length(model, flags)))


def _length(model: Model, flags: Flags) -> int:
    return int(flags.get("max_seq_len") or model.context or 2048)


def capacity(model: Model, deployment: Deployment, kv_bytes: int) -> Capacity:
    """Blocks and tokens of pools of `kv_bytes` on one GPU, as the log prints them.

    With several windows, the figures are those of the widest window's pool; `blocks_held` counts
    in its blocks what the scarcest pool gives up.
    """
    flags = read_flags(deployment)
    check_heads(model, flags.attention_tp, "TensorRT-LLM")
    flags = _deciding(model, deployment, flags)
    size, length = flags.tokens_per_block, _length(model, flags)
    windows = pools(model, flags, length)
    if not windows:
        one = _states(model, flags) // flags.max_batch_size
        return state_capacity(model, flags, one, kv_bytes, length)
    counts = _blocks(flags, windows, kv_bytes)
    blocks = counts[0]
    held = _holder(windows, counts, size, length)
    whole = held(length)
    fits = 0 < whole <= blocks
    misfit = f"max_seq_len {length:,} needs {whole:,} blocks of {size} tokens of {blocks:,}"
    cell = windows[0].cell
    return Capacity(
        num_blocks=blocks,
        block_size=size,
        bytes_per_block=cell * size,
        groups=_groups(model, windows, size, length),
        blocks_per_sequence=whole,
        tokens=blocks * size,
        max_concurrency=blocks / whole if whole else 0.0,
        max_model_len=length,
        fits=fits,
        error=None if fits else misfit,
        terms=(
            _term("bytes per token", cell, _cell_words(model, flags, windows[0]), "B/token"),
            *_counted(windows, counts, kv_bytes, size),
            _term("tokens", blocks * size, f"{blocks:,} x {size}", "token"),
            *_hosted(flags, windows, size),
        ),
        usable_blocks=blocks,
        max_num_seqs=flags.max_batch_size,
        blocks_held=held,
    )


def _cell_words(model: Model, flags: Flags, pool: Pool) -> str:
    """A token's bytes, layer by layer where all keep alike."""
    name, each = kv_type(model, flags).name, pool.cell // max(1, pool.layers)
    if each * pool.layers != pool.cell:
        return f"{pool.layers} unlike layers, {name}, one GPU"
    return f"{pool.layers} layers x {each:,} B, {name}, one GPU"


def _blocks(flags: Flags, windows: tuple[Pool, ...], kv_bytes: int) -> list[int]:
    whole = sum(pool.weight for pool in windows)
    counts = [
        kv_bytes * pool.weight // whole // (pool.cell * flags.tokens_per_block) for pool in windows
    ]
    if flags.most_tokens:
        most = -(-flags.most_tokens // flags.tokens_per_block)
        counts = [min(count, most) for count in counts]
    return counts


def _hosted(flags: Flags, windows: tuple[Pool, ...], size: int) -> tuple[Term, ...]:
    """Blocks of the secondary pools in the host's memory, which keep what is evicted.

    Source: kvCacheManager.cpp, calculateMaxNumBlocks: host_cache_size is divided as the GPU's.
    """
    host = int(flags.get("host_cache_size") or 0)
    whole = sum(pool.weight for pool in windows)
    if not host or not whole:
        return ()
    count = host * windows[0].weight // whole // (windows[0].cell * size)
    formula = f"{host:,} B of host_cache_size // ({windows[0].cell:,} B x {size})"
    return (_term("host blocks", count, formula, "1"),)


def _counted(
    windows: tuple[Pool, ...], counts: list[int], kv_bytes: int, size: int
) -> tuple[Term, ...]:
    if len(windows) == 1:
        formula = f"{kv_bytes:,} B // ({windows[0].cell:,} B x {size})"
        return (_term("blocks", counts[0], formula, "1"),)
    whole = sum(pool.weight for pool in windows)
    return tuple(
        _term(
            f"blocks, window {pool.window:,}", count,
            f"{kv_bytes * pool.weight // whole:,} B // ({pool.cell:,} B x {size})", "1",
        )
        for pool, count in zip(windows, counts, strict=True)
    )  # fmt: skip


def _holder(
    windows: tuple[Pool, ...], counts: list[int], size: int, length: int
) -> Callable[[int], int]:
    """Blocks of a sequence; a pool without a window of its own keeps every token, however many."""

    def held(context: int) -> int:
        most = 0
        for pool, count in zip(windows, counts, strict=True):
            whole = pool.fixed is None and pool.window >= length
            own = -(-(context if whole else pool.held(context)) // size)
            most = max(most, -(-own * counts[0] // count) if count else own)
        return most

    return held


def _groups(model: Model, windows: tuple[Pool, ...], size: int, length: int) -> tuple[Group, ...]:
    latent = any(isinstance(slot, LatentSlot) for slot in model.slots)
    return tuple(
        Group(
            kind=_kind(pool, latent, length),
            layers=pool.layers,
            block_size=size,
            page_bytes=pool.cell * size // pool.layers,
            blocks_per_sequence=-(-pool.held(length) // size),
        )
        for pool in windows
    )


def _kind(pool: Pool, latent: bool, length: int) -> str:
    if pool.fixed is not None:
        return "cross"
    return "latent" if latent else "full" if pool.window >= length else "sliding"


def _buffers(model: Model, flags: Flags) -> tuple[int, int]:
    """Activations of a full batch of tokens, and what sampling keeps for a full batch.

    The C++ engine kept 5 to 5.7 copies of the logits of max_batch_size sequences for its decoder,
    1.5 to 2.3 more at run time and one in half precision (logs of 0.12 and 0.14: 7.7 in all), later
    less (4.5 in all by a log of 0.19); the PyTorch one keeps one.
    """
    logits = flags.max_batch_size * model.vocab_size * 4
    activation = flags.max_num_tokens * model.hidden_size * 2 * _ROWS // flags.tp
    return activation, int(logits * flags.logit_copies)


def _one_log(flags: Flags) -> bool:
    """Whether the copies of the logits rest on the one log of 0.19."""
    return flags.compiled and not flags.before(0, 17)


def _estimates(
    model: Model, flags: Flags, weights: int, *, known: bool
) -> tuple[list[Term], float]:
    """Terms that are estimates, and how far they may be off together.

    `known`: what is free was given, so that nothing of the pool rests on them.
    """
    activation, sampling = _buffers(model, flags)
    batch = f"{flags.max_num_tokens:,} tokens x {model.hidden_size:,} x 2 B x {_ROWS} rows"
    logits = f"{flags.max_batch_size:,} sequences x {model.vocab_size:,} logits x 4 B"
    each = "copy" if flags.logit_copies == 1 else "copies"
    rows = (
        ("context", int(_CONTEXT), GIB, "CUDA context and what else is resident: "
         f"{_CONTEXT / GIB:g} GiB", _CONTEXT_SOURCE),
        ("weights", weights, 0.01 * weights, f"tensor shapes over {flags.tp} ranks",
         _WEIGHTS_SOURCE),
        ("activations", activation, 0.5 * activation, f"{batch} / {flags.tp} ranks",
         _ACTIVATIONS_SOURCE),
        ("buffers of the batch", sampling, (1.0 if _one_log(flags) else 0.5) * sampling,
         f"{logits} x {flags.logit_copies:g} {each}", _copies_source(flags)),
    )  # fmt: skip
    terms = [
        _term(name, value, formula, source=source, doubt=0.0 if known else doubt)
        for name, value, doubt, formula, source in rows
    ]
    return terms, 0.0 if known else sum(doubt for _, _, doubt, _, _ in rows)


def _copies_source(flags: Flags) -> str:
    """What says how many copies of the logits a start keeps."""
    if not flags.compiled:
        return "estimate: one copy for the sampler of the PyTorch backend, half of it in doubt"
    if _one_log(flags):
        return f"{_ONE_LOG}: all of it in doubt"
    return "start-up logs of 0.12 and 0.14, half of it in doubt"


def _states(model: Model, flags: Flags) -> int:
    """States of a full batch in the stage's layers."""
    held = [s for s in model.slots if flags.layers is None or s.layer in flags.layers]
    return flags.max_batch_size * sum(state_bytes(model, slot, flags) for slot in held)


def _states_alone(model: Model, flags: Flags) -> bool:
    """Whether there is no pool: the states of a full batch are the cache."""
    return not pools(model, flags, _length(model, flags))


def _free(model: Model, flags: Flags, total: int) -> int:
    """What is free before the pools take their share: as given, else what the terms leave."""
    known = flags.get("free_memory")
    if known is not None:
        return int(known)
    beside = 0 if _states_alone(model, flags) else _states(model, flags)
    taken = weight_bytes(model, flags) + sum(_buffers(model, flags)) + beside
    return max(0, total - taken - int(_CONTEXT) - int(flags.get("used", 0)))


def _deciding(model: Model, deployment: Deployment, flags: Flags) -> Flags:
    """`flags` for the stage, of those on the GPU answered for, that holds the fewest tokens.

    The first stages hold the layers that are left over (mapping.py, pp_layers).
    """
    if flags.pp == 1:
        return flags
    gpu = deployment.accelerator
    total = int(flags.get("gpu_memory") or (gpu.memory_bytes if gpu is not None else 0))

    def tokens(part: range) -> float:
        own = msgspec.structs.replace(flags, layers=part)
        cell = sum(pool.cell for pool in pools(model, own, _length(model, own)))
        if not cell:
            return float("inf")
        try:
            return _pool(model, own, _free(model, own, total)) / cell if total else -cell
        except KvproofError:
            return -cell

    parts = stage_layers(model.layers, flags.pp, "first")
    own = own_stages(deployment, flags.tp, flags.pp)
    return msgspec.structs.replace(flags, layers=scarcest(parts, own, tokens))


def budget(model: Model, deployment: Deployment) -> Budget:
    """Memory of one GPU; exact from `free_memory` (the log's `available`), else estimated."""
    flags = read_flags(deployment)
    check_heads(model, flags.attention_tp, "TensorRT-LLM")
    gpu = deployment.accelerator
    total = flags.get("gpu_memory") or (gpu.memory_bytes if gpu is not None else None)
    if total is None:
        raise UsageError("no GPU is named", hint="give gpu=... or gpu_memory=...")
    flags = _deciding(model, deployment, flags)
    weights, states = weight_bytes(model, flags), _states(model, flags)
    used, known = flags.get("used", 0), flags.get("free_memory")
    free = _free(model, flags, total)
    kv = _pool(model, flags, free)
    estimates, spread = _estimates(model, flags, weights, known=known is not None)
    low = _pool(model, flags, max(0, free - int(spread)))
    interval = (low, _pool(model, flags, free + int(spread)))
    terms = [
        estimates[0],
        *([_term("other processes", used, "in use before the start")] if used else []),
        *estimates[1:],
    ]
    if _states_alone(model, flags):
        terms += _state_terms(flags, states, kv, free)
    else:
        if states:
            terms.append(_states_term(flags, states))
        terms += [
            _term("left free", free - kv, f"{free:,} B x (1 - {flags.fraction:g}) and rounding"),
            _term("KV cache", kv, f"{free:,} B x {flags.fraction:g} in blocks"),
        ]
    terms[-1] = _bounded(terms[-1], interval)
    rest = total - sum(int(term.value) for term in terms)
    if rest and known is not None:
        terms.append(_term("not accounted for", rest, "the free memory given, or a missing part"))
    elif rest:
        terms.append(_term("missing", rest, f"{total:,} B less all terms"))
    return Budget(kv_bytes=kv, interval=interval, terms=tuple(terms))


def _bounded(term: Term, interval: tuple[int, int]) -> Term:
    """The cache's term with its bounds, where it rests on estimates."""
    low, high = interval
    return term if low == high else msgspec.structs.replace(term, low=low, high=high)


def _states_term(flags: Flags, states: int) -> Term:
    each = states // flags.max_batch_size
    formula = f"{flags.max_batch_size:,} sequences x {each:,} B"
    return _term("states", states, formula, source=_STATES_SOURCE)


def _state_terms(flags: Flags, states: int, kv: int, free: int) -> list[Term]:
    """The states of a full batch as the cache, or what they lack."""
    formula = f"{flags.max_batch_size:,} sequences"
    lacking = [] if kv else [_states_term(flags, states)]
    left = _term("left free", max(0, free - states), f"{free:,} B - {states:,} B of states")
    return [*lacking, left, _term("KV cache", kv, f"states of {formula}, none without all")]


def _pool(model: Model, flags: Flags, free: int) -> int:
    """Bytes of the pools that `free` bytes give, in whole blocks; all states where they are alone,
    or none."""
    if _states_alone(model, flags):
        states = _states(model, flags)
        return states if states <= free else 0
    limit = int(free * flags.fraction)
    if flags.get("max_gpu_total_bytes"):
        limit = min(limit, flags.get("max_gpu_total_bytes"))
    windows = pools(model, flags, _length(model, flags))
    whole = sum(pool.weight for pool in windows)
    return sum(_whole_blocks(flags, pool.cell, limit * pool.weight // whole) for pool in windows)


def _whole_blocks(flags: Flags, cell: int, limit: int) -> int:
    size, tokens = flags.tokens_per_block, limit // cell
    asked = flags.most_tokens
    if asked is not None and asked <= tokens:
        return -(-asked // size) * size * cell
    blocks = -(-tokens // size) if flags.before(1, 3) else tokens // size
    return blocks * size * cell


def cache(model: Model, request: CacheRequest, version: str | None = None) -> Cache:
    """Bytes of sequences on one GPU; whole blocks are allocated."""
    name = f"tensorrt_llm@{version}" if version else "tensorrt_llm"
    flags = read_flags(Deployment(name, kv_cache_dtype=request.dtype or "auto"))
    dtype, size = kv_type(model, flags), flags.tokens_per_block
    lengths = [length + request.decode_steps for length in request.lengths]
    rows = [slot_bytes(slot, flags, dtype) for slot in model.slots]
    fixed = [state_bytes(model, slot, flags) for slot in model.slots]
    for i, slot in enumerate(model.slots):
        if isinstance(slot, CrossSlot):  # what the encoder left, whatever the length
            held = request.encoder_tokens if request.encoder_tokens is not None else 0
            fixed[i], rows[i] = (held or slot.default_tokens or 0) * rows[i], 0
    slots = tuple(sum(n * row + own for n in lengths) for row, own in zip(rows, fixed, strict=True))
    layers = [0] * model.layers
    for slot, value in zip(model.slots, slots, strict=True):
        layers[slot.layer] += value
    allocated = sum(-(-n // size) * size * sum(rows) + sum(fixed) for n in lengths)
    return Cache(bytes=sum(slots), allocated_bytes=allocated, slots=slots, layers=tuple(layers))


def _term(
    name: str,
    value: int,
    formula: str,
    unit: Unit = "B",
    *,
    source: str = _SOURCE,
    doubt: float = 0.0,
) -> Term:
    """A term; `doubt` bounds an estimate, by as many of its units to either side."""
    return Term(
        name=name,
        value=value,
        unit=unit,
        formula=f"{formula} = {value:,}{' B' if unit == 'B' else ''}",
        source=source,
        low=max(0, int(value - doubt)) if doubt else None,
        high=int(value + doubt) if doubt else None,
    )
