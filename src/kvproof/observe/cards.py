"""Which GPUs of the table a log means: by what the driver calls them and the memory beside it."""

from __future__ import annotations

import math
import re

from kvproof.errors import UsageError
from kvproof.hardware import Accelerator, accelerator, accelerators
from kvproof.observe.devices import named_gpus, same_device
from kvproof.observe.figures import Log

_DRIVER = re.compile(r" \([^()]{1,80}\)$")
"""What Vulkan's drivers put behind a name: `AMD Radeon RX 7900 XTX (RADV NAVI31)`."""
_MARKS = re.compile(r"\((?:R|TM|C)\)", re.IGNORECASE)
_SIZE = re.compile(r"-\d{1,4}GB$")
_TOTALS = ("total_gpu_memory", "breakdown_total")
_OTHER_MEMORY = 0.05
"""A share by which printed memory differs from the table's where it is another card's."""


def cards_of(log: Log) -> list[Accelerator]:
    """The GPUs that the log names, in their order; none where it names none.

    UsageError for a name that the table lacks, or of which there are several and no memory to tell.
    """
    named = named_gpus(log) or ([("", log.gpu)] if log.gpu else [])
    return [card(name.replace("_", " "), printed_memory(log, device), _free(log, device))
            for device, name in named]  # fmt: skip


def card(name: str, memory: float | None = None, free: float | None = None) -> Accelerator:
    """The accelerator that a driver calls `name`: of those that share it, the one of `memory`.

    Without `memory` the smallest that has `free` bytes. UsageError as of `accelerator`.
    """
    alike, error = _alike(name)
    if not alike:
        raise error
    if memory:
        asked = memory
        return min(alike, key=lambda row: abs(math.log(row.memory_bytes / asked)))
    if free:
        enough = [row for row in alike if row.memory_bytes >= free]
        return min(enough or alike, key=lambda row: row.memory_bytes)
    if len(alike) > 1 and error.message:
        raise error
    return alike[0]


def _alike(name: str) -> tuple[list[Accelerator], UsageError]:
    """The rows that a driver's name may stand for, the plain one first; else why there is none.

    An error with words beside several rows: the name alone does not tell them.
    """
    plain = " ".join(_MARKS.sub(" ", _DRIVER.sub("", name)).split())
    refused = UsageError("")
    for text in dict.fromkeys((name, _DRIVER.sub("", name), plain)):
        try:
            row = accelerator(text)
        except UsageError as error:
            refused = error
            rows = [
                r for r in accelerators() if (r.device_name or "").casefold() == text.casefold()
            ]
            if rows:
                return rows, error
        else:
            stem = _SIZE.sub("", row.name)
            others = [r for r in accelerators() if r is not row and _SIZE.sub("", r.name) == stem
                      and r.device_name in (None, row.device_name)]  # fmt: skip
            return [row, *others], UsageError("")
    return [], refused


def other_memory(log: Log, found: list[Accelerator]) -> int | None:
    """The GPUs' memory as printed where it is not the table's, of GPUs that have it alike."""
    if log.engine != "llamacpp" or len({row.name for row in found}) != 1:
        return None
    total = printed_memory(log, "")
    if total is None or found[0].unified_memory:
        return None
    near = abs(total / found[0].memory_bytes - 1) <= _OTHER_MEMORY
    return None if near else int(total)


def printed_memory(log: Log, device: str) -> float | None:
    """What the log prints as a GPU's memory; of every GPU where no device is asked for."""
    return _printed(log, _TOTALS, device)


def _free(log: Log, device: str) -> float | None:
    return _printed(log, ("device_free",), device)


def _printed(log: Log, names: tuple[str, ...], device: str) -> float | None:
    for name in names:
        figures = log.all(name)
        alone = len(figures) == 1 or not device
        values = {f.value for f in figures if alone or (f.device and same_device(f.device, device))}
        if len(values) == 1:
            return values.pop()
    return None
