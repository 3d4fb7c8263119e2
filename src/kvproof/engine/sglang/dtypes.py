"""The type that a start runs in: plain weights, activations, and a cache whose type is `auto`.

Source: SGLang 0.3.6 to 0.5.23, configs/model_config.py (_get_and_verify_dtype).
"""

from __future__ import annotations

import msgspec

from kvproof.engine.base import Deployment
from kvproof.engine.sglang.capabilities import capability_number
from kvproof.errors import unknown_name
from kvproof.model.types import Model

_NAMES = {
    "half": "f16", "float16": "f16", "bfloat16": "bf16", "float32": "f32", "float": "f32",
}  # fmt: skip
_AUTO = "auto"
_SIXTEEN = 80
"""Ten times the compute capability below which there is no bfloat16."""
_SEE = f"SGLang takes {', '.join((_AUTO, *_NAMES))}"


def _is_old(deployment: Deployment) -> bool:
    """Source: 0.5.23, load_model_utils.py (maybe_downgrade_dtype_for_legacy_gpu)."""
    own = [capability_number(kind) for _, kind in deployment.kinds]
    return any(number is not None and number < _SIXTEEN for number in own)


def run_in(model: Model, deployment: Deployment) -> Model:
    """The model in the type that it runs in, with a word on one that nobody asked for.

    `auto` is the checkpoint's, and 16 bits where that has 32; GPUs of before compute capability 8.0
    run everything in float16. Raises UsageError for another name.
    """
    asked = str(deployment.flags.get("dtype", _AUTO)).lower()
    if asked != _AUTO and asked not in _NAMES:
        raise unknown_name("dtype of SGLang", asked, [_AUTO, *_NAMES], see=_SEE)
    usual = "bf16" if model.model_type.startswith("gemma") else "f16"
    own = usual if model.dtype == "f32" else model.dtype
    old = _is_old(deployment)
    dtype = "f16" if old else _NAMES.get(asked, own)
    if dtype == model.dtype:
        return model
    cast = "f32" in (dtype, model.dtype) and model.quantization is None and bool(model.tensors)
    said = f"the checkpoint has 32-bit floats: SGLang runs it in {dtype} unless --dtype says else"
    if old:
        said = "SGLang runs everything in float16 below compute capability 8.0"
    return msgspec.structs.replace(
        model,
        dtype=dtype,
        stored_weight_bytes=None if cast else model.stored_weight_bytes,
        notes=model.notes if asked != _AUTO and not old else (*model.notes, said),
    )
