"""SGLang's memory: what mem_fraction_static leaves for the pools, term by term.

pool = free after loading - free before loading x (1 - mem_fraction_static)
(kv_cache_configurator.py, `_profile_available_bytes`; `profile_max_num_token` before 0.5.11).
Activations and graphs live in the part left out, so they do not shrink the pool. What is free
before loading is the card less the context and, with several ranks, the communicators; a log
prints it as "Load weight begin. avail mem" (`free_memory=`).
"""

from __future__ import annotations

import msgspec

from kvproof.engine.base import Budget, Deployment
from kvproof.engine.rank_weights import rank_weight_bytes
from kvproof.engine.sglang.drafts import draft_weight_bytes
from kvproof.engine.sglang.flags import Flags
from kvproof.engine.sglang.order_tables import order_tables
from kvproof.engine.sglang.pools import Pools
from kvproof.engine.sglang.share import static_share
from kvproof.engine.sglang.states import States, state_pool
from kvproof.errors import UsageError
from kvproof.model.types import Model
from kvproof.terms import Term
from kvproof.units import GIB, MIB

_SOURCE = "SGLang 0.5.23, mem_cache/kv_cache_configurator.py"
_CONTEXT_SOURCE = (
    'start-up logs: the driver\'s total less what "Load weight begin" prints as free (H100, MI355X)'
)
_GIVEN_SOURCE = "the free memory given: what a log prints before it loads weights"
_UNIFIED_SOURCE = "start-up logs of GB10: 111.7 of 121.7 GiB are free in one, less in another"
_WEIGHTS_SOURCE = (
    "tensor shapes of the architecture; bounds by what start-up logs print for loading"
)
# Context, communicators and kernels' own memory before weights are loaded, of one rank and of
# several: what start-up logs print as free, taken from the driver's total (H100, MI355X).
_CONTEXT = {False: (0.7, 1.6), True: (1.0, 4.2)}
_UNIFIED = 10.0
"""GiB that the system and its desktop hold of memory shared with the CPU (GB10: 111.7 of 121.7 are
free in one log, log137; another must have held more, log326)."""
_UNIFIED_HIGH = 3.0
_CONTEXT_LOW, _CONTEXT_HIGH = 0.5, 2.5
# Workspaces that stay allocated with the weights (attention backend, quantized kernels), and what
# tensors that a class leaves out take off (Qwen3.5-4B: 0.7 %).
_WEIGHT_SLACK = 0.015
_LIBRARIES = int(0.15 * GIB)
"""What loading makes beside the weights of any model (LFM2-700M: 1.52 GiB printed for 1.38)."""
_WEIGHT_LESS = 0.01
_HOST_GROWS = (-0.5, 0.4, 1.2)
"""GiB that the process itself grows by while it loads: where the GPU shares the CPU's memory, what
is free is what the system has left (`get_available_gpu_memory`). Twelve starts on GB10: 0.13 to 0.9
beyond the tensors, one 0.36 below them."""


