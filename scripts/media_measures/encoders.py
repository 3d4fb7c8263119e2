"""Encoders of tiny models: slots of cross-attention, and positions that features fill."""

from __future__ import annotations

from typing import Any

from .calls import SECONDS, attempt, load, slots


def encoders() -> list[dict[str, Any]]:
    """Cross-attention slots: what the encoder of a tiny model gives for real inputs."""
    import numpy as np
    import torch
    import transformers as t

    out = []
    small = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16,
             "decoder_ffn_dim": 16, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
             "vocab_size": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
             "decoder_start_token_id": 1}  # fmt: skip
    whisper = t.WhisperModel(t.WhisperConfig(**small)).eval()
    speech = t.Speech2TextModel(t.Speech2TextConfig(**small, conv_channels=8)).eval()
    moonshine = t.MoonshineModel(t.MoonshineConfig(
        hidden_size=16, intermediate_size=16, encoder_num_hidden_layers=1, vocab_size=64,
        decoder_num_hidden_layers=1, encoder_num_attention_heads=2, pad_token_id=0,
        decoder_num_attention_heads=2)).eval()  # fmt: skip
    extractor = t.WhisperFeatureExtractor()
    for seconds in SECONDS:
        clip = np.zeros(round(seconds * 16000), dtype=np.float32)
        with torch.no_grad():
            features = extractor(clip, sampling_rate=16000, return_tensors="pt").input_features
            length = whisper.encoder(features).last_hidden_state.shape[1]
            out.append(slots("whisper", {"max_source_positions": 1500}, length, seconds))
            length = moonshine.encoder(torch.from_numpy(clip)[None]).last_hidden_state.shape[1]
            out.append(slots("moonshine", {}, length, seconds))
            frames = torch.zeros(1, (len(clip) - 400) // 160 + 1, 80)
            length = speech.encoder(frames).last_hidden_state.shape[1]
            out.append(slots("speech_to_text", {"num_conv_layers": 2}, length, seconds))
    return out + mllama_slots() + image_slots()


def image_slots() -> list[dict[str, Any]]:
    """Encoder lengths of tiny ViT and DeiT encoders, and Pix2Struct's padded patches."""
    import numpy as np
    import torch
    import transformers as t

    small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
             "num_attention_heads": 2, "image_size": 32, "patch_size": 8}  # fmt: skip
    out = []
    for name, config, maker in (
        ("vit", t.ViTConfig(**small), t.ViTModel),
        ("deit", t.DeiTConfig(**small), t.DeiTModel),
    ):
        with torch.no_grad():
            length = maker(config).eval()(torch.zeros(1, 3, 32, 32)).last_hidden_state.shape[1]
        encoder = {"model_type": name, "image_size": 32, "patch_size": 8}
        out.append({"model_type": "vision-encoder-decoder", "config": {"encoder": encoder},
                    "images": [[100, 50]], "slots": length})  # fmt: skip
    maker = load("pix2struct.image_processing_pix2struct", "Pix2StructImageProcessor")
    picture = np.zeros((50, 100, 3), dtype=np.uint8)
    found = attempt("pix2struct", maker(is_vqa=False), images=[picture], return_tensors="pt")
    if found is not None:
        out.append({"model_type": "pix2struct", "config": {}, "images": [[100, 50]],
                    "slots": found["flattened_patches"].shape[1]})  # fmt: skip
    return out


