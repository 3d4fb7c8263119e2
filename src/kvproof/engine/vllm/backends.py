"""Attention backends: which one vLLM picks on a GPU, and the block sizes it takes.

Source: vLLM 0.32, platforms/cuda.py (_get_backend_priorities), v1/attention/backends/** (what
each supports) and platforms/interface.py (_preferred_block_size_for_backends). Kernels are
assumed to be there as in the official CUDA wheel.
"""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import msgspec

from kvproof.errors import UsageError

DEFAULT_BLOCK = 16


class Attention(msgspec.Struct, frozen=True, kw_only=True):
    """What the choice of a backend depends on."""

    capability: tuple[int, int]
    platform: str = "cuda"
    latent: bool = False
    sparse: bool = False
    head_dim: int = 128
    value_dim: int | None = None
    """The values' width where it is not the keys'."""
    nope_dim: int = 128
    rope_dim: int = 64
    query_heads: int = 32
    kv_heads: int = 8
    kv_dtype: str = "auto"
    kv_asked: bool = True
    """The user names the cache's type; else the checkpoint or the release does."""
    sinks: bool = False
    capped: bool = False
    """Scores are capped (attn_logit_softcapping)."""
    wide: bool = False
    """Activations of 32 bits: Triton's kernels and FlexAttention take them, no latent one does."""
    pictures: bool = False
    """Pictures are read in both directions, by backends that can do that."""
    wide_pages: bool = False
    """The release's FlashAttention 4 has a kernel of its own for heads of 256."""
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


class Backend(msgspec.Struct, frozen=True, kw_only=True):
    """A backend's kernel block sizes (`multiple`: every multiple of the one size is fine).

    `exact` backends take these sizes and no multiple of them; `block_outermost`: its first
    layout keeps all layers of a block together.
    """

    name: str
    sizes: tuple[int, ...]
    multiple: bool = True
    exact: bool = False
    block_outermost: bool = False
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

    @property
    def packs_heads(self) -> bool:
        """Whether a head quantized for each token lies packed, its scale beside it: Triton's.

        Others keep one byte an element (customize_spec of v1/attention/backends/triton_attn.py).
        """
        return self.name == "TRITON_ATTN"

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


def _fixed(name: str, *sizes: int, exact: bool = False) -> Backend:
    return Backend(name=name, sizes=sizes, multiple=False, exact=exact)


FLASH_ATTN = Backend(name="FLASH_ATTN", sizes=(16,))
FLASH_ATTN_4_WIDE = _fixed("FLASH_ATTN", 128)
TRITON_ATTN = Backend(name="TRITON_ATTN", sizes=(16,))
FLASH_ATTN_DIFFKV = Backend(name="FLASH_ATTN_DIFFKV", sizes=(16,))
TRITON_ATTN_DIFFKV = Backend(name="TRITON_ATTN_DIFFKV", sizes=(16,))
TRITON_FLASHINFER = _fixed("TRITON_FLASHINFER", 64)
TRITON_FLASH_ATTN = Backend(name="TRITON_FLASH_ATTN", sizes=(16,))
FLEX = Backend(name="FLEX_ATTENTION", sizes=(16,))
FLASHINFER = _fixed("FLASHINFER", 16, 32, 64)
FLASHINFER_LARGE = _fixed("FLASHINFER", 16, 32, 64, 128, 256, 512, 1024)
ROCM_ATTN = Backend(name="ROCM_ATTN", sizes=(16,))
CPU_ATTN = Backend(name="CPU_ATTN", sizes=(32,))
CPU_MLA = _fixed("CPU_MLA", 16, exact=True)
FLASH_ATTN_MLA = Backend(name="FLASH_ATTN_MLA", sizes=(16,))
TRITON_MLA = Backend(name="TRITON_MLA", sizes=(16,))
FLASHMLA = _fixed("FLASHMLA", 64)
FLASHINFER_MLA = _fixed("FLASHINFER_MLA", 32, 64)
CUTLASS_MLA = _fixed("CUTLASS_MLA", 128)
ROCM_MLA = Backend(name="ROCM_AITER_MLA", sizes=(1,))
FLASH_ATTN_MLA_SPARSE = Backend(name="FLASH_ATTN_MLA_SPARSE", sizes=(64,), flat_rows=1)
FLASHMLA_SPARSE = Backend(name="FLASHMLA_SPARSE", sizes=(64,), flat_rows=1, flat_pages=True)
FLASHINFER_MLA_SPARSE = Backend(name="FLASHINFER_MLA_SPARSE", sizes=(32,), flat_rows=32)
FLASHINFER_MLA_SPARSE_SM120 = Backend(name="FLASHINFER_MLA_SPARSE_SM120", sizes=(64,), flat_rows=64)
ROCM_MLA_SPARSE = Backend(name="ROCM_AITER_MLA_SPARSE", sizes=(1,), flat_rows=1)
FLASHMLA_SPARSE_DSV4 = Backend(name="FLASHMLA_SPARSE_DSV4", sizes=(64,))
INDEXER = _fixed("DEEPSEEK_V32_INDEXER", 64)
M3_SPARSE = _fixed("MINIMAX_M3_SPARSE", 128)
"""MiniMax-M3's sparse layers and indexers: a page is one block that the indexer picks.

Source: vLLM 0.32, models/minimax_m3/common (sparse_attention.py, indexer.py).
"""

