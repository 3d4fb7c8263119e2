"""SGLang: token pools of fixed pages, sized from a static share of the GPU's memory.

Rules of 0.3.6 to 0.5.23 (`versions`). `kv_bytes` are the bytes of the attention pools, K and V
buffers of all layers on one GPU as the log prints them (DeepSeek-V4: what its line calls
available_bytes); the state pool of hybrid models and a draft's own pool stand beside them. HiSparse
and unified memory pools are refused; KV sharding is not modelled.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from kvproof.engine.base import Budget, Cache, CacheRequest, Capacity, Deployment, Group
from kvproof.engine.convolutions import before_current, keeping
from kvproof.engine.heads import check_heads
from kvproof.engine.hooks import Copies, Traits
from kvproof.engine.indexers import with_scaled_keys
from kvproof.engine.sglang.cache_elements import types_for
from kvproof.engine.sglang.capabilities import refused_capability
from kvproof.engine.sglang.drafts import draft_for, draft_notes
from kvproof.engine.sglang.dtypes import run_in
from kvproof.engine.sglang.flags import Flags, read_flags
from kvproof.engine.sglang.memory import make_budget
from kvproof.engine.sglang.pools import Pools, make_pools, typed_states
from kvproof.engine.sglang.share import static_share
from kvproof.engine.sglang.stage import deciding
from kvproof.engine.sglang.states import slots_a_request, state_pool
from kvproof.engine.sglang.versions import releases
from kvproof.errors import UsageError
from kvproof.model.overrides import overridden
from kvproof.model.types import Model
from kvproof.terms import Term
from kvproof.units import GB

__all__ = [
    "budget",
    "cache",
    "capacity",
    "check_flags",
    "copies_for",
    "draft_for",
    "refusals_for",
    "served_model",
    "share",
    "types_for",
    "warnings_for",
]
_SOURCE = "SGLang 0.5.23, model_executor/pool_configurator.py"
_COMPRESSED_RUNNING = 256
TRAITS = Traits(
    unlike_ranks="tokens",
    newest=releases()[-1],
    reliefs=(("kept free for activations and graphs", "a higher --mem-fraction-static (of {})"),),
)


def check_flags(deployment: Deployment) -> None:
    """Raise UsageError for a flag that SGLang does not have or a value it can't take."""
    read_flags(deployment)


def warnings_for(model: Model, deployment: Deployment) -> tuple[str, ...]:
    """A draft that isn't known."""
    return draft_notes(model, read_flags(deployment))


def refusals_for(model: Model, deployment: Deployment) -> tuple[str, ...]:
    """Why SGLang does not start: the GPU is older than what it, or a quantization, needs."""
    said = refused_capability(model, deployment, read_flags(deployment).get("quantization"))
    return () if said is None else (said,)


def copies_for(deployment: Deployment) -> Copies:
    """Attention data-parallel copies in one tensor-parallel group, each with its own pool.

    Context ranks share a prefill alone and run every sequence of a decode step. Without
    dp-attention, dp_size servers are started.

    Source: SGLang 0.5.23, layers/dp_attention.py, layers/cp, managers/data_parallel_controller.py.
    """
    flags = read_flags(deployment)
    return Copies(
        attention=flags.replicas,
        repeating=flags.tp // flags.replicas // flags.attention_tp,
        started=flags.dp // flags.replicas,
    )


def served_model(model: Model, deployment: Deployment) -> Model:
    """The model as json_model_override_args change its config and --dtype its type, with what
    convolutions keep and the type of recurrent states.

    Source: SGLang 0.5.23, configs/model_config.py (model_override_args), configs/mamba_utils.py.
    """
    given = deployment.flags.get("json_model_override_args")
    try:
        overrides = json.loads(given) if isinstance(given, str) else given or {}
    except ValueError:
        overrides = None
    if not isinstance(overrides, Mapping):
        raise UsageError(
            f"json_model_override_args is {str(given)[:60]!r}", hint="give a JSON object"
        )
    served = keeping(run_in(overridden(model, overrides), deployment), before_current)
    return with_scaled_keys(typed_states(served, read_flags(deployment)))


