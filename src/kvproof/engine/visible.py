"""Which of the GPUs that are there a command lets its engine see.

CUDA_VISIBLE_DEVICES and its kin, `docker run --gpus`, and what an engine's own option names
(llama-server's --device). Devices are numbered in the order in which the GPUs are given.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from kvproof.engine.shell import Words
from kvproof.errors import UsageError
from kvproof.hardware import Accelerator, parse_ranks

_VARIABLES = (
    "NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES", "GGML_VK_VISIBLE_DEVICES",
)  # fmt: skip
_DEVICE = re.compile(r"[A-Za-z]{0,12}(\d{1,3})$")
_GPUS = "--gpus"
_UNCHANGED = ("", "all", "-1", "none", "void")


def seen(
    gpu: str | None, words: Words, start: int, named: str | None = None
) -> tuple[str | None, tuple[str, ...]]:
    """The GPUs of `gpu` that the command lets its engine see, with a note on each choice.

    `named`: the devices that an engine's own option names. One GPU is always seen, and so are GPUs
    that nobody counted.
    """
    try:
        kinds = () if gpu is None else parse_ranks(gpu)
    except UsageError:
        return gpu, ()  # the deployment says what is wrong with it
    there = [kind for count, kind in kinds for _ in range(count)]
    notes: list[str] = []
    for option, value in _sayings(words, start, named):
        left = _chosen(there, option, value)
        if len(left) < len(there):
            gpu = "+".join(f"{n}x{name}" for name, n in Counter(k.name for k in left).items())
            notes.append(
                f"{option} {value[:40]} shows the engine {len(left)} of {len(there)} GPUs: {gpu} "
                "is planned"
            )
            there = left
    return gpu, tuple(notes)


def _sayings(words: Words, start: int, named: str | None) -> Iterator[tuple[str, str]]:
    """Each variable or option that names devices, with its value, the outermost first."""
    before = words.words[:start]
    for at, word in enumerate(before):
        if word.startswith(f"{_GPUS}="):
            yield _GPUS, word.partition("=")[2]
        elif word == _GPUS and at + 1 < len(before):
            yield _GPUS, before[at + 1]
    for name in _VARIABLES:
        if name in words.environment:
            yield name, words.environment[name]
    if named is not None:
        yield "--device", named


def _chosen(there: list[Accelerator], option: str, value: str) -> list[Accelerator]:
    """Those of `there` that are named by number; as many of one kind as are named otherwise."""
    text = value.strip().strip("\"'").removeprefix("device=").strip("\"'")
    if text.lower() in _UNCHANGED:
        return there
    names = [name.strip() for name in text.split(",") if name.strip()]
    if option == _GPUS and "device=" not in value:
        return there[: int(text)] if text.isdigit() and int(text) > 0 else there
    found = [_DEVICE.match(name) for name in names]
    numbers = list(dict.fromkeys(int(match[1]) for match in found if match))
    if len(numbers) == len(names) and all(number < len(there) for number in numbers):
        return [there[number] for number in numbers]
    alike = len({kind.name for kind in there}) == 1
    return there[: len(names)] if alike and names else there
