"""`params.json` of Mistral's and of Meta's own releases, as the transformers config they equal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvproof.errors import ModelError

Params = Mapping[str, Any]
_CONTEXT = ("max_position_embeddings", "max_seq_len", "model_max_length")
_MISTRAL_CONTEXT = 131_072  # transformers' MistralConfig


def from_params(params: Params) -> tuple[dict[str, Any], tuple[str, ...]] | None:
    """The config that `params` equals and notes on what it leaves out; None for no such file."""
    if "dim" not in params or "n_layers" not in params:
        return None
    config = _mistral(params) if "hidden_dim" in params else _llama(params)
    if any(params.get(key) for key in _CONTEXT):
        return config, ()
    length = config.get("max_position_embeddings", _MISTRAL_CONTEXT)
    note = f"params.json says no trained context: {length:,} tokens, its class's own, are assumed"
    return config, (note,)


def _need(params: Params, key: str, default: int | None = None) -> int:
    value = params.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**31:
        raise ModelError(f"params.json: {key} is {str(value)[:40]!r}", hint="want a whole number")
    return value


def _mistral(params: Params) -> dict[str, Any]:
    """Mistral's keys: hidden_dim is the feed-forward width; `moe` makes it a Mixtral.

    Source: mistral-inference's ModelArgs.
    """
    heads, dim = _need(params, "n_heads"), _need(params, "dim")
    config: dict[str, Any] = {
        "model_type": "mistral",
        "hidden_size": dim,
        "num_hidden_layers": _need(params, "n_layers"),
        "num_attention_heads": heads,
        "num_key_value_heads": _need(params, "n_kv_heads", heads),
        "head_dim": _need(params, "head_dim", dim // heads),
        "intermediate_size": _need(params, "hidden_dim"),
        "vocab_size": _need(params, "vocab_size"),
        "tie_word_embeddings": bool(params.get("tied_embeddings", False)),
        "sliding_window": params.get("sliding_window"),
        "torch_dtype": "bfloat16",
    }
    context = next((params[key] for key in _CONTEXT if params.get(key)), None)
    config["max_position_embeddings"] = context or _MISTRAL_CONTEXT
    moe = params.get("moe")
    if "kv_lora_rank" in params:
        return config | _latent(params, moe if isinstance(moe, Mapping) else {})
    if isinstance(moe, Mapping):
        config |= {
            "model_type": "mixtral",
            "num_local_experts": _need(moe, "num_experts"),
            "num_experts_per_tok": _need(moe, "num_experts_per_tok"),
        }
    return config


def _latent(params: Params, moe: Params) -> dict[str, Any]:
    """Mistral Large 3: DeepSeek-V3's design under Mistral's names."""
    names = ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
    return {
        **{name: _need(params, name) for name in names},
        "model_type": "deepseek_v3",
        "head_dim": _need(params, "qk_rope_head_dim"),
        "q_lora_rank": params.get("q_lora_rank"),
        "n_routed_experts": _need(moe, "num_experts"),
        "num_experts_per_tok": _need(moe, "num_experts_per_tok"),
        "moe_intermediate_size": _need(moe, "expert_hidden_dim"),
        "n_shared_experts": moe.get("num_shared_experts", 0),
        "first_k_dense_replace": moe.get("first_k_dense_replace", 0),
    }


def _llama(params: Params) -> dict[str, Any]:
    """The original Llama's keys: the feed-forward width follows from dim and multiple_of.

    Source: meta-llama/llama's model.py, FeedForward. Its vocabulary of 32,000 may be written -1.
    """
    heads, dim = _need(params, "n_heads"), _need(params, "dim")
    vocabulary = params.get("vocab_size", -1)
    factor = params.get("ffn_dim_multiplier") or 1
    if not isinstance(factor, int | float) or not 0 < factor < 100:
        raise ModelError("params.json: ffn_dim_multiplier is no factor", hint="check the file")
    multiple = _need(params, "multiple_of", 256)
    wide = int(factor * int(2 * 4 * dim / 3))
    return {
        "model_type": "llama",
        "hidden_size": dim,
        "num_hidden_layers": _need(params, "n_layers"),
        "num_attention_heads": heads,
        "num_key_value_heads": _need(params, "n_kv_heads", heads),
        "intermediate_size": -(-wide // multiple) * multiple,
        "vocab_size": 32_000 if vocabulary == -1 else _need(params, "vocab_size"),
        "max_position_embeddings": _need(
            params, "max_seq_len", 4_096 if "n_kv_heads" in params else 2_048
        ),
        "tie_word_embeddings": bool(params.get("tie_word_embeddings", False)),
        "torch_dtype": "bfloat16",
    }
