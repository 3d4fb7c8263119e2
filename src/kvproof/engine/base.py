"""What every engine answers, as types: deployments, caches, budgets and capacities."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from operator import index
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, Protocol, overload

import msgspec

from kvproof.engine.release import release_number
from kvproof.engine.vendors import check_joined, check_vendor
from kvproof.errors import UsageError, unknown_name
from kvproof.terms import Term
from kvproof.units import GIB, parse_bytes

if TYPE_CHECKING:
    from kvproof.hardware import Accelerator
    from kvproof.model.types import Model

_ENGINES = ("formula", "transformers", "vllm", "sglang", "tensorrt_llm", "llamacpp", "ollama")
_ALIASES = {
    "trtllm": "tensorrt_llm", "tensorrt-llm": "tensorrt_llm", "llama.cpp": "llamacpp",
    "llama-server": "llamacpp", "hf": "transformers",
}  # fmt: skip
TENSOR_PARALLEL = ("tensor_parallel_size", "tp_size", "tp")
PIPELINE_PARALLEL = ("pipeline_parallel_size", "pp_size", "pp")
"""Spellings of the sizes whose product is one copy's GPUs."""
CONTEXT_PARALLEL = ("decode_context_parallel_size", "dcp_size", "dcp")
"""Spellings of the ranks among those that deal out a sequence's positions while decoding."""
PREFILL_PARALLEL = ("prefill_context_parallel_size",)
"""Spellings of the sets of ranks that share a prefill: each holds the attention and the cache."""


class EngineRef(msgspec.Struct, frozen=True):
    """An engine and the version whose rules apply; version None means the newest rules known."""

    name: str
    version: str | None = None

    def __str__(self) -> str:
        return f"{self.name}@{self.version}" if self.version else self.name


def parse_engine(text: str) -> EngineRef:
    """The engine of `vllm`, `vllm@0.32`, `vllm@0.11.2+rhai1` or `llamacpp@b11549`."""
    if not isinstance(text, str):
        raise UsageError(f"an engine can't be a {type(text).__name__}", hint="write vllm@0.32")
    name, at, version = text.strip().partition("@")
    key = _ALIASES.get(name.lower(), name.lower())
    if key not in _ENGINES:
        raise unknown_name("engine", name, list(_ENGINES), see=f"known: {', '.join(_ENGINES)}")
    if at and release_number(version) is None:
        raise UsageError(
            f"can't read the release {version[:40]!r} of {key}",
            hint="write it as in vllm@0.32 or llamacpp@b11549",
        )
    return EngineRef(key, version or None)


