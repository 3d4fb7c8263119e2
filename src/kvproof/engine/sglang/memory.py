"""SGLang's memory: what mem_fraction_static leaves for the pools, term by term.

pool = free after loading - free before loading x (1 - mem_fraction_static)
(kv_cache_configurator.py, _profile_available_bytes; model_runner.py before 0.5.9). Activations
and graphs live in the part left out, so they do not shrink the pool. The default of
mem_fraction_static comes from the card's memory, the prefill chunk and the graph batch.
"""

from __future__ import annotations

import msgspec

from kvproof.engine.base import Budget, Deployment
from kvproof.engine.rank_weights import rank_weight_bytes
from kvproof.engine.sglang.flags import Flags, card_mib
from kvproof.engine.sglang.pools import Pools
from kvproof.errors import UsageError
from kvproof.kinds import LatentSlot
from kvproof.model.types import Model
from kvproof.terms import Term
from kvproof.units import GIB, MIB

_SOURCE = "SGLang 0.5.23, mem_cache/kv_cache_configurator.py"
# Context, communicators and kernels' own memory before weights are loaded, of one rank and of
# several: what start-up logs print as free, taken from the driver's total (H100, MI355X).
_CONTEXT = {False: (0.7, 1.6), True: (1.0, 4.2)}
_UNIFIED = 10.0
"""GiB that the system and its desktop hold of memory shared with the CPU (GB10: 111.7 of 121.7)."""
_CONTEXT_LOW, _CONTEXT_HIGH = 0.5, 2.5
# Workspaces that stay allocated with the weights (attention backend, quantized kernels).
_WEIGHT_SLACK = 0.015
_VIT_LAYERS, _VIT_WIDTH = 24, 1024


