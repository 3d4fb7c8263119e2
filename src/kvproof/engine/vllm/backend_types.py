"""What the choice of an attention backend depends on, and what a chosen one asks of blocks."""

from __future__ import annotations

import math

import msgspec

from kvproof.engine.vllm.versions import Version

DEFAULT_BLOCK = 16
"""Tokens of a block that nobody asked for (config/cache.py)."""
READ: Version = (0, 32, 0)
"""The release whose backends were read; the newest of them are known of no earlier one."""


class Attention(msgspec.Struct, frozen=True, kw_only=True):
    """What the choice of a backend depends on."""

    capability: tuple[int, int]
    platform: str = "cuda"
    release: Version = READ
    latent: bool = False
    sparse: bool = False
    head_dim: int = 128
    """Numbers of a key; of a latent and its rotary key where latents are kept."""
    value_dim: int | None = None
    """The values' width where it is not the keys'."""
    nope_dim: int = 128
    rope_dim: int = 64
    latent_dim: int = 512
    picked: int = 2048
    """Positions that a sparse model's indexer picks (index_topk)."""
    checked_dim: int | None = None
    """The width by which an asked block is checked, where it is not this layer's: the model's."""
    query_heads: int = 32
    kv_heads: int = 8
    kv_dtype: str = "auto"
    kv_asked: bool = True
    """The user names the cache's type; else the checkpoint or the release does."""
    dtype: str = "bf16"
    """The type of activations."""
    sinks: bool = False
    capped: bool = False
    """Scores are capped (attn_logit_softcapping)."""
    pictures: bool = False
    """Pictures are read in both directions, by backends that can do that."""
    both_ways: bool = False
    """Some tokens see later ones whatever is read (use_non_causal)."""
    diffusion: bool = False
    """Whether it looks back or both ways is told for each sequence (is_diffusion)."""
    flash_4: bool = False
    """The model asks for FlashAttention 4 by itself, as those of several head widths do."""
    block_size: int | None = None
    context_ranks: int = 1
    forced: str | None = None
    """The backend that the user asks for."""
    own: str | None = None
    """The one whose blocks the model's own kernels take, whatever is asked for."""

    @property
    def quantized(self) -> bool:
        """Whether the cache is stored in fewer than 16 bits."""
        return self.kv_dtype not in ("auto", "float16", "bfloat16")

    @property
    def alike(self) -> bool:
        """Whether values are as wide as keys."""
        return self.latent or self.value_dim in (None, self.head_dim)


class Backend(msgspec.Struct, frozen=True, kw_only=True):
    """A backend's kernel block sizes (`multiple`: every multiple of the one size is fine).

    `exact` backends take these sizes and no multiple of them.
    """

    name: str
    sizes: tuple[int, ...]
    multiple: bool = True
    exact: bool = False
    flat_rows: int = 0
    """Blocks start a multiple of this many rows apart: sparse kernels read the cache as rows."""
    flat_pages: bool = False
    """Quantized, they start a multiple of whole kernel blocks apart."""

    def stride_rows(self, block: int, *, quantized: bool) -> int:
        """Rows that the distance of two blocks of `block` rows is a multiple of; 0 for any."""
        if quantized and self.flat_pages:
            kernel = math.gcd(self.smallest, block)
            return 0 if kernel == block else kernel
        return self.flat_rows

    def takes(self, block: int) -> bool:
        """Whether a block of `block` tokens can be used (split into kernel blocks if need be)."""
        if self.exact:
            return block in self.sizes
        return any(block % size == 0 for size in self.sizes)

    def packs(self, kv_dtype: str) -> bool:
        """Whether heads of a cache of that type lie packed, their scales beside them.

        Triton's of heads quantized for each token, FlashInfer's and MiniMax-M3's of NVFP4; others
        keep one byte an element (customize_spec of v1/attention/backends and models, 0.32).
        """
        if kv_dtype.endswith("_per_token_head"):
            return self.name == "TRITON_ATTN"
        return self.name in ("FLASHINFER", "MINIMAX_M3_SPARSE")

    @property
    def split(self) -> str:
        """What keeps its layers apart from others of the same shape: larger blocks are split into
        kernel blocks of this size, which vLLM's spec of the layer says.

        Source: vLLM 0.32, v1/worker/utils.py (customize_attention_spec).
        """
        return "" if self.multiple else f" in {max(self.sizes)}"

    @property
    def smallest(self) -> int:
        """Its smallest kernel block."""
        return min(self.sizes)

    def largest_within(self, row_bytes: int, budget: int) -> int:
        """The largest kernel block whose page fits in `budget` bytes, else the smallest one."""
        most = budget // row_bytes
        if self.multiple:
            size = self.sizes[0]
            return max(size, most // size * size)
        fitting = [size for size in self.sizes if size * row_bytes <= budget]
        return max(fitting) if fitting else self.smallest


def every(name: str, size: int, *, rows: int = 0, pages: bool = False) -> Backend:
    """A backend that takes every multiple of `size`."""
    return Backend(name=name, sizes=(size,), flat_rows=rows, flat_pages=pages)


def fixed(name: str, *sizes: int, exact: bool = False) -> Backend:
    """A backend that takes these kernel blocks only."""
    return Backend(name=name, sizes=sizes, multiple=False, exact=exact)
