"""What vLLM's prefill context parallelism refuses.

Source: vLLM 0.32, config/parallel.py (_validate_parallel_config), v1/worker/gpu/pcp_manager.py
(validate_config). No release's own attention had it before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvproof.engine.base import prefill_copies
from kvproof.engine.vllm.towers import text_only
from kvproof.errors import UsageError
from kvproof.kinds import IndexerSlot, LatentSlot
from kvproof.model.types import Model

_FLAG = "prefill_context_parallel_size"


def check_prefill(model: Model, flags: Mapping[str, Any]) -> None:
    """Raise UsageError for what can't share a prefill out over sets of ranks."""
    copies = prefill_copies(flags)
    if copies == 1:
        return
    _check_sizes(copies, flags)
    kinds = {type(slot) for slot in model.slots}
    if LatentSlot not in kinds:
        raise UsageError(
            f"vLLM shares the prefill of latent attention (MLA) out, and {model.name} has none",
            hint=f"leave {_FLAG} out",
        )
    if flags.get("enable_lora"):
        raise UsageError(f"vLLM has no LoRA with {_FLAG} {copies}", hint="leave one of the two out")
    if "vision_config" in model.config and not text_only(model, flags):
        raise UsageError(
            f"vLLM takes no images with {_FLAG} {copies}", hint="add --language-model-only"
        )
    _check_graphs(flags, sparse=IndexerSlot in kinds)


def _check_sizes(copies: int, flags: Mapping[str, Any]) -> None:
    ranks, context = (
        flags.get(name, 1) for name in ("tensor_parallel_size", "decode_context_parallel_size")
    )
    if context not in (1, copies, ranks * copies):
        raise UsageError(
            f"decode_context_parallel_size {context} is none of 1, {copies} and {ranks * copies}, "
            f"which vLLM takes with {_FLAG} {copies} and tensor_parallel_size {ranks}",
            hint="choose one of them",
        )


def _check_graphs(flags: Mapping[str, Any], *, sparse: bool) -> None:
    context = flags.get("decode_context_parallel_size", 1)
    if context > 1 and not sparse:
        raise UsageError(
            f"vLLM has {_FLAG} beside decode_context_parallel_size for sparse attention only",
            hint="leave one of the two out",
        )
    compilation = flags.get("compilation_config") or {}
    mode = str(compilation.get("cudagraph_mode") or "").upper()
    if sparse and context == 1 and not flags.get("enforce_eager") and mode != "NONE":
        raise UsageError(
            f"vLLM has no CUDA graphs for sparse attention with {_FLAG}",
            hint="add --enforce-eager",
        )
