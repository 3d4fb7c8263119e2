"""Capacity: what bytes of cache hold, as vLLM's planner finds it.

Source: vLLM 0.32, v1/core/kv_cache_utils.py (get_kv_cache_configs); the version table says what
earlier releases did otherwise.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from kvproof.engine.base import Capacity, Deployment, Group
from kvproof.engine.vllm.blocks import settle_blocks
from kvproof.engine.vllm.fallback import as_run
from kvproof.engine.vllm.groups import (
    Layout,
    bytes_per_block,
    group_blocks,
    make_groups,
    on_stage,
    request_blocks,
)
from kvproof.engine.vllm.layers import make_layers, stage_layers
from kvproof.engine.vllm.match_unit import check_match_unit
from kvproof.engine.vllm.packed import mixed_width
from kvproof.engine.vllm.plans import Plan
from kvproof.engine.vllm.report import NOT_ONE_TYPE, misfit, no_memory, plan_terms
from kvproof.engine.vllm.rotary import check_axes
from kvproof.engine.vllm.settings import Settings, settle
from kvproof.engine.vllm.specs import Reserve, Spec, blocks_held
from kvproof.engine.vllm.types import Layer, LayerGroup
from kvproof.engine.vllm.versions import rules_for
from kvproof.errors import UsageError
from kvproof.kinds import CrossSlot
from kvproof.model.types import Model

_APART = ("state", "cross")
"""Kinds that V0's blocks knew nothing of."""
_WHOLE_BATCH = (0, 13, 0)
"""Since when a request of an encoder is reckoned with a whole batch's tokens: config/vllm.py no
longer sets max_num_encoder_input_tokens to the encoder's length (in 0.12.0, not in 0.13.0)."""


class VllmGroup(Group, frozen=True, kw_only=True):
    """A group with the bytes of one of its blocks over all its layers on the rank."""

    group_page_bytes: int


class VllmCapacity(Capacity, frozen=True, kw_only=True):
    """A capacity with what vLLM settled on along the way."""

    max_num_batched_tokens: int
    max_in_flight_tokens: int
    attention_backend: str
    kv_cache_dtype: str
    state_mode: str
    needed_bytes: int
    """Bytes that a request of max_model_len needs, the null block included where it counts."""


def make_plan(model: Model, deployment: Deployment) -> Plan:
    """Layers, block size and groups of `model` under `deployment`."""
    model = as_run(model, rules_for(deployment.engine.version))
    settings = settle(model, deployment)
    check_axes(model)
    blocks = settle_blocks(model, settings)
    layers = _kept(make_layers(model, settings, blocks), settings)
    layout = Layout(
        rules=settings.rules,
        hybrid_manager=settings.hybrid_manager,
        block_outermost=_block_outermost(layers),
    )
    groups = make_groups(layers, layout)
    stages = tuple(_stage(groups, part) for part in stage_layers(model, settings.stages))
    return Plan(
        settings=settings,
        blocks=blocks,
        groups=groups,
        stages=stages,
        reserve=_reserve(model, settings),
        wide=tuple(_width(groups, stage, layout) for stage in stages),
    )


def _kept(layers: tuple[Layer, ...], settings: Settings) -> tuple[Layer, ...]:
    """V0 kept states beside the blocks, not in them; a block held a token of every layer.

    Cross-attention layers were layers like others, and shared the cache of a self-attention of
    their own index (worker/cache_engine.py, utils.bind_kv_cache, 0.6.6).
    """
    if settings.rules.v1:
        return layers
    own = {layer.index: layer.spec for layer in layers if layer.spec.kind not in _APART}
    kept = []
    for layer in layers:
        if layer.spec.kind == "cross" and layer.index not in own:
            alike = (spec for spec in own.values() if spec.row_bytes == layer.spec.row_bytes)
            spec = next(alike, msgspec.structs.replace(layer.spec, kind="full"))
            kept.append(msgspec.structs.replace(layer, spec=spec))
        elif layer.spec.kind not in _APART:
            kept.append(layer)
    return tuple(kept)


def _block_outermost(layers: tuple[Layer, ...]) -> bool:
    """Backends whose layouts keep a block's layers together: DeepSeek-V4's indexer, rings."""
    return any(x.spec.kind == "ring" or x.spec.note == "compressor" for x in layers)


