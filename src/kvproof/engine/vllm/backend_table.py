"""Attention backends of CUDA as rows: what each takes, and the order in which vLLM tries them.

Source: vLLM 0.32, v1/attention/backends/** (validate_configuration, supports_combination,
get_supported_kernel_block_sizes) and platforms/cuda.py (_get_backend_priorities). Kernels and
packages are taken to be there as in the CUDA wheel, whose metadata names flashinfer-python
0.7.0.post1 and tokenspeed-mla, and FlashInfer's downloads to be within reach.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from kvproof.engine.vllm.backend_types import READ, Attention, Backend, every, fixed

FLASH_ATTN = every("FLASH_ATTN", 16)
TRITON_ATTN = every("TRITON_ATTN", 16)
FLASHINFER = fixed("FLASHINFER", 16, 32, 64)
_FLASH_64, _FLASH_128 = fixed("FLASH_ATTN", 64), fixed("FLASH_ATTN", 128)
_FLASHINFER_LARGE = fixed("FLASHINFER", 16, 32, 64, 128, 256, 512, 1024)
_HALF = ("auto", "float16", "bfloat16")
_FP8 = (*_HALF, "fp8", "fp8_e4m3")
_NVFP4 = ("nvfp4", "nvfp4_4over6", "nvfp4_ds_mla")
_HEADS = ("int4_per_token_head", "int8_per_token_head", "fp8_per_token_head")
_LATENT_HEADS, _SPARSE_HEADS = (320, 512, 576), (512, 576)
_ANY, _F32 = ("bf16", "f16"), ("bf16", "f16", "f32")


def _anything(_: Attention) -> bool:
    return True


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One backend and what it takes: cache types, GPUs, activations, widths, what else is read.

    `heads` and `majors` of None are all; `fits` is what no field says. `sized` gives the blocks
    where they depend on the attention.
    """

    backend: Backend
    cache: tuple[str, ...]
    majors: tuple[int, ...] | None = None
    dtypes: tuple[str, ...] = _ANY
    heads: tuple[int, ...] | None = None
    latent: bool = False
    sparse: bool = False
    sinks: bool = False
    pictures: bool = False
    both_ways: bool = False
    shared_out: bool = False
    """Decode context parallelism shares its cache out."""
    fits: Callable[[Attention], bool] = _anything
    sized: Callable[[Attention], Backend] | None = None

    def of(self, attention: Attention) -> Backend:
        """The backend with the blocks that it takes for this attention."""
        return self.backend if self.sized is None else self.sized(attention)

    def takes(self, attention: Attention) -> bool:
        """Whether the backend runs the attention, its block size included."""
        a = attention
        return (
            (self.latent, self.sparse) == (a.latent, a.sparse)
            and a.kv_dtype in self.cache
            and (self.majors is None or a.capability[0] in self.majors)
            and a.dtype in self.dtypes
            and (self.heads is None or a.head_dim in self.heads)
            and (self.sinks or not a.sinks)
            and (self.pictures or not a.pictures)
            and (self.both_ways or not a.both_ways)
            and (self.shared_out or a.context_ranks == 1)
            and self.fits(a)
            and (a.block_size is None or self.of(_as_checked(a)).takes(a.block_size))
        )


def _as_checked(a: Attention) -> Attention:
    """The attention whose blocks an asked one is held against: of the model's own width.

    Source: vLLM 0.32, v1/attention/backend.py (supports_block_size), which asks without a layer.
    """
    return a if a.checked_dim is None else msgspec.structs.replace(a, head_dim=a.checked_dim)


def flash_version(a: Attention) -> int:
    """The FlashAttention that runs: 3 on Hopper, 4 on Blackwell, else 2, with their gaps.

    Source: vLLM 0.32, v1/attention/backends/fa_utils.py (get_flash_attn_version).
    """
    major, wide = a.capability[0], a.head_dim > 128
    version = 4 if a.flash_4 and major in (9, 10, 11) else {9: 3, 10: 4}.get(major, 2)
    if version == 3 and (a.head_dim > 256 or a.diffusion):
        return 4
    if version == 4 and major >= 10 and wide:
        return 4 if _pages_of_128(a) and not _no_pages_of_128(a) else 2
    return version


def _pages_of_128(a: Attention) -> bool:
    """Whether FlashAttention 4 has a kernel of its own, for heads of 256, with pages of 128."""
    return a.release >= READ and a.capability[0] in (10, 11) and a.head_dim == 256


def _no_pages_of_128(a: Attention) -> bool:
    """What that kernel lacks, so that FlashAttention 2 runs (_fa4_hd256_fallback_reason)."""
    block = a.block_size is not None and a.block_size % 128 != 0
    return a.sinks or a.capped or a.pictures or a.quantized or block or a.context_ranks > 1


