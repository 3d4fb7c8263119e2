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
    "vocab_size": 512, "hidden_size": 64, "d_model": 64, "n_embd": 64, "embed_dim": 64,
    "emb_dim": 64,
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
    "num_hidden_layers": 1,
    "depth": 1,
    "num_layers": 1,
    "encoder_layers": 1,
    "n_layers": 1,
    "decoder_layers": 1,
    "layers": 1,
    "vocab_size": 512,
    "num_local_experts": 4,
    "codebook_size": 64,
}
NARROW: dict[str, Any] = {
    **SHALLOW, "hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 4,
    "embed_dim": 64,
    "num_heads": 4, "num_key_value_heads": 4, "d_model": 64, "encoder_ffn_dim": 64,
    "encoder_attention_heads": 4, "mlp_dim": 64, "ffn_dim": 64, "output_size": 64,
    "encoder_hidden_size": 64, "hidden_dim": 64,
}  # fmt: skip
TEXT_KEYS = ("text_config", "decoder", "decoder_config", "thinker_config", "generator")
# What a type needs beyond the table.
MAX_PARAMETERS = 1_100_000_000
_MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
_MROPE_HALF = {**_MROPE, "mrope_section": [1, 1, 2], "partial_rotary_factor": 0.5}
_LINEAR_FULL = ["linear_attention", "linear_attention", "full_attention", "linear_attention"]
OWN: dict[str, dict[str, Any]] = {
    "bailing_hybrid": {"layer_group_size": 2},
    "blt": {"encoder_hash_byte_group_vocab": 64, "encoder_hash_byte_group_size": [3]},
    "blt.encoder_config": {"vocab_size": 260},
    "blt.decoder_config": {"vocab_size": 260},
    "blt.patcher_config": {"vocab_size": 260},
    "dia.decoder_config": {"cross_hidden_size": 64},
    "fun_asr_nano.adaptor_config": {"hidden_size": 64, "intermediate_size": 16},
    "granite4_vision": {"deepstack_layer_map": [[0, 0]]},
    "moonshine_streaming": {"num_key_value_heads": 4},
    "chameleon": {"vocabulary_map": {"<image>": 5}},
    "emu3": {"vocabulary_map": {"<image>": 5}},
    "muse_spark.vision_config": {"num_hidden_layers": 4},
    "muse_spark.audio_config": {"num_hidden_layers": 4, "out_hidden_size": 64},
    "bamba": {"attn_layer_indices": [2]},
    "codegen": {"rotary_dim": 8},
    "cohere_compass_text": {
        "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}
    },
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0}},
    "deepseek_ocr2_text": {"num_experts_per_tok": 2, "n_routed_experts": 4, "n_shared_experts": 1},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "diffusion_gemma_text": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32},
    "apertus1p5_text": {"vocab_size": 512},
    "cosmos3_edge_text": {"rope_parameters": _MROPE},
    "dory": {
        "n_input_layers": 1,
        "n_output_layers": 1,
        "n_recurrent_loops": 2,
        "recurrent_kv_cache_mode": "per_loop",
    },
    "ernie4_5_vl_moe_text": {"moe_intermediate_size": [32, 32]},
    "prophetnet": {"num_encoder_layers": 4},
    "qwen4_exp_text": {
        "indexer_kv_heads": 1,
        "indexer_n_heads": 2,
        "indexer_head_dim": 16,
        "indexer_budget": 16,
        "indexer_compress_ratio": 4,
    },
    "xlstm": {"qk_dim_factor": 1.0, "v_dim_factor": 1.0, "hidden_size": 256, "num_heads": 4},
    "zamba": {"num_hidden_layers": 9},
    "zamba2": {"layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"]},
    "zaya": {"num_experts_per_tok": 1},
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "dots3_note.audio_config": {"adapter_out_dim": 64},
    "dots3_note.vision_config": {
        "adapter_out_dim": 64,
        "mlp_layer_types": ["dense"],
        "per_layer_config": {},
    },
    "gemma3n_text": {"num_hidden_layers": 10, "num_kv_shared_layers": 4},
    "glm46v_text": {"rope_parameters": _MROPE},
    "glm4v_moe_text": {"rope_parameters": _MROPE_HALF},
    "glm4v_text": {"rope_parameters": _MROPE},
    "glm5_next_text": {"qk_rope_head_dim": 0},
    "glm_ocr_text": {"rope_parameters": _MROPE},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "gptj": {"rotary_dim": 8},
    "granite_docling.vision_config": {"out_hidden_size": 64},
    "granitemoehybrid": {"layer_types": _LINEAR_FULL},
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16},
    "hunyuan_vl_text": {"head_dim": 16, "rope_parameters": _MROPE},
    "hunyuan_vl.vision_config": {"text_hidden_size": 64},
    "hy_v4_vl_text": {"rope_parameters": {**_MROPE, "mrope_section": [1, 1, 2]}},
    "inkling2.vision_config": {"text_hidden_size": 64},
    "inkling2_loop.vision_config": {"text_hidden_size": 64},
    "inkling2_loop_text": {
        "num_hidden_layers": 18,
        "loop_layer_index_start": 6,
        "loop_layer_index_end": 12,
    },
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_offset": 0},
    "kimi_linear": {"num_hidden_layers": 5},
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention", "conv"]},
    "longcat_flash": {"head_dim": 8},
    "mamba2": {"num_heads": 8, "head_dim": 16},
    "ministral": {"head_dim": 16},
    "molmo2.adapter_config": {"vision_feature_layer": [0]},
    "paddleocr_vl_text": {"rope_parameters": _MROPE},
    "qwen2_5_omni_text": {"rope_parameters": _MROPE},
    "qwen2_5_vl_text": {"rope_parameters": _MROPE},
    "qwen2_vl_text": {"rope_parameters": _MROPE},
    "reformer": {"is_decoder": True, "axial_pos_embds_dim": [32, 32], "axial_pos_shape": [8, 16]},
    "step3p5": {"sliding_window": 16, "layer_types": ["full_attention", "sliding_attention"] * 2},
    "unlimited_ocr_text": {"num_key_value_heads": 4},
}