_ALL = {
    b.name: b
    for b in (
        FLASH_ATTN, TRITON_ATTN, FLASH_ATTN_DIFFKV, TRITON_ATTN_DIFFKV, TRITON_FLASHINFER,
        TRITON_FLASH_ATTN, FLEX, FLASHINFER, ROCM_ATTN, CPU_ATTN, CPU_MLA, FLASH_ATTN_MLA,
        TRITON_MLA, FLASHMLA, FLASHINFER_MLA, CUTLASS_MLA, ROCM_MLA, FLASH_ATTN_MLA_SPARSE,
        FLASHMLA_SPARSE, FLASHINFER_MLA_SPARSE, FLASHINFER_MLA_SPARSE_SM120, ROCM_MLA_SPARSE,
    )
}  # fmt: skip


_HALF = ("auto", "float16", "bfloat16")
_FP8 = (*_HALF, "fp8", "fp8_e4m3")
_KEEPS = {
    "FLASH_ATTN": _FP8,
    "FLASH_ATTN_DIFFKV": (*_FP8, "fp8_per_token_head", "int8_per_token_head",
                          "int4_per_token_head"),
    "TRITON_ATTN_DIFFKV": _FP8,
    "TRITON_FLASHINFER": (*_FP8, "fp8_e5m2"),
    "TRITON_FLASH_ATTN": _FP8,
    "FLASHINFER": (*_FP8, "fp8_e5m2", "nvfp4", "nvfp4_4over6", "nvfp4_ds_mla"),
    "TRITON_ATTN": (*_FP8, "fp8_e5m2", "int4_per_token_head", "int8_per_token_head",
                    "fp8_per_token_head"),
    "FLEX_ATTENTION": _HALF,
    "FLASH_ATTN_MLA": _HALF,
    "FLASHMLA": _FP8,
    "FLASHINFER_MLA": _FP8,
    "CUTLASS_MLA": _FP8,
    "TRITON_MLA": _FP8,
    "FLASH_ATTN_MLA_SPARSE": _HALF,
    "FLASHMLA_SPARSE": ("auto", "bfloat16", "fp8", "fp8_ds_mla", "nvfp4_ds_mla"),
    "FLASHINFER_MLA_SPARSE": _FP8,
    "FLASHINFER_MLA_SPARSE_SM120": ("auto", "fp8", "fp8_e4m3", "fp8_ds_mla"),
}  # fmt: skip
"""Cache types of each CUDA backend (supported_kv_cache_dtypes)."""

