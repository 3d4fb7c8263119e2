"""llama.cpp's buffers: what the flags allocate beside what the log prints, cache by cache."""

from __future__ import annotations

import msgspec

from kvproof.engine.base import Budget, Deployment, engine_module
from kvproof.model.types import Model
from kvproof.observe.compare import Comparison, compared
from kvproof.observe.figures import Figure, Log
from kvproof.observe.flat import caches

# A term belongs to the first kind whose word its name holds; other names are no cache.
_KINDS = (
    ("state", ("recurrent", "state", "rs ")),
    ("indexer", ("indexer",)),
    ("swa", ("swa", "sliding", "window")),
    ("base", ("k cache", "v cache", "keys", "values", "kv", "k ", "v ")),
)
# A log may come from a backend that its deployment does not name: Vulkan's buffer was 9 % larger.
_OTHER_BACKENDS = 0.1


def buffer_rows(log: Log, model: Model, deployment: Deployment) -> list[Comparison]:
    """Each cache of the log and the compute buffers, beside the budget's terms."""
    budget: Budget = engine_module(deployment.engine.name).budget(model, deployment)
    if any("compressed" in term.name for term in budget.terms):
        return [*_whole(log, budget), *_compute(log, model, deployment, budget)]
    found = caches(log)
    rows = []
    for kind, parts in found.items():
        figure = parts.get("kv_total") or parts.get("rs")
        value = _of_kind(budget, kind)
        if figure is not None and value is not None:
            rows.append(
                compared(figure, value, exact=True, cause=_cause(figure.value, value),
                         name=f"{kind} cache")
            )  # fmt: skip
    if not found and (figure := log.get("kv_total")) is not None:
        rows.append(compared(figure, budget.kv_bytes, exact=True,
                             cause=_cause(figure.value, budget.kv_bytes)))  # fmt: skip
    return rows + _compute(log, model, deployment, budget)


def _whole(log: Log, budget: Budget) -> list[Comparison]:
    """Caches that print no names of their own (compressed attention), all added up."""
    parts = [f for f in log.figures if f.name in ("kv_total", "rs", "compressor_state")]
    if not parts:
        return []
    figure = msgspec.structs.replace(
        parts[-1], value=sum(f.value for f in parts), step=sum(f.step for f in parts)
    )
    cause = _cause(figure.value, budget.kv_bytes)
    return [compared(figure, budget.kv_bytes, exact=True, cause=cause, name="all caches")]


def _of_kind(budget: Budget, kind: str) -> int | None:
    sizes = [int(t.value) for t in budget.terms if t.unit == "B" and _kind(t.name) == kind]
    return sum(sizes) if sizes else None


def _kind(name: str) -> str | None:
    lowered = f"{name.lower()} "
    if any(word in lowered for word in ("compute", "weight", "model", "output", "free")):
        return None
    return next((kind for kind, words in _KINDS if any(w in lowered for w in words)), None)


def _compute(log: Log, model: Model, deployment: Deployment, budget: Budget) -> list[Comparison]:
    """The one device's compute buffer.

    llama-server reserves the logits of its sequences, the C API those of a whole batch; the log
    does not say which, so the nearer one is compared.
    """
    last: dict[str | None, Figure] = {f.device: f for f in log.all("compute_buffer")}
    devices = [f for name, f in last.items() if name and "host" not in name.lower()]
    if len(devices) != 1:
        return []
    batch = log.flags.get("ubatch_size")
    budgets = [budget]
    if isinstance(batch, int) and batch > 0:
        whole = deployment.replace(n_outputs_max=batch)
        budgets.append(engine_module(deployment.engine.name).budget(model, whole))
    loose = 0.0 if devices[0].device == "CPU" else _OTHER_BACKENDS
    found = [ends for ends in (_ends(it, loose) for it in budgets) if ends is not None]
    if not found:
        return []
    value, low, high = min(found, key=lambda ends: abs(ends[0] - devices[0].value))
    cause = "compute buffers differ by backend and build"
    return [compared(devices[0], value, low=low, high=high, exact=False, cause=cause)]


def _ends(budget: Budget, loose: float) -> tuple[float, float, float] | None:
    """The buffer and its bounds; exact figures are taken to be off by a share of `loose`."""
    terms = [t for t in budget.terms if "compute" in t.name.lower() and t.unit == "B"]
    if not terms:
        return None
    low = sum(t.value * (1 - loose) if t.low is None else t.low for t in terms)
    high = sum(t.value * (1 + loose) if t.high is None else t.high for t in terms)
    return sum(t.value for t in terms), low, high


def _cause(printed: float, predicted: float) -> str:
    if not predicted or abs(printed - predicted) <= 0.001 * predicted:
        return ""
    ratio = printed / predicted
    known = (
        (
            2,
            "twice the cells: sequences with caches of their own (--parallel without --kv-unified)",
        ),
        (0.5, "half the cells or half the element size"),
        (0.53125, "q8_0 where f16 is assumed (--cache-type-k/-v)"),
        (0.28125, "q4_0 where f16 is assumed (--cache-type-k/-v)"),
        (1 / 0.53125, "f16 where q8_0 is assumed (--cache-type-k/-v)"),
    )
    for value, text in known:
        if abs(ratio / value - 1) < 0.005:
            return text
    return "another context length, cell padding, or layers that keep no cache"
