"""What a start runs on, as vLLM tells platforms apart: CUDA by compute capability, ROCm, CPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvproof.engine.base import Deployment
from kvproof.hardware import Accelerator
from kvproof.units import GIB

_ROCM = ("amd", "rocm")
_HOPPER = (9, 0)


def platform_of(deployment: Deployment, flags: Mapping[str, Any]) -> str:
    """One of "cuda", "rocm" and "cpu"; CUDA where no GPU is named."""
    if str(flags.get("device", "")).lower() == "cpu":
        return "cpu"
    gpu = deployment.accelerator
    if gpu is not None and (gpu.vendor.lower() in _ROCM or _is_gfx(gpu.compute_capability)):
        return "rocm"
    return "cuda"


def _is_jetson(gpu: Accelerator) -> bool:
    """Whether it is one of NVIDIA's boards without NVML; only its name in the table tells."""
    return "jetson" in gpu.name.lower()


def is_radeon(deployment: Deployment) -> bool:
    """Whether the GPU is one of AMD's RDNA cards: gfx10 to gfx12; Instinct's are gfx9."""
    gpu = deployment.accelerator
    return gpu is not None and str(gpu.compute_capability).startswith("gfx1")


def reported_memory(deployment: Deployment) -> int:
    """Memory that the driver's library reports, by which a start's batch is chosen.

    NVML reports none of memory that is the CPU's too (GB10; a Jetson has no NVML, torch is asked),
    and amdsmi what the firmware set aside (Radeon). Such starts have the defaults of small GPUs
    (engine/arg_utils.py, get_batch_defaults): four public logs of GB10, 0.20 to 0.27, and one of
    Strix Halo capture 256 sequences and batches of 2,048. Without a GPU, one of 80 GiB.
    """
    gpu = deployment.first
    if gpu is None:
        return 80 * GIB
    asked = is_radeon(deployment) or (gpu.vendor == "NVIDIA" and not _is_jetson(gpu))
    return 0 if gpu.unified_memory and asked else gpu.memory_bytes


def shares_pages(deployment: Deployment) -> bool:
    """Whether what is free of the GPU's memory is what the system leaves: so seen on GB10."""
    gpu = deployment.accelerator
    if gpu is None or _is_jetson(gpu):
        return False
    return gpu.vendor == "NVIDIA" and gpu.unified_memory


def over_pcie(deployment: Deployment) -> bool:
    """Whether ranks reach one another over PCIe: NVIDIA's cards without NVLink but a bridge's."""
    gpu = deployment.accelerator
    if gpu is None or gpu.vendor != "NVIDIA":
        return False
    return gpu.link is None or "bridge" in gpu.link


def capability_of(deployment: Deployment, platform: str) -> tuple[int, int]:
    """The GPU's compute capability; Hopper's where there is none."""
    gpu = deployment.accelerator
    text = gpu.compute_capability if gpu is not None else None
    if platform != "cuda" or text is None:
        return _HOPPER
    major, _, minor = text.partition(".")
    return (int(major), int(minor or 0)) if major.isdigit() else _HOPPER


def _is_gfx(capability: str | None) -> bool:
    return capability is not None and capability.startswith("gfx")