def mllama_slots() -> list[dict[str, Any]]:
    """Vision states of a tiny Llama 3.2 Vision, whose image processor pads to four tiles."""
    import numpy as np
    import torch
    import transformers as t

    vision = {"image_size": 56, "patch_size": 14, "hidden_size": 16, "intermediate_size": 16,
              "num_hidden_layers": 1, "num_global_layers": 1, "attention_heads": 2,
              "intermediate_layers_indices": [0], "vision_output_dim": 32,
              "max_num_tiles": 4}  # fmt: skip
    config = t.models.mllama.configuration_mllama.MllamaVisionConfig(**vision)
    model = t.models.mllama.modeling_mllama.MllamaVisionModel(config).eval()
    maker = load("mllama.image_processing_mllama", "MllamaImageProcessor")
    processor_ = maker(size={"height": 56, "width": 56}, max_image_tiles=4)
    out = []
    for count_ in (1, 2):
        pictures = [[np.zeros((50, 90, 3), dtype=np.uint8)] * count_]
        inputs = processor_(images=pictures, return_tensors="pt")
        with torch.no_grad():
            states = model(
                pixel_values=inputs["pixel_values"].float(),
                aspect_ratio_ids=inputs["aspect_ratio_ids"],
                aspect_ratio_mask=inputs["aspect_ratio_mask"],
            ).last_hidden_state
        length = states[0].reshape(-1, states.shape[-1]).shape[0]
        shape = {"image_size": 56, "patch_size": 14, "max_num_tiles": 4}
        out.append({"model_type": "mllama", "config": {"vision_config": shape},
                    "images": [[90, 50]] * count_, "slots": length})  # fmt: skip
    return out


VISION = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2,
          "num_attention_heads": 2, "image_size": 56, "patch_size": 14}  # fmt: skip
TEXT = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "vocab_size": 64,
        "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8}  # fmt: skip


def feature_configs() -> list[tuple[str, str, dict[str, Any]]]:
    """Tiny models whose encoder, not a processor, decides the count: type, class, config."""
    siglip = {**VISION, "model_type": "siglip_vision_model"}
    clip = {**VISION, "model_type": "clip_vision_model", "projection_dim": 16}
    gemma = {**TEXT, "model_type": "gemma"}
    llama = {**TEXT, "model_type": "llama"}
    qformer = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
               "num_attention_heads": 2, "encoder_hidden_size": 16, "vocab_size": 64}  # fmt: skip
    opt = {"model_type": "opt", "hidden_size": 16, "ffn_dim": 16, "num_hidden_layers": 1,
           "num_attention_heads": 2, "vocab_size": 64, "word_embed_proj_dim": 16}  # fmt: skip
    perceiver = {"resampler_n_latents": 5, "resampler_depth": 1, "resampler_n_heads": 2,
                 "resampler_head_dim": 8, "num_key_value_heads": 1, "hidden_size": 16}  # fmt: skip
    kosmos = {"embed_dim": 16, "layers": 1, "attention_heads": 2, "ffn_dim": 16, "vocab_size": 64}
    return [
        ("paligemma", "PaliGemmaModel",
         {"vision_config": siglip, "text_config": gemma, "projection_dim": 16}),
        ("vipllava", "VipLlavaModel",
         {"vision_config": clip, "text_config": llama, "vision_feature_layers": [-1, -2]}),
        ("llava", "LlavaModel", {"vision_config": clip, "text_config": llama}),
        ("gemma3", "Gemma3Model",
         {"vision_config": siglip, "mm_tokens_per_image": 4,
          "text_config": {**TEXT, "model_type": "gemma3_text"}}),
        ("blip-2", "Blip2ForConditionalGeneration",
         {"vision_config": VISION, "qformer_config": qformer, "text_config": opt,
          "num_query_tokens": 7}),
        ("instructblip", "InstructBlipForConditionalGeneration",
         {"vision_config": VISION, "qformer_config": qformer, "text_config": opt,
          "num_query_tokens": 7}),
        ("idefics2", "Idefics2Model",
         {"vision_config": {**VISION, "model_type": "idefics2_vision"},
          "perceiver_config": perceiver, "text_config": {**TEXT, "model_type": "mistral"}}),
        ("kosmos-2", "Kosmos2Model",
         {"vision_config": VISION, "text_config": kosmos, "latent_query_num": 6}),
    ]  # fmt: skip


