"""The GPUs of a llama.cpp log: those that hold buffers, and what the log calls them."""

from __future__ import annotations

import re

from kvproof.observe.figures import Log

HOSTS = re.compile(r"host|cpu", re.IGNORECASE)
NUMBER = re.compile(r"(\d{1,3})$")
_LONGEST = len("Vulkan")
"""Letters before a device's number: what is longer is a name of another kind."""


def gpus_in_use(log: Log) -> list[str]:
    """The GPUs that hold caches or compute, in order: a start that failed printed not every one's
    compute buffer.
    """
    held = {f.device for name in ("kv_buffer", "rs_buffer", "compute_buffer")
            for f in log.all(name) if f.device}  # fmt: skip
    return sorted((name for name in held if not HOSTS.search(name)), key=_order)


def _order(name: str) -> int:
    found = NUMBER.search(name)
    return int(found[1]) if found else 0


def named_gpus(log: Log) -> list[tuple[str, str]]:
    """The GPUs that hold buffers, by device and name in their order; all where none holds any yet.

    Nothing where the log names fewer than two, or does not say which of different ones are meant.
    """
    named = list(log.gpus)
    if len(named) < 2:
        return []
    used = gpus_in_use(log)
    if not used or len(used) == len(named):
        return named
    by_number = {_number(device): (device, name) for device, name in named}
    if all(_number(device) in by_number for device in used):
        return [by_number[_number(device)] for device in used]
    return named[: len(used)] if len({name for _, name in named}) == 1 else []


def same_device(first: str, second: str) -> bool:
    """Whether two names of devices are one device's: `CUDA1` and `1`."""
    return _number(first) == _number(second)


def _number(device: str) -> str:
    """`1` of `CUDA1` and of `1`; other names (a UUID) as they are."""
    found = NUMBER.search(device)
    return found[1] if found and len(device) - len(found[1]) <= _LONGEST else device