def _stage(groups: tuple[LayerGroup, ...], part: range) -> tuple[LayerGroup, ...]:
    kept = tuple(LayerGroup(group.layers, group.uniform, group.layers[0].spec) for group in groups)
    return on_stage(kept, part)


def _width(groups: tuple[LayerGroup, ...], stage: tuple[LayerGroup, ...], layout: Layout) -> int:
    if layout.rules.width == "widest" or len(groups) < 2 or not groups[0].uniform:
        return bytes_per_block(stage, block_outermost=layout.block_outermost)
    return mixed_width(stage, whole_tuples=layout.rules.width == "tuples")


def _reserve(model: Model, settings: Settings) -> Reserve:
    encoder = max(
        (slot.default_tokens or 0 for slot in model.slots if isinstance(slot, CrossSlot)), default=0
    )
    whole = encoder > 0 and settings.rules.version >= _WHOLE_BATCH
    return Reserve(
        max_model_len=settings.max_model_len,
        in_flight=settings.in_flight,
        context_ranks=settings.context_ranks,
        state_mode=settings.state_mode,
        state_rule=settings.rules.state_blocks,
        encoder_tokens=encoder,
        encoder_reserve=settings.max_num_batched_tokens if whole else encoder,
    )


def capacity(model: Model, deployment: Deployment, kv_bytes: int) -> VllmCapacity:
    """What `kv_bytes` per GPU hold: blocks, groups, printed tokens and concurrency, the fit."""
    if kv_bytes < 0:
        raise UsageError(f"kv_bytes is {kv_bytes}", hint="give 0 or more bytes")
    plan = make_plan(model, deployment)
    if not plan.groups:
        raise UsageError(
            f"{model.name} keeps no cache under vLLM", hint="choose a model with attention"
        )
    if not all(plan.wide):
        raise UsageError(
            f"a pipeline stage of {model.name} would hold no cache: vLLM fails on it",
            hint="use fewer pipeline stages",
        )
    check_match_unit(plan)
    available = _available(plan, kv_bytes)
    length, estimate, error = _fit(plan, available)
    if not plan.settings.hybrid_manager and _mixed(plan):
        error = NOT_ONE_TYPE
    reserve = msgspec.structs.replace(plan.reserve, max_model_len=length)
    return _answer(plan, reserve, available, error, estimate)


def _mixed(plan: Plan) -> bool:
    """Whether one type of layer was asked for (no hybrid manager) where there are several."""
    return len(plan.groups) > 1


def _available(plan: Plan, kv_bytes: int) -> tuple[int, ...]:
    """Bytes of each stage's ranks, as num_gpu_blocks_override makes them."""
    override = plan.settings.flags.get("num_gpu_blocks_override")
    if override is None:
        return tuple(kv_bytes for _ in plan.stages)
    return tuple(override * wide for wide in plan.wide)


def _checked(plan: Plan, available: tuple[int, ...]) -> tuple[int, ...]:
    """Bytes the fit is checked against: the null block taken off."""
    if not plan.settings.rules.null_reserved:
        return available
    return tuple(a - wide for a, wide in zip(available, plan.wide, strict=True))


def needed_bytes(plan: Plan, stage: int, length: int) -> int:
    """Bytes that one request of `length` tokens needs on a rank of the stage."""
    reserve = msgspec.structs.replace(plan.reserve, max_model_len=length)
    return plan.wide[stage] * request_blocks(plan.stages[stage], reserve)


def _most_needed(plan: Plan, length: int) -> int:
    return max(needed_bytes(plan, stage, length) for stage in range(len(plan.stages)))


def longest(plan: Plan, stage: int, budget: int) -> int:
    """The longest request up to max_model_len that fits in `budget` bytes; 0 when none does."""
    return _search(lambda n: needed_bytes(plan, stage, n) <= budget, plan.reserve.max_model_len)


def _search(fits: Callable[[int], bool], most: int) -> int:
    if not fits(1):
        return 0
    low, high, best = 1, most, 1
    while low <= high:
        middle = (low + high) // 2
        if fits(middle):
            best, low = middle, middle + 1
        else:
            high = middle - 1
    return best


