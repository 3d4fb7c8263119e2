"""The least compute capability that vLLM's quantization methods ask of a GPU, by release.

Source: vLLM 0.32, config/vllm.py (_get_quantization_config) refuses a GPU below the method's
get_min_capability; compressed-tensors asks the same of each scheme.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from kvproof.engine.base import Deployment
from kvproof.engine.vllm.platforms import platform_of
from kvproof.engine.vllm.versions import Version, parse_version
from kvproof.hardware import Accelerator
from kvproof.model.types import Model

_DATA = Path(__file__).with_name("data") / "capabilities.json"
_BY_SCHEME = ("compressed-tensors", "modelopt")
"""Methods whose least capability is that of the scheme they store."""


@cache
def _least() -> dict[str, tuple[tuple[Version, int], ...]]:
    """For each method (and scheme) the values from each release on, oldest first."""
    rows: dict[str, dict[str, int]] = msgspec.json.decode(_DATA.read_bytes())["least"]
    return {
        name: tuple(sorted((parse_version(since), least) for since, least in dated.items()))
        for name, dated in rows.items()
    }


def refused_capability(
    model: Model, deployment: Deployment, flags: Mapping[str, Any]
) -> str | None:
    """Why vLLM does not start the model's quantization on the GPU; None where it does."""
    gpu = _oldest(deployment)
    if gpu is None or platform_of(deployment, flags) != "cuda":
        return None
    version = parse_version(deployment.engine.version)
    for name in _methods(model, flags):
        least = least_capability(name, version)
        own = _number(gpu)
        if own is not None and least is not None and own < least:
            return (
                f"vLLM refuses to start: quantization {name} needs a compute capability of "
                f"{least // 10}.{least % 10}, and {gpu.name} has {gpu.compute_capability}"
            )
    return None


def least_capability(name: str, version: Version) -> int | None:
    """Ten times the least capability of a method under a release; None where it is not known."""
    held = [least for since, least in _least().get(name, ()) if since <= version]
    return held[-1] if held else None


def _methods(model: Model, flags: Mapping[str, Any]) -> Iterator[str]:
    """The checkpoint's method, by scheme where that matters, and the one that is asked for."""
    stored = model.quantization
    if stored is not None:
        yield stored.method
    if stored is not None and stored.method == "modelopt" and stored.default is None:
        yield "modelopt_mixed"
    elif stored is not None and stored.method in _BY_SCHEME:
        schemes = (stored.default, *(scheme for _, scheme in stored.named))
        kinds = {scheme.name.split()[0] for scheme in schemes if scheme is not None}
        yield from (f"{stored.method} {kind}" for kind in sorted(kinds))
    asked = flags.get("quantization")
    if asked:
        yield str(asked).lower()


def _oldest(deployment: Deployment) -> Accelerator | None:
    kinds = [kind for _, kind in deployment.kinds if _number(kind) is not None]
    return min(kinds, key=lambda kind: _number(kind) or 0, default=None)


def _number(gpu: Accelerator) -> int | None:
    """Ten times the compute capability, as vLLM compares it; None where it is no CUDA one."""
    major, _, minor = (gpu.compute_capability or "").partition(".")
    return 10 * int(major) + int(minor or 0) if major.isdigit() else None
