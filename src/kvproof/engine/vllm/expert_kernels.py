"""Workspaces that kernels of routed experts keep from the profiling run on, by release.

A modular kernel takes its intermediate states from buffers that stay (0.11 to 0.12
SharedResizableBuffer, since 0.13 v1/worker/workspace.py), so they lie beneath the sampler's peak
and are charged; a kernel that is called as one function frees its own. Which kernel runs follows
the storage of the experts, the GPU and the release. Source: vLLM 0.10 to 0.33,
model_executor/layers/fused_moe (workspace_shapes of each kernel; oracle/*.py), before 0.14
layers/quantization/{fp8,compressed_tensors,modelopt}.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from kvproof.engine.vllm.experts import deals_experts, expert_ranks
from kvproof.engine.vllm.pieces import scheme_of
from kvproof.engine.vllm.rocm import uses_aiter
from kvproof.engine.vllm.settings import Settings
from kvproof.model.quantization import Scheme
from kvproof.model.types import Model

_ALWAYS = (10**6, 0, 0)
FLASHINFER = "flashinfer's cutlass"
"""Keeps its outputs alone: its states are its own, and freed."""
_OF_4_BITS = "cutlass of 4 bits"
_DEEP_GEMM_ROWS = 128
"""Rows of an expert are padded to so many."""


class Widths(msgspec.Struct, frozen=True):
    """A rank's widths of an expert: its inner state, gate and up together, and the hidden state."""

    inner: int
    both: int
    hidden: int


class Rule(msgspec.Struct, frozen=True):
    """From `since` until `before`, experts stored as `stored` run in `kernel` on such GPUs.

    Capabilities from `least` up to `past`; `kernel` "" keeps nothing. `ranks` is the number from
    which the rule no longer holds, `dealt` whether it is for whole experts alone.
    """

    stored: str
    since: tuple[int, int]
    before: tuple[int, ...]
    least: tuple[int, int]
    past: tuple[int, int]
    kernel: str
    ranks: int = 10**6
    dealt: bool = False