_WHOLE = ("TRITON_ATTN", "TRITON_FLASHINFER", "TRITON_FLASH_ATTN", "FLEX_ATTENTION",
          "FLASH_ATTN_MLA_SPARSE")  # fmt: skip
"""Backends without decode context parallelism (supports_dcp)."""


_WIDE = ("TRITON_ATTN", "TRITON_ATTN_DIFFKV", "FLEX_ATTENTION")
"""Backends that take f32 (supported_dtypes)."""


def choose(attention: Attention) -> Backend:
    """The backend that vLLM picks: the forced one, else the first of its list that can do it."""
    forced = _forced(attention)
    if attention.own is not None:
        return _ALL[attention.own]
    if forced in _ALL and attention.platform != "cuda":
        return _ALL[forced]
    block = attention.block_size
    found = _taking(attention)
    if found is not None:
        return found
    major, minor = attention.capability
    if forced in _ALL:
        raise UsageError(
            f"vLLM's {forced} does not take this model's attention with its cache in "
            f"{attention.kv_dtype} on compute capability {major}.{minor}",
            hint="leave attention_backend out",
        )
    blocks = f" in blocks of {block} tokens" if block is not None else ""
    kept = attention.kv_dtype if attention.kv_dtype != "auto" else "the model's type"
    whose = "" if attention.kv_asked or kept != attention.kv_dtype else " (its checkpoint's choice)"
    raise UsageError(
        f"no attention backend of vLLM takes this model's attention with its cache in "
        f"{kept}{whose}{blocks} on compute capability {major}.{minor}",
        hint=_mend(attention),
    )


def _taking(attention: Attention) -> Backend | None:
    """The first of vLLM's list, or the forced one, that takes the attention."""
    forced, block = _forced(attention), attention.block_size
    for backend in _options(attention):
        if forced in _ALL and backend.name != forced:
            continue
        if block is None or backend.takes(block):
            return backend
    return None


def _mend(attention: Attention) -> str:
    """What to change so that some backend takes the attention."""
    types = ("fp8", "fp8_e4m3", "bfloat16") if attention.quantized else ("bfloat16", "fp8")
    typed = [(f"give kv_cache_dtype={name}", {"kv_dtype": name}) for name in types]
    changes: list[tuple[str, dict[str, Any]]] = [*typed]
    if attention.block_size is not None:
        free = ("leave block_size out", {"block_size": None})
        both = [(f"{free[0]} and {said}", {**free[1], **change}) for said, change in typed]
        changes = [free, *typed, *both]
    for said, change in changes:
        if _taking(msgspec.structs.replace(attention, **change)) is not None:
            return f"{said}, or name another GPU"
    return "name another GPU"


def _forced(attention: Attention) -> str:
    """The backend asked for, where that is heeded.

    A model with values of another width takes two of its own only, and a CPU its own whatever is
    asked for. Source: vLLM 0.32, models/mimo_v2.py and platforms/cpu.py.
    """
    asked = (attention.forced or "").upper() if attention.platform != "cpu" else ""
    return asked if _alike(attention) or asked.endswith("_DIFFKV") else ""


def _alike(attention: Attention) -> bool:
    """Whether values are as wide as keys."""
    return attention.value_dim in (None, attention.head_dim)


def _options(attention: Attention) -> list[Backend]:
    if attention.platform == "cpu":
        return [CPU_MLA if attention.latent else CPU_ATTN]
    if attention.platform == "rocm":
        return [_rocm(attention)]
    if attention.sparse:
        found = _sparse(attention)
    else:
        found = _latent(attention) if attention.latent else _plain(attention)
    asked = attention.kv_dtype
    found = [b for b in found if asked in _KEEPS.get(b.name, (asked,))]
    if attention.context_ranks > 1:
        found = [b for b in found if b.name not in _WHOLE]
    if attention.wide:
        found = [b for b in found if b.name in _WIDE]
    return found


def _rocm(attention: Attention) -> Backend:
    if attention.sparse:
        return ROCM_MLA_SPARSE
    return ROCM_MLA if attention.latent else ROCM_ATTN


