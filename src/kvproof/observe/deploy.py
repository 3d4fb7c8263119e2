"""From a log to a deployment: engine, version, GPU and flags as kvproof names them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from kvproof.engine.base import Deployment, parallel_sizes
from kvproof.engine.common_flags import OPTIONS, flag_of
from kvproof.errors import KvproofError, UsageError
from kvproof.hardware import Accelerator, accelerators
from kvproof.observe.capped import token_cap
from kvproof.observe.cards import cards_of, other_memory
from kvproof.observe.devices import named_gpus
from kvproof.observe.figures import Log
from kvproof.observe.flat import caches
from kvproof.observe.releases import engine_flags, planned_by, rule_sets
from kvproof.observe.served import served
from kvproof.units import GIB

# Two GPUs whose memory differs by less are not told apart by what a log prints of it.
_SAME_MEMORY = 0.006
# Flags that logs print for what was settled on; the names under which the engine takes them.
# Not SGLang's max_running_requests: settled on after the pools, it would size them when asked for.
_SETTLED = {"sglang": {"context_length_used": "context_length"}}
_UNTAGGED = ("0.0.", "0.1.dev")
"""How vLLM's builds call themselves when made from a checkout without tags."""
_PRINTING = ("NVIDIA", "AMD", "Intel")
"""Whose boards engines report as GPUs: the workers of TPUs and Neuron cores print no such total."""
_SHARE = "gpu_memory_utilization"
_SAMPLER, _RUNNER = "top_k_sampler", "runner_module"
"""What vLLM's lines call the kernels that sort for its sampler, and the module of its runner, as
the reader names the flags."""
_ENTRY = "entry_module"
"""Set where the module of the LLM class prints: it asks for other batches than the server."""
_PLAIN, _CORE, _SERVER = "plain_module", "core_process", "server_process"
"""Set where the settings are printed by no named process, where the engine's process has its name,
and the server's: offline, the engine's alone has one."""
_KERNEL = "experts_kernel"
_BACKENDS = {
    "VLLM_CUTLASS": "cutlass", "TRITON": "triton", "DEEPGEMM": "deep_gemm", "MARLIN": "marlin",
    "FLASHINFER_CUTLASS": "flashinfer_cutlass", "FLASHINFER_TRTLLM": "flashinfer_trtllm",
}  # fmt: skip
"""What vLLM's lines call the kernels of experts, as --moe-backend names them."""
_CAPTURED, _MOST_CAPTURED = "captured_most", 512
"""The largest batch that graphs are captured for: twice the decoded tokens, up to a bound."""
_SIZED = ("compilation_config", "cudagraph_capture_sizes", "max_cudagraph_capture_size")
"""Flags that may set those batches."""
_PLATFORM = "printed_platform"
"""What V0's line of blocks calls the platform from 0.7 on."""
_PRINTED = (_PLATFORM, _SAMPLER, _RUNNER, _ENTRY, _CAPTURED, _PLAIN, _CORE, _SERVER, _KERNEL)
_VENDORS = {"cuda": ("NVIDIA",), "rocm": ("AMD",)}
_FIRST_RUNNER = "gpu_model_runner"
"""V1's first runner; the second's module has the name that V0's had."""


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """A deployment and what had to be assumed or left out to make it."""

    deployment: Deployment
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...]


def setup_of(log: Log, gpu: str | None = None, release: str | None = None) -> Setup:
    """The deployment that printed `log`; `gpu` when the log does not name it or names another.

    `release`: whose rules to take where the log names none.
    """
    assumptions: list[str] = []
    warnings: list[str] = []
    engine = log.engine
    named = named_release(log)
    if named is not None:
        engine = f"{engine}@{named}"
        if named != log.version:
            assumptions.append(f"{log.program} {log.version}: rules of {named}")
    elif release is not None:
        engine = f"{engine}@{release}"
    elif not rule_sets(log.engine):
        assumptions.append(f"no {log.program} version is named: newest rules")
    name = gpu or _gpu_of(log, assumptions)
    flags, dropped = _flags(engine, name, log, served(log, assumptions))
    flags = {**flags, **engine_flags(log, engine.partition("@")[2])}
    own = other_memory(log, [row for _, row in Deployment(engine, name).kinds]) if name else None
    if own is not None and gpu is None:
        flags = {**flags, "gpu_memory": own}
        assumptions.append(f"the GPU's memory is {own / GIB:.2f} GiB, as printed")
    free = _free_memory(log)
    if free is not None and "free_memory" not in flags:
        flags = {**flags, "free_memory": int(free)}
        assumptions.append(f"free before the pools are sized: {free / GIB:.2f} GiB, as printed")
    warnings += [f"left aside, {name}: {why}" for name, why in sorted(dropped.items())]
    deployment = Deployment(engine, name, **flags)
    capped = token_cap(log, deployment.accelerator)
    if capped is not None:
        deployment = deployment.replace(max_total_tokens=capped[0])
        assumptions.append(capped[1])
    return Setup(
        deployment=deployment,
        assumptions=tuple(assumptions),
        warnings=tuple(warnings),
    )


