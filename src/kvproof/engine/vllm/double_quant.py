"""bitsandbytes' double quantization as vLLM holds it: second-level scales unpacked at load."""

from __future__ import annotations

import msgspec

from kvproof.engine.vllm.versions import Version
from kvproof.model.quantization import Scheme
from kvproof.model.types import Model

_SINCE: Version = (0, 9, 2)
"""model_loader/bitsandbytes_loader.py, dequantize_dq (vllm#19742, June 2025)."""
_BITS, _NESTED, _UNPACKED = 4, 8, 32


def with_unpacked_scales(model: Model, release: Version) -> Model:
    """The model with f32 scales where the checkpoint stores 8-bit ones of two levels."""
    own = model.quantization
    if own is None or own.method != "bitsandbytes" or release < _SINCE:
        return model
    named = tuple((pattern, _unpacked(scheme)) for pattern, scheme in own.named)
    default = None if own.default is None else _unpacked(own.default)
    held = msgspec.structs.replace(own, default=default, named=named)
    return msgspec.structs.replace(model, quantization=held)


def _unpacked(scheme: Scheme) -> Scheme:
    if scheme.bits != _BITS or scheme.scale_bits != _NESTED:
        return scheme
    return msgspec.structs.replace(scheme, scale_bits=_UNPACKED)