def _flash_fits(a: Attention) -> bool:
    major, head, version = a.capability[0], a.head_dim, flash_version(a)
    if head % 8 or head > (512 if major in (9, 10, 11) else 256):
        return False
    if a.sinks and major not in ((9, 10, 11) if a.flash_4 else (9, 10)):
        return False
    if a.pictures and (version != 4 or (a.quantized and major == 9)):
        return False
    return not a.quantized or flash_keeps_fp8(a)


def flash_keeps_fp8(a: Attention) -> bool:
    """Whether the FlashAttention that runs reads a quantized cache (fa_utils.py)."""
    version = flash_version(a)
    if a.capability[0] == 9:
        return version == 3 or a.head_dim == 512
    return a.capability[0] == 10 and version == 4


def _flash_sized(a: Attention) -> Backend:
    if a.quantized and a.capability[0] == 9 and a.head_dim == 512:
        return _FLASH_64
    plain = msgspec.structs.replace(a, sinks=False, block_size=None)
    own = _pages_of_128(a) and flash_version(plain) == 4
    return _FLASH_128 if own else FLASH_ATTN


def _paired_flash_fits(a: Attention) -> bool:
    """Triton for pictures, FlashAttention 3 or 4 for text (triton_flash_attn.py)."""
    return _flash_fits(msgspec.structs.replace(a, pictures=False))


def _paired_flash_sized(a: Attention) -> Backend:
    return msgspec.structs.replace(_flash_sized(a), name="TRITON_FLASH_ATTN")


def _infer_fits(a: Attention) -> bool:
    major = a.capability[0]
    if a.capability > (12, 1) or (a.sinks and major not in (9, 10, 12)):
        return False
    if not a.kv_dtype.startswith("nvfp4") or major == 10:
        return True
    return a.kv_dtype == "nvfp4" and major != 11 and a.head_dim != 64 and not a.sinks


def _infer_sized(a: Attention) -> Backend:
    """Large pages run on Blackwell's kernel for grouped queries only."""
    grouped = a.kv_heads > 0 and a.query_heads // a.kv_heads > 1
    whole = grouped and a.query_heads % a.kv_heads == 0
    return _FLASHINFER_LARGE if a.capability[0] == 10 and whole else FLASHINFER


def _flat_512_fits(a: Attention) -> bool:
    """FlashMLA's rows of 512: on Hopper, without a rotary part (flashmla_sparse.py)."""
    if a.kv_dtype == "nvfp4_ds_mla" and a.capability[0] != 10:
        return False
    if a.head_dim != 512:
        return True
    kept = a.kv_dtype in (*_HALF, "fp8_ds_mla")
    return kept and a.capability[0] == 9 and a.rope_dim == 0


def _sparse_infer_fits(a: Attention) -> bool:
    if a.rope_dim == 0:
        return a.nope_dim == 256 and a.latent_dim == 512
    return a.nope_dim in (128, 192)


def _sm90_fits(a: Attention) -> bool:
    return a.release >= READ and a.latent_dim == 512 and a.rope_dim in (0, 64)