class Static(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of one GPU on the way to its pools."""

    total: int
    before: int
    weights: int
    fraction: float
    pools: int


def static_memory(model: Model, deployment: Deployment, flags: Flags) -> Static:
    """The pools' bytes from the GPU's memory, the weights and mem_fraction_static."""
    total = flags.get("gpu_memory") or (
        deployment.accelerator.memory_bytes if deployment.accelerator else None
    )
    if total is None:
        raise UsageError("no GPU is named", hint="give gpu=... or gpu_memory=...")
    before = total - context_bytes(deployment, flags) - flags.get("used", 0)
    weights = rank_weight_bytes(model, flags.tp, flags.pp)
    fraction = flags.mem_fraction_static or default_fraction(model, deployment, flags, total)
    pools = int(before - weights - before * (1 - fraction))
    return Static(total=total, before=before, weights=weights, fraction=fraction, pools=pools)


def context_bytes(deployment: Deployment, flags: Flags) -> int:
    """Memory that is gone before the weights are loaded."""
    gpu = deployment.accelerator
    if gpu is not None and gpu.unified_memory and not flags.get("used"):
        return int(_UNIFIED * GIB)
    amd = gpu is not None and gpu.vendor.lower().startswith("amd")
    return int(_CONTEXT[amd][flags.tp * flags.pp > 1] * GIB)


def default_fraction(model: Model, deployment: Deployment, flags: Flags, total: int) -> float:
    """mem_fraction_static where none is given."""
    memory = card_mib(deployment) or total // MIB
    if not flags.rules.heuristic:
        if memory > 81_920:
            return (memory - 13 * 1024) / memory
        steps = ((16, 0.79), (8, 0.81), (4, 0.85), (2, 0.87), (1, 0.88))
        return next(share for ranks, share in steps if flags.tp >= ranks)
    reserved = _reserved_mib(model, flags, memory)
    share = round((memory - reserved) / memory, 3)
    share *= _vision_factor(model)
    if str(flags.get("attention_backend")) == "aiter" and not flags.rules.state_padding:
        share *= 0.85 if (flags.context_length or model.context or 0) > 8192 else 1
    return share


def _reserved_mib(model: Model, flags: Flags, memory: int) -> float:
    chunk = flags.chunked_prefill_size
    if chunk <= 0:
        chunk = int(flags.get("max_prefill_tokens", 16384))
    reserved = 512 + max(chunk, 2048) * 1.5 + flags.graph_batch * 2 + flags.tp * flags.pp / 8 * 1024
    if flags.get("enable_dp_attention"):
        reserved += flags.graph_batch * flags.dp * (4.5 if flags.graph_batch > 300 else 3)
    if flags.rules.piecewise and not flags.get("disable_piecewise_cuda_graph"):
        latent = any(isinstance(slot, LatentSlot) for slot in model.slots)
        reserved += 1536 if latent else _prefill_graphs(chunk) * 8
    if memory > 60 * 1024:
        reserved = max(reserved, 10 * 1024)
    algorithm = str(flags.get("speculative_algorithm") or "NONE").upper()
    if algorithm == "STANDALONE" and flags.rules.draft_reserve_mib:
        reserved += 6 * 1024
    elif algorithm not in ("NONE", "NGRAM"):
        reserved += flags.rules.draft_reserve_mib
    return reserved


def _prefill_graphs(chunk: int) -> int:
    """How many prefill lengths are captured: steps that grow with the length."""
    steps = ((32, 4), (256, 16), (512, 32), (1024, 64), (4096, 256), (1 << 30, 512))
    count, low = 0, 0
    for high, step in steps:
        count += max(0, min(chunk, high) - low) // step
        low = min(chunk, high)
    return count


def _vision_factor(model: Model) -> float:
    """The cut for a vision encoder: 5 %, more or less by its size."""
    vision = model.config.get("vision_config")
    if not isinstance(vision, dict):
        return 1.0
    layers = vision.get("num_hidden_layers", _VIT_LAYERS)
    width = vision.get("hidden_size", _VIT_WIDTH)
    try:
        ratio = int(layers) * int(width) ** 2 / (_VIT_LAYERS * _VIT_WIDTH**2)
    except (TypeError, ValueError):
        return 0.95
    return 0.95 * max(0.8, min(1.05, 1 - 0.1 * (ratio - 1)))


def make_budget(model: Model, deployment: Deployment, flags: Flags, pools: Pools) -> Budget:
    """The GPU's memory down to the attention pool; states are a term of their own."""
    static = static_memory(model, deployment, flags)
    slots, state = state_slots(static.pools, flags, pools)
    kv = max(0, static.pools - state)
    kv = capped(kv, flags, pools)
    context, used = context_bytes(deployment, flags), flags.get("used", 0)
    left = int(static.before * (1 - static.fraction))
    unused = static.total - (static.total - static.before) - static.weights - state - kv - left
    terms = [
        _term("context and other processes" if not used else "context", context,
              "CUDA context, communicators and what else is resident",
              low=context * _CONTEXT_LOW, high=context * _CONTEXT_HIGH),
        *([_term("other processes", used, "in use before the start, less to share out")]
          if used else []),
        _term("weights", static.weights, f"tensor shapes over {flags.tp} ranks",
              low=static.weights, high=static.weights * (1 + 2 * _WEIGHT_SLACK)),
        _term("kept free for activations and graphs", left,
              f"{static.before:,} B x (1 - {static.fraction:.4f})"),
    ]  # fmt: skip
    if pools.state:
        terms.append(_term("state pool", state, f"{slots:,} slots x {pools.state:,} B"))
    if unused > 0:
        terms.append(_term("not used", unused, "capped by max_total_tokens or page size"))
    terms.append(_term("KV cache", kv, "what is left"))
    missing = static.total - sum(int(term.value) for term in terms)
    if missing:
        terms.append(_term("missing", missing, "the weights do not fit in the static share"))
    more = context * (_CONTEXT_HIGH - 1) * static.fraction
    spread = int(more + 2 * _WEIGHT_SLACK * static.weights)
    gain = int(context * (1 - _CONTEXT_LOW) * static.fraction)
    share = kv / static.pools if static.pools > 0 else 0
    interval = (max(0, kv - int(spread * share)), kv + int(gain * share))
    if flags.get("max_total_tokens") and kv == _bytes_of(flags.get("max_total_tokens"), pools):
        interval = (interval[0], kv)
    return Budget(kv_bytes=kv, interval=interval, terms=tuple(terms))


def capped(kv: int, flags: Flags, pools: Pools) -> int:
    """`kv` under max_total_tokens and max_total_kv_bytes."""
    if flags.get("max_total_kv_bytes"):
        kv = min(kv, flags.get("max_total_kv_bytes"))
    if flags.get("max_total_tokens"):
        kv = min(kv, _bytes_of(flags.get("max_total_tokens"), pools))
    return kv


def _bytes_of(tokens: int, pools: Pools) -> int:
    return round((tokens + pools.page) * pools.cell)


def state_slots(available: int, flags: Flags, pools: Pools) -> tuple[int, int]:
    """Slots of the state pool and its bytes when `available` bytes are left for both pools.

    Given outright, one a running request without prefix caching, or solved so that states and
    cache stand in mamba_full_memory_ratio (0.9).
    """
    if not pools.state:
        return 0, 0
    pad = int(flags.rules.state_padding)
    fixed = flags.get("max_mamba_cache_size")
    if fixed is None and flags.get("disable_radix_cache"):
        fixed = flags.get("max_running_requests")
    if fixed is not None:
        slots = max(1, int(fixed) // (flags.dp if flags.get("enable_dp_attention") else 1))
    else:
        ratio = float(flags.get("mamba_full_memory_ratio", 0.9))
        slots = int(max(0, available) * ratio / (1 + ratio)) // pools.state - pad
    slots = max(0, slots)
    return slots, (slots + pad) * pools.state


def _term(
    name: str, value: float, formula: str, *, low: float | None = None, high: float | None = None
) -> Term:
    return Term(
        name=name,
        value=int(value),
        unit="B",
        formula=f"{formula} = {int(value):,} B",
        source=_SOURCE,
        low=None if low is None else int(low),
        high=None if high is None else int(high),
    )