class Static(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of one GPU on the way to its pools."""

    total: int
    before: int
    weights: int
    grown: int
    """Of the weights, what the process grows by on memory shared with the CPU."""
    draft_weights: int
    images: int
    fraction: float

    @property
    def kept(self) -> int:
        """Bytes left out of the pools for activations and graphs."""
        return int(self.before * (1 - self.fraction))

    @property
    def pools(self) -> int:
        """Bytes for attention and state pools; below zero where the weights do not fit."""
        return self.before - self.weights - self.draft_weights - self.images - self.kept


def static_memory(model: Model, deployment: Deployment, flags: Flags) -> Static:
    """The pools' bytes from the GPU's memory, the weights and mem_fraction_static."""
    total = flags.get("gpu_memory") or (
        deployment.accelerator.memory_bytes if deployment.accelerator else None
    )
    if total is None:
        raise UsageError("no GPU is named", hint="give gpu=... or gpu_memory=...")
    before = total - context_bytes(deployment, flags) - flags.get("used", 0)
    if flags.get("free_memory") is not None:
        before = min(total, flags.get("free_memory"))
    images = isinstance(model.config.get("vision_config"), dict)
    grown = int(_HOST_GROWS[1] * GIB) if _shares_memory(deployment) else 0
    tensors = rank_weight_bytes(
        model, flags.tp, flags.layers, flags.attention_tp, flags.get("quantization"), flags.hosted
    ) + order_tables(model, deployment, flags)
    return Static(
        total=total,
        before=before,
        weights=tensors + grown,
        grown=grown,
        draft_weights=draft_weight_bytes(model, flags),
        images=flags.rules.image_cache_mib * MIB if images else 0,
        fraction=static_share(model, deployment, flags, total),
    )


def _shares_memory(deployment: Deployment) -> bool:
    gpu = deployment.accelerator
    return gpu is not None and gpu.unified_memory


def context_bytes(deployment: Deployment, flags: Flags) -> int:
    """Memory that is gone before the weights are loaded."""
    gpu = deployment.accelerator
    if _shares_memory(deployment) and not flags.get("used"):
        return int(_UNIFIED * GIB)
    amd = gpu is not None and gpu.vendor.lower().startswith("amd")
    return int(_CONTEXT[amd][flags.tp * flags.pp > 1] * GIB)


def make_budget(model: Model, deployment: Deployment, flags: Flags, pools: Pools) -> Budget:
    """The GPU's memory down to the attention pool; states and drafts are terms of their own."""
    static = static_memory(model, deployment, flags)
    states = state_pool(model, static.pools, flags, pools)
    kv, draft = _attention(static, states, flags, pools)
    terms = _terms(static, states, pools, flags, kv, draft)
    missing = static.total - sum(int(term.value) for term in terms)
    if missing:
        terms.insert(-1, _term(*_rest(missing, kv)))
    return Budget(kv_bytes=kv, interval=_interval(static, flags, pools, kv), terms=tuple(terms))


def _rest(missing: int, kv: int) -> tuple[str, int, str]:
    if missing > 0:
        return "not used", missing, "capped by max_total_tokens, or less than a page"
    if kv > 0:
        return "taken from what is kept free", missing, "pools beyond what sizing counts"
    return "missing", missing, "the weights do not fit, or pools beyond what sizing counts"


def _attention(static: Static, states: States, flags: Flags, pools: Pools) -> tuple[int, int]:
    """Bytes of the attention pools as allocated, and of the draft's own pool."""
    tokens = pools.sized(max(0, static.pools - states.counted))
    asked = flags.get("max_total_tokens")
    if asked:
        tokens = min(tokens, int(asked) // pools.page * pools.page)
    if tokens <= 0:
        return 0, 0
    kv = pools.bytes(tokens)
    if flags.get("max_total_kv_bytes"):
        kv = min(kv, flags.get("max_total_kv_bytes"))
    return kv, tokens * pools.draft


def _terms(
    static: Static, states: States, pools: Pools, flags: Flags, kv: int, draft: int
) -> list[Term]:
    used = flags.get("used", 0)
    context = static.total - static.before - used
    given = flags.get("free_memory") is not None
    terms = [
        _context_term(context, static, used=bool(used), given=given),
        *([_term("other processes", used, "in use before the start, less to share out")]
          if used else []),
        _term("weights", static.weights, f"tensor shapes over {flags.tp} ranks{_which(flags)}"
              + (f", and {static.grown:,} B that loading leaves in shared memory"
                 if static.grown else ""), low=_weights(static)[0], high=_weights(static)[1],
              source=_WEIGHTS_SOURCE),
        _term("kept free for activations and graphs", static.kept,
              f"{static.before:,} B free before loading x (1 - {static.fraction:.4f})"),
    ]  # fmt: skip
    if static.draft_weights:
        terms.append(_term("draft weights", static.draft_weights, "its layers"))
    if static.images:
        terms.append(_term("image features", static.images, "cache of the encoder's output"))
    if pools.state:
        text = f"{states.slots:,} slots x {pools.state:,} B and one for padding"
        text += f", {states.drafted:,} B for draft tokens" if states.drafted else ""
        terms.append(_term("state pool", states.allocated, text))
    if pools.unprinted and kv:
        scales = (pools.tokens(kv) + pools.page) * pools.unprinted
        terms.append(_term("scales", scales, f"{pools.unprinted:,} B a token that no line counts"))
    if draft:
        terms.append(_term("draft cache", draft, f"{pools.draft:,} B a token"))
    left = f"{static.pools - states.counted:,} B to share out, in pages of {pools.page} and padding"
    terms.append(_term("KV cache", kv, left))
    return terms


def _context_term(context: int, static: Static, *, used: bool, given: bool) -> Term:
    """What is gone before the weights are loaded: printed, or as start-up logs show it."""
    name = "context" if used else "context and other processes"
    if given:
        how = f"{static.total:,} B of the card less {static.before:,} B free"
        return _term(name, context, how, source=_GIVEN_SOURCE)
    shared = context == int(_UNIFIED * GIB)
    held = "CUDA context, communicators and what else is resident"
    if shared:
        held = "system and desktop on memory shared with the CPU, by one start (Qwen3.8-27B, GB10)"
    return _term(
        name,
        context,
        f"{held}: {context / GIB:g} GiB",
        low=context * _CONTEXT_LOW,
        high=context * _most(context),
        source=_UNIFIED_SOURCE if shared else _CONTEXT_SOURCE,
    )


def _weights(static: Static) -> tuple[float, float]:
    """Least and most bytes that loading takes."""
    tensors = static.weights - static.grown
    least, _, most = _HOST_GROWS if static.grown else (0, 0, 0)
    low, high = tensors * (1 - _WEIGHT_LESS), tensors * (1 + 2 * _WEIGHT_SLACK) + _LIBRARIES
    return low + least * GIB, high + most * GIB


def _most(context: int) -> float:
    """By how much the context may be larger than estimated, as a factor."""
    return _UNIFIED_HIGH if context == int(_UNIFIED * GIB) else _CONTEXT_HIGH


def _which(flags: Flags) -> str:
    """Which part of the weights lies on the GPU, in words."""
    part = flags.layers
    stage = "" if part is None else f", layers {part.start} to {part.stop - 1}"
    return stage + (
        f" less {flags.hosted:,} B of its layers in host memory" if flags.hosted else ""
    )


def _interval(static: Static, flags: Flags, pools: Pools, kv: int) -> tuple[int, int]:
    """How far the context and what stays with the weights may move the pools."""
    context = 0 if flags.get("free_memory") is not None else static.total - static.before
    more = int(context * (_most(context) - 1) * static.fraction)
    least, most = _weights(static)
    spread = more + int(most - static.weights)
    gain = int(context * (1 - _CONTEXT_LOW) * static.fraction + static.weights - least)
    share = kv / static.pools if static.pools > 0 else 0
    interval = (max(0, kv - int(spread * share)), kv + int(gain * share))
    asked = flags.get("max_total_tokens")
    if asked and kv == pools.bytes(int(asked) // pools.page * pools.page):
        return interval[0], kv
    return interval


def _term(
    name: str,
    value: float,
    formula: str,
    *,
    low: float | None = None,
    high: float | None = None,
    source: str = _SOURCE,
) -> Term:
    return Term(
        name=name,
        value=int(value),
        unit="B",
        formula=f"{formula} = {int(value):,} B",
        source=source,
        low=None if low is None else int(low),
        high=None if high is None else int(high),
    )
