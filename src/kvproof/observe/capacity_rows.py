"""What follows from the printed memory: tokens, blocks and concurrency, by the engine's rules."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from kvproof.engine.base import Budget, Capacity, Deployment, engine_module
from kvproof.model.types import Model
from kvproof.observe.compare import Comparison, compared
from kvproof.observe.figures import Figure, Log
from kvproof.units import GIB

_TOKENS = ("kv_cache_tokens", "full_tokens", "swa_tokens")


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """The printed bytes of the cache of the rank that decides: value and rounding."""

    value: float
    low: float
    high: float
    line: int


def printed_pool(log: Log) -> Pool | None:
    """The cache's bytes as printed: in one figure, or K and V apart."""
    whole = log.smallest("available_kv_memory") or _target(log, "kv_size")
    if whole is not None:
        return Pool(value=whole.value, low=whole.low, high=whole.high, line=whole.line)
    if log.get("swa_tokens") is not None:
        return _two_pools(log)
    k, v = _target(log, "k_size"), _target(log, "v_size")
    if k is not None and v is not None:
        return Pool(value=k.value + v.value, low=k.low + v.low, high=k.high + v.high, line=k.line)
    exact = log.get("kv_tensor_bytes")
    if exact is not None:
        return Pool(value=exact.value, low=exact.low, high=exact.high, line=exact.line)
    return None


def _target(log: Log, name: str) -> Figure | None:
    """The smallest over the ranks; a smaller pool of as many tokens after it is a draft's own."""
    latest: dict[str | None, Figure] = {}
    for figure in log.all(name):
        before = latest.get(figure.worker)
        if before is None or before.value <= figure.value or not _alike(log, before, figure):
            latest[figure.worker] = figure
    return min(latest.values(), key=lambda f: f.value, default=None)


def _alike(log: Log, a: Figure, b: Figure) -> bool:
    """Whether two pools' lines print the same number of tokens."""
    tokens = [
        {f.value for f in log.figures if f.line == line and f.name in _TOKENS}
        for line in (a.line, b.line)
    ]
    return bool(tokens[0]) and tokens[0] == tokens[1]


def _two_pools(log: Log) -> Pool | None:
    """SGLang's full and sliding pools of one rank, which it prints one after the other."""
    first = log.all("k_size")[:1]
    worker = first[0].worker if first else None
    parts = [f for f in log.figures if f.name in ("k_size", "v_size") and f.worker == worker][-4:]
    if len(parts) != 4:
        return None
    return Pool(
        value=sum(f.value for f in parts),
        low=sum(f.low for f in parts),
        high=sum(f.high for f in parts),
        line=parts[-1].line,
    )


def capacity_rows(log: Log, model: Model, deployment: Deployment) -> list[Comparison]:
    """Tokens, blocks and concurrency predicted from the printed memory, or else from the blocks."""
    pool, known = printed_pool(log), "available_kv_memory"
    if pool is None:
        pool, known = pool_of_blocks(log, model, deployment), "num_blocks"
    if pool is None or pool.value <= 0:
        return []
    module = engine_module(deployment.engine.name)

    def at(size: float) -> Capacity:
        answer: Capacity = module.capacity(model, deployment, max(0, int(size)))
        return answer

    low, middle, high = at(pool.low), at(pool.value), at(pool.high)
    questions: tuple[tuple[str, Callable[[Capacity], float]], ...] = (
        ("kv_cache_tokens", lambda c: c.tokens),
        ("num_blocks", lambda c: c.num_blocks),
        ("max_concurrency", lambda c: c.max_concurrency),
        ("attention_block_size", lambda c: c.block_size),
        ("scheduler_block_size", _smallest_block),
        ("tokens_per_block", lambda c: c.block_size),
    )
    rows = []
    for name, answer in questions:
        figure = log.smallest(name) if name == "num_blocks" else log.get(name)
        if figure is not None and name != known and not _skipped(log, figure):
            ends = (answer(low), answer(high))
            slack = middle.block_size if name == "kv_cache_tokens" else 1
            slack = slack if name in ("kv_cache_tokens", "num_blocks") else 0
            rows.append(
                compared(
                    figure,
                    answer(middle),
                    low=min(ends) - slack,
                    high=max(ends) + slack,
                    exact=True,
                    cause=_cause(log, figure, answer(middle), middle),
                )
            )
    return rows


def _smallest_block(capacity: Capacity) -> int:
    """The scheduler's unit: the smallest block of the groups that keep tokens."""
    return min((g.block_size for g in capacity.groups), default=capacity.block_size)


def pool_of_blocks(log: Log, model: Model, deployment: Deployment) -> Pool | None:
    """The bytes that the printed blocks take, where the memory itself is not printed."""
    figure = log.smallest("num_blocks")
    if figure is None or log.engine == "tensorrt_llm":
        return None
    any_size: Capacity = engine_module(deployment.engine.name).capacity(model, deployment, GIB)
    value = figure.value * any_size.bytes_per_block
    return Pool(value=value, low=value, high=value, line=figure.line)


def planned_rows(
    log: Log, model: Model, deployment: Deployment, budget: Budget
) -> list[Comparison]:
    """Blocks, or tokens, predicted from the flags and the GPU where no memory is printed."""
    name = "num_blocks" if log.get("num_blocks") is not None else "kv_cache_tokens"
    figure = log.smallest(name)
    if figure is None or printed_pool(log) is not None:
        return []
    module = engine_module(deployment.engine.name)

    def at(size: int) -> int:
        answer: Capacity = module.capacity(model, deployment, max(0, size))
        return answer.num_blocks if name == "num_blocks" else answer.tokens

    low, high = (at(size) for size in budget.interval)
    cause = "a term of the memory budget, which this log does not print"
    row = compared(figure, at(budget.kv_bytes), low=low, high=high, exact=False, cause=cause)
    return [row]


def _skipped(log: Log, figure: Figure) -> bool:
    """A figure that describes another pool, or another start, than the printed memory."""
    profiling = log.engine == "tensorrt_llm" and figure.name == "num_blocks"
    return profiling and figure.line < min((f.line for f in log.all("kv_cache_tokens")), default=0)


def _cause(log: Log, figure: Figure, predicted: float, capacity: Capacity) -> str:
    """The rule that a difference points to: a known ratio between two ways of counting."""
    if not predicted or abs(figure.value - predicted) <= 0.01 * predicted:
        return ""
    ratio = figure.value / predicted
    groups = max(1, len(capacity.groups))
    known = [
        (2.0, "printed for a cache of half the element size (an FP8 cache?)"),
        (0.5, "printed for a cache of twice the element size (no FP8 cache?)"),
        (1 / groups, "version rule: the token line of blocks over groups (before 0.20)"),
        (float(groups), "version rule: the token line of concurrency x length (0.20 and later)"),
        (4.0, "heads split over more ranks than the flags say"),
        (0.25, "heads split over fewer ranks than the flags say"),
    ]
    for value, text in known:
        if value != 1 and abs(ratio / value - 1) < 0.02:
            return text
    if ratio < 1:
        return "a layer or state that is not in the model's description, or a smaller rank"
    return "memory of another rank, or fewer layers or a smaller element type than assumed"