_ANY, _ADA, _HOPPER, _BLACKWELL, _NEWER = (0, 0), (8, 9), (9, 0), (10, 0), (11, 0)
_WORKSTATION = (12, 0)
_END = (99, 0)
_RULES = (
    Rule("plain", (0, 14), (0, 20), _ANY, _END, "triton"),
    Rule("plain", (0, 20), (0, 24), _ANY, _HOPPER, "triton"),
    Rule("plain", (0, 20), (0, 24), _HOPPER, _BLACKWELL, FLASHINFER),
    Rule("plain", (0, 24), _ALWAYS, _ANY, _BLACKWELL, "triton"),
    Rule("fp8 block", (0, 11), (0, 13), _HOPPER, _NEWER, "deep gemm, one width"),
    Rule("fp8 block", (0, 13), (0, 16), _HOPPER, _NEWER, "deep gemm", ranks=8),
    Rule("fp8 block", (0, 14), (0, 16), _ADA, _END, "triton"),
    Rule("fp8 block", (0, 16), (0, 17), _HOPPER, _BLACKWELL, FLASHINFER),
    Rule("fp8 block", (0, 17), _ALWAYS, _HOPPER, _BLACKWELL, FLASHINFER, dealt=True),
    Rule("fp8 block", (0, 16), _ALWAYS, _BLACKWELL, _NEWER, ""),
    Rule("fp8 block", (0, 16), _ALWAYS, _ADA, _END, "triton"),
    Rule("fp8 block", (0, 14), _ALWAYS, _ANY, _ADA, "marlin"),
    Rule("fp8 tensor", (0, 14), (0, 16), _ADA, _END, "triton"),
    Rule("fp8 tensor", (0, 16), _ALWAYS, _ADA, _HOPPER, "triton"),
    Rule("fp8 tensor", (0, 16), _ALWAYS, _HOPPER, _BLACKWELL, FLASHINFER),
    Rule("fp8 tensor", (0, 14), _ALWAYS, _ANY, _ADA, "marlin"),
    Rule("asked fp8", (0, 14), _ALWAYS, _ADA, _END, "triton"),
    Rule("asked fp8", (0, 14), _ALWAYS, _ANY, _ADA, "marlin"),
    Rule("fp8 channel", (0, 11), _ALWAYS, _HOPPER, _NEWER, "cutlass"),
    Rule("fp8 channel", (0, 14), _ALWAYS, _ADA, _END, "triton"),
    Rule("fp8 channel", (0, 14), _ALWAYS, _ANY, _ADA, "marlin"),
    Rule("nvfp4", (0, 11), (0, 16), _BLACKWELL, _END, _OF_4_BITS),
    Rule("nvfp4", (0, 16), _ALWAYS, _WORKSTATION, _END, FLASHINFER),
    Rule("nvfp4", (0, 14), _ALWAYS, _ANY, _BLACKWELL, "marlin"),
    Rule("gptq", (0, 20), _ALWAYS, _ANY, _END, "marlin"),
    Rule("awq", (0, 22), _ALWAYS, _ANY, _END, "marlin"),
    Rule("int4", (0, 24), _ALWAYS, _ANY, _END, "marlin"),
    Rule("mxfp4 of gpt-oss", (0, 18), _ALWAYS, _HOPPER, _NEWER, ""),
    Rule("mxfp4 of gpt-oss", (0, 18), _ALWAYS, _ANY, _END, "marlin"),
    Rule("mxfp4", (0, 19), _ALWAYS, _BLACKWELL, _NEWER, ""),
    Rule("mxfp4", (0, 19), _ALWAYS, _ANY, _END, "marlin"),
    Rule("asked mxfp4", (0, 19), _ALWAYS, _ANY, _END, "marlin"),
)
_ON_ROCM = (0, 14)
"""Since when experts in 16 bits and in fp8 run in Triton's modular kernel there; AITER is off."""
_WIDTHS: dict[str, Callable[[Widths], int]] = {
    "triton": lambda w: max(w.inner, w.hidden) + max(w.both, w.hidden),
    "cutlass": lambda w: max(w.inner, w.hidden) + max(w.both, w.hidden),
    "deep gemm": lambda w: max(w.inner, w.hidden) + max(w.both, w.hidden),
    "deep gemm, one width": lambda w: max(w.inner, w.hidden) + w.both,
    "marlin": lambda w: max(w.inner, w.hidden) + max(2 * w.inner, w.hidden),
    _OF_4_BITS: lambda w: max(2 * w.both, w.hidden) + w.both,
}
"""Elements of both buffers for one row: a token in one of its experts."""
_NAMED = {
    "triton": "triton", "deep_gemm": "deep gemm", "marlin": "marlin",
    "flashinfer_cutlass": FLASHINFER, "flashinfer_trtllm": "", "cutlass": "cutlass",
}  # fmt: skip
"""What --moe-backend calls the kernels (config/kernel.py); cutlass has one of its own for NVFP4."""
_COPIES_OF_4_BITS = 3
"""Rows as wide as the hidden state that cutlass' kernel for NVFP4 makes beside its workspace: the
batch dealt out to experts, its outputs put in order again, and those times the router's weights
(fused_moe/experts/cutlass_moe.py, run_cutlass_moe_fp4)."""
_CHUNKS = (((0, 18), None), ((0, 13), 16 * 1024), ((0, 0), 32 * 1024))
"""VLLM_FUSED_MOE_CHUNK_SIZE: most tokens at once; none since 0.18."""


def expert_workspace(model: Model, settings: Settings) -> int:
    """Bytes that stay taken for routed experts after the profiling run; 0 where none do."""
    return expert_need(model, settings)[0]


