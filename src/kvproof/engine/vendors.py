"""Whose accelerators an engine runs on, and where its memory terms were confirmed.

Sources: TensorRT-LLM is NVIDIA's for NVIDIA's; vLLM 0.32, platforms/__init__.py (macOS runs its CPU
platform); SGLang 0.5.23, srt/hardware_backend (mlx is a runner of its own, with other pools).
"""

from __future__ import annotations

from collections.abc import Collection

from kvproof.engine.common_flags import CALLED
from kvproof.errors import UsageError
from kvproof.hardware import Accelerator

_KNOWN = {
    "vllm": ("NVIDIA", "AMD"), "sglang": ("NVIDIA", "AMD"), "tensorrt_llm": ("NVIDIA",),
}  # fmt: skip
_LOCAL = "llamacpp"


def local_engine(engine: str, gpu: Accelerator) -> str:
    """The engine that runs on `gpu` where `engine` does not."""
    return _LOCAL if _refused(engine, gpu) else engine


def check_vendor(engine: str, gpu: Accelerator) -> None:
    """Raise UsageError where `engine` has nothing that runs on `gpu`."""
    if _refused(engine, gpu):
        raise UsageError(
            f"{CALLED[engine]} has no rules for {gpu.vendor}'s {gpu.name}",
            hint=f"plan it with {_LOCAL}" if gpu.vendor != "NVIDIA" else "name another GPU",
        )


def check_joined(engine: str, gpus: Collection[Accelerator]) -> None:
    """Raise UsageError for GPUs that no one start of `engine` runs on together.

    A build of vLLM, SGLang or TensorRT-LLM is for one vendor's; llama.cpp's runs CUDA, ROCm and
    Vulkan side by side, and Metal on Apple's machines alone.
    """
    vendors = sorted({gpu.vendor for gpu in gpus})
    apart = engine in _KNOWN or "Apple" in vendors
    if len(vendors) > 1 and apart:
        raise UsageError(
            f"{CALLED.get(engine, engine)} does not run on {' and '.join(vendors)}'s GPUs at once",
            hint="plan each by itself",
        )


def unconfirmed(engine: str, gpu: Accelerator) -> str | None:
    """What to say of a budget for hardware that no log has confirmed; None where one has."""
    if gpu.vendor in _KNOWN.get(engine, (gpu.vendor,)):
        return None
    return (
        f"{CALLED[engine]}'s memory on {gpu.vendor}'s hardware is not known: the terms are those "
        "of CUDA"
    )


def _refused(engine: str, gpu: Accelerator) -> bool:
    if engine == "tensorrt_llm":
        return gpu.vendor != "NVIDIA"
    return engine in _KNOWN and gpu.vendor == "Apple"
