"""What a tensor is for, by its name."""

from __future__ import annotations

import re
from typing import Any

PARTS = (
    (
        "projector",
        r"multi_modal_projector|mm_projector|projector|connector|modality_projection|aligner|multimodal_embedder|embed_vision|embed_audio|vision_proj|visual_proj|audio_projection|merger(?!_)|adapter\.|resampler|qformer|language_projection|vit_merger|mm_proj|image_to_text_projection|visual_projection",
    ),
    (
        "audio",
        r"audio_tower|audio_encoder|audio_model|speech_encoder|speech_tower|audio_tokenizer|codec_model|vocoder|acoustic_tokenizer|semantic_tokenizer|\baudio\.|sound_tower|acoustic|semantic_encoder|audio_tok",
    ),
    (
        "vision",
        r"vision_tower|vision_model|visual\.|vision_encoder|image_encoder|vision_embed_tokens|vqmodel|vqgan|image_tower|video_tower|vit\.|sam_model|vision_backbone|vision_transformer|image_newline|\bvpm\b|image_model|generation_head|generation_aligner|generation_embeddings|high_res_vision|vision_module|view_sep",
    ),
)
RULES = (
    ("shared_expert", r"shared_expert|shared_mlp|shared_experts"),
    (
        "router",
        r"router|gate\.weight$|gate\.e_score|e_score_correction_bias|gate\.bias$|\.gate\.wg|expert_bias|mlp\.gate\.|moe\.gate\.",
    ),
    ("expert", r"experts"),
    (
        "head",
        r"(^|\.)(lm_heads?|embed_out|output_projection|proj_out|generator|output_layer|lm_heads|final_logits|cls\.predictions\.decoder|proj|pred_layer|score)\.[^.]*$|^cls\.|lm_heads?\.|^heads\.",
    ),
    (
        "position",
        r"embed_positions|position_embedding|wpe\.|pos_emb|relative_attention_bias|relative_position|rel_pos|position_embeddings|positional|token_type_embeddings|pos_bias",
    ),
    (
        "embedding",
        r"embed_tokens|word_embeddings|\bwte\b|embed_in|(^|\.)shared\.weight|tok_embeddings|embedding|embeddings\.weight|\bemb\b",
    ),
    ("norm", r"norm|\bln_|layernorm|layer_norm|_ln\b|\bln\d|(^|\.)ln\b"),
    (
        "mixer",
        r"mamba|mixer|linear_attn|ssm|A_log|conv1d|temporal_block|rec_block|\brg_lru|recurrent|short_conv|\.conv\.|time_mix|delta|kda|lightning|mlstm|slstm",
    ),
    (
        "attention",
        r"attn|[Aa]ttention|q_proj|k_proj|v_proj|o_proj|qkv|query|key_value|\.key\.|\.value\.|sinks|indexer",
    ),
    (
        "mlp",
        r"mlp|laurel|altup|per_layer_projection|per_layer_model_projection|per_layer_input_gate|feed_forward|ffn|fc1|fc2|gate_proj|up_proj|down_proj|dense|intermediate|output\.|c_fc|DenseReluDense|channel_mix|\bwi|\bwo\b|ffw",
    ),
)
_PARTS = [(role, re.compile(rule)) for role, rule in PARTS]
_RULES = [(role, re.compile(rule)) for role, rule in RULES]


def part(name: str) -> str | None:
    """The modality a name belongs to, if it is not the language model."""
    for found, rule in _PARTS:
        if rule.search(name + "."):
            return found
    return None


_ENCODER = re.compile(r"^(model\.)?encoder\.")


def role(name: str, kind: str, rank: int, audio: bool = False) -> str:
    """The role of a tensor; `audio` when the model's encoder listens."""
    found = "audio" if audio and _ENCODER.match(name) else part(name)
    if found:
        return found
    stem = name
    for label, rule in _RULES:
        if rule.search(stem):
            if label == "norm" and rank > 1:
                continue
            if label == "embedding" and kind != "embedding":
                continue
            if label == "position" and kind == "linear":
                continue
            return label
    return "embedding" if kind == "embedding" else "other"


def linear(group: Any) -> bool:
    """The weight of a matrix product: a linear layer, or stacked expert matrices."""
    if group.kind == "linear":
        return True
    stacked = (
        group.kind == "raw"
        and len(group.shape) >= 2
        and "expert" in group.name
        and "bias" not in group.name
        and (len(group.shape) == 3 or "experts.mlp" in group.name)
    )
    return bool(stacked)


def strict(name: str, words: set[str]) -> bool:
    """Whether the model class keeps a tensor of this name in f32."""
    parts = name.split(".")
    return any(word in parts or ("." in word and word in name) for word in words)