class Deployment:
    """An engine with its version and flags, on hardware; immutable.

    `flags` are the engine's own, in snake_case. `gpu` names an accelerator, with a count in
    front for several (`8xH100-80GB`); an engine may need none (`formula` with gpu_memory=).
    Unknown engines, GPUs and flags raise UsageError. Ranks on different GPUs are joined by a
    plus or a comma (`H100-80GB+L40S`): `kinds` has them all in that order, `accelerator` is the
    one that is answered for, at first the one with the least memory.
    """

    __slots__ = ("accelerator", "engine", "flags", "gpu_count", "kinds")
    engine: EngineRef
    accelerator: Accelerator | None
    gpu_count: int | None
    kinds: tuple[tuple[int, Accelerator], ...]
    flags: Mapping[str, Any]

    def __init__(self, engine: str = "vllm", gpu: str | None = None, **flags: Any) -> None:
        ref = parse_engine(engine)
        accelerator: Accelerator | None = None
        count: int | None = None
        kinds: tuple[tuple[int, Accelerator], ...] = ()
        if gpu is not None:
            from kvproof.hardware import parse_ranks

            kinds = parse_ranks(gpu)
            for _, kind in kinds:
                check_vendor(ref.name, kind)
            check_joined(ref.name, [kind for _, kind in kinds])
            accelerator = min((kind for _, kind in kinds), key=lambda kind: kind.memory_bytes)
            written = sum(number for number, _ in kinds)
            count = written if written > 1 or re.match(r"\s*1\s*[xX*]", gpu) else None
        object.__setattr__(self, "engine", ref)
        object.__setattr__(self, "accelerator", accelerator)
        object.__setattr__(self, "gpu_count", count)
        object.__setattr__(self, "kinds", kinds)
        object.__setattr__(self, "flags", dict(flags))
        engine_module(ref.name).check_flags(self)
        self._check_used()

    def _check_used(self) -> None:
        """Raise UsageError where others are said to use more memory than a GPU has."""
        used = self.flags.get("used")
        if used is None or self.accelerator is None:
            return
        size, gpu = parse_bytes(used), self.accelerator
        if size >= gpu.memory_bytes:
            raise UsageError(
                f"used is {size / GIB:.2f} GiB, all of {gpu.name}'s {gpu.memory_bytes / GIB:.2f} "
                "GiB or more",
                hint="give what others hold of one GPU",
            )

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a Deployment does not change; use replace()")

    def __repr__(self) -> str:
        gpu = "+".join(kind.name for _, kind in self.kinds) or None
        flags = "".join(f", {key}={value!r}" for key, value in self.flags.items())
        return f"Deployment({str(self.engine)!r}, gpu={gpu!r}, gpu_count={self.gpu_count}{flags})"

    def replace(self, **flags: Any) -> Deployment:
        """The same deployment with some flags changed; a flag set to None is dropped."""
        merged = {**self.flags, **flags}
        kept = {key: value for key, value in merged.items() if value is not None}
        return Deployment(str(self.engine), self.gpu, **kept)

    @property
    def gpu(self) -> str | None:
        """The GPU as it can be given to Deployment again."""
        if self.accelerator is None:
            return None
        if self.mixed:
            return "+".join(f"{n}x{kind.name}" if n > 1 else kind.name for n, kind in self.kinds)
        return (
            f"{self.gpu_count}x{self.accelerator.name}" if self.gpu_count else self.accelerator.name
        )

    @property
    def mixed(self) -> bool:
        """Whether its ranks lie on different GPUs."""
        return len(self.kinds) > 1

    @property
    def first(self) -> Accelerator | None:
        """The GPU of rank 0, by which engines choose their defaults."""
        return self.kinds[0][1] if self.kinds else None

    @property
    def own_ranks(self) -> tuple[int, ...]:
        """The ranks on `accelerator`, counted in the order that the GPUs are written in."""
        out: list[int] = []
        start = 0
        for count, kind in self.kinds:
            if kind is self.accelerator:
                out += range(start, start + count)
            start += count
        return tuple(out)

    def on(self, accelerator: Accelerator) -> Deployment:
        """The same deployment, answered for its ranks on `accelerator`."""
        other = Deployment.__new__(Deployment)
        for name in self.__slots__:
            object.__setattr__(other, name, getattr(self, name))
        object.__setattr__(other, "accelerator", accelerator)
        return other

    @classmethod
    def from_command(cls, command: str, gpu: str | None = None, **flags: Any) -> Deployment:
        """The deployment that a pasted command line starts (`vllm serve org/name --...`).

        Warns of options given twice and of those that are not followed.
        """
        from kvproof.engine.command import read_command

        read = read_command(command, gpu=gpu, **flags)
        for note in read.notes:
            warnings.warn(note, stacklevel=2)
        return read.deployment


class CacheRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What `kvproof.cache` is asked: lengths, element types, and the variant of the cache."""

    lengths: tuple[int, ...]
    dtype: str | None = None
    k_dtype: str | None = None
    v_dtype: str | None = None
    static_length: int | None = None
    encoder_tokens: int | None = None
    decode_steps: int = 0


class Cache(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes a cache holds: in all, per slot (model.slots order) and per decoder layer.

    `bytes` are logical (a tensor that two names share counts once); `allocated_bytes` what
    stays allocated: views of longer tensors, a static length, padding.
    """

    bytes: int
    allocated_bytes: int
    slots: tuple[int, ...]
    layers: tuple[int, ...]
    terms: tuple[Term, ...] = ()


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of one GPU, term by term, down to what is left for the cache.

    The terms add up to the GPU's memory; `kv_bytes` is the last of them. `interval` bounds
    `kv_bytes` where the others are estimates.
    """

    kv_bytes: int
    interval: tuple[int, int]
    terms: tuple[Term, ...]


class Offload(msgspec.Struct, frozen=True, kw_only=True):
    """What of a decode step is read from host memory, and how fast.

    `weight_bytes` and `expert_bytes` are streamed weights on the host, without and of routed
    experts; `cache_share` is the share of the cache there. `turns`: GPUs that work one after the
    other, each on its own layers.
    """

    weight_bytes: int = 0
    expert_bytes: int = 0
    cache_share: float = 0.0
    bandwidth: float
    turns: int = 1
    source: str


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Layers whose blocks are handed out together: `blocks_per_sequence` at max_model_len."""

    kind: str
    layers: int
    block_size: int
    page_bytes: int
    blocks_per_sequence: int


def _listed(context: Any) -> Sequence[int]:
    """A list of lengths; UsageError for anything else."""
    if isinstance(context, str) or not hasattr(context, "__iter__"):
        raise UsageError(f"a context is {str(context)[:40]!r}", hint="give whole tokens, 0 or more")
    return list(context)


