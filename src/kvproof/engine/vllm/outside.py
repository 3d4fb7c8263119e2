"""Memory of a start that torch does not allocate: the process' own, and communication buffers.

Source: vLLM 0.6 to 0.32, worker/worker.py, v1/worker/gpu_worker.py (what is charged),
distributed/device_communicators.
"""

from __future__ import annotations

import math
from typing import Any

from kvproof.engine.vllm.captures import compiles
from kvproof.engine.vllm.parts import Part, constants, part
from kvproof.engine.vllm.settings import Settings
from kvproof.engine.vllm.versions import era_at
from kvproof.units import GIB

_LARGE_GPU = 40 * GIB
_FUSED_PAST = (0, 21, 0)
"""Starts of 0.18 to 0.20 hold workspaces of fused all-reduces. Two public ledgers of later releases
print 0.6 GiB outside torch on four ranks, which leaves no room for them: 0.23 on GH200, 0.25 on
H100 (vllm#48601)."""


def framework_era(settings: Settings) -> str:
    """The name of the constant for what the process takes outside torch.

    Since 0.21 graphs are captured once before memory is counted, and what that leaves counts in;
    two starts of 0.26 print it.
    """
    if charges_context(settings):
        return "v0"
    if settings.radeon:
        return "radeon"
    late = settings.platform == "cuda" and communication_era(settings) == "since_0.26"
    return "cuda since 0.26" if late else settings.platform


def framework(settings: Settings) -> Part:
    """What the process holds outside torch before ranks speak to each other."""
    table = constants()["framework_gib"]
    key = framework_era(settings)
    value = float(table.get(key, table["cuda"]))
    return part("framework", value, f"{value:g} GiB ({key}, fitted)", 0.12 + 0.15 * value)


def charges_context(settings: Settings) -> bool:
    """Whether all that the GPU holds is charged, the CUDA context and NCCL's first buffers too.

    So before 0.6.5, and with V1 from 0.8.0 until 0.9.2 took a first snapshot
    (v1/worker/gpu_worker.py of 0.8.5 and 0.9.0: total - free - torch's own).
    """
    return settings.rules.others_charged and settings.platform == "cuda"


def minor_of(settings: Settings) -> str:
    """The release's first two numbers, as the constants list those that were seen."""
    return ".".join(str(part) for part in settings.rules.version[:2])


def communication_era(settings: Settings) -> str:
    """The name of the constants for the release: all-reduces are fused since 0.18.

    RCCL's are one on ROCm: starts of 0.11 to 0.18 agree within 0.1 GiB for each number of ranks.
    Over PCIe they hardly grow: there is no switch whose channels NCCL fills, and vLLM's own
    all-reduce is off beyond two ranks (until 0.26; the one later start prints both together).
    """
    if settings.platform == "rocm":
        return "rocm"
    era = "v0" if charges_context(settings) else era_at(settings.rules.version)
    return "pcie" if settings.pcie and era != "since_0.26" else era


def fused_reduce(settings: Settings, memory: float) -> bool:
    """Whether all-reduces are fused with what follows, in workspaces of FlashInfer's.

    Source: vLLM 0.20.2, config/vllm.py (enable_allreduce_rms_fusion): capability 9 and 10, without
    stages or replicas; a pass of the compiler makes them, so nothing does without it.
    """
    return settings.rules.version < _FUSED_PAST and _may_fuse(settings, memory)


def _may_fuse(settings: Settings, memory: float) -> bool:
    alone = settings.stages == 1 and settings.replicas == 1
    alone = alone and compiles(settings.flags)
    return alone and memory >= _LARGE_GPU and settings.capability[0] in (9, 10)


def _few_logs(settings: Settings) -> bool:
    """Whether the era's constant rests on the few starts that print memory outside torch."""
    return communication_era(settings) == "since_0.26"


def _communicators(settings: Settings) -> dict[str, Any]:
    table: dict[str, Any] = constants()["communication_gib"][communication_era(settings)]
    return table


def communication(settings: Settings, memory: int) -> Part:
    """NCCL's growth and all-reduce workspaces; the fused ones of 0.18 on only on large GPUs."""
    steps = math.log2(settings.ranks)
    table = _communicators(settings)
    if "squared_ranks" in table:
        return _rccl(float(table["squared_ranks"]), settings.ranks)
    if "any_ranks" in table:
        return _few_channels(float(table["any_ranks"]))
    few = "; two logs of this era print it, on four ranks" if _few_logs(settings) else ""
    each = float(table["log2_ranks"])
    base = float(table["base"]) if fused_reduce(settings, memory) else 0.0
    value = base + each * steps
    formula = (
        f"NCCL's growth and all-reduce workspaces: {base:g} + {each:g} x log2({settings.ranks}) "
        f"GiB = {value:.2f} GiB (fitted{few})"
    )
    return part("communication", value, formula, (0.5 if few else 0.25) * value + 0.1)


def _rccl(each: float, ranks: int) -> Part:
    """Channels and peers both grow with the ranks."""
    value = each * ranks**2
    formula = f"RCCL's buffers: {each:g} GiB x {ranks} ranks squared = {value:.2f} GiB (fitted)"
    return part("communication", value, formula, 0.25 * value + 0.1)


def _few_channels(value: float) -> Part:
    formula = f"NCCL's buffers over PCIe: {value:.2f} GiB, with two ranks or more"
    return part("communication", value, formula, 0.25 * value + 0.1)


def unseen_fusion(settings: Settings, memory: int) -> int:
    """Bytes of fused all-reduces' workspaces, where no start shows whether they still count."""
    if settings.rules.version < _FUSED_PAST or settings.ranks == 1:
        return 0
    fuses = _may_fuse(settings, memory)
    return round(float(_communicators(settings).get("base", 0.0)) * GIB) if fuses else 0
