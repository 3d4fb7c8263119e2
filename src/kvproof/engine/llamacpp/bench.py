"""`llama-bench` as the server's options: the context of the largest of its tests.

Each test makes a context of its own, for one sequence of prompt, generated tokens and depth.
Source: llama.cpp b11549, tools/llama-bench/llama-bench.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from kvproof.engine.shell import simple_commands
from kvproof.errors import UsageError

_PROGRAM = "llama-bench"
_ALONE = ("v", "verbose", "progress", "no_warmup", "offline", "h", "help", "list_devices")
_TESTS = {"p": "p", "n_prompt": "p", "n": "n", "n_gen": "n", "d": "d", "n_depth": "d", "pg": "pg"}
_DEFAULTS = {"p": 512, "n": 128, "d": 0, "pg": 0}
_LARGEST = ("b", "batch_size", "ub", "ubatch_size")
_FIRST = (
    "m", "model", "hf", "hfr", "hf_repo", "hff", "hf_file", "ctk", "cache_type_k", "ctv",
    "cache_type_v", "ngl", "n_gpu_layers", "ncmoe", "n_cpu_moe", "sm", "split_mode", "mg",
    "main_gpu",
)  # fmt: skip
_LISTS = ("ts", "tensor_split", "dev", "device")
"""Their parts stand between slashes, because commas part tests."""
_FLASH = {"0": "off", "1": "on"}
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


def bench_words(text: str) -> list[str] | None:
    """The server's words for a text that runs llama-bench; None for another."""
    if _PROGRAM not in text:
        return None
    try:
        commands = simple_commands(text)
    except UsageError:
        return None
    for command in commands:
        names = [re.split(r"[/\\]", w)[-1].removesuffix(".exe") for w in command.words]
        if _PROGRAM in names:
            return _as_server(command.words[names.index(_PROGRAM) + 1 :])
    return None


def _as_server(words: Sequence[str]) -> list[str]:
    sizes, out = dict(_DEFAULTS), []
    for name, value in _options(words):
        if name in _TESTS:
            test = _TESTS[name]
            sizes[test] = sum(_numbers(value)) if test == "pg" else max(_numbers(value))
        elif name in _LARGEST:
            out += [f"--{name}", str(max(_numbers(value)))]
        elif name in _FIRST:
            out += [f"--{name}", value.partition(",")[0]]
        elif name in _LISTS:
            out += [f"--{name}", value.partition(",")[0].replace("/", ",")]
        elif name in ("fa", "flash_attn"):
            out += ["--flash-attn", _FLASH.get(value.partition(",")[0], value.partition(",")[0])]
        elif name in ("nkvo", "no_kv_offload") and value.partition(",")[0] == "1":
            out.append("--no-kv-offload")
        elif name in ("ot", "override_tensor"):
            out += ["--override-tensor", value.replace(";", ",")]
    tokens = max(sizes["p"], sizes["n"], sizes["pg"]) + sizes["d"]
    return ["--ctx-size", str(tokens), "--parallel", "1", "--fit", "off", *out]


def _options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    rest = list(words)
    while rest:
        name = rest.pop(0)
        if not name.startswith("-"):
            continue
        key = name.lstrip("-").replace("-", "_")
        if key not in _ALONE and rest:
            yield key, rest.pop(0)


def _numbers(value: str) -> list[int]:
    """The numbers of a list, the ends of its ranges. Raises UsageError where it is none."""
    found = [_RANGE.match(part.strip()) for part in value.split(",")]
    numbers = [int(match[2] or match[1]) for match in found if match is not None]
    if not numbers:
        raise UsageError(f"{value[:40]!r} is no number of tokens", hint="see llama-bench --help")
    return numbers