def _free_memory(log: Log) -> float | None:
    """What the engine took its share of, on the rank with least: as printed.

    SGLang says what is free when the weights begin to load, or is left after them; TensorRT-LLM
    what is available for the cache, or (PyTorch backend) the device's memory, the peak of its
    profiling run, and the small cache that lay within that peak.
    """
    if log.engine == "tensorrt_llm":
        found = log.smallest("available_before_kv")
        return _beside_peak(log) if found is None else found.value
    if log.engine != "sglang":
        return None
    before = log.smallest("avail_mem_before")
    if before is not None:
        return before.value
    left, weights = log.smallest("avail_mem_loaded"), log.get("weights")
    return None if left is None or weights is None else left.value + weights.value


def _beside_peak(log: Log) -> float | None:
    """Source: tensorrt_llm/_torch/pyexecutor/_util.py (_cal_max_memory)."""
    total, peaks = log.value("total_gpu_memory"), log.all("peak_memory")
    if total is None or not peaks:
        return None
    latest = {figure.worker: figure.value for figure in peaks}
    return total - max(latest.values()) + (log.value("temporary_kv") or 0)


def named_release(log: Log) -> str | None:
    """The release that the log names, as the engine's rules know it; None where it names none."""
    if not log.version:
        return None
    if log.program == "Ollama":
        from kvproof.engine.ollama.flags import build_name

        return build_name(log.version)
    if log.engine == "llamacpp" and log.version.strip("b0") == "":
        return None  # a build of unknown commit calls itself 0
    if log.engine == "vllm" and log.version.startswith(_UNTAGGED):
        return None
    return planned_by(log, log.version) if _reads(f"{log.engine}@{log.version}") else None


def ranks_of(log: Log) -> int:
    """GPUs of one replica, by the log's flags."""
    ranks, stages = parallel_sizes(
        {name: value for name, value in log.flags.items() if isinstance(value, int) and value > 0}
    )
    return ranks * stages


def _reads(engine: str) -> bool:
    try:
        Deployment(engine)
    except KvproofError:
        return False
    return True


def _gpu_of(log: Log, assumptions: list[str]) -> str | None:
    try:
        if found := cards_of(log):
            return "+".join(row.name for row in found)
    except UsageError:
        names = [name for _, name in named_gpus(log)] or [str(log.gpu)]
        said = " + ".join(dict.fromkeys(names))
        assumptions.append(f"the GPU {said!r} is not in the table")
    if log.on_cpu:
        assumptions.append(
            "vLLM's CPU backend: the cache lies in host memory, VLLM_CPU_KVCACHE_SPACE GiB a rank "
            "or what the worker leaves of its share"
        )
        return None
    total = log.value("total_gpu_memory")
    vendors = ("NVIDIA",) if log.engine == "tensorrt_llm" else _PRINTING
    vendors = _VENDORS.get(str(log.flags.get(_PLATFORM)).lower(), vendors)
    near = by_memory(total, vendors) if total else []
    if not near:
        assumptions.append("no GPU is named: give --gpu for the memory budget")
        return None
    also = f" (or {', '.join(row.name for row in near[1:4])})" if near[1:] else ""
    size = (total or 0) / 2**30
    assumptions.append(f"the GPU is taken for {near[0].name}{also}, by its {size:.2f} GiB")
    return near[0].name


def by_memory(total: float, vendors: tuple[str, ...]) -> list[Accelerator]:
    """The GPUs of `vendors` whose drivers report about this much memory, the nearest first."""

    def gap(row: Accelerator) -> float:
        return min(abs(size - total) for size in (row.memory_bytes, *row.other_memory_bytes))

    near = [
        row
        for row in accelerators()
        if gap(row) <= _SAME_MEMORY * total and not row.unified_memory and row.vendor in vendors
    ]
    return sorted(near, key=gap)