def _length(context: Any) -> int:
    """One length as an int; UsageError for what is no whole number of tokens."""
    try:
        tokens = index(context)
    except TypeError:
        tokens = -1
    if isinstance(context, bool) or tokens < 0:
        raise UsageError(f"a context is {str(context)[:40]!r}", hint="give whole tokens, 0 or more")
    return tokens


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """What the given cache bytes hold under the engine's allocator, as the engine prints it.

    `tokens` and `max_concurrency` are the engine's own figures for requests of max_model_len
    (concurrency unrounded). `error` holds the engine's figures when such a request does not fit.
    """

    num_blocks: int
    block_size: int
    bytes_per_block: int
    groups: tuple[Group, ...]
    blocks_per_sequence: int
    tokens: int
    max_concurrency: float
    max_model_len: int
    fits: bool
    error: str | None = None
    terms: tuple[Term, ...] = ()
    usable_blocks: int
    max_num_seqs: int | None = None
    estimated_max_model_len: int | None = None
    """The longest request that fits, where one of max_model_len does not and the engine says so."""
    held_in: str = "blocks"
    """What `usable_blocks` and `blocks_held` count."""
    blocks_held: Callable[[int], int]

    @overload
    def sequences(self, context: int) -> int: ...
    @overload
    def sequences(self, context: Sequence[int]) -> int: ...
    def sequences(self, context: int | Sequence[int]) -> int:
        """How many sequences that have reached `context` tokens really run at once.

        With a list of lengths: how many of these, in their order, fit together. Counts usable
        blocks (reserved ones taken off), the blocks that such a sequence holds by the engine's
        rules (`blocks_held`), and max_num_seqs.
        """
        if not isinstance(context, int):
            return self._together([_length(length) for length in _listed(context)])
        _length(context)
        blocks = self.blocks_held(context)
        count = self.usable_blocks // blocks if blocks else self.max_num_seqs or 0
        return count if self.max_num_seqs is None else min(count, self.max_num_seqs)

    def _together(self, lengths: Sequence[int]) -> int:
        free = self.usable_blocks
        limit = len(lengths) if self.max_num_seqs is None else self.max_num_seqs
        for count, length in enumerate(lengths[:limit]):
            free -= self.blocks_held(length)
            if free < 0:
                return count
        return min(limit, len(lengths))


class Engine(Protocol):
    """What an engine module offers; those it can't answer raise UsageError."""

    def check_flags(self, deployment: Deployment) -> None:
        """Raise UsageError for a flag that the engine does not have or a bad value."""

    def cache(self, model: Model, request: CacheRequest, version: str | None) -> Cache:
        """Bytes of sequences, without a deployment."""

    def budget(self, model: Model, deployment: Deployment) -> Budget:
        """Memory of one GPU, term by term."""

    def capacity(self, model: Model, deployment: Deployment, kv_bytes: int) -> Capacity:
        """What `kv_bytes` per GPU hold."""


def engine_module(name: Literal["formula"] | str) -> Any:
    """The module that holds an engine's rules, imported when first asked for."""
    from importlib import import_module

    try:
        module: ModuleType = import_module(f"kvproof.engine.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"kvproof.engine.{name}":
            raise
        raise UsageError(
            f"engine {name!r} has no rules in this version", hint="see kvproof --help"
        ) from None
    return module


def own_rule(deployment: Deployment, name: str) -> Callable[..., Any] | None:
    """The function of that name in the engine's module; None where it has no rule of its own."""
    found: Callable[..., Any] | None = getattr(engine_module(deployment.engine.name), name, None)
    return found


def served_model(model: Model, deployment: Deployment) -> Model:
    """The model as the deployment's flags change its config; itself where they don't."""
    own = own_rule(deployment, "served_model")
    served: Model = model if own is None else own(model, deployment)
    return served


def ranks_of(deployment: Deployment) -> int:
    """GPUs that hold one copy of the model, by the engine's parallel sizes."""
    own = own_rule(deployment, "ranks_for")
    if own is not None:
        return int(own(deployment))
    ranks, stages = parallel_sizes(deployment.flags)
    return ranks * stages * prefill_copies(deployment.flags)


def parallel_sizes(flags: Mapping[str, Any]) -> tuple[int, int]:
    """Ranks that tensors are split over, and pipeline stages, under any engine's names for them."""
    return _size(flags, TENSOR_PARALLEL), _size(flags, PIPELINE_PARALLEL)


def context_ranks(flags: Mapping[str, Any]) -> int:
    """Ranks that deal a sequence's positions out among them, under any engine's name for it."""
    return _size(flags, CONTEXT_PARALLEL)


def prefill_copies(flags: Mapping[str, Any]) -> int:
    """Sets of ranks that share a prefill, each with the whole attention and the same cache.

    Source: vLLM 0.32, config/parallel.py (prefill_context_parallel_size; world_size).
    """
    return _size(flags, PREFILL_PARALLEL)


def _size(flags: Mapping[str, Any], names: tuple[str, ...]) -> int:
    return int(next((flags[name] for name in names if flags.get(name)), 1))
