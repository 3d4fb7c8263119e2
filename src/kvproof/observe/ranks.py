"""Ranks that a log's flags do not name: how many GPUs shared the model that it loaded."""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

from kvproof.engine.base import PIPELINE_PARALLEL, TENSOR_PARALLEL
from kvproof.engine.common_flags import OPTIONS, flag_of
from kvproof.model.types import Model
from kvproof.model.weights import weight_bytes
from kvproof.observe.figures import Log
from kvproof.observe.releases import Compared

_NAMED = (*TENSOR_PARALLEL, *PIPELINE_PARALLEL, "data_parallel_size", "dp_size", "ep_size")
_COUNTS = (2, 4, 8, 16)
_NEAR = 0.12
_MOST_NARROWER = 4
"""Weights may be so many times smaller by their element type alone."""
_RANK = re.compile(r"(?:^|[_ ])TP(\d{1,3})(?!\d)")


def with_ranks(
    log: Log, model: Model, compare: Callable[[Log], Compared | None]
) -> tuple[Log, str | None]:
    """The log with its tensor-parallel size, and how it was found where the flags do not say.

    By the workers' names, else by the weights: printed once a rank, they are a part of the
    model's. A part is believed where no figure that follows from others speaks against it;
    `compare` predicts the figures of a log.
    """
    options = OPTIONS.get(log.engine)
    if options is None or any(name in log.flags for name in _NAMED):
        return log, None
    flag = flag_of(options.ranks)
    last = max((int(m[1]) for f in log.figures if (m := _RANK.search(f.worker or ""))), default=0)
    if last:
        count = last + 1
        return _set(log, flag, count), f"{count} ranks, by the workers' names"
    return _by_weights(log, model, flag, compare)


def _by_weights(
    log: Log, model: Model, flag: str, compare: Callable[[Log], Compared | None]
) -> tuple[Log, str | None]:
    printed = log.smallest("weights")
    if printed is None or printed.value <= 0 or not model.tensors or "quantization" in log.flags:
        return log, None
    ratio = weight_bytes(model) / printed.value
    count = next((n for n in _COUNTS if abs(ratio / n - 1) < _NEAR), None)
    if count is None:
        return log, None
    split = _set(log, flag, count)
    found = compare(split)
    if _off(found) > _off(compare(log)) or (count <= _MOST_NARROWER and not _exact(found)):
        return log, None
    return split, f"{count} ranks ({flag}): the printed weights are that part of the model's"


def _exact(found: Compared | None) -> bool:
    """Whether a figure that follows from others was predicted at all."""
    return found is not None and any(row.exact for row in found[0])


def _set(log: Log, flag: str, count: int) -> Log:
    return msgspec.structs.replace(log, flags={**log.flags, flag: count})


def _off(found: Compared | None) -> int:
    return sum(row.exact and not row.ok for row in found[0]) if found else 0
