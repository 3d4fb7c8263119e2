"""The same weights inside transformers: what every measurement is compared with."""

from __future__ import annotations

from typing import Any

import torch

from kvproof.errors import UsageError
from kvproof.lab.models.runner import Runner

_LAYER = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj",
    "o": "self_attn.o_proj", "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj",
}  # fmt: skip
_WHOLE = {"embed": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"}


def to_transformers(runner: Runner) -> Any:
    """A transformers LlamaForCausalLM that shares the runner's weight tensors."""
    from transformers import LlamaConfig, LlamaForCausalLM

    body = runner.body
    if body.latent is not None or body.windows:
        raise UsageError("only bodies of full attention go to transformers' Llama")
    config = body.config
    config.pop("torch_dtype")
    config = LlamaConfig(**config, dtype=runner.dtype, attn_implementation="sdpa")
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model.load_state_dict(_state(runner), assign=True)
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    model.generation_config.pad_token_id = 0
    return model.eval()


def _state(runner: Runner) -> dict[str, torch.Tensor]:
    out = {}
    for name, tensor in runner.weights.items():
        layer, dot, part = name.partition(".")
        full = f"model.layers.{layer}.{_LAYER[part]}" if dot else _WHOLE[name]
        out[f"{full}.weight"] = tensor
    if runner.body.tied:
        out["lm_head.weight"] = runner.weights["embed"]
    return out
