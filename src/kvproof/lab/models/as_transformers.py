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
_WHOLE = {"embed": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"}


def to_transformers(runner: Runner) -> Any:
    """A transformers Llama or Gemma 3 of the runner's weights; matrices are shared, not copied."""
    body = runner.body
    if body.latent is not None or (body.windows and body.gemma is None):
        raise UsageError("only Llama bodies of full attention and Gemmas go to transformers")
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
    return transformers.LlamaForCausalLM, transformers.LlamaConfig(**keys, **given)


def _state(runner: Runner) -> dict[str, torch.Tensor]:
    out, gemma = {}, runner.body.gemma is not None
    names = _GEMMA_LAYER if gemma else _LAYER
    for name, tensor in runner.weights.items():
        layer, dot, part = name.partition(".")
        full = f"model.layers.{layer}.{names[part]}" if dot else _WHOLE[name]
        # transformers' Gemma multiplies by 1 + weight where a GGUF file has the sum
        out[f"{full}.weight"] = tensor - 1 if gemma and tensor.ndim == 1 else tensor
    if runner.body.tied:
        out["lm_head.weight"] = runner.weights["embed"]
    return out
