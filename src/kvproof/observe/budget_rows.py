"""What is predicted before anything runs: the budget's terms beside what was printed for them."""

from __future__ import annotations

from kvproof.engine.base import Budget
from kvproof.observe.capacity_rows import printed_pool
from kvproof.observe.compare import Comparison, compared
from kvproof.observe.figures import Figure, Log
from kvproof.terms import Term

# figure -> words that the term's name holds (any of them).
_TERMS = {
    "weights": ("weight",),
    "peak_activation": ("activation",),
    "cuda_graph_estimated": ("graph",),
    "non_torch": ("non-torch", "framework", "nccl"),
    "state_pool": ("state",),
    "engine": ("weight",),
}
# What a term without an interval may differ by: loaders' buffers, padding, repacked layouts.
_LOOSE, _WORKSPACE = 0.03, 64 * 2**20
_WORDS = {
    "weights": "weights",
    "peak_activation": "activations",
    "cuda_graph_estimated": "CUDA graphs",
    "non_torch": "context and communicators",
    "total_gpu_memory": "the GPU's memory",
    "state_pool": "the state pool",
}


def budget_rows(log: Log, budget: Budget, memory: int | None) -> list[Comparison]:
    """The GPU's memory, each term, and what was left for the cache."""
    rows = []
    total = log.get("total_gpu_memory")
    if total is not None and memory is not None:
        near = 0.01 * memory
        rows.append(compared(total, memory, low=memory - near, high=memory + near, exact=False))
    for name in ("weights", "peak_activation", "cuda_graph_estimated", "non_torch"):
        figure, term = log.smallest(name), term_of(budget, name)
        if figure is not None and term is not None:
            rows.append(_term_row(figure, term))
    state = state_pool(log)
    term = term_of(budget, "state_pool")
    if state is not None and term is not None:
        rows.append(_term_row(state, term))
    pool = printed_pool(log)
    if pool is not None:
        figure = Figure(
            name="available_kv_memory",
            value=pool.value,
            unit="B",
            step=pool.high - pool.low,
            text="",
            line=pool.line,
        )
        low, high = budget.interval
        cause = blame(log, budget, memory)
        rows.append(compared(figure, budget.kv_bytes, low=low, high=high, exact=False, cause=cause))
    return rows


def term_of(budget: Budget, name: str) -> Term | None:
    """The budget's terms that a printed figure covers, added up."""
    words = _TERMS.get(name, ())
    found = [t for t in budget.terms if any(w in t.name.lower() for w in words) and t.unit == "B"]
    found = [t for t in found if "kept free" not in t.name]
    if not found:
        return None
    bounded = any(t.low is not None for t in found)
    return Term(
        name=name,
        value=sum(t.value for t in found),
        unit="B",
        formula=" + ".join(t.name for t in found),
        source=found[0].source,
        low=sum(t.value if t.low is None else t.low for t in found) if bounded else None,
        high=sum(t.value if t.high is None else t.high for t in found) if bounded else None,
    )


def state_pool(log: Log) -> Figure | None:
    """SGLang's state pool: its convolution and recurrent parts added up."""
    parts = [log.get(n) for n in ("mamba_conv", "mamba_ssm")]
    given = [part for part in parts if part is not None]
    if len(given) != len(parts):
        return None
    return Figure(
        name="state_pool",
        value=sum(p.value for p in given),
        unit="B",
        step=sum(p.step for p in given),
        text="",
        line=given[0].line,
    )


def _term_row(figure: Figure, term: Term) -> Comparison:
    value, low, high = float(term.value), term.low, term.high
    loose = _LOOSE * value + _WORKSPACE
    return compared(
        figure,
        value,
        low=value - loose if low is None else low,
        high=value + loose if high is None else high,
        exact=False,
        cause="" if _near(figure.value, value) else f"{_WORDS.get(figure.name, figure.name)}",
    )


def _near(a: float, b: float) -> bool:
    return abs(a - b) <= 0.02 * max(abs(a), abs(b))


def blame(log: Log, budget: Budget, memory: int | None) -> str:
    """The printed term that explains most of the difference in what is left for the cache."""
    pool = printed_pool(log)
    if pool is None:
        return ""
    gap = pool.value - budget.kv_bytes
    if abs(gap) <= max(0.005 * abs(pool.value), pool.high - pool.low):
        return ""
    shares: dict[str, float] = {}
    for name in ("weights", "peak_activation", "cuda_graph_estimated", "non_torch"):
        figure, term = log.smallest(name), term_of(budget, name)
        if figure is not None and term is not None:
            shares[_WORDS[name]] = float(term.value) - figure.value
    total = log.value("total_gpu_memory")
    share = log.flags.get("gpu_memory_utilization")
    if total is not None and memory is not None:
        factor = share if isinstance(share, float) else 0.9
        shares[_WORDS["total_gpu_memory"]] = (total - memory) * factor
    used = initial_use(log)
    if used:
        shares["other processes"] = -used
    same = {word: part for word, part in shares.items() if part * gap > 0}
    if not same:
        return "a term that the log does not print (context, other processes, a version rule)"
    word = max(same, key=lambda w: abs(same[w]))
    return f"{word}: {abs(same[word]) / 2**30:.2f} GiB of {abs(gap) / 2**30:.2f} GiB"


def initial_use(log: Log) -> float:
    """Bytes in use on the device before the engine starts beyond its own context."""
    free, total = log.get("free_memory"), log.get("total_gpu_memory")
    if free is None or total is None:
        return 0.0
    return max(0.0, total.value - free.value - 1.0 * 2**30)