def _plain(attention: Attention) -> list[Backend]:
    major = attention.capability[0]
    if not _alike(attention):
        flash_too = [FLASH_ATTN_DIFFKV] if major in (9, 10) else []
        return [*flash_too, TRITON_ATTN_DIFFKV]
    if attention.pictures:
        return [*_seeing(attention), TRITON_ATTN, FLEX]
    flash, infer = _flash(attention), _infer(attention)
    order = [infer, flash] if major == 10 else [flash, infer]
    return [*(b for b in order if b is not None), TRITON_ATTN, FLEX]


def _seeing(attention: Attention) -> list[Backend]:
    """Those that read pictures in both directions and text fast: from Hopper on.

    A pair of backends, Triton's for pictures, where heads are 256 or 512 wide; FlashAttention 4
    alone for the widths that it takes. Source: vLLM 0.32, v1/attention/backends (composite.py,
    triton_flashinfer.py, triton_flash_attn.py, flash_attn.py: supports_combination).
    """
    major, head = attention.capability[0], attention.head_dim
    flash, paired = _flash(attention), head in (256, 512)
    found: list[Backend] = []
    if major == 10 and paired:
        found.append(TRITON_FLASHINFER)
    if major == 9 and paired and flash is not None:
        found.append(msgspec.structs.replace(flash, name="TRITON_FLASH_ATTN"))
    alone = head <= 128 if major == 10 else head == 512 and not attention.quantized
    if flash is not None and major in (9, 10) and alone:
        found.append(flash)
    return found


def _flash(attention: Attention) -> Backend | None:
    """FlashAttention, where it can: Ampere up; fp8 with FA3 (Hopper) or FA4 (Blackwell)."""
    major, head = attention.capability[0], attention.head_dim
    if major < 8 or head % 8 or head > 512 or (head > 256 and major < 9):
        return None
    if attention.sinks and major < 9:
        return None
    if attention.kv_dtype in ("fp8", "fp8_e4m3"):
        if major == 9 and head == 512:
            return _fixed("FLASH_ATTN", 64)
        return FLASH_ATTN if major == 9 or (major == 10 and head <= 128) else None
    if attention.quantized:
        return None
    return FLASH_ATTN_4_WIDE if _pages_of_128(attention) else FLASH_ATTN


def _pages_of_128(attention: Attention) -> bool:
    """Whether FlashAttention 4 runs its kernel for heads of 256, which reads pages of 128 tokens.

    What that kernel lacks goes to FlashAttention 2. Source: vLLM 0.32, v1/attention/backends/
    fa_utils.py (uses_fa4_hd256_kernel, _fa4_hd256_fallback_reason) and flash_attn.py.
    """
    lacking = attention.sinks or attention.capped or attention.pictures or attention.quantized
    blackwell = attention.capability[0] == 10 and attention.head_dim == 256
    return attention.wide_pages and blackwell and not lacking and attention.context_ranks == 1


def _infer(attention: Attention) -> Backend | None:
    """FlashInfer, where it can: given head sizes, Ampere to consumer Blackwell."""
    major = attention.capability[0]
    if not 8 <= major <= 12 or attention.head_dim not in (64, 128, 256, 512):
        return None
    if attention.kv_dtype.startswith("nvfp4") and major != 10 and _no_nvfp4(attention):
        return None
    if attention.sinks and major not in (9, 10, 12):
        return None
    grouped = attention.kv_heads > 0 and attention.query_heads // attention.kv_heads > 1
    return FLASHINFER_LARGE if major == 10 and grouped else FLASHINFER


def _no_nvfp4(attention: Attention) -> bool:
    """Whether FlashInfer's kernels beside Blackwell's can't read the model's NVFP4 cache."""
    return attention.kv_dtype != "nvfp4" or attention.head_dim == 64 or attention.sinks


