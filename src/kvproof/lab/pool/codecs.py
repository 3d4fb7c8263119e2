"""Encode rows of numbers into an element type's bytes, and back.

Every codec works on the last axis, one head's vector. `data` holds the numbers, `scales` what is
needed to read them (None for plain types): int8 an f32 scale per group, int4 a bf16 minimum and a
bf16 scale per group, packed in one int32. Two int4 numbers share a byte: even ones low, odd high.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from kvproof.errors import UsageError
from kvproof.kinds import ElementType
from kvproof.lab.elements import family

# fp8 numbers lie in uint8 tensors, which every torch operation can index.
_PLAIN = {"f32": torch.float32, "bf16": torch.bfloat16, "fp8_e4m3": torch.uint8}
_FP8_MAX = 448.0


class Encoded(NamedTuple):
    """Rows in an element type's bytes: data [..., rows], scales [..., groups] or None."""

    data: torch.Tensor
    scales: torch.Tensor | None


class Codec:
    """One element type's encoder and decoder for vectors of `dim` numbers."""

    def __init__(self, element: ElementType, dim: int) -> None:
        self.element = element
        self.family = family(element)
        self.dim = dim
        self.plain = self.family in _PLAIN
        if not self.plain and dim % element.block:
            raise UsageError(
                f"groups of {element.block} do not divide a head of {dim}",
                hint=f"use {self.family}:{dim} or a group that divides it",
            )
        self.groups = 0 if self.plain else dim // element.block
        self.rows = dim // 2 if self.family == "int4" else dim

    @property
    def data_dtype(self) -> torch.dtype:
        """The torch type of the stored numbers."""
        if self.plain:
            return _PLAIN[self.family]
        return torch.int8 if self.family == "int8" else torch.uint8

    @property
    def scale_dtype(self) -> torch.dtype:
        """The torch type of a group's four bytes of scale."""
        return torch.float32 if self.family == "int8" else torch.int32

    def encode(self, x: torch.Tensor) -> Encoded:
        """The bytes of `x` [..., dim]."""
        if self.family == "fp8_e4m3":
            eighth = x.float().clamp(-_FP8_MAX, _FP8_MAX).to(torch.float8_e4m3fn)
            return Encoded(eighth.view(torch.uint8), None)
        if self.plain:
            return Encoded(x.to(self.data_dtype), None)
        grouped = x.float().unflatten(-1, (self.groups, -1))
        return self._int8(grouped) if self.family == "int8" else self._int4(grouped)

    def decode(self, encoded: Encoded) -> torch.Tensor:
        """f32 numbers of encoded rows (plain types: unchanged values)."""
        if self.family == "fp8_e4m3":
            return encoded.data.view(torch.float8_e4m3fn).float()
        if encoded.scales is None:
            return encoded.data.float()
        if self.family == "int8":
            grouped = encoded.data.float().unflatten(-1, (self.groups, -1))
            return (grouped * encoded.scales[..., None]).flatten(-2)
        low, high = encoded.data & 15, encoded.data >> 4
        numbers = torch.stack((low, high), -1).flatten(-2).float()
        pair = encoded.scales[..., None].view(torch.bfloat16).float()
        grouped = numbers.unflatten(-1, (self.groups, -1))
        return (grouped * pair[..., 1:2] + pair[..., 0:1]).flatten(-2)

    def _int8(self, grouped: torch.Tensor) -> Encoded:
        scale = grouped.abs().amax(-1) / 127
        unit = torch.where(scale > 0, scale, torch.ones_like(scale))
        numbers = (grouped / unit[..., None]).round().clamp(-127, 127).to(torch.int8)
        return Encoded(numbers.flatten(-2), scale)

    def _int4(self, grouped: torch.Tensor) -> Encoded:
        low, high = grouped.amin(-1), grouped.amax(-1)
        pair = torch.stack((low, (high - low) / 15), -1).to(torch.bfloat16)
        unit = torch.where(pair[..., 1:] > 0, pair[..., 1:].float(), 1.0)
        numbers = ((grouped - pair[..., :1].float()) / unit).round().clamp(0, 15)
        flat = numbers.to(torch.uint8).flatten(-2)
        packed = flat[..., 0::2] | (flat[..., 1::2] << 4)
        return Encoded(packed, pair.view(torch.int32).squeeze(-1))
