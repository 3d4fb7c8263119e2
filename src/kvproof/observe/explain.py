"""Explain: which terms a difference in the cache's memory lies in, and how much in each.

A difference is divided over the terms that the log prints (predicted less printed), the memory
that was asked for, what other processes held at the start, and a rest that lies in the terms that
the log does not print.
"""

from __future__ import annotations

import msgspec

from kvproof.engine.base import Budget
from kvproof.observe.compare import Share
from kvproof.observe.figures import Figure, Log
from kvproof.observe.releases import asked_share
from kvproof.terms import Term
from kvproof.units import GIB

WORDS = {
    "weights": "weights",
    "peak_activation": "activations",
    "cuda_graph_estimated": "graphs",
    "non_torch": "context",
    "state_pool": "the state pool",
}
"""Printed figures and the term that each is, in the words of the answer."""
_NAMES = {
    "weights": ("weight", "rotary", "absorbed", "draft model"),
    "peak_activation": ("activation",),
    "cuda_graph_estimated": ("graph",),
    "non_torch": ("non-torch", "framework", "nccl", "communication"),
    "state_pool": ("state",),
}
_SMALL = 0.05 * GIB
_CONTEXT = 1.0 * GIB
"""What an engine's own context may hold before it takes its first measure."""


def term_of(budget: Budget, name: str, log: Log | None = None) -> Term | None:
    """The budget's terms that the printed figure `name` covers, added up."""
    words = _NAMES.get(name, ())
    if name == "peak_activation" and log is not None and _holds_graphs(log):
        words += _NAMES["cuda_graph_estimated"]
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


def printed_term(log: Log, name: str) -> Figure | None:
    """The figure that the log prints for a term, or that follows from two it prints."""
    figure = log.smallest(name)
    if figure is None and name == "peak_activation":
        return _peak_less_weights(log)
    graphs = log.get("cuda_graph_estimated")
    if name == "peak_activation" and figure is not None and graphs is not None and _sums(log):
        less = max(0.0, figure.value - graphs.value)
        return msgspec.structs.replace(figure, value=less, step=figure.step + graphs.step)
    return figure


def _sums(log: Log) -> bool:
    """Whether the peak that a log prints has the estimate of graphs in it.

    So where vLLM prints weights and all else as one consumed sum, from 0.27 on
    (v1/worker/gpu_worker.py, peak_activation_memory).
    """
    return log.engine == "vllm" and log.get("consumed") is not None


def _holds_graphs(log: Log) -> bool:
    """Whether the estimate is in the peak and nothing printed takes it out."""
    return _sums(log) and log.get("cuda_graph_estimated") is None


def _peak_less_weights(log: Log) -> Figure | None:
    """V0 0.6.4 prints the peak of torch, weights included."""
    peak, weights = log.get("peak_torch_memory"), log.get("weights")
    if peak is None or weights is None or peak.value < weights.value:
        return None
    return msgspec.structs.replace(peak, name="peak_activation", value=peak.value - weights.value)


def shares(log: Log, budget: Budget, gap: float, memory: int | None) -> tuple[Share, ...]:
    """`gap` (printed less predicted bytes of the cache) over terms, the largest first."""
    found, unseen = [], []
    for name in ("weights", "peak_activation", "cuda_graph_estimated", "non_torch"):
        figure, term = printed_term(log, name), term_of(budget, name, log)
        if figure is not None and term is not None:
            found.append(Share(WORDS[name], float(term.value) - figure.value))
        elif term is not None and term.low is not None:
            unseen.append((float(term.value) - float(term.low), WORDS[name]))
    found.append(Share("memory asked for", _asked(log, budget, memory)))
    rest = gap - sum(share.size for share in found)
    used = initial_use(log)
    if used and rest < -_SMALL:
        taken = min(used, -rest)
        found.append(Share("other processes", -taken))
        rest += taken
    found.append(Share(_rest_words(unseen), rest))
    kept = [share for share in found if abs(share.size) >= max(_SMALL, 0.05 * abs(gap))]
    return tuple(sorted(kept, key=lambda share: -abs(share.size)))


def _asked(log: Log, budget: Budget, memory: int | None) -> float:
    """The GPU's memory, as printed, beyond that of the table, times the share that is asked for."""
    total, asked = log.get("total_gpu_memory"), log.get("requested_memory")
    outside = [t for t in budget.terms if t.name in ("left unused", "CUDA context")]
    if memory is None:
        return 0.0
    if asked is not None and outside:
        return asked.value - (memory - sum(float(term.value) for term in outside))
    return 0.0 if total is None else (total.value - memory) * asked_share(log)


def _rest_words(unseen: list[tuple[float, str]]) -> str:
    """The rest's name: the terms that are not printed, the least certain first."""
    names = [name for _, name in sorted(unseen, reverse=True)]
    if not names:
        return "a version rule, or other processes"
    return f"{' or '.join(names[:2])} (not printed)"


def initial_use(log: Log) -> float:
    """Bytes in use on the device before the engine starts beyond its own context."""
    free, total = log.get("free_memory"), log.get("total_gpu_memory")
    if free is None or total is None:
        return 0.0
    return max(0.0, total.value - free.value - _CONTEXT)


def in_words(found: tuple[Share, ...]) -> str:
    """The shares of a difference as one line."""
    return ", ".join(f"{share.term} {share.size / GIB:+.2f} GiB" for share in found[:4])
