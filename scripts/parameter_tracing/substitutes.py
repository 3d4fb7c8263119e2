"""Constructors rewritten to be read symbolically; each makes the original's parameters."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

BIAS_CLASSES: dict[str, Any] = {}
Zamba2AttentionDecoderLayer = Zamba2MambaDecoderLayer = Zamba2HybridLayer = Any
ZambaAttentionDecoderLayer = ZambaMambaDecoderLayer = ZambaHybridLayer = Any


def create_relative_bias(config: Any) -> Any:
    """udop: the first bias apart, because it alone is tied."""
    first = [BIAS_CLASSES[config.relative_bias_args[0]["type"]](num_heads=config.num_heads)]
    rest = [
        BIAS_CLASSES[a["type"]](num_heads=config.num_heads) for a in config.relative_bias_args[1:]
    ]
    return first + rest


def axial(self: Any, config: Any) -> None:
    """reformer: one axis a weight, without the axes of size one."""
    self.weights = nn.ModuleList(
        [
            nn.Parameter(torch.ones(config.axial_pos_shape[axis], dim))
            for axis, dim in enumerate(config.axial_pos_embds_dim)
        ]
    )


def zamba2_layers(self: Any) -> Any:
    """zamba2: hybrid layers repeat `num_mem_blocks` blocks, which stand beside the layers."""
    self.shared_transformer = nn.ModuleList(
        [
            Zamba2AttentionDecoderLayer(self.config, block_id=b)
            for b in range(self.config.num_mem_blocks)
        ]
    )
    layers = []
    for layer_id, layer_type in enumerate(self.layers_block_type):
        mamba = Zamba2MambaDecoderLayer(self.config, layer_idx=layer_id)
        if layer_type == "hybrid":
            linear = nn.Linear(self.config.hidden_size, self.config.hidden_size, bias=False)
            layers.append(Zamba2HybridLayer(None, linear, mamba))
        else:
            layers.append(mamba)
    return nn.ModuleList(layers)


def rotary_alpha(self: Any, config: Any) -> None:
    """mistral_large4: a learned factor for each rotary frequency."""
    self.alpha = nn.Parameter(torch.zeros(config.head_dim // 2, dtype=torch.float32))


SUBSTITUTES = {
    "create_relative_bias": create_relative_bias,
    "AxialPositionEmbeddings.__init__": axial,
    "Zamba2Model.get_layers": zamba2_layers,
    "MistralLarge4TextRotaryEmbedding.__init__": rotary_alpha,
}
