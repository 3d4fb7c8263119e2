"""MLX folders: a transformers config whose `quantization` key says how weights are packed.

Source: mlx-lm's `quantize_model`: groups of `bits` wide numbers in uint32 words, with an f16
scale and an f16 bias each; entries named like modules override the default, false leaves one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from kvproof.errors import ModelError
from kvproof.model.quantization import Quantization, Scheme
from kvproof.model.types import Model

_GROUPS = (16, 32, 64, 128)
_BITS = (2, 3, 4, 5, 6, 8)
_SHARED_EXPONENT = ("mxfp4", "mxfp8", "nvfp4")


class MlxQuantization(Quantization, frozen=True, kw_only=True):
    """MLX packs embedding tables too; norms and biases stay."""

    def covers(self, *, linear: bool, role: str) -> bool:
        """Linear weights and embedding tables, routers included."""
        return linear or role == "embedding"


def is_mlx(config: Mapping[str, Any]) -> bool:
    """Whether a config carries MLX's own quantization section."""
    section = config.get("quantization")
    return isinstance(section, Mapping) and "bits" in section


def without_quantization(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config as transformers knows it: MLX writes its section under two names."""
    return {k: v for k, v in config.items() if k not in ("quantization", "quantization_config")}


def with_quantization(model: Model, section: Mapping[str, Any]) -> Model:
    """`model` with MLX's packed weights."""
    named = tuple(
        (name, _scheme(value) if isinstance(value, Mapping) else None)
        for name, value in section.items()
        if isinstance(value, Mapping) or value is False
    )
    quantization = MlxQuantization(
        method="mlx",
        default=_scheme(section),
        ignore=tuple(name for name, scheme in named if scheme is None),
        named=tuple((name, scheme) for name, scheme in named if scheme is not None),
    )
    return msgspec.structs.replace(model, quantization=quantization)


def _scheme(section: Mapping[str, Any]) -> Scheme:
    bits, group = section.get("bits", 4), section.get("group_size", 64)
    mode = str(section.get("mode", "affine"))
    if bits not in _BITS or group not in _GROUPS:
        raise ModelError(
            f"MLX quantization of {str(bits)[:20]!r} bits in groups of {str(group)[:20]!r}",
            hint=f"known: {_BITS} bits, groups of {_GROUPS}",
        )
    shared = mode in _SHARED_EXPONENT
    return Scheme(
        name=f"mlx {mode} {bits} bit",
        bits=bits,
        group=group,
        scale_bits=8 if shared else 16,
        zero_bits=0 if shared else 16,
        source="mlx-lm: f16 scale and bias per group" if not shared else "mlx: one scale per group",
    )
