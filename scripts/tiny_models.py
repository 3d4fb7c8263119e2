"""Tiny configs of any model type of transformers: class defaults with the sizes brought down."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import torch
from transformers import PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

# Field -> size. Only fields that the class has (or names by attribute_map) are set.
SIZES: dict[str, Any] = {
    "vocab_size": 512, "hidden_size": 64, "d_model": 64, "n_embd": 64, "embed_dim": 64, "emb_dim": 64,
    "intermediate_size": 64, "ffn_dim": 64, "d_ff": 64, "n_inner": 64, "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64, "ffn_hidden_size": 64, "expert_ffn_hidden_size": 32,
    "num_hidden_layers": 4, "n_layer": 4, "n_layers": 4, "num_layers": 4, "decoder_layers": 4,
    "encoder_layers": 2, "num_decoder_layers": 4, "num_encoder_layers": 2, "num_blocks": 4,
    "layers": 4, "depth": 2,
    "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_heads": 4, "attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_attention_heads": 4, "num_decoder_attention_heads": 4,
    "num_encoder_attention_heads": 4, "num_key_value_heads": 2, "num_kv_heads": 2,
    "d_kv": 16, "kv_channels": 16, "dim_head": 16, "d_head": 16, "d_inner": 64,
    "moe_intermediate_size": 32, "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4,
    "moe_num_experts": 4, "num_experts_per_tok": 2, "num_experts_per_token": 2, "moe_k": 2,
    "moe_topk": 2, "n_group": 1, "topk_group": 1, "shared_expert_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 32, "shared_intermediate_size": 32,
    "expert_capacity": 8,
    "max_position_embeddings": 512, "n_positions": 512, "max_seq_len": 512, "max_seq_length": 512,
    "sliding_window": 16, "attention_chunk_size": 16, "local_attention": 32, "window_size": 16,
    "attention_window_size": 16, "sliding_window_size": 16,
    "q_lora_rank": 48, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
    "v_head_dim": 16, "index_head_dim": 16, "index_n_heads": 2, "index_topk": 16,
    "first_k_dense_replace": 1,
    "state_size": 16, "ssm_state_size": 16, "mamba_d_state": 16, "mamba_n_heads": 8,
    "mamba_d_head": 16, "mamba_num_heads": 8, "mamba_head_dim": 16, "mamba_n_groups": 2,
    "n_groups": 2, "mamba_ngroups": 2, "n_mamba_heads": 2, "mamba_dt_rank": 4,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
    "linear_value_head_dim": 16, "linear_head_dim": 16, "linear_num_heads": 4,
    "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 512, "embedding_size": 64,
    "embedding_dim": 64, "word_embed_proj_dim": 64, "lru_width": 64, "attention_hidden_size": 64,
    "num_sliding_attention_heads": 4, "layers_per_stage": 1, "audio_vocab_size": 64,
    "encoder_vocab_size": 512, "decoder_vocab_size": 512, "src_vocab_size": 512,
    "tgt_vocab_size": 512, "t2u_vocab_size": 64, "max_source_positions": 64,
    "feature_projection_input_dim": 32, "speech_encoder_layers": 1,
    "speech_encoder_attention_heads": 4, "speech_encoder_intermediate_size": 64,
    "t2u_encoder_layers": 1, "t2u_decoder_layers": 1, "t2u_encoder_ffn_dim": 64,
    "t2u_decoder_ffn_dim": 64, "t2u_encoder_attention_heads": 4, "t2u_decoder_attention_heads": 4,
}  # fmt: skip
# Vision, audio and other parts that text does not pass: shallow, and narrow where classes allow.
SHALLOW: dict[str, Any] = {
    "num_hidden_layers": 1, "depth": 1, "num_layers": 1, "encoder_layers": 1, "n_layers": 1,
    "decoder_layers": 1, "layers": 1, "vocab_size": 512, "num_local_experts": 4, "codebook_size": 64,
}
NARROW: dict[str, Any] = {
    **SHALLOW, "hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 4, "embed_dim": 64,
    "num_heads": 4, "num_key_value_heads": 4, "d_model": 64, "encoder_ffn_dim": 64,
    "encoder_attention_heads": 4, "mlp_dim": 64, "ffn_dim": 64, "output_size": 64,
    "encoder_hidden_size": 64, "hidden_dim": 64,
}  # fmt: skip
TEXT_KEYS = ("text_config", "decoder", "decoder_config", "thinker_config", "generator")
# What a type needs beyond the table.
MAX_PARAMETERS = 120_000_000
OWN: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [2]},
    "bailing_hybrid": {"layer_group_size": 2},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_offset": 0},
    "reformer": {"is_decoder": True},
}


def shrink(
    cls: type[PreTrainedConfig], sizes: dict[str, Any], given: dict[str, Any], parts: dict[str, Any]
) -> dict[str, Any]:
    """Constructor values of a small `cls`: `given` where it says something, else `sizes`."""
    fields = {f.name: f for f in dataclasses.fields(cls)}
    alias = cls.attribute_map
    out: dict[str, Any] = dict(given)
    for key, value in sizes.items():
        name = alias.get(key, key)
        if name in fields and name not in cls.sub_configs_defaults:
            default = fields[name].default
            if isinstance(default, (int, float)) and not isinstance(default, bool):
                out[name] = value
            elif default is None and key in ("num_key_value_heads", "num_kv_heads"):
                out[name] = value
    if "head_dim" in fields and isinstance(fields["head_dim"].default, int) and sizes is SIZES:
        out["head_dim"] = 16
    if sizes is SIZES and "kv_lora_rank" in fields and "num_key_value_heads" in fields:
        out["num_key_value_heads"] = 4
    for name in fields:
        if name.endswith(("token_id", "token_index")) and isinstance(fields[name].default, int):
            out[name] = min(fields[name].default, 3)
    out.update(OWN.get(cls.model_type, {}))
    for key, spec in cls.sub_configs_defaults.items():
        if spec.optional and key not in OWN.get(cls.model_type, {}):
            continue
        inner = spec.get_config_class(spec.model_type) if spec.config_class.__name__ == "AutoConfig" else spec.config_class
        text = key in TEXT_KEYS
        nested = shrink(inner, SIZES if text else parts, dict(spec.init_kwargs), parts)
        nested["model_type"] = inner.model_type
        own = OWN.get(f"{cls.model_type}.{key}", {})
        out[key] = {**nested, **own}
    return out


def tiny_config(kind: str, model_class: type[Any]) -> PreTrainedConfig:
    """A small config of model type `kind` that `model_class` can be built from."""
    cls = CONFIG_MAPPING[kind]
    last: Exception = ValueError("no size fits")
    for parts in (NARROW, SHALLOW):
        try:
            config = cls(**shrink(cls, SIZES, {}, parts))
            if model_class.__name__.endswith("ForCausalLM") and config.is_encoder_decoder:
                config.is_encoder_decoder = False
            if hasattr(config, "is_decoder") or model_class.__name__.endswith(("ForCausalLM", "LMHeadModel")):
                if not config.is_encoder_decoder:
                    config.is_decoder = True
            with torch.device("meta"):
                model = model_class(copy.deepcopy(config))
        except Exception as error:  # noqa: BLE001 - the next size may do
            last = error
            continue
        count = sum(p.numel() for p in model.parameters())
        if count <= MAX_PARAMETERS:
            return config
        last = ValueError(f"{count:,} parameters are too many")
    raise last