def _flags(
    engine: str, gpu: str | None, log: Log, printed: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Of the flags `printed` those that the engine's rules take; those they refuse, and why."""
    renamed = _SETTLED.get(log.engine, {})
    wanted: dict[str, Any] = {}
    for name, value in printed.items():
        wanted.setdefault(renamed.get(name, name), value)
    if log.engine == "llamacpp" and _whole_windows(log):
        wanted.setdefault("swa_full", True)
    options, concurrency = OPTIONS.get(log.engine), log.value("max_concurrency_len")
    if options is not None and concurrency:
        wanted.setdefault(flag_of(options.length), int(concurrency))
    if log.engine == "vllm":
        printed = {name: wanted.pop(name, None) for name in _PRINTED}
        wanted |= _told(log, wanted, printed)
    kept, dropped = _taken(engine, gpu, {}, wanted)
    return kept, {name: why for name, why in dropped.items() if not name.endswith("_used")}


def _taken(
    engine: str, gpu: str | None, kept: dict[str, Any], asked: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, str]]:
    """`kept` with the flags of `asked` that the rules take beside them, and why not the others.

    All at once where that goes, else by halves: a printed list has hundreds, few of them refused.
    """
    try:
        Deployment(engine, gpu, **{**kept, **asked})
    except KvproofError as error:
        why = error.message
    else:
        return {**kept, **asked}, {}
    names = list(asked)
    if len(names) <= 1:
        return kept, dict.fromkeys(names, why)
    dropped: dict[str, str] = {}
    middle = len(names) // 2
    for half in (names[:middle], names[middle:]):
        kept, said = _taken(engine, gpu, kept, {name: asked[name] for name in half})
        dropped |= said
    return kept, dropped


def _told(log: Log, flags: Mapping[str, Any], printed: Mapping[str, Any]) -> dict[str, Any]:
    """Flags that other lines tell: the share in full, sampler, runner, usage, sequences."""
    sampler, runner, share = printed[_SAMPLER], printed[_RUNNER], _whole_share(log)
    told: dict[str, Any] = {} if share is None else {_SHARE: share}
    if sampler is not None:
        told["flashinfer_sampler"] = str(sampler).lower() == "flashinfer"
    if runner is not None:
        told["use_v2_model_runner"] = str(runner) != _FIRST_RUNNER
    alone = printed[_PLAIN] and printed[_CORE] and not printed[_SERVER]
    if printed[_ENTRY] is not None or alone:
        told["usage_context"] = "llm_class"
    kernel = _BACKENDS.get(str(printed[_KERNEL]).upper())
    if kernel and "moe_backend" not in flags:
        told["moe_backend"] = kernel
    sequences = _sequences(printed[_CAPTURED], flags)
    if sequences:
        told["max_num_seqs"] = sequences
    return told


def _sequences(captured: Any, flags: Mapping[str, Any]) -> int:
    """max_num_seqs by the batches that graphs are captured for; 0 where they do not tell.

    Source: vLLM 0.20.2, config/vllm.py (_set_cudagraph_sizes).
    """
    set_otherwise = any(name in flags for name in ("max_num_seqs", "speculative_config", *_SIZED))
    if not isinstance(captured, int) or captured >= _MOST_CAPTURED or set_otherwise:
        return 0
    return captured // 2


def _whole_share(log: Log) -> float | None:
    """The share that vLLM's V0 printed with two decimals, from the memory it took of the card.

    None where the two agree. Callers other than people ask for shares such as 0.6934.
    """
    shown = log.flags.get(_SHARE)
    asked, card = log.get("requested_memory"), log.get("total_gpu_memory")
    if not isinstance(shown, float) or asked is None or card is None or not card.value:
        return None
    share = asked.value / card.value
    blur = (asked.step / 2 + share * card.step / 2) / card.value
    return round(share, 4) if blur < abs(share - shown) <= 0.005 + blur else None


def _whole_windows(log: Log) -> bool:
    """Whether the sliding-window cache has as many cells as the other: --swa-full."""
    found = caches(log)
    base, window = (found.get(kind, {}).get("cells") for kind in ("base", "swa"))
    return base is not None and window is not None and base.value == window.value