def expert_need(model: Model, settings: Settings) -> tuple[int, str]:
    """The bytes of `expert_workspace`, and how they come about."""
    kernel = kernel_of(model, settings)
    if not kernel:
        return 0, ""
    widths = _widths(model, settings)
    tokens = settings.max_num_batched_tokens
    if kernel == FLASHINFER:
        return 2 * tokens * widths.hidden, f"{tokens:,} tokens x hidden {widths.hidden:,} x 2 B"
    chunk = next(most for since, most in _CHUNKS if settings.rules.version >= since)
    once = tokens if chunk is None else min(tokens, chunk)
    rows = once * model.experts_per_token
    if kernel.startswith("deep gemm"):
        local = model.experts // (expert_ranks(settings) if deals_experts(settings) else 1)
        most = rows + local * (_DEEP_GEMM_ROWS - 1)
        rows = -(-most // _DEEP_GEMM_ROWS) * _DEEP_GEMM_ROWS
    apart = tokens * widths.hidden if once < tokens or settings.rules.version < (0, 13) else 0
    width = _WIDTHS[kernel](widths)
    words = f"{rows:,} rows x {width:,} x 2 B" + (f" + {2 * apart:,} B of outputs" if apart else "")
    return 2 * (rows * width + apart), words


def passing_bytes(model: Model, settings: Settings) -> int:
    """Bytes of a token in its experts that a kernel frees again, beside the workspace it keeps."""
    if kernel_of(model, settings) != _OF_4_BITS:
        return 0
    return _COPIES_OF_4_BITS * model.experts_per_token * model.hidden_size * 2


def kernel_of(model: Model, settings: Settings) -> str:
    """The kernel of routed experts that keeps its workspace; "" where none does."""
    if not model.experts or not settings.rules.v1:
        return ""
    stored = _stored(model, settings)
    named = _NAMED.get(str(settings.flags.get("moe_backend")))
    if named is not None and settings.platform == "cuda":
        return _OF_4_BITS if (named, stored) == ("cutlass", "nvfp4") else named
    if settings.platform != "cuda":
        on_rocm = settings.platform == "rocm" and not uses_aiter(settings)
        known = on_rocm and (stored == "plain" or "fp8" in stored)
        return "triton" if known and settings.rules.version >= _ON_ROCM else ""
    dealt, version = deals_experts(settings), settings.rules.version
    for rule in _RULES:
        if (
            rule.stored == stored
            and rule.since <= version < rule.before
            and rule.least <= settings.capability < rule.past
            and settings.ranks < rule.ranks
            and (dealt or not rule.dealt)
        ):
            return rule.kernel
    return ""


def _widths(model: Model, settings: Settings) -> Widths:
    whole = expert_ranks(settings) > settings.ranks or deals_experts(settings)
    inner = model.number("moe_intermediate_size", "intermediate_size")
    inner //= 1 if whole else settings.ranks
    gated = any(g.role == "expert" and "gate" in g.name for g in model.tensors)
    return Widths(inner, inner * (2 if gated else 1), model.hidden_size)


def _stored(model: Model, settings: Settings) -> str:
    """How experts are stored, in the words of the rules."""
    group = next((g for g in model.tensors if g.role == "expert" and g.linear), None)
    scheme = scheme_of(model, group) if group is not None else None
    if scheme is None:
        return _asked(str(settings.flags.get("quantization") or "").lower())
    if scheme.name == "mxfp4":
        return "mxfp4 of gpt-oss" if model.architecture.startswith("GptOss") else "mxfp4"
    if scheme.name == "nvfp4":
        return "nvfp4"
    if scheme.bits == 8 and "fp8" in scheme.name:
        return _fp8(scheme)
    method = model.quantization.method if model.quantization is not None else ""
    return method if method in ("gptq", "awq") else "int4"


def _fp8(scheme: Scheme) -> str:
    if scheme.block:
        return "fp8 block"
    return "fp8 channel" if "channel" in scheme.name else "fp8 tensor"


def _asked(quantization: str) -> str:
    """Weights that are quantized while loading."""
    if "mxfp4" in quantization:
        return "asked mxfp4"
    return "asked fp8" if quantization == "fp8" else "plain" if not quantization else "other"
