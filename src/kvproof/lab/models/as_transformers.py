"""The same weights inside transformers: what every measurement is compared with."""

from __future__ import annotations

from typing import Any

import torch

from kvproof.errors import UsageError
from kvproof.lab.models.body import Body
from kvproof.lab.models.runner import Runner

_LAYER = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj",
    "o": "self_attn.o_proj", "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj",
}  # fmt: skip
_GEMMA_LAYER = _LAYER | {
    "attn_post_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm",
    "ffn_post_norm": "post_feedforward_layernorm",
    "q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm",
}  # fmt: skip
_LATENT_LAYER = {name: place for name, place in _LAYER.items() if name not in ("k", "v")} | {
    "kv_down": "self_attn.kv_a_proj_with_mqa", "kv_norm": "self_attn.kv_a_layernorm",
    "kv_up": "self_attn.kv_b_proj",
}  # fmt: skip
_WHOLE = {"embed": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"}


def to_transformers(runner: Runner) -> Any:
    """A transformers Llama, Gemma 3 or (latents) DeepSeek-V3 of the runner's weights.

    Matrices are shared, not copied, but for the two that a latent is expanded by.
    """
    body = runner.body
    if body.windows and body.gemma is None:
        raise UsageError("bodies with windows go to transformers as a Gemma only")
    kind, config = _described(body, runner.dtype)
    with torch.device("meta"):
        model = kind(config)
    model.load_state_dict(_state(runner), assign=True)
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    if body.gemma is not None:
        model.model.embed_tokens.embed_scale = torch.tensor(body.hidden**0.5)
    model.generation_config.pad_token_id = 0
    return model.eval()


def _described(body: Body, dtype: torch.dtype) -> tuple[Any, Any]:
    """transformers' model class and config of a body."""
    import transformers

    keys = body.config
    keys.pop("torch_dtype")
    given = {"dtype": dtype, "attn_implementation": "sdpa"}
    if body.gemma is not None:
        return transformers.Gemma3ForCausalLM, transformers.Gemma3TextConfig(**keys, **given)
    if body.latent is not None:
        keys |= {"model_type": "deepseek_v3", "rope_interleave": False}  # halves, as the runner
        return transformers.DeepseekV3ForCausalLM, transformers.DeepseekV3Config(**keys, **given)
    return transformers.LlamaForCausalLM, transformers.LlamaConfig(**keys, **given)


def _state(runner: Runner) -> dict[str, torch.Tensor]:
    out, body = {}, runner.body
    gemma, weights = body.gemma is not None, dict(runner.weights)
    names = _GEMMA_LAYER if gemma else _LATENT_LAYER if body.latent else _LAYER
    for layer in range(body.layers if body.latent else 0):
        # of each head first the rows that make keys, then those that make values
        both = [weights.pop(f"{layer}.{name}") for name in ("k_up", "v_up")]
        weights[f"{layer}.kv_up"] = torch.cat(both, 1).flatten(0, 1)
    for name, tensor in weights.items():
        layer_of, dot, part = name.partition(".")
        full = f"model.layers.{layer_of}.{names[part]}" if dot else _WHOLE[name]
        # transformers' Gemma multiplies by 1 + weight where a GGUF file has the sum
        out[f"{full}.weight"] = tensor - 1 if gemma and tensor.ndim == 1 else tensor
    if body.tied:
        out["lm_head.weight"] = weights["embed"]
    return out