_SPARSE = ["full_attention", "minimax_m3_sparse", "minimax_m3_sparse", "full_attention"]
# Further shapes of a type: (type, name) -> what differs from the tiny config.
VARIANTS: dict[tuple[str, str], dict[str, Any]] = {
    ("bailing_hybrid", "groups"): {"layer_group_size": 4},
    ("cohere2_moe", "dense_first"): {"first_k_dense_replace": 1, "sliding_window_pattern": 2},
    ("dory", "last_loop"): {"recurrent_kv_cache_mode": "last_loop"},
    ("dots1", "window"): {"max_window_layers": 2},
    ("exaone4", "pattern"): {"sliding_window_pattern": 2},
    ("falcon_h1", "own_width"): {"mamba_d_ssm": 192, "mamba_n_heads": 12},
    ("gemma3n_text", "few"): {"num_hidden_layers": 10, "num_kv_shared_layers": 0},
    ("glm_moe_dsa", "shared_indexers"): {"index_topk_freq": 2},
    ("gpt_bigcode", "every_head"): {"multi_query": False},
    ("hrm_text", "cycles"): {"H_cycles": 1, "L_cycles": 2},
    ("lfm2", "indices"): {"full_attn_idxs": [1, 3]},
    ("llama4_text", "no_chunks"): {"attention_chunk_size": None},
    ("longcat_flash", "three"): {"num_layers": 3},
    ("mimo_v2_flash", "window_size"): {"sliding_window_size": 8},
    ("minimax_m3_vl_text", "sparse"): {"layer_types": _SPARSE},
    ("mixtral", "no_window"): {"sliding_window": None},
    ("modernbert-decoder", "pattern"): {"global_attn_every_n_layers": 2},
    ("nemotron_h", "pattern"): {"hybrid_override_pattern": "M-M*-ME", "num_hidden_layers": 7},
    ("olmo_hybrid", "widths"): {"linear_num_value_heads": 8, "linear_num_key_heads": 2},
    ("qwen2_moe", "window"): {"use_sliding_window": True, "max_window_layers": 3},
    ("qwen3_moe", "window"): {"use_sliding_window": True, "max_window_layers": 2},
    ("qwen4_exp_text", "ple"): {"ple_layer_ids": [1], "ple_embed_dim": 64, "eos_token_id": 1,
                                 "ngram_vocab_size_base": 256},
    ("smollm3", "window"): {"use_sliding_window": True, "no_rope_layer_interval": 2},
    ("zaya", "window"): {
        "layer_types": ["hybrid", "hybrid_sliding"] * 2, "sliding_window": 16,
        "num_experts_per_tok": 1,
    },
}  # fmt: skip


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
            if (isinstance(default, (int, float)) and not isinstance(default, bool)) or (
                default is None and key in ("num_key_value_heads", "num_kv_heads")
            ):
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
        inner = (
            spec.get_config_class(spec.model_type)
            if spec.config_class.__name__ == "AutoConfig"
            else spec.config_class
        )
        text = key in TEXT_KEYS
        nested = shrink(inner, SIZES if text else parts, dict(spec.init_kwargs), parts)
        nested["model_type"] = inner.model_type
        own = OWN.get(f"{cls.model_type}.{key}", {})
        out[key] = {**nested, **own}
    return out


def make_decoder(config: PreTrainedConfig, class_name: str) -> None:
    """Set what a decoder-only class wants to hear from its config."""
    causal = class_name.endswith(("ForCausalLM", "LMHeadModel"))
    if class_name.endswith("ForCausalLM") and config.is_encoder_decoder:
        config.is_encoder_decoder = False
        if hasattr(config, "decoder_layers"):
            config.encoder_layers = config.decoder_layers
    if not config.is_encoder_decoder and (causal or hasattr(config, "is_decoder")):
        config.is_decoder = True


def tiny_config(
    kind: str, model_class: type[Any], variant: str | None = None,
    widths: tuple[dict[str, Any], ...] = (NARROW, SHALLOW),
) -> PreTrainedConfig:  # fmt: skip
    """A small config of model type `kind` that `model_class` can be built from.

    `widths` are tried in turn for the parts that text does not pass.
    """
    own = VARIANTS[kind, variant] if variant else {}
    cls = CONFIG_MAPPING[kind]
    wanted = getattr(model_class, "config_class", cls)
    if not issubclass(cls, wanted):
        cls = wanted
    last: Exception = ValueError("no size fits")
    for parts in widths:
        try:
            config = cls(**{**shrink(cls, SIZES, {}, parts), **own})
            make_decoder(config, model_class.__name__)
            with torch.device("meta"):
                model = model_class(copy.deepcopy(config))
        except Exception as error:
            last = error
            continue
        count = sum(p.numel() for p in model.parameters())
        if count <= MAX_PARAMETERS:
            return config
        last = ValueError(f"{count:,} parameters are too many")
    raise last
