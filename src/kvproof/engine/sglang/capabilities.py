"""The least compute capability that SGLang asks of a GPU: of any model, and by quantization.

Sources: SGLang 0.4.4 to 0.5.23, model_loader/loader.py (_initialize_model, get_min_capability),
layers/quantization/ (each method's get_min_capability, compressed_tensors/schemes), and
model_executor/model_runner.py (model_runner_components/load_model_utils.py since 0.5.16) for the
least of all.
"""

from __future__ import annotations

from kvproof.engine.base import Deployment
from kvproof.engine.release import release_number
from kvproof.hardware import Accelerator
from kvproof.model.types import Model

_ANY = 75
_LEAST: dict[str, tuple[tuple[tuple[int, ...], int], ...]] = {
    "fp8": (((0,), 80),),
    "blockwise_int8": (((0,), 80),),
    "fbgemm_fp8": (((0,), 80),),
    "mxfp8": (((0,), 100),),
    "mxfp4": (((0,), 80),),
    "w8a8_int8": (((0,), 75),),
    "w8a8_fp8": (((0,), 89),),
    "w4afp8": (((0,), 90),),
    "qoq": (((0,), 80),),
    "petit_nvfp4": (((0,), 90),),
    "nvfp4_online": (((0,), 100),),
    "awq_marlin": (((0,), 80),),
    "gptq_marlin": (((0,), 80),),
    "modelopt": (((0,), 89),),
    "modelopt_fp8": (((0,), 89),),
    "modelopt_fp4": (((0,), 100), ((0, 5, 13), 80)),
    "modelopt_mixed": (((0,), 100), ((0, 5, 13), 80)),
    "modelopt fp8": (((0,), 89),),
    "modelopt nvfp4": (((0,), 100), ((0, 5, 13), 80)),
    "compressed-tensors fp8": (((0,), 80),),
    "compressed-tensors int8": (((0,), 80),),
    "compressed-tensors int4": (((0,), 80),),
    "compressed-tensors nvfp4": (((0,), 100), ((0, 5, 22), 80)),
}
"""Ten times the capability by method (and scheme, where that decides), from each release on."""
_BY_SCHEME = ("compressed-tensors", "modelopt")


def refused_capability(model: Model, deployment: Deployment, asked: object) -> str | None:
    """Why SGLang does not start on the GPU; None where it does. `asked`: its quantization flag."""
    gpu = _oldest(deployment)
    own = None if gpu is None else capability_number(gpu)
    if gpu is None or own is None:
        return None
    has = f"and {gpu.name} has {gpu.compute_capability}"
    if own < _ANY:
        return f"SGLang refuses to start: it needs a compute capability of 7.5, {has}"
    for name in _methods(model, asked):
        least = _least(name, deployment.engine.version)
        if least is not None and own < least:
            needs = f"needs a compute capability of {least // 10}.{least % 10}"
            return f"SGLang refuses to start: quantization {name} {needs}, {has}"
    return None


def capability_number(gpu: Accelerator) -> int | None:
    """Ten times the compute capability; None where it is no CUDA one."""
    major, _, minor = (gpu.compute_capability or "").partition(".")
    return 10 * int(major) + int(minor or 0) if major.isdigit() else None


def _oldest(deployment: Deployment) -> Accelerator | None:
    kinds = [kind for _, kind in deployment.kinds if capability_number(kind) is not None]
    return min(kinds, key=lambda kind: capability_number(kind) or 0, default=None)


def _methods(model: Model, asked: object) -> list[str]:
    """The checkpoint's method, by scheme where that decides, and the one that is asked for."""
    found, stored = [], model.quantization
    if stored is not None and stored.method in _BY_SCHEME:
        schemes = (stored.default, *(scheme for _, scheme in stored.named))
        kinds = sorted({scheme.name.split()[0] for scheme in schemes if scheme is not None})
        found += [f"{stored.method} {kind}" for kind in kinds]
    elif stored is not None:
        found.append(stored.method)
    return [*found, *([str(asked).lower()] if asked else [])]


def _least(name: str, version: str | None) -> int | None:
    number = release_number(version)
    rows = _LEAST.get(name, ())
    held = [least for since, least in rows if number is None or number >= since]
    return held[-1] if held else None
