"""llama.cpp's buffers: what the flags allocate beside what the log prints, cache by cache."""

from __future__ import annotations

import msgspec

from kvproof.engine.base import Budget, Deployment, engine_module
from kvproof.model.types import Model
from kvproof.observe.compare import Comparison, compared
from kvproof.observe.device_rows import device_rows
from kvproof.observe.figures import Figure, Log
from kvproof.observe.flat import caches
from kvproof.observe.served import SERVER_CONTEXT

# A term belongs to the first kind whose word its name holds; other names are no cache.
_KINDS = (
    ("state", ("recurrent", "state", "rs ")),
    ("indexer", ("indexer",)),
    ("swa", ("swa", "sliding", "window")),
    ("base", ("k cache", "v cache", "keys", "values", "kv", "k ", "v ")),
)
# A log may come from a backend that its deployment does not name: Vulkan's buffer was 9 % larger.
_OTHER_BACKENDS = 0.1
_CONTEXT_FLAGS = ("n_ctx", "ctx_size", "num_ctx", "context_length")
# Two lengths whose caches give a line through which the printed one is looked for.
_LENGTHS = (65_536, 131_072)
_CELLS = 256
"""Ollama's caches hold a multiple of this many tokens."""


def context_unknown(log: Log) -> bool:
    """Whether an Ollama log states no context, of the runner or as the server's default: that
    depends on release and GPU where it isn't set.
    """
    if log.program != "Ollama" or log.flags.get(SERVER_CONTEXT):
        return False
    return not any(name in log.flags for name in _CONTEXT_FLAGS)


def context_note(log: Log, model: Model, deployment: Deployment) -> str | None:
    """That the context is not known, and which one the printed cache means where only one can."""
    figure = log.get("kv_total")
    if figure is None or not context_unknown(log):
        return None
    said = "num_ctx is not known: the log states no context, so the cache is not compared"
    cells = _cells_of(figure, model, deployment)
    if cells is None:
        return said
    meant = f"{figure.text or figure.value} of cache mean {cells:,} tokens in all"
    return f"{said}; {meant} (num_ctx x OLLAMA_NUM_PARALLEL, if {_type_of(deployment)})"


def _type_of(deployment: Deployment) -> str:
    return f"stored as {deployment.flags.get('cache_type_k', 'f16')}"


def _cells_of(figure: Figure, model: Model, deployment: Deployment) -> int | None:
    """The tokens whose cache prints as `figure`; None where no multiple of 256 does."""

    def kept(cells: int) -> int:
        asked = deployment.replace(ctx_size=cells)
        budget: Budget = engine_module(deployment.engine.name).budget(model, asked)
        return budget.kv_bytes

    short, long = (kept(cells) for cells in _LENGTHS)
    slope = (long - short) / (_LENGTHS[1] - _LENGTHS[0])
    if slope <= 0:
        return None
    cells = round((_LENGTHS[0] + (figure.value - short) / slope) / _CELLS) * _CELLS
    if cells <= 0 or slope * _CELLS <= figure.step:
        return None
    return cells if abs(kept(cells) - figure.value) <= figure.step else None


def buffer_rows(log: Log, model: Model, deployment: Deployment) -> list[Comparison]:
    """Each cache of the log and the compute buffers, beside the budget's terms.

    None where the log's context is not known: both follow from it.
    """
    if context_unknown(log):
        return []
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
    by_device = device_rows(log, model, deployment)
    if by_device is not None:
        return by_device
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
