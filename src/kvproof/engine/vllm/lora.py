"""LoRA slots: what vLLM allocates for adapters before any is loaded.

A slot is two matrices for each linear layer: A of rank x inputs, B of outputs x rank. Layers that
split their outputs keep A whole on every rank, those that split their inputs keep B whole.
Source: vLLM 0.32, lora/layers (base_linear.py, column_parallel_linear.py, row_parallel_linear.py,
fused_moe.py, logits_processor.py, vocab_parallel_embedding.py).
"""

from __future__ import annotations

from kvproof.engine.vllm.experts import deals_experts, expert_ranks
from kvproof.engine.vllm.settings import Settings
from kvproof.model.tensors import TensorGroup
from kvproof.model.types import Model

_ROW_SPLIT = ("o_proj", "down_proj", "out_proj", "dense_4h_to_h", "fc2", "o_b_proj", ".wo.")
"""Layers that split their inputs over the ranks."""
_WHOLE = ("q_a_proj", "kv_a_proj", "in_proj_a", "in_proj_b", "indexer", "compressor")
"""Layers that every rank keeps whole."""
_ADAPTED = ("attention", "mlp", "shared_expert", "mixer")
_VOCABULARY = (
    "ApertusForCausalLM", "Exaone4ForCausalLM", "ExaoneForCausalLM", "FalconH1ForCausalLM",
    "GraniteForCausalLM", "GraniteMoeForCausalLM", "GraniteMoeHybridForCausalLM",
    "GraniteMoeSharedForCausalLM", "JambaForCausalLM", "Lfm2ForCausalLM", "Lfm2MoeForCausalLM",
    "LlamaForCausalLM", "MiniCPMForCausalLM", "MistralForCausalLM", "MixtralForCausalLM",
    "NemotronForCausalLM", "NemotronHForCausalLM", "Phi3ForCausalLM", "PhiMoEForCausalLM",
    "Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "SolarForCausalLM",
)  # fmt: skip
"""Classes whose embedding and head take adapters too (their `embedding_modules`)."""
_EXPERTS_SINCE = (0, 11, 1)
_BYTES = 2


def lora_need(model: Model, settings: Settings) -> tuple[int, str]:
    """Bytes of the slots on one rank, 0 without enable_lora, and how they come about."""
    flags = settings.flags
    if not flags.get("enable_lora"):
        return 0, ""
    slots, rank = int(flags.get("max_loras", 1)), int(flags.get("max_lora_rank", 16))
    widths = sum(_widths(group, settings) for group in model.tensors)
    widths += _vocabulary(model, settings)
    words = (
        f"{slots} slots of rank {rank} x {widths:,} widths of A and B in every layer that takes one"
    )
    return slots * rank * widths * _BYTES, f"{words} x {_BYTES} B"


def _widths(group: TensorGroup, settings: Settings) -> int:
    """Numbers per unit of rank in the two matrices of a group's layers."""
    if not group.linear:
        return 0
    if group.role == "expert" and len(group.shape) == 3:
        return _experts(group, settings) if settings.rules.version >= _EXPERTS_SINCE else 0
    if group.role not in _ADAPTED or len(group.shape) != 2:
        return 0
    outputs, inputs = group.shape
    ranks = settings.ranks
    if any(name in group.name for name in _WHOLE):
        each = inputs + outputs
    elif any(name in group.name for name in _ROW_SPLIT):
        each = inputs // ranks + outputs
    else:
        each = inputs + outputs // ranks
    return group.count * each


def _experts(group: TensorGroup, settings: Settings) -> int:
    """A fused group of experts: gate and up are two pairs of matrices."""
    experts, outputs, inputs = group.shape
    deals = deals_experts(settings)
    own = experts // expert_ranks(settings) if deals else experts
    split = 1 if deals else settings.ranks
    if "down_proj" in group.name:
        return group.count * own * (inputs // split + outputs)
    pairs = 2 if "gate_up" in group.name else 1
    return group.count * own * (pairs * inputs + outputs // split)


def _vocabulary(model: Model, settings: Settings) -> int:
    if model.architecture not in _VOCABULARY:
        return 0
    return 2 * (model.vocab_size + model.hidden_size)
