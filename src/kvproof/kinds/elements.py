"""Element types of cached state: how many bytes a row of numbers takes, scales included."""

from __future__ import annotations

import msgspec

from kvproof.errors import UsageError, unknown_name


class ElementType(msgspec.Struct, frozen=True):
    """A number format stored in blocks: `block` elements take `block_bytes` bytes.

    Plain types have a block of one element (f32, bf16) or of the smallest whole byte (int4).
    Block formats (q8_0, mxfp4, nvfp4) carry their scales inside the block's bytes.
    """

    name: str
    block: int
    block_bytes: int
    source: str

    def bytes(self, elements: int) -> int:
        """Whole bytes of one contiguous row of `elements` numbers; a partial block counts whole."""
        return -(-elements // self.block) * self.block_bytes

    @property
    def bits(self) -> float:
        """Mean bits per element, scales included."""
        return self.block_bytes * 8 / self.block


_GGML = "ggml block formats, ggml-common.h"
_ROWS = (
    ElementType("f64", 1, 8, "IEEE 754"),
    ElementType("f32", 1, 4, "IEEE 754"),
    ElementType("bf16", 1, 2, "bfloat16"),
    ElementType("f16", 1, 2, "IEEE 754"),
    ElementType("fp8_e4m3", 1, 1, "OCP OFP8"),
    ElementType("fp8_e5m2", 1, 1, "OCP OFP8"),
    ElementType("int64", 1, 8, "two's complement"),
    ElementType("int32", 1, 4, "two's complement"),
    ElementType("int8", 1, 1, "two's complement"),
    ElementType("int6", 4, 3, "four elements packed in three bytes, no scales (DeepSeek-V2's own)"),
    ElementType("int4", 2, 1, "two elements packed in a byte, no scales"),
    ElementType("fp4", 2, 1, "OCP E2M1, two elements packed in a byte, no scales"),
    ElementType("mxfp8", 32, 33, "OCP MX: 32 elements and one E8M0 scale"),
    ElementType("mxfp4", 32, 17, "OCP MX: 32 elements and one E8M0 scale"),
    ElementType("nvfp4", 16, 9, "16 E2M1 elements and one E4M3 scale (Blackwell)"),
    ElementType("fp8_ds_mla", 576, 656, "vLLM's DeepSeek latent: 512 E4M3, 4 f32 scales, 64 bf16"),
    ElementType("fp8_ds_v4", 512, 584, "vLLM's DeepSeek-V4 entry: 448 E4M3, 8 scales, 64 bf16"),
    ElementType("fp8_scaled_128", 128, 132, "DeepSeek indexer keys: 128 E4M3 and one f32 scale"),
    ElementType("q8_0", 32, 34, _GGML),
    ElementType("q5_1", 32, 24, _GGML),
    ElementType("q5_0", 32, 22, _GGML),
    ElementType("q4_1", 32, 20, _GGML),
    ElementType("q4_0", 32, 18, _GGML),
    ElementType("iq4_nl", 32, 18, _GGML),
)
ELEMENT_TYPES = {row.name: row for row in _ROWS}

_ALIASES = {
    "float64": "f64", "double": "f64",
    "float32": "f32", "float": "f32", "fp32": "f32",
    "bfloat16": "bf16",
    "float16": "f16", "half": "f16", "fp16": "f16",
    "fp8": "fp8_e4m3", "float8_e4m3fn": "fp8_e4m3", "float8_e4m3fnuz": "fp8_e4m3",
    "float8_e4m3": "fp8_e4m3", "float8_e5m2": "fp8_e5m2",
}  # fmt: skip


def element_type(name: str) -> ElementType:
    """The element type called `name`, in this project's, torch's or ggml's spelling.

    Raises UsageError for an unknown name, offering the near ones.
    """
    if not isinstance(name, str):
        raise UsageError(
            f"an element type can't be a {type(name).__name__}", hint="write its name, e.g. bf16"
        )
    key = name.strip().lower().removeprefix("torch.")
    found = ELEMENT_TYPES.get(_ALIASES.get(key, key))
    if found is None:
        known = sorted({*ELEMENT_TYPES, *_ALIASES})
        raise unknown_name("element type", name, known, see=f"known: {', '.join(ELEMENT_TYPES)}")
    return found


F32 = ELEMENT_TYPES["f32"]
BF16 = ELEMENT_TYPES["bf16"]
INT64 = ELEMENT_TYPES["int64"]
