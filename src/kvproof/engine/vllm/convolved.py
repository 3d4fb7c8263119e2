"""Inkling's convolutions: their inputs are a window of a few tokens in the block pool.

The four streams of a layer (keys, values, the outputs of attention and of the feed-forward) are
packed head by head, a head's width rounded up to a power of two. Source: vLLM 0.32,
models/inkling/nvidia/sconv_swa_attn.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvproof.engine.vllm.settings import Settings
from kvproof.engine.vllm.specs import Spec
from kvproof.errors import UsageError
from kvproof.kinds import ConvSlot, FullSlot, Slot
from kvproof.model.types import Model

_BF16 = 2


def convolution_spec(model: Model, settings: Settings, slots: Sequence[Slot]) -> Spec:
    """The window of one layer's convolutions; raises UsageError for ranks that split no head."""
    attention = next(slot for slot in slots if isinstance(slot, FullSlot))
    kernel = next(slot.kernel for slot in slots if isinstance(slot, ConvSlot))
    if settings.ranks > attention.kv_heads:
        raise UsageError(
            f"vLLM splits the convolutions of {model.name} over at most {attention.kv_heads} "
            f"ranks, its KV heads in a layer, not {settings.ranks}",
            hint="lower tensor_parallel_size",
        )
    heads = attention.kv_heads // settings.ranks
    width = 2 * attention.k_dim + 2 * (model.hidden_size // attention.kv_heads)
    padded = 1 << (width - 1).bit_length()
    return Spec(
        kind="sliding",
        block_size=kernel,
        row_bytes=heads * padded * _BF16,
        window=kernel,
        note=f"convolutions {heads}x{padded}",
    )