def budget(model: Model, deployment: Deployment) -> Budget:
    """Memory of one GPU down to the attention pool."""
    flags = read_flags(deployment)
    check_heads(model, flags.attention_tp, "SGLang")
    flags = deciding(model, deployment, flags)
    return make_budget(model, deployment, flags, make_pools(model, deployment, flags))


def share(model: Model, deployment: Deployment) -> float:
    """mem_fraction_static in force, as given or by the release's default."""
    flags = read_flags(deployment)
    gpu = deployment.accelerator
    total = flags.get("gpu_memory") or (gpu.memory_bytes if gpu is not None else 0)
    if not total:
        raise UsageError("no GPU is named", hint="give gpu=... or gpu_memory=...")
    return static_share(model, deployment, flags, total)


def capacity(model: Model, deployment: Deployment, kv_bytes: int) -> Capacity:
    """Tokens, pages and requests that pools of `kv_bytes` hold on one GPU.

    One page more than the tokens is allocated, as the place that padding is written to.
    """
    flags = read_flags(deployment)
    check_heads(model, flags.attention_tp, "SGLang")
    flags = deciding(model, deployment, flags)
    pools = make_pools(model, deployment, flags)
    rows = _rows(kv_bytes, flags, pools)
    length = flags.context_length or model.context or 2048
    pages = rows // pools.page
    tokens = rows * pools.context_ranks
    sliding = pools.sliding_tokens(rows)
    fits = 0 < length <= tokens
    return Capacity(
        num_blocks=pages,
        block_size=pools.span,
        bytes_per_block=round(pools.cell * pools.page),
        groups=_groups(pools, length),
        blocks_per_sequence=-(-(length + pools.encoder) // pools.span),
        tokens=rows if flags.rules.context_ranks == "rows" else tokens,
        max_concurrency=tokens / length,
        max_model_len=length,
        fits=fits,
        error=None if fits else _misfit(length, tokens),
        terms=(*_terms(kv_bytes, rows, sliding, pools), *_host(flags, rows, pools)),
        usable_blocks=pages,
        held_in="pages",
        max_num_seqs=_requests(model, rows, length, kv_bytes, flags, pools),
        blocks_held=_holder(pools, pages, sliding),
    )


def cache(model: Model, request: CacheRequest, version: str | None = None) -> Cache:
    """Bytes that sequences hold in SGLang's pools on one GPU, without a deployment's limits."""
    from kvproof.engine.sglang.sequence import sequence_cache

    return sequence_cache(model, request, version)


def _rows(kv_bytes: int, flags: Flags, pools: Pools) -> int:
    """Tokens that one rank keeps."""
    rows = pools.tokens(kv_bytes)
    asked = flags.get("max_total_tokens")
    return min(rows, int(asked) // pools.page * pools.page) if asked else rows


def _requests(
    model: Model, tokens: int, length: int, kv_bytes: int, flags: Flags, pools: Pools
) -> int:
    """max_running_requests: asked or 2,048 to 4,096, never more than the states allow."""
    asked = flags.get("max_running_requests", _COMPRESSED_RUNNING if pools.compressed else None)
    count = int(asked) if asked else max(min(int(tokens / length * 512), 4096), 2048)
    count = min(count, tokens // 2)
    if pools.state:
        ratio = float(flags.get("mamba_full_memory_ratio", 0.9))
        states = state_pool(model, int(kv_bytes * (1 + ratio)), flags, pools)
        count = min(count, states.slots // slots_a_request(model, flags))
    return max(0, count)


def _holder(pools: Pools, pages: int, sliding: int) -> Callable[[int], int]:
    """Pages a sequence takes of whichever pool is scarcer for it, counted in full pages."""

    def held(context: int) -> int:
        full = -(-(context + pools.encoder) // pools.span)
        if not pools.window or not sliding:
            return full
        need = -(-min(context, pools.window + pools.page) // pools.page)
        return max(full, -(-need * pages // (sliding // pools.page)))

    return held


def _groups(pools: Pools, length: int) -> tuple[Group, ...]:
    pages = -(-(length + pools.encoder) // pools.span)
    rows = [("full", pools.full_layers, pools.full, pages)]
    if pools.window:
        near = -(-min(length, pools.window + pools.page) // pools.page)
        rows.append(("sliding", pools.sliding_layers, pools.sliding, near))
    groups = [
        Group(
            kind=kind,
            layers=layers,
            block_size=pools.span,
            page_bytes=cell * pools.page // max(1, layers),
            blocks_per_sequence=count,
        )
        for kind, layers, cell, count in rows
        if layers
    ]
    if pools.state:
        groups.append(
            Group(
                kind="recurrent",
                layers=pools.state_layers,
                block_size=1,
                page_bytes=pools.state // max(1, pools.state_layers),
                blocks_per_sequence=1,
            )
        )
    return tuple(groups)


def _misfit(length: int, tokens: int) -> str:
    """Why a request of full length does not run; without a pool SGLang stops (model_runner.py)."""
    if tokens <= 0:
        return "Not enough memory. Please try to increase --mem-fraction-static."
    return (
        f"a request of context_length ({length:,}) does not fit in the pool of "
        f"max_total_num_tokens ({tokens:,}): SGLang starts and refuses such requests"
    )


def _host(flags: Flags, tokens: int, pools: Pools) -> tuple[Term, ...]:
    """Hierarchical caching's pool in the host's memory, beside every rank."""
    if not flags.get("enable_hierarchical_cache") or pools.compressed is not None:
        return ()
    ratio, size, cell = flags.get("hicache_ratio", 2.0), flags.get("hicache_size", 0), pools.cell
    if flags.get("disable_radix_cache") or cell <= 0:
        return ()
    asked = int(size * GB // cell) if size else int(tokens * ratio)
    held = (asked // pools.page + 1) * pools.page
    how = f"{size:g} GB // {cell:,.0f} B" if size else f"{tokens:,} x {ratio:g}"
    source = "SGLang 0.5.23, mem_cache/pool_host/base.py (HostKVCache)"
    return (
        Term(name="host tokens", value=held, unit="token",
             formula=f"{how} in pages of {pools.page}, and one more = {held:,}", source=source),
        Term(name="host cache", value=round(held * cell), unit="B",
             formula=f"{held:,} x {cell:,.0f} B in host memory, a rank = {round(held * cell):,} B",
             source=source),
    )  # fmt: skip


def _terms(kv_bytes: int, tokens: int, sliding: int, pools: Pools) -> tuple[Term, ...]:
    parts = f"{pools.full_layers} layers, {pools.dtype}: {pools.full:,} B"
    if pools.window:
        parts += f" + {pools.ratio:g} x {pools.sliding_layers} sliding layers: {pools.sliding:,} B"
    terms = [
        Term(name="bytes per token", value=round(pools.cell), unit="B/token",
             formula=f"{parts} = {pools.cell:,.0f} B", source=_SOURCE),
        Term(name="bytes per block", value=round(pools.cell * pools.page), unit="B",
             formula=f"{pools.cell:,.0f} B x {pools.page} tokens a page = "
             f"{round(pools.cell * pools.page):,} B", source=_SOURCE),
        Term(name="tokens", value=tokens, unit="token",
             formula=f"{kv_bytes:,} B // {pools.cell:,.0f} B in pages of {pools.page}, "
             f"less the padding page = {tokens:,}", source=_SOURCE),
    ]  # fmt: skip
    if pools.context_ranks > 1:
        dealt = tokens * pools.context_ranks
        terms.append(
            Term(name="tokens of all ranks", value=dealt, unit="token",
                 formula=f"{tokens:,} on each of {pools.context_ranks} context ranks = {dealt:,}",
                 source=_SOURCE)
        )  # fmt: skip
    if pools.window:
        terms.append(
            Term(
                name="sliding tokens",
                value=sliding,
                unit="token",
                formula=f"{tokens:,} x {pools.ratio:g} in pages of {pools.page} = {sliding:,}",
                source=_SOURCE,
            )
        )
    return tuple(terms)
