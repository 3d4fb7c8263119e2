"""Ledger: the log's own figures against each other, which needs no model.

An engine prints the parts and the result of its own sum; when they do not agree, a rule of its
version or a term that it does not print stands between them.
"""

from __future__ import annotations

from kvproof.observe.compare import Comparison, compared
from kvproof.observe.figures import Figure, Log
from kvproof.observe.flat import caches

TOKENS = "concurrency x length"
"""The row that holds vLLM's token line against its concurrency."""


def ledger_rows(log: Log) -> list[Comparison]:
    """The rows that hold whatever the model is."""
    makers = {
        "vllm": (_node_share, _vllm_budget, _vllm_tokens),
        "sglang": (_sglang_total,),
        "tensorrt_llm": (_trt_share,),
        "llamacpp": (_llama_sums,),
    }
    return [row for make in makers.get(log.engine, ()) for row in make(log)]


def _sum_row(figure: Figure, value: float, step: float, name: str, cause: str) -> Comparison:
    row = compared(figure, value, low=value - step, high=value + step, exact=True, name=name)
    if row.ok:
        return row
    return compared(
        figure, value, low=value - step, high=value + step, exact=True, name=name, cause=cause
    )


def _vllm_budget(log: Log) -> list[Comparison]:
    """available = total x utilization - weights - activation - non-torch - graphs."""
    pool = log.smallest("available_kv_memory")
    share = log.flags.get("gpu_memory_utilization")
    total = log.get("requested_memory")
    if total is None and isinstance(share, float | int):
        card = log.get("total_gpu_memory")
        total = None if card is None else _times(card, float(share))
    peak = log.get("peak_torch_memory")
    parts = _charged(log)
    least = 1 if log.get("node_memory") is not None else 2
    if pool is None or total is None or (len(parts) < least and peak is None):
        return []
    if peak is not None and log.get("non_torch") is not None:
        parts = [peak, log.get("non_torch")]  # type: ignore[list-item]
    if any(part is None for part in parts):
        return []
    value = total.value - sum(part.value for part in parts)
    step = total.step + sum(part.step for part in parts)
    estimated = log.get("cuda_graph_estimated")
    if estimated is not None and abs(value - pool.value) > step:
        value, step = value - estimated.value, step + estimated.step
    cause = "a term outside the printed parts: graphs (0.21 and later), or memory of others"
    return [_sum_row(pool, value, step + pool.step, "budget as printed", cause)]


def _node_share(log: Log) -> list[Comparison]:
    """On a CPU: requested = the memory node's bytes x utilization."""
    asked, node = log.get("requested_memory"), log.get("node_memory")
    share = log.flags.get("gpu_memory_utilization")
    if asked is None or node is None or not isinstance(share, float | int):
        return []
    whole = _times(node, float(share))
    cause = "another gpu_memory_utilization than the log's flags say"
    return [_sum_row(asked, whole.value, whole.step + asked.step, "share of the node", cause)]


def graphs_charged(log: Log, shares: tuple[float, ...]) -> bool | None:
    """Whether the printed parts leave out the graphs (False) or not (True); None: can't be told.

    `shares` are the fractions of the GPU's memory to try where the log prints none.
    """
    pool, parts = log.smallest("available_kv_memory"), _charged(log)
    card, asked = log.get("total_gpu_memory"), log.get("requested_memory")
    if pool is None or len(parts) < 2 or (card is None and asked is None):
        return None
    given = log.flags.get("gpu_memory_utilization")
    tried = (float(given),) if isinstance(given, int | float) else shares
    totals = [asked] if asked is not None else [_times(card, share) for share in tried if card]
    taken, half = sum(part.value for part in parts), sum(part.step for part in parts) + pool.step
    if any(abs(total.value - taken - pool.value) <= half + total.step for total in totals):
        return False
    graphs = log.get("cuda_graph_estimated")
    if graphs is None:
        return None
    left = [total.value - taken - graphs.value - pool.value for total in totals]
    return True if any(abs(rest) <= half + graphs.step for rest in left) else None


def _charged(log: Log) -> list[Figure]:
    names = ("consumed", "peak_activation")
    if log.get("consumed") is None:
        names = ("weights", "peak_activation", "non_torch")  # type: ignore[assignment]
    elif log.get("node_memory") is not None:  # on a CPU one figure is all that is not the cache
        names = ("consumed",)  # type: ignore[assignment]
    found = [log.get(name) for name in names]
    return [figure for figure in found if figure is not None] if all(found) else []


def _times(figure: Figure, share: float) -> Figure:
    return Figure(
        name=figure.name,
        value=figure.value * share,
        unit="B",
        step=figure.step * share,
        text=figure.text,
        line=figure.line,
    )


def _vllm_tokens(log: Log) -> list[Comparison]:
    """tokens = concurrency x length, on the versions whose token line says so."""
    tokens, ratio, length = (
        log.get(n) for n in ("kv_cache_tokens", "max_concurrency", "max_concurrency_len")
    )
    if tokens is None or ratio is None or length is None:
        return []
    value, half = ratio.value * length.value, ratio.step * length.value
    cause = "version rule: the token line counts blocks over groups, not concurrency x length"
    return [_sum_row(tokens, value, half, TOKENS, cause)]


def _sglang_total(log: Log) -> list[Comparison]:
    """The scheduler's max_total_num_tokens is the pool's."""
    found = log.all("kv_cache_tokens")
    if len(found) < 2:
        return []
    first, last = found[0], found[-1]
    pools = {f.value for f in found}
    value = first.value if last.value not in pools - {last.value} else last.value
    row = _sum_row(last, value, 1, "tokens of pool and scheduler", "two pools, or a token cap")
    return [row] if len(pools) <= 2 else []


def _trt_share(log: Log) -> list[Comparison]:
    """pool = available x free_gpu_memory_fraction."""
    pool, free = log.get("available_kv_memory"), log.get("available_before_kv")
    share = log.flags.get("free_gpu_memory_fraction", 0.9)
    if pool is None or free is None or not isinstance(share, float | int):
        return []
    value = free.value * share
    cause = "max_tokens or another free_gpu_memory_fraction than assumed"
    step = free.step + pool.step + 0.002 * value
    return [_sum_row(pool, value, step, "free memory x fraction", cause)]


def _llama_sums(log: Log) -> list[Comparison]:
    """K + V = the cache; the devices' buffers add up to the caches."""
    rows, whole = [], 0.0
    for kind, parts in caches(log).items():
        total = parts.get("kv_total") or parts.get("rs")
        pieces = [parts[n] for n in ("k", "v", "rs_r", "rs_s") if n in parts]
        if total is None:
            continue
        whole += total.value if kind != "state" else 0
        if len(pieces) == 2:
            value, step = sum(p.value for p in pieces), sum(p.step for p in pieces)
            rows.append(_sum_row(total, value, step, f"{kind}: parts added", "another cache"))
    buffers = log.all("kv_buffer")
    if any(f.value for f in buffers) and whole and log.get("kv_total") is not None:
        last = {f.device: f for f in buffers}
        value = sum(f.value for f in buffers)
        figure = log.get("kv_total")
        if figure is not None and len(last) == len(buffers):
            shown = Figure(name="kv_total", value=whole, unit="B", step=figure.step,
                           text="", line=figure.line)  # fmt: skip
            step = sum(f.step for f in buffers)
            cause = "the log shows only some of the devices' buffers, or several contexts"
            rows.append(_sum_row(shown, value, step, "buffers of all devices", cause))
    return rows