_FLASH = Row(
    backend=FLASH_ATTN, cache=_FP8, majors=(8, 9, 10, 11, 12), sinks=True, pictures=True,
    both_ways=True, shared_out=True, fits=_flash_fits, sized=_flash_sized,
)  # fmt: skip
_TRITON = Row(
    backend=TRITON_ATTN, cache=(*_FP8, "fp8_e5m2", *_HEADS), dtypes=_F32, sinks=True,
    pictures=True, both_ways=True, fits=lambda a: a.head_dim >= 32,
)  # fmt: skip
_FLEX = Row(
    backend=every("FLEX_ATTENTION", 16), cache=_HALF, dtypes=_F32, pictures=True, both_ways=True
)
_INFER = Row(
    backend=FLASHINFER, cache=(*_FP8, "fp8_e5m2", *_NVFP4), majors=(8, 9, 10, 11, 12),
    heads=(64, 128, 256, 512), both_ways=True, shared_out=True, sinks=True, fits=_infer_fits,
    sized=_infer_sized,
)  # fmt: skip
_PAIRED_FLASH = Row(
    backend=every("TRITON_FLASH_ATTN", 16), cache=_FP8, majors=(9,), heads=(256, 512),
    pictures=True, fits=_paired_flash_fits, sized=_paired_flash_sized,
)  # fmt: skip
_PAIRED_INFER = Row(
    backend=fixed("TRITON_FLASHINFER", 64), cache=(*_FP8, "fp8_e5m2"), majors=(10,),
    heads=(256, 512), pictures=True,
)  # fmt: skip
_INFER_MLA = Row(
    backend=fixed("FLASHINFER_MLA", 32, 64), cache=_FP8, majors=(10,), heads=_LATENT_HEADS,
    latent=True, both_ways=True, shared_out=True, fits=lambda a: a.nope_dim in (64, 128, 192),
)  # fmt: skip
_TOKENSPEED = Row(
    backend=fixed("TOKENSPEED_MLA", 32, 64), cache=("fp8", "fp8_e4m3"), majors=(10,),
    heads=_LATENT_HEADS, latent=True, both_ways=True, shared_out=True,
    fits=lambda a: (a.nope_dim, a.rope_dim, a.value_dim) == (128, 64, 128),
)  # fmt: skip
_CUTLASS = Row(
    backend=fixed("CUTLASS_MLA", 128), cache=_FP8, majors=(10,), heads=_LATENT_HEADS,
    latent=True, shared_out=True,
)  # fmt: skip
_FLASH_MLA = Row(
    backend=every("FLASH_ATTN_MLA", 16), cache=_HALF, majors=(9,), heads=_LATENT_HEADS,
    latent=True, shared_out=True,
)  # fmt: skip
_FLASHMLA = Row(
    backend=fixed("FLASHMLA", 64), cache=_FP8, majors=(9,), heads=_LATENT_HEADS, latent=True,
    shared_out=True,
)  # fmt: skip
_TRITON_MLA = Row(
    backend=every("TRITON_MLA", 16), cache=_FP8, latent=True, both_ways=True, shared_out=True,
    fits=lambda a: not a.both_ways or a.context_ranks == 1,
)  # fmt: skip
_FLASH_SPARSE = Row(
    backend=every("FLASH_ATTN_MLA_SPARSE", 64, rows=1), cache=_HALF, majors=(9,), latent=True,
    sparse=True,
)  # fmt: skip
_FLASHMLA_SPARSE = Row(
    backend=every("FLASHMLA_SPARSE", 64, rows=1, pages=True),
    cache=("auto", "bfloat16", "fp8", "fp8_ds_mla", "nvfp4_ds_mla"), majors=(9, 10),
    dtypes=("bf16",), heads=_SPARSE_HEADS, latent=True, sparse=True, shared_out=True,
    fits=_flat_512_fits,
)  # fmt: skip
_INFER_SPARSE = Row(
    backend=every("FLASHINFER_MLA_SPARSE", 32, rows=32), cache=_FP8, majors=(10,),
    heads=_SPARSE_HEADS, latent=True, sparse=True, shared_out=True, fits=_sparse_infer_fits,
)  # fmt: skip
_SPARSE_SM90 = Row(
    backend=every("FLASHINFER_MLA_SPARSE_SM90", 64, rows=1),
    cache=("auto", "bfloat16", "fp8", "fp8_e4m3"), majors=(9,), dtypes=("bf16",),
    heads=_SPARSE_HEADS, latent=True, sparse=True, fits=_sm90_fits,
)  # fmt: skip
_SPARSE_SM120 = Row(
    backend=every("FLASHINFER_MLA_SPARSE_SM120", 64, rows=64),
    cache=("auto", "fp8", "fp8_e4m3", "fp8_ds_mla"), majors=(12,), dtypes=("bf16",),
    heads=_SPARSE_HEADS, latent=True, sparse=True, fits=lambda a: a.picked == 2048,
)  # fmt: skip

ROWS = {
    row.backend.name: row
    for row in (
        _FLASH, _TRITON, _FLEX, _INFER, _PAIRED_FLASH, _PAIRED_INFER, _INFER_MLA, _TOKENSPEED,
        _CUTLASS, _FLASH_MLA, _FLASHMLA, _TRITON_MLA, _FLASH_SPARSE, _FLASHMLA_SPARSE,
        _INFER_SPARSE, _SPARSE_SM90, _SPARSE_SM120,
    )
}  # fmt: skip
"""Every backend by name: what a user may ask for."""


def in_order(a: Attention) -> tuple[Row, ...]:
    """The rows that vLLM tries for the attention on its GPU, first come first."""
    major = a.capability[0]
    if not a.latent:
        if major == 10 and not a.both_ways:
            return (_PAIRED_INFER, _INFER, _FLASH, _TRITON, _FLEX) if a.pictures else _CAUSAL
        return (_PAIRED_FLASH, *_OTHER) if a.pictures and major == 9 else _OTHER
    if major == 10:
        first = a.quantized or a.query_heads <= 16
        pair = (_INFER_SPARSE, _FLASHMLA_SPARSE)
        return (*_LATENT_10, *(pair if first else pair[::-1]))
    if major == 12:
        return (_TRITON_MLA, _SPARSE_SM120)
    tail = (_FLASH_SPARSE, _FLASHMLA_SPARSE)
    return (*_LATENT, *((_SPARSE_SM90, *tail) if a.head_dim == 512 else (*tail, _SPARSE_SM90)))


_CAUSAL = (_INFER, _FLASH, _TRITON, _FLEX)
_OTHER = (_FLASH, _INFER, _TRITON, _FLEX)
_LATENT_10 = (_INFER_MLA, _TOKENSPEED, _CUTLASS, _FLASH_MLA, _FLASHMLA, _TRITON_MLA)
_LATENT = (_FLASH_MLA, _FLASHMLA, _INFER_MLA, _TRITON_MLA)
