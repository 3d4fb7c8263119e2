"""What loading weights leaves held on ROCm, where the engine counted all that the process uses.

Up to 0.20 the weights' figure is the device's used memory there (platforms/rocm.py,
get_current_memory_usage, since pull request 12624), so ends of blocks and pieces that the caching
allocator keeps count. Later ones print what the allocator holds, as on CUDA: 0.32's source, and a
public start of gemma-3-27b-it on MI300X of mid-2026 that prints 51.45 GiB, as CUDA does.
"""

from __future__ import annotations

from kvproof.engine.vllm.experts import deals_experts, expert_ranks
from kvproof.engine.vllm.settings import Settings
from kvproof.model.types import Model

_ENDS = 0.013
"""Ends of blocks as a share of the weights: 1.0 to 1.5 % in the start-ups of seven models on
MI300X (log105, log233, srv-95cac1c3, srv-c6b429bc, srv-ea27031b, srv-d5245609, srv-560df7ea)."""
_PAD = 256
_UNPADDED = 512
_ALLOCATED_SINCE = (0, 21, 0)
_COPIED_BACK = (0, 28, 0)
"""From this release on, padded experts are copied back into their own storage."""


def uses_aiter(settings: Settings) -> bool:
    """Whether AMD's own kernels were asked for (VLLM_ROCM_USE_AITER): off in every release."""
    return settings.platform == "rocm" and bool(settings.flags.get("rocm_aiter"))


def counts_device(settings: Settings) -> bool:
    """Whether the release counts the device's used memory, not the allocator's."""
    return settings.platform == "rocm" and settings.rules.version < _ALLOCATED_SINCE


def pad_bytes(model: Model, settings: Settings) -> int:
    """Bytes that rows of unquantized experts are padded by."""
    return _expert_pads(model, settings, cut=False) if settings.platform == "rocm" else 0


def held_beyond(model: Model, settings: Settings, weights: int) -> int:
    """Bytes held beyond the tensors of one rank's weights."""
    pads = _expert_pads(model, settings, cut=True)
    return round((weights + pads) * _ENDS) + pads


def _expert_pads(model: Model, settings: Settings, *, cut: bool) -> int:
    """What padding unquantized experts leaves: pads, and the old blocks that it cuts up.

    Rows of a multiple of 512 B get 256 more. The padded down-projection is cut from the block
    that the old up-projection gave back, whose rest then fits nothing. Source: vLLM 0.20,
    fused_moe/unquantized_fused_moe_method.py (_maybe_pad_weight). AITER's kernels shuffle the
    experts afterwards, into tensors without pads.
    """
    layers = {layer for g in model.tensors if g.role == "expert" for layer in g.layers}
    plain = model.quantization is None and not settings.flags.get("quantization")
    if not layers or not plain or settings.rules.version >= _COPIED_BACK:
        return 0
    if uses_aiter(settings):
        return 0
    inner = model.number("moe_intermediate_size", "intermediate_size")
    deal = deals_experts(settings)
    experts = model.experts // (expert_ranks(settings) if deal else 1)
    inner = inner if deal else inner // settings.ranks
    up = experts * 2 * inner
    down = experts * model.hidden_size
    old_up, new_up = up * model.hidden_size * 2, up * _padded(model.hidden_size * 2)
    old_down, new_down = down * inner * 2, down * _padded(inner * 2)
    cuts = cut and new_up > old_up and old_down < new_down <= old_up
    kept = old_up if cuts else new_down
    return len(layers) * (new_up + kept - old_up - old_down)


def _padded(row: int) -> int:
    return row + _PAD if row % _UNPADDED == 0 else row
