"""Watch: which rows, programs, argument lists and errors a line may hold, decided by its words.

A line is lowered and cut into words (letters only) by one translation; each thing that is looked
for is filed under one of its literal's words, the least common. Most lines of a log share no
word with the table and cost no more than the cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from kvproof.observe.formats import PROGRAMS, rows
from kvproof.observe.metadata import LITERAL as METADATA
from kvproof.observe.rows import Compiled

_COMMON = frozenset(
    b"tokens memory model total cache size version device engine kv for with in is max to max the "
    b"used gpu config seq layers block gib server available weights name args".split()
)
_TABLE = bytes(
    ord(chr(c).lower()) if chr(c).isascii() and chr(c).isalpha() else 32 for c in range(256)
)
# Keys of vLLM's whole configuration that are flags; the rest of that line is its own business.
_CONFIG_KEYS = frozenset(
    ("model", "dtype", "max_seq_len", "tensor_parallel_size", "pipeline_parallel_size",
     "data_parallel_size", "decode_context_parallel_size", "quantization", "enforce_eager",
     "kv_cache_dtype", "enable_prefix_caching", "enable_chunked_prefill")
)  # fmt: skip


class Arguments(msgspec.Struct, frozen=True):
    """A line that prints a program's arguments: where they begin, which of them count, what those
    are called whose name means another thing elsewhere, and what else such a line says."""

    engine: str
    start: re.Pattern[str]
    keys: frozenset[str] | None = None
    renamed: tuple[tuple[str, str], ...] = ()
    adds: tuple[tuple[str, bool], ...] = ()

    def cut(self, arguments: str) -> bool:
        """Whether a text that all `arguments` stand in ends before the bracket around them does."""
        bracket = self.start.pattern.removesuffix("(.+)")[-1]
        if self.keys is not None or bracket not in "({":
            return False
        closing = _CLOSING[bracket]
        return arguments.count(closing) <= arguments.count(bracket)


class Program(msgspec.Struct, frozen=True):
    """A text that names a program."""

    name: str
    weight: int


class Problem(msgspec.Struct, frozen=True):
    """A text that says something does not fit; a line with `unless` says no such thing."""

    unless: bytes = b""


class Spoken(msgspec.Struct, frozen=True):
    """A command line that a script or a container printed before the engine's own output.

    `program`: what has options or defaults of its own beside the engine's, as it is started.
    """

    engine: str
    literal: str
    program: str = ""


class Described(msgspec.Struct, frozen=True):
    """A line of the metadata of a file that llama.cpp loads."""


class Runner(msgspec.Struct, frozen=True):
    """The command line with which an Ollama server starts its runner."""

    literal: str


_CLOSING = {"(": ")", "{": "}"}

Thing = Compiled | Arguments | Program | Problem | Spoken | Described | Runner

_ARGUMENTS = (
    ("llm engine (v", "vllm", r"with config: (.+)", _CONFIG_KEYS),
    ("non-default args", "vllm", r"non-default args: ?\{(.+)", None),
    ("args: namespace(", "vllm", r"args: Namespace\((.+)", None),
    ("engineargs(", "vllm", r"EngineArgs\((.+)", None),
    ("serverargs(", "sglang", r"ServerArgs\((.+)", None),
    ("server_args={", "sglang", r"server_args=\{(.+)", None),
    ("kvcacheconfig(", "tensorrt_llm", r"KvCacheConfig\((.+)", None),
)
_RENAMED = {"tensorrt_llm": (("dtype", "kv_cache_dtype"),)}  # of its KvCacheConfig
_ADDED = {"sglang": (("mem_fraction_resolved", True),)}
"""The arguments that a server prints are those that it settled on."""
_COMMANDS = (
    ("vllm serve ", "vllm"), ("sglang.launch_server ", "sglang"), ("sglang serve ", "sglang"),
    ("trtllm-serve ", "tensorrt_llm"), ("llama-server ", "llamacpp"),
    ("llama-server.exe ", "llamacpp"),
)  # fmt: skip
_BESIDE = (
    ("llama-cli ", "llamacpp", "llama-cli"), ("llama-cli.exe ", "llamacpp", "llama-cli"),
    ("llama-completion ", "llamacpp", "llama-completion"),
    *((f"sglang.bench_{name} ", "sglang", f"python -m sglang.bench_{name}")
      for name in ("one_batch", "offline_throughput", "latency")),
)  # fmt: skip
"""Commands of programs that start the engine with more than its own options."""
# Ollama's llm/server.go: a C++ server before 0.4, its own runner since.
_RUNNERS = ('msg="starting llama server" cmd=', 'msg="starting ollama runner" cmd=',
            'msg="starting runner" cmd=')  # fmt: skip
_PROBLEMS = (
    "to serve at least one request", "kv cache is needed", "no available memory for the cache",
    "larger than the maximum number of tokens", "exceeds available mamba",
    "less than desired gpu memory utilization", "less than desired cpu memory utilization",
    "less than requested memory for kv", "not enough memory. please try",
    "out of memory", "leave no gpu memory", "cannot meet free memory target",
    "failed to allocate", "insufficient memory", "requires more system memory",
    "too large for system", "must be large enough to process at least 1 sequence",
    "too large for at least one sequence", "impossible to fit any sequence", "cannot auto-fit",
    "impossible to fit in any sequence", "unable to allocate", "device memory allocation of size",
    "outofdevicememory", "out_of_memory", "outofmemory",
)  # fmt: skip


def words_of(line: bytes) -> list[bytes]:
    """The line's words: runs of letters, in lower case."""
    return line.translate(_TABLE).split()


def _things() -> Iterable[tuple[str, Thing]]:
    for row in rows():
        yield row.row.literal, row
    for literal, name, weight in PROGRAMS:
        yield literal, Program(name, weight)
    for literal, engine, start, keys in _ARGUMENTS:
        begins = re.compile(start, re.IGNORECASE | re.DOTALL)
        yield literal, Arguments(engine, begins, keys, _RENAMED.get(engine, ()),
                                 _ADDED.get(engine, ()))  # fmt: skip
    for literal, engine in _COMMANDS:
        yield literal, Spoken(engine, literal)
    for literal, engine, program in _BESIDE:
        yield literal, Spoken(engine, literal, program)
    yield METADATA, Described()
    for literal in _RUNNERS:
        yield literal, Runner(literal)
    for literal in _PROBLEMS:
        yield literal, Problem()


def _keyword(literal: bytes) -> bytes:
    words = words_of(literal)
    return max(words, key=lambda word: (word not in _COMMON, len(word)))


def _filed() -> dict[bytes, list[tuple[bytes, Thing]]]:
    table: dict[bytes, list[tuple[bytes, Thing]]] = {}
    for literal, thing in _things():
        word = _keyword(literal.encode())
        for form in (word, word + b"s"):  # "activation" is looked for in "activations" too
            table.setdefault(form, []).append((literal.encode(), thing))
    return table


BY_WORD = _filed()
WORDS = frozenset(BY_WORD)


def things_in(lowered: bytes, words: Iterable[bytes]) -> list[Thing]:
    """What the line holds the literals of, in the tables' order within each word."""
    return [
        thing
        for word in dict.fromkeys(words)
        if word in WORDS
        for literal, thing in BY_WORD[word]
        if literal in lowered
    ]