def features() -> list[dict[str, Any]]:
    """Positions that `get_image_features` of a tiny model fills for one image of 56 x 56."""
    import torch
    import transformers as t

    out = []
    for kind, name, config in feature_configs():
        made = attempt(kind, lambda k, c: t.CONFIG_MAPPING[k](**c), kind, config)
        model = made and attempt(kind, getattr(t, name), made)
        if model is None:
            continue
        pixels = torch.ones(1, 3, 56, 56)
        extra: dict[str, Any] = {}
        if kind == "idefics2":
            maker = load("idefics2.image_processing_idefics2", "Idefics2ImageProcessor")
            views = maker(do_image_splitting=True, size={"shortest_edge": 56, "longest_edge": 56})
            picture = torch.full((3, 56, 56), 200, dtype=torch.uint8)
            split = views(images=[picture], return_tensors="pt")["pixel_values"]
            pixels = torch.ones(*split.shape[:3], 56, 56)
        if kind == "instructblip":
            extra = {"qformer_input_ids": torch.ones(1, 2, dtype=torch.long)}
        with torch.no_grad():
            found = attempt(kind, model.eval().get_image_features, pixels, **extra)
        if found is not None:
            found = getattr(found, "pooler_output", found)
            found = found[0] if isinstance(found, (list, tuple)) else found
            length = found.reshape(-1, found.shape[-1]).shape[0]
            out.append({"model_type": kind, "config": config, "images": [[56, 56]],
                        "features": length})  # fmt: skip
    return out + git_and_voxtral()


def git_and_voxtral() -> list[dict[str, Any]]:
    """Git's cache holds the image before the text; Voxtral's encoder gives 375 a window."""
    import torch
    import transformers as t

    config = {"vision_config": VISION, "hidden_size": 16, "intermediate_size": 16,
              "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 64}  # fmt: skip
    git = t.GitForCausalLM(t.GitConfig(**config)).eval()
    audio = {"hidden_size": 16, "intermediate_size": 64, "num_hidden_layers": 1,
             "num_attention_heads": 2}  # fmt: skip
    text = {**TEXT, "model_type": "llama"}
    voxtral = t.VoxtralForConditionalGeneration(
        t.VoxtralConfig(audio_config=audio, text_config=text)
    ).eval()
    encoder = t.MoonshineStreamingConfig().encoder_config
    for key, value in {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
                       "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8,
                       "sliding_windows": [[16, 4]]}.items():  # fmt: skip
        setattr(encoder, key, value)
    streaming = load("moonshine_streaming.modeling_moonshine_streaming",
                     "MoonshineStreamingEncoder")(encoder).eval()  # fmt: skip
    parakeet = t.ParakeetEncoder(t.ParakeetEncoderConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        subsampling_conv_channels=8)).eval()  # fmt: skip
    out = []
    with torch.no_grad():
        ids = torch.ones(1, 3, dtype=torch.long)
        cache = git(ids, pixel_values=torch.zeros(1, 3, 56, 56)).past_key_values
        length = cache.get_seq_length() - 3
        out.append({"model_type": "git", "config": config, "images": [[56, 56]],
                    "features": length})  # fmt: skip
        for seconds in (1.0, 30.0, 61.0):
            windows = max(1, -(-int(seconds) // 30))
            found = voxtral.get_audio_features(torch.zeros(windows, 128, 3000))
            length = getattr(found, "pooler_output", found).reshape(-1, 16).shape[0]
            out.append({"model_type": "voxtral", "config": {}, "audio_seconds": seconds,
                        "features": length})  # fmt: skip
        for seconds in SECONDS:
            clip = torch.zeros(1, round(seconds * 16000))
            found = attempt("moonshine_streaming", streaming, clip)
            if found is not None:
                length = found.last_hidden_state.shape[1]
                out.append(slots("moonshine_streaming", {}, length, seconds))
            frames = torch.zeros(1, round(seconds * 16000) // 160 + 1, 80)
            found = parakeet(frames)
            out.append(slots("canary", {}, found.last_hidden_state.shape[1], seconds))
    return out