def _fit(plan: Plan, available: tuple[int, ...]) -> tuple[int, int | None, str | None]:
    """(max_model_len, the longest that fits, the engine's error) of the fit check."""
    length = plan.reserve.max_model_len
    checked = _checked(plan, available)
    if plan.settings.auto_fit:
        fitted = min(longest(plan, i, budget) for i, budget in enumerate(checked))
        if fitted <= 0:
            return (
                length,
                0,
                (
                    "Cannot auto-fit max_model_len: not enough GPU memory available to serve even "
                    "a single token. Try increasing `gpu_memory_utilization`."
                ),
            )
        length = min(length, fitted)
    for stage, budget in enumerate(checked):
        if budget <= 0:
            return length, 0, no_memory(plan.settings.rules)
        needed = needed_bytes(plan, stage, length)
        if needed > budget:
            estimate = longest(plan, stage, budget)
            return length, estimate, misfit(plan.settings.rules, length, needed, budget, estimate)
    return length, None, None


def _answer(
    plan: Plan,
    reserve: Reserve,
    available: tuple[int, ...],
    error: str | None,
    estimate: int | None,
) -> VllmCapacity:
    blocks = min(a // wide for a, wide in zip(available, plan.wide, strict=True))
    per_request = _printed_blocks(plan, reserve)
    concurrency = blocks / per_request if per_request else 0.0
    size = _printed_block_size(plan)
    tokens = int(concurrency * reserve.max_model_len)
    if plan.settings.rules.token_line == "blocks":
        tokens = blocks // len(plan.own) * size * plan.settings.context_ranks
    if not plan.settings.rules.v1:
        concurrency = blocks * size / reserve.max_model_len
    null = 1 if plan.settings.rules.v1 else 0
    return VllmCapacity(
        num_blocks=blocks,
        block_size=size,
        bytes_per_block=plan.wide[0],
        groups=tuple(_group(group, reserve) for group in plan.own),
        blocks_per_sequence=request_blocks(plan.own, reserve),
        tokens=tokens,
        max_concurrency=concurrency,
        max_model_len=reserve.max_model_len,
        fits=error is None,
        error=error,
        terms=plan_terms(plan, reserve, available[0], blocks, concurrency, tokens),
        usable_blocks=max(0, blocks - null),
        max_num_seqs=plan.settings.max_num_seqs,
        blocks_held=_holder(plan.own, reserve),
        max_num_batched_tokens=plan.settings.max_num_batched_tokens,
        max_in_flight_tokens=plan.settings.in_flight,
        attention_backend=plan.blocks.backend.name,
        kv_cache_dtype=plan.settings.kv_dtype,
        state_mode=plan.settings.state_mode,
        needed_bytes=null * plan.wide[0] + _most_needed(plan, reserve.max_model_len),
        estimated_max_model_len=estimate,
    )


def _printed_blocks(plan: Plan, reserve: Reserve) -> int:
    """Blocks of a request as the printed concurrency counts them."""
    if plan.settings.rules.concurrency == "blocks" or len(plan.own) == 1:
        return request_blocks(plan.own, reserve)
    first = plan.own[0].page_bytes if plan.own[0].uniform else plan.own[0].spec.page_bytes
    total = 0
    for group in plan.own:
        page = group.page_bytes if group.uniform else group.spec.page_bytes
        total += group_blocks(group, reserve) * page
    return -(-total // first)


def _printed_block_size(plan: Plan) -> int:
    """The smallest block of the groups that prefix caching covers."""
    sizes = [g.spec.block_size for g in plan.own if g.spec.kind != "ring"]
    return min(sizes or [g.spec.block_size for g in plan.own])


def _group(group: LayerGroup, reserve: Reserve) -> VllmGroup:
    spec = group.spec
    return VllmGroup(
        kind=spec.kind,
        layers=len(group.layers),
        block_size=spec.block_size,
        page_bytes=spec.page_bytes,
        blocks_per_sequence=group_blocks(group, reserve),
        group_page_bytes=group.page_bytes,
    )


def _holder(groups: tuple[LayerGroup, ...], reserve: Reserve) -> Callable[[int], int]:
    kinds: list[frozenset[Spec]] = [
        frozenset(x.spec for x in g.layers) if g.uniform else frozenset((g.spec,)) for g in groups
    ]

    def held(tokens: int) -> int:
        return sum(max(blocks_held(s, tokens, reserve) for s in specs) for specs in kinds)

    return held
