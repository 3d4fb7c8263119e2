"""Rules of composite models: sizes that a wrapper copies from one nested config into another."""

from __future__ import annotations

from kvproof.model.classes import base, class_row
from kvproof.model.rules import Config, Rule
from kvproof.model.rules.parts import chain, default


def _copy(target: str, source: str) -> Rule:
    """Copy one nested field into another, both written as `section.field`."""

    def rule(c: Config) -> None:
        from_section, from_key = source.split(".")
        section, key = target.split(".")
        if isinstance(c.get(section), dict) and isinstance(c.get(from_section), dict):
            c[section][key] = c[from_section][from_key]

    return rule


def _copy_up(key: str, source: str) -> Rule:
    """Copy a nested field, written as `section.field`, to the config itself."""

    def rule(c: Config) -> None:
        section, field = source.split(".")
        if isinstance(c.get(section), dict):
            c[key] = c[section].get(field)

    return rule


def _molmo(c: Config) -> None:
    if c.get("vit_config") is None:
        return
    layers = c["vision_config"]["num_hidden_layers"]
    features = [layer % layers for layer in c["adapter_config"]["vision_feature_layer"]]
    c["adapter_config"]["vision_feature_layer"] = features
    c["vision_config"]["num_hidden_layers"] = max(features) + 1


def _granite4_vision(c: Config) -> None:
    inner, hidden = c["qformer_config"], c["vision_config"]["hidden_size"]
    inner["hidden_size"] = inner["encoder_hidden_size"] = hidden
    inner["num_attention_heads"] = hidden // 64
    default(spatial_target_layers=[12, 15, 18, 21])(c)


def _paligemma(c: Config) -> None:
    c["vision_config"]["projection_dim"] = c["projection_dim"]
    vision = c["vision_config"]
    c["text_config"]["num_image_tokens"] = (vision["image_size"] // vision["patch_size"]) ** 2


def _janus(c: Config) -> None:
    vision = c["vision_config"]
    c["vq_config"]["num_patches"] = vision["image_size"] // vision["patch_size"]


def _tie_from_text(c: Config) -> None:
    """The wrapper is tied when its text config is."""
    text = c.get("text_config")
    if not c.get("tie_word_embeddings") and isinstance(text, dict):
        c["tie_word_embeddings"] = text.get("tie_word_embeddings")


def _blip2(c: Config) -> None:
    _copy("qformer_config.encoder_hidden_size", "vision_config.hidden_size")(c)
    text = c["text_config"]
    c["is_encoder_decoder"] = text.get("is_encoder_decoder", False)
    c["use_decoder_only_language_model"] = text["model_type"] in base().families["causal"]


def _assistant(c: Config) -> None:
    """A draft head keeps nothing: every layer reads the target model's cache."""
    text = c["text_config"]
    text["num_kv_shared_layers"] = text.get("num_kv_shared_layers") or text["num_hidden_layers"]


def _evolla(c: Config) -> None:
    row = class_row("SaProtConfig")
    c["protein_encoder_config"] = {
        **(row.defaults if row else {}),
        **(c.get("protein_encoder_config") or {}),
    }


WRAPPERS: dict[str, Rule] = {
    **dict.fromkeys(
        ("fast_vlm", "glm4v", "glm4v_moe", "glm_ocr", "hunyuan_vl", "llava", "llava_next_video",
         "llava_onevision", "minimax_m3_vl", "paddleocr_vl", "perception_lm", "qwen2_5_vl",
         "qwen2_vl", "shieldgemma2", "video_llama_3"),
        _tie_from_text,
    ),
    **dict.fromkeys(("blip-2", "instructblip", "instructblipvideo"), _blip2),
    **dict.fromkeys(("gemma4_assistant", "gemma4_unified_assistant"), _assistant),
    "blip": _copy("text_config.encoder_hidden_size", "vision_config.hidden_size"),
    "evolla": _evolla,
    "granite4_vision": _granite4_vision,
    "inkling_mm_model": chain(
        _copy("vision_config.text_hidden_size", "text_config.hidden_size"),
        _copy("audio_config.text_hidden_size", "text_config.hidden_size"),
    ),
    "janus": _janus,
    "nemotron3_5_transcribe_audio": _copy_up("hidden_size", "asr_config.hidden_size"),
    "minimax_m3_vl": chain(
        _tie_from_text,
        lambda c: c.update(
            merged_hidden_size=c["text_config"]["hidden_size"]
            * c["vision_config"]["spatial_merge_size"] ** 2
        ),
    ),
    "molmo2": _molmo,
    "moss_transcribe_diarize": lambda c: c.update(
        adaptor_input_dim=c["audio_config"]["hidden_size"] * c["audio_merge_size"]
    ),
    "paligemma": _paligemma,
    "t5gemma": _copy("decoder.cross_attention_hidden_size", "encoder.hidden_size"),
    "vibevoice": chain(
        _tie_from_text,
        _copy("diffusion_head_config.hidden_size", "text_config.hidden_size"),
        _copy("diffusion_head_config.latent_size", "audio_config.hidden_size"),
    ),
}  # fmt: skip
