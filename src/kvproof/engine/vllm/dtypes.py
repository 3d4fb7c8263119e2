"""The type that a start runs in: activations, plain weights, and a cache whose type is `auto`.

Source: config.py, then config/model.py (_resolve_auto_dtype, _get_and_verify_dtype) and
platforms/cuda.py (supported_dtypes), read in 0.4.2 to 0.33.0: GPUs before Ampere fall back to 16
or 32 bits of their own since 0.9.0 (PR 17265); before, such a start was refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from kvproof.engine.base import Deployment
from kvproof.engine.vllm.platforms import capability_of, platform_of
from kvproof.engine.vllm.versions import Version, parse_version
from kvproof.errors import UsageError
from kvproof.model.types import Model

_NAMES = {
    "half": "f16", "float16": "f16", "bfloat16": "bf16", "float32": "f32", "float": "f32",
}  # fmt: skip
_OPTIONS = {"f16": "half", "f32": "float32"}
_AUTO = "auto"
_AMPERE, _PASCAL = (8, 0), (6, 0)
_FALLS_BACK: Version = (0, 9, 0)
_NO_HALF: tuple[tuple[str, Version, Version | None], ...] = (
    ("gemma2", (0, 9, 2), None),
    ("gemma3", (0, 9, 2), None),
    ("gemma3_text", (0, 10, 2), None),
    ("glm4", (0, 9, 2), None),
    ("plamo2", (0, 9, 2), (0, 27, 0)),
)
"""Model types that vLLM runs in no float16, and the releases that say so (_is_valid_dtype)."""


def run_type(model: Model, deployment: Deployment, flags: Mapping[str, Any]) -> str:
    """The element type of the start; raises UsageError where one is asked for that can't be had.

    `auto` is the checkpoint's, 16 bits where that has 32, and what the GPU has in its place.
    """
    version = parse_version(deployment.engine.version)
    usable = _usable(model, deployment, flags, version)
    asked = _asked(flags)
    if asked != _AUTO:
        name = _NAMES.get(asked, asked)
        _check(model, deployment, name, usable)
        return name
    own = _checkpoint(model, version, usable)
    return own if own in usable or own not in _NAMES.values() else usable[0]


def refused_type(model: Model, deployment: Deployment, flags: Mapping[str, Any]) -> str | None:
    """Why a release that does not fall back stops at the checkpoint's type; None where it starts.

    Source: worker/worker.py (_check_if_gpu_supports_dtype), 0.4.2 to 0.8.5.
    """
    version = parse_version(deployment.engine.version)
    config = {**model.config, **model.text_config}
    own = config.get("dtype") or config.get("torch_dtype")
    if version >= _FALLS_BACK or _asked(flags) != _AUTO or own != "bfloat16":
        return None
    usable = _usable(model, deployment, flags, version)
    if "bf16" in usable:
        return None
    return (
        f"vLLM {deployment.engine.version} refuses to start in bfloat16 on {_where(deployment)}: "
        f"give --dtype {_OPTIONS[usable[0]]}, in which it is planned"
    )


def check_drafted(drafting: Model | None, version: Version, dtype: str) -> None:
    """Raise UsageError for a draft that does not run in the target's type, which it is given.

    Source: vLLM 0.32, config/speculative.py (draft_model_config has the target's dtype).
    """
    if drafting is not None and dtype == "f16" and _runs_in_no_half(drafting, version):
        raise UsageError(
            f"vLLM runs the draft {drafting.name} in the model's type, and {drafting.model_type} "
            "in no float16",
            hint="give --dtype bfloat16 or float32, or choose another draft",
        )


def run_in(model: Model, deployment: Deployment, flags: Mapping[str, Any]) -> Model:
    """The model in the type that it runs in, with a word on one that nobody asked for.

    A checkpoint's own size says nothing of weights that are cast to another width.
    """
    dtype = run_type(model, deployment, flags)
    if dtype == model.dtype:
        return model
    cast = "f32" in (dtype, model.dtype) and model.quantization is None and bool(model.tensors)
    asked = _asked(flags) != _AUTO
    return msgspec.structs.replace(
        model,
        dtype=dtype,
        stored_weight_bytes=None if cast else model.stored_weight_bytes,
        notes=model.notes if asked else (*model.notes, _note(model, deployment, dtype)),
    )


def _note(model: Model, deployment: Deployment, dtype: str) -> str:
    if model.dtype == "f32":
        return f"the checkpoint has 32-bit floats: vLLM runs it in {dtype} unless --dtype says else"
    said = f"{_where(deployment)} has no {model.dtype}: vLLM runs {dtype} instead"
    if dtype != "f32":
        return said
    return f"{said}, as {model.model_type} runs in no f16; weights and cache take twice the memory"


def _asked(flags: Mapping[str, Any]) -> str:
    return str(flags.get("dtype", _AUTO)).lower()


def _checkpoint(model: Model, version: Version, usable: tuple[str, ...]) -> str:
    if model.dtype != "f32":
        return model.dtype
    return usable[0] if version >= _FALLS_BACK else "f16"


def _usable(
    model: Model, deployment: Deployment, flags: Mapping[str, Any], version: Version
) -> tuple[str, ...]:
    """The types of the hardware in which the model runs, preferred ones first."""
    platform = platform_of(deployment, flags)
    capability = capability_of(deployment, platform)
    types: tuple[str, ...] = ("f32",) if capability < _PASCAL else ("f16", "f32")
    if platform != "cuda" or capability >= _AMPERE:
        types = ("bf16", "f16", "f32")
    return tuple(t for t in types if t != "f16") if _runs_in_no_half(model, version) else types


def _runs_in_no_half(model: Model, version: Version) -> bool:
    kind = str(model.config.get("model_type") or model.model_type)
    return any(
        name == kind and since <= version and (until is None or version < until)
        for name, since, until in _NO_HALF
    )


def _check(model: Model, deployment: Deployment, name: str, usable: tuple[str, ...]) -> None:
    if name in usable or name not in _NAMES.values():
        return
    if name == "bf16":
        raise UsageError(
            f"vLLM refuses bfloat16 on {_where(deployment)}",
            hint=f"leave --dtype out, or give {_OPTIONS[usable[0]]}",
        )
    raise UsageError(
        f"vLLM runs {model.model_type} in no float16: it is numerically unstable there",
        hint="leave --dtype out, or give bfloat16 or float32",
    )


def _where(deployment: Deployment) -> str:
    gpu = deployment.accelerator
    if gpu is None:
        return "this GPU"
    return f"{gpu.name} (compute capability {gpu.compute_capability})"