def _latent(attention: Attention) -> list[Backend]:
    major = attention.capability[0]
    if major == 10:
        infer = [FLASHINFER_MLA] if attention.nope_dim in (64, 128, 192) else []
        return [*infer, CUTLASS_MLA, FLASHMLA, TRITON_MLA]
    if major == 9:
        plain = [] if attention.quantized else [FLASH_ATTN_MLA]
        return [*plain, FLASHMLA, TRITON_MLA]
    return [TRITON_MLA]


def _sparse(attention: Attention) -> list[Backend]:
    major = attention.capability[0]
    if major == 12:
        return [FLASHINFER_MLA_SPARSE_SM120]
    if major == 10:
        infer_first = attention.quantized or attention.query_heads <= 16
        pair = [FLASHINFER_MLA_SPARSE, FLASHMLA_SPARSE]
        if attention.kv_dtype in ("fp8_ds_mla", "nvfp4_ds_mla"):
            return [FLASHMLA_SPARSE] if attention.rope_dim else []
        if not attention.rope_dim:  # flashmla_sparse.py: rows of 512 on Hopper only
            return [FLASHINFER_MLA_SPARSE]
        return pair if infer_first else pair[::-1]
    if major < 9 or attention.kv_dtype == "nvfp4_ds_mla":
        return []
    if attention.quantized or attention.context_ranks > 1:
        return [FLASHMLA_SPARSE]
    return [FLASH_ATTN_MLA_SPARSE, FLASHMLA_SPARSE]


def stored_latent_dtype(backend: Backend, kv_dtype: str) -> str:
    """The type a sparse backend really stores: FlashMLA keeps fp8 in DeepSeek's own layout."""
    quantized = kv_dtype.startswith("fp8")
    if backend.name == "FLASHMLA_SPARSE" and quantized:
        return "fp8_ds_mla"
    if backend.name == "FLASHINFER_MLA_SPARSE_SM120" and (quantized or kv_dtype == "auto"):
        return "fp8_ds_mla"
    return kv_dtype


def check_triton(backend: Backend, attention: Attention) -> None:
    """Raise UsageError where Triton's kernels would store fp8 that the GPU does not have."""
    needs = backend.name.startswith("TRITON_") and attention.platform == "cuda"
    if needs and attention.kv_dtype.startswith("fp8") and attention.capability < (8, 9):
        raise UsageError(
            f"vLLM's {backend.name} keeps no {attention.kv_dtype} cache below capability 8.9",
            hint="set kv_cache_dtype=bfloat16",
        )


def check_shared_out(backend: Backend, attention: Attention) -> None:
    """Raise UsageError where FlashMLA's sparse kernels would share a cache of 16 bits out.

    Source: vLLM 0.32, v1/attention/backends/mla/flashmla_sparse.py.
    """
    shared = backend.name == "FLASHMLA_SPARSE" and attention.context_ranks > 1
    if shared and not attention.quantized:
        raise UsageError(
            "vLLM shares a sparse model's cache out over ranks with FlashMLA in fp8 only",
            hint="set kv_cache_dtype=fp8 or decode_context_parallel_size=1",
        )


def common_block(backends: list[Backend], default: int = DEFAULT_BLOCK) -> int:
    """The block size when none is given: the default if all take it, else the smallest shared."""
    if all(b.takes(default) for b in backends):
        return default
    if len(backends) == 1:
        return backends[0].smallest
    candidates = sorted({math.lcm(*sizes) for sizes in product(*(b.sizes for b in backends))})
    return next((c for c in candidates if all(b.takes(c) for b in backends)), candidates[-1])


def block_by_name(attention: Attention) -> int:
    """The block size before 0.18, where the platform set it by the backend's name.

    Source: vLLM 0.8 to 0.17, platforms/cuda.py (check_and_update_config).
    """
    if attention.platform != "cuda" or not attention.latent:
        return attention.block_size or DEFAULT_BLOCK
    major = attention.capability[0]
    if attention.sparse or major == 9:
        return 64
    if major == 10:
        return 64 if attention.nope_dim == 128 else 128
    return attention.block_size or DEFAULT_BLOCK
