"""What a reader of a plan should know beside its figures, a line each."""

from __future__ import annotations

from kvproof.engine import hooks
from kvproof.engine.base import Capacity, Deployment, ranks_of
from kvproof.engine.common_flags import limit_name, setting_name
from kvproof.engine.mixed import by_device
from kvproof.engine.vendors import unconfirmed
from kvproof.hardware import Accelerator
from kvproof.model.types import Model
from kvproof.planning.contexts import past, startable_length
from kvproof.units import show_bytes


def remarks(
    model: Model, deployment: Deployment, contexts: tuple[int, ...], limit: int | None
) -> tuple[str, ...]:
    """Of the model, of its length and the engine's (`limit`), of replicas and of the hardware."""
    out = list(model.notes)
    trained = hooks.reach(model, deployment)
    if over := past(contexts, trained):
        reach = "was trained for" if trained == model.context else "is scaled to"
        out.append(f"{model.name} {reach} {trained:,} tokens: {over} is past that")
    out += hooks.warnings_of(model, deployment)
    if over := past(contexts, limit):
        name = limit_name(deployment.engine.name, "max_model_len")
        out.append(f"the engine refuses {over} tokens: its {name} is {limit:,}")
    return (*out, *_replica_remarks(deployment), *_hardware_remarks(deployment))


def shorter_start(deployment: Deployment, capacity: Capacity) -> str | None:
    """With which flag the rows of a plan hold that does not start without it."""
    length = startable_length(capacity)
    if not length:
        return None
    name = limit_name(deployment.engine.name, "max_model_len")
    return (
        f"the engine does not start with {name} {capacity.max_model_len:,}: what fits is reckoned "
        f"for a start with {name} {length:,} or less"
    )


def _replica_remarks(deployment: Deployment) -> tuple[str, ...]:
    """Of GPUs that nobody counted, and of some that nobody joined."""
    ranks, gpu, count = ranks_of(deployment), deployment.accelerator, deployment.gpu_count
    if (started := hooks.copies(deployment).started) > 1 and gpu is not None:
        return _started_remarks(started, ranks, count, gpu.name)
    if count is None and ranks > 1 and gpu is not None:
        return (f"one replica takes {ranks} GPUs: as many {gpu.name} are assumed",)
    if count is not None and count > ranks and not deployment.flags:
        joining = setting_name(deployment.engine.name, "tensor_parallel_size")
        said = f"{count} GPUs run {count} replicas of one GPU each"
        slices = gpu is not None and gpu.is_slice
        return (said if slices else f"{said}; {joining} joins them",)
    return ()


def _started_remarks(started: int, ranks: int, count: int | None, gpu: str) -> tuple[str, ...]:
    """Of GPUs beside those of the replicas that the flags start."""
    whole = started * ranks
    said = f"the flags start {started} replicas on {ranks} GPU{'s' if ranks > 1 else ''} each"
    if count is None:
        return (f"{said}: {whole} {gpu} are assumed",)
    if count < whole:
        return (f"{said}, {whole} in all: of these the {count} that are given are planned",)
    if count > whole:
        return (f"{said}, {whole} in all: {count} GPUs run {count / whole:g} such starts",)
    return ()


def _hardware_remarks(deployment: Deployment) -> tuple[str, ...]:
    """Of memory that is shared with the host, of weights kept there, and of unequal ranks."""
    gpu, out = deployment.accelerator, []
    if gpu is not None and gpu.unified_memory and not deployment.flags.get("used"):
        out.append(
            f"{gpu.name} shares its memory with the CPU{_part(gpu)}: what the system and other "
            "programs hold comes off it; give that as --used SIZE (used=)"
        )
    if any(kind.is_slice for _, kind in deployment.kinds):
        out += _slice_remarks(deployment)
    kinds = {kind.vendor: kind for _, kind in deployment.kinds}.values()
    out += [said for kind in kinds if (said := unconfirmed(deployment.engine.name, kind))]
    if deployment.flags.get("cpu_offload_gb"):
        out.append(
            "weights kept in host memory are read over PCIe in every step: steps take longer than "
            "said here"
        )
    if deployment.mixed:
        names = ", ".join(f"{count} x {kind.name}" for count, kind in deployment.kinds)
        if by_device(deployment):
            how = "layers are dealt by memory; the step is reckoned at the slowest GPU"
        elif ranks_of(deployment) == 1:
            how = "each replica is reckoned as on the smallest: plan the others by themselves"
        else:
            how = "the smallest and the slowest rank decide for all"
        out.append(f"different GPUs ({names}): {how}")
    return tuple(out)


def _part(gpu: Accelerator) -> str:
    """How much of the machine's memory is the GPU's, where that is much less."""
    whole = gpu.nominal_memory_bytes
    if not whole or gpu.memory_bytes > 0.9 * whole:
        return ""
    return f", {show_bytes(gpu.memory_bytes)} of {show_bytes(whole)} are the GPU's"


def _slice_remarks(deployment: Deployment) -> list[str]:
    """Of one replica on several MIG slices, which have no way to one another but the host.

    Sources: NVIDIA's MIG user guide (CUDA device enumeration: a process sees one slice; no
    peer-to-peer); NVIDIA/nccl issue 1716 (MIG support since August 2026, experimental).
    """
    devices = sum(count for count, _ in deployment.kinds)
    if by_device(deployment) and devices > 1:
        return [
            f"{deployment.engine.name} is one process, which sees one MIG slice: this split over "
            f"{devices} does not run"
        ]
    if by_device(deployment) or ranks_of(deployment) < 2:
        return []
    return [
        "ranks on MIG slices: NCCL joins these since August 2026, as an experiment and over host "
        "memory; releases before it do not start, and steps take longer than said here"
    ]
