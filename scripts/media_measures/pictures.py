"""Images and videos: the processors that are asked, and with which settings."""

from __future__ import annotations

from typing import Any

from .calls import (
    MARK,
    SIZES,
    VIDEOS,
    attempt,
    count,
    grid_case,
    image_count,
    load,
    processor,
    record,
    video_count,
)

Q2 = ("qwen2_vl.image_processing_qwen2_vl", "Qwen2VLImageProcessor")
GOT = ("got_ocr2.image_processing_got_ocr2", "GotOcr2ImageProcessor")
NEXT = ("llava_next.image_processing_llava_next", "LlavaNextImageProcessor")
Q2S = {"ip_size": {"shortest_edge": 3136, "longest_edge": 12845056}}
Q3S = {"ip_size": {"shortest_edge": 65536, "longest_edge": 16777216}, "ip_patch_size": 16}
GLMS = {"ip_size": {"shortest_edge": 12544, "longest_edge": 9633792}}
PINS = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]


def own(path: str, processor_name: str, image_name: str, **numbers: Any) -> tuple[Any, ...]:
    return path, processor_name, f"{path}.image_processing_{path}", image_name, numbers


# model type, config, case, keyword arguments of the call of the image processor
IMAGES: list[tuple[str, dict[str, Any], tuple[Any, ...], dict[str, Any], dict[str, Any]]] = [
    ("qwen2_vl", {}, ("qwen2_vl", "Qwen2VLProcessor", *Q2, Q2S), {}, {}),
    ("qwen2_5_vl", {}, ("qwen2_5_vl", "Qwen2_5_VLProcessor", *Q2, Q2S), {}, {}),
    ("qwen2_5_omni", {}, ("qwen2_5_omni", "Qwen2_5OmniProcessor", *Q2, Q2S), {}, {}),
    ("qwen3_vl", {}, ("qwen3_vl", "Qwen3VLProcessor", *Q2, Q3S), {}, {}),
    ("qwen3_5", {}, ("qwen3_vl", "Qwen3VLProcessor", *Q2, Q3S), {}, {}),
    ("qwen3_omni_moe", {}, ("qwen3_omni_moe", "Qwen3OmniMoeProcessor", *Q2,
                            {**Q2S, "ip_patch_size": 16}), {}, {}),
    ("exaone4_5", {}, ("exaone4_5", "Exaone4_5_Processor", *Q2, {}), {}, {}),
    ("hyperclovax_vision_v2", {}, ("hyperclovax_vision_v2", "HyperCLOVAXVisionV2Processor", *Q2,
                                   {}), {}, {}),
    ("glmga", {}, ("glm46v", "Glm46VProcessor", "glmga.image_processing_glmga",
                   "GlmgaImageProcessor", {}), {}, {}),
    ("muse_spark", {}, ("muse_spark", "MuseSparkProcessor",
                        "muse_glimmer.image_processing_muse_glimmer", "MuseGlimmerImageProcessor",
                        {}), {}, {}),
    ("lighton_ocr", {}, ("lighton_ocr", "LightOnOcrProcessor", "pixtral.image_processing_pixtral",
                         "PixtralImageProcessor", {"effective_patch_size": 28,
                                                   "ip_size": {"longest_edge": 1540}}),
     {"patch_size": {"height": 28, "width": 28}}, {}),
    ("video_llava", {"vision_config": {"model_type": "clip_vision_model"}},
     own("video_llava", "VideoLlavaProcessor", "VideoLlavaImageProcessor", patch_size=14,
         num_additional_image_tokens=1, vision_feature_select_strategy="default"), {}, {}),
    ("lfm3_vl", {}, ("lfm3_vl", "Lfm3VlProcessor", *Q2, {}), {}, {}),
    ("dots3_note", {}, ("dots3_note", "Dots3NoteProcessor", *Q2, {}), {}, {}),
    ("cohere_compass", {}, own("cohere_compass", "CohereCompassProcessor",
                               "CohereCompassImageProcessor"), {}, {}),
    ("video_llama_3", {}, own("video_llama_3", "VideoLlama3Processor",
                              "VideoLlama3ImageProcessor"), {}, {}),
    ("ernie4_5_vl_moe", {}, own("ernie4_5_vl_moe", "Ernie4_5_VLMoeProcessor",
                                "Ernie4_5_VLMoeImageProcessor"), {}, {}),
    ("paddleocr_vl", {}, own("paddleocr_vl", "PaddleOCRVLProcessor",
                             "PaddleOCRVLImageProcessor"), {}, {}),
    ("minimax_m3_vl", {}, own("minimax_m3_vl", "MiniMaxM3VLProcessor",
                              "MiniMaxM3VLImageProcessor"), {}, {}),
    ("hunyuan_vl", {}, own("hunyuan_vl", "HunYuanVLProcessor", "HunYuanVLImageProcessor",
                           cat_extra_token=True), {}, {}),
    ("hy_v4_vl", {}, own("hy_v4_vl", "HYV4VLProcessor", "HYV4VLImageProcessor"), {}, {}),
    ("glm4v", {}, own("glm4v", "Glm4vProcessor", "Glm4vImageProcessor", **GLMS), {}, {}),
    ("glm46v", {}, own("glm46v", "Glm46VProcessor", "Glm46VImageProcessor", **GLMS), {}, {}),
    ("glm5_next", {}, own("glm5_next", "Glm5NextProcessor", "Glm5NextImageProcessor"), {}, {}),
    ("cosmos3_edge", {}, own("cosmos3_edge", "Cosmos3EdgeProcessor",
                             "Cosmos3EdgeImageProcessor"), {}, {}),
    ("kimi_k25", {}, own("kimi_k25", "Kimi_K25Processor", "Kimi_K25ImageProcessor"), {}, {}),
    ("muse_glimmer", {}, own("muse_glimmer", "MuseGlimmerProcessor",
                             "MuseGlimmerImageProcessor"), {}, {}),
    ("nemotron_h_omni", {}, own("nemotron_h_omni", "NemotronH_Omni_Reasoning_V3Processor",
                                "NemotronH_Omni_Reasoning_V3ImageProcessor"), {}, {}),
    ("gemma3", {}, own("gemma3", "Gemma3Processor", "Gemma3ImageProcessor",
                       full_image_sequence="\n\n" + MARK * 258 + "\n\n"), {}, {}),
    ("gemma4", {}, own("gemma4", "Gemma4Processor", "Gemma4ImageProcessor"), {}, {}),
    ("gemma4_unified", {}, own("gemma4_unified", "Gemma4UnifiedProcessor",
                               "Gemma4UnifiedImageProcessor"), {}, {}),
    ("llama4", {"vision_config": {"image_size": 336}},
     own("llama4", "Llama4Processor", "Llama4ImageProcessor", downsample_ratio=4, patch_size=14),
     {}, {}),
    ("idefics3", {}, own("idefics3", "Idefics3Processor", "Idefics3ImageProcessor",
                         image_seq_len=169), {"return_row_col_info": True}, {}),
    ("smolvlm", {"scale_factor": 4, "vision_config": {"image_size": 512, "patch_size": 16}},
     own("smolvlm", "SmolVLMProcessor", "SmolVLMImageProcessor", image_seq_len=64,
         ip_size={"longest_edge": 2048}, ip_max_image_size={"longest_edge": 512}),
     {"return_row_col_info": True}, {}),
    ("granite_docling", {}, own("granite_docling", "GraniteDoclingProcessor",
                                "GraniteDoclingImageProcessor", image_seq_len=64), {}, {}),
    ("internvl", {}, ("internvl", "InternVLProcessor", *GOT,
                      {"image_seq_length": 256, "ip_size": {"height": 448, "width": 448}}),
     {"crop_to_patches": True}, {}),
    ("qianfan_ocr", {}, ("qianfan_ocr", "QianfanOCRProcessor", *GOT,
                         {"image_seq_length": 256, "ip_size": {"height": 448, "width": 448}}),
     {"crop_to_patches": True}, {}),
    ("aya_vision", {"vision_config": {"image_size": 364}},
     ("aya_vision", "AyaVisionProcessor", *GOT,
      {"img_size": 364, "patch_size": 28, "ip_size": {"height": 364, "width": 364}}),
     {"crop_to_patches": True}, {}),
    ("got_ocr2", {}, ("got_ocr2", "GotOcr2Processor", *GOT,
                      {"ip_size": {"height": 1024, "width": 1024}}), {},
     {"num_pages_per_batch": [1], "patch_indices": [1], "num_image_tokens": 256}),
    ("cohere2_vision", {}, own("cohere2_vision", "Cohere2VisionProcessor",
                               "Cohere2VisionImageProcessor", patch_size=16), {}, {}),
    ("ovis2", {"vision_config": {"image_size": 448}},
     own("ovis2", "Ovis2Processor", "Ovis2ImageProcessor", image_seq_length=256,
         ip_size={"height": 448, "width": 448}, ip_crop_to_patches=True), {}, {}),
    ("mistral3", {}, ("pixtral", "PixtralProcessor", "pixtral.image_processing_pixtral",
                      "PixtralImageProcessor", {"patch_size": 14, "spatial_merge_size": 2,
                                                "ip_size": {"longest_edge": 1540}}),
     {"patch_size": {"height": 28, "width": 28}}, {}),
    ("llava", {"vision_config": {"model_type": "pixtral"}},
     ("pixtral", "PixtralProcessor", "pixtral.image_processing_pixtral", "PixtralImageProcessor",
      {"patch_size": 16, "spatial_merge_size": 1}), {}, {}),
    ("llava", {"vision_config": {"model_type": "clip_vision_model", "image_size": 336}},
     own("llava", "LlavaProcessor", "LlavaImageProcessor", patch_size=14,
         num_additional_image_tokens=1, vision_feature_select_strategy="default",
         ip_size={"shortest_edge": 336}, ip_crop_size={"height": 336, "width": 336}), {}, {}),
    ("llava", {"vision_feature_select_strategy": "full",
               "vision_config": {"model_type": "siglip_vision_model", "image_size": 384}},
     own("llava", "LlavaProcessor", "LlavaImageProcessor", patch_size=14,
         num_additional_image_tokens=0, vision_feature_select_strategy="full",
         ip_size={"height": 384, "width": 384}, ip_crop_size={"height": 384, "width": 384}),
     {}, {}),
    ("llava_next", {"image_grid_pinpoints": PINS},
     ("llava_next", "LlavaNextProcessor", *NEXT,
      {"patch_size": 14, "num_additional_image_tokens": 1,
       "vision_feature_select_strategy": "default", "ip_size": {"shortest_edge": 336},
       "ip_crop_size": {"height": 336, "width": 336}}), {}, {}),
    ("granite4_vision", {"downsample_rate": "1/2", "vision_config": {"image_size": 384,
                         "patch_size": 16}, "vision_feature_select_strategy": "full",
                         "image_grid_pinpoints": [[384, 768], [768, 384], [768, 768]]},
     ("granite4_vision", "Granite4VisionProcessor", *NEXT,
      {"patch_size": 16, "num_additional_image_tokens": 0, "downsample_rate": "1/2",
       "vision_feature_select_strategy": "full", "ip_size": {"shortest_edge": 384},
       "ip_crop_size": {"height": 384, "width": 384},
       "ip_image_grid_pinpoints": [[384, 768], [768, 384], [768, 768]]}), {}, {}),
    ("llava_onevision", {}, own("llava_onevision", "LlavaOnevisionProcessor",
                                "LlavaOnevisionImageProcessor", num_image_tokens=729,
                                vision_feature_select_strategy="full",
                                vision_aspect_ratio="anyres_max_9"), {}, {}),
    ("phi4_multimodal", {}, own("phi4_multimodal", "Phi4MultimodalProcessor",
                                "Phi4MultimodalImageProcessor"), {}, {}),
    ("lfm2_vl", {}, own("lfm2_vl", "Lfm2VlProcessor", "Lfm2VlImageProcessor"),
     {"return_row_col_info": True}, {"use_image_special_tokens": True}),
    ("molmo2", {}, own("molmo2", "Molmo2Processor", "Molmo2ImageProcessor",
                       image_use_col_tokens=True, use_single_crop_col_tokens=None,
                       use_single_crop_start_token=True), {}, {}),
    ("perception_lm", {"projector_pooling_ratio": 2},
     own("perception_lm", "PerceptionLMProcessor", "PerceptionLMImageProcessor", patch_size=14,
         pooling_ratio=2), {}, {}),
    ("step3p7", {}, own("step3p7", "Step3p7Processor", "Step3p7ImageProcessor",
                        image_feature_placeholder=MARK * 169,
                        patch_feature_placeholder=MARK * 81), {}, {}),
    ("deepseek_ocr2", {}, own("deepseek_ocr2", "DeepseekOcr2Processor",
                              "DeepseekOcr2ImageProcessor", patch_size=16, downsample_ratio=4),
     {}, {}),
    ("unlimited_ocr", {}, own("unlimited_ocr", "UnlimitedOcrProcessor",
                              "UnlimitedOcrImageProcessor", patch_size=16, downsample_ratio=4),
     {}, {}),
    ("minicpmv4_6", {}, own("minicpmv4_6", "MiniCPMV4_6Processor", "MiniCPMV4_6ImageProcessor",
                            slice_mode=True), {}, {"image_token_divisor": 16}),
    ("aria", {}, own("aria", "AriaProcessor", "AriaImageProcessor",
                     size_conversion={490: 128, 980: 256}), {}, {}),
    ("inkling_mm_model", {}, own("inkling", "InklingProcessor", "InklingImageProcessor"), {}, {}),
    ("inkling2", {}, own("inkling2", "Inkling2Processor", "Inkling2ImageProcessor"), {}, {}),
    ("emu3", {}, own("emu3", "Emu3Processor", "Emu3ImageProcessor", downsample_ratio=8), {}, {}),
    ("apertus1p5", {}, own("apertus1p5", "Apertus1p5Processor", "Apertus1p5ImageProcessor"),
     {}, {}),
    ("deepseek_vl", {}, own("deepseek_vl", "DeepseekVLProcessor", "DeepseekVLImageProcessor",
                            num_image_tokens=576), {}, {}),
    ("janus", {}, own("janus", "JanusProcessor", "JanusImageProcessor", num_image_tokens=576),
     {}, {}),
    ("chameleon", {}, own("chameleon", "ChameleonProcessor", "ChameleonImageProcessor",
                          image_seq_length=1024), {}, {}),
]  # fmt: skip


def fuyu() -> list[dict[str, Any]]:
    """Fuyu's Processor crops the padded canvas itself, so its whole image step is run."""
    import numpy as np

    out = []
    for width, height in SIZES:
        made = grid_case(
            "fuyu", "FuyuProcessor", "fuyu.image_processing_fuyu", "FuyuImageProcessor"
        )
        picture = np.zeros((height, width, 3), dtype=np.uint8)
        found = attempt(
            f"fuyu {width}x{height}", made._process_images, [[picture]], return_tensors="pt"
        )
        if found is not None:
            out.append(record("fuyu", {}, count(found[1][0]), images=[[width, height]]))
    return out


def images() -> list[dict[str, Any]]:
    out = []
    for kind, config, (path, name, module, image, numbers), kwargs, extra in IMAGES:
        for size in SIZES:
            made = grid_case(path, name, module, image, **numbers)
            total = attempt(f"{kind} {size}", image_count, made, kwargs, size, **extra)
            if kind.startswith("minicpm") and total is not None:
                total += 2  # around the image's number, which the Processor puts in front
            if total is not None:
                out.append(record(kind, config, total, images=[list(size)]))
    return out + fuyu()


V3 = {"size": {"shortest_edge": 4096, "longest_edge": 25165824}}
VIDEO_CASES: list[tuple[str, str, str, str, str, dict[str, Any], dict[str, Any]]] = [
    ("qwen2_vl", "qwen2_vl", "Qwen2VLProcessor", "qwen2_vl", "Qwen2VLVideoProcessor",
     {"size": {"shortest_edge": 3136, "longest_edge": 12845056}}, {}),
    ("qwen2_5_omni", "qwen2_5_omni", "Qwen2_5OmniProcessor", "qwen2_vl", "Qwen2VLVideoProcessor",
     {}, {}),
    ("qwen3_vl", "qwen3_vl", "Qwen3VLProcessor", "qwen3_vl", "Qwen3VLVideoProcessor", V3, {}),
    ("qwen3_omni_moe", "qwen3_omni_moe", "Qwen3OmniMoeProcessor", "qwen2_vl",
     "Qwen2VLVideoProcessor",
     {"patch_size": 16, "size": {"shortest_edge": 131072, "longest_edge": 786432}}, {}),
    ("glm4v", "glm4v", "Glm4vProcessor", "glm4v", "Glm4vVideoProcessor", {}, {}),
    ("glm46v", "glm46v", "Glm46VProcessor", "glm46v", "Glm46VVideoProcessor", {}, {}),
    ("glm5_next", "glm5_next", "Glm5NextProcessor", "glm5_next", "Glm5NextVideoProcessor", {},
     {}),
    ("cohere_compass", "cohere_compass", "CohereCompassProcessor", "cohere_compass",
     "CohereCompassVideoProcessor", {}, {}),
    ("cosmos3_edge", "cosmos3_edge", "Cosmos3EdgeProcessor", "cosmos3_edge",
     "Cosmos3EdgeVideoProcessor", {}, {}),
    ("lfm3_vl", "lfm3_vl", "Lfm3VlProcessor", "qwen3_vl", "Qwen3VLVideoProcessor", {}, {}),
    ("exaone4_5", "exaone4_5", "Exaone4_5_Processor", "qwen2_vl", "Qwen2VLVideoProcessor", {},
     {}),
    ("hyperclovax_vision_v2", "hyperclovax_vision_v2", "HyperCLOVAXVisionV2Processor", "qwen2_vl",
     "Qwen2VLVideoProcessor", {}, {}),
    ("muse_glimmer", "muse_glimmer", "MuseGlimmerProcessor", "muse_glimmer",
     "MuseGlimmerVideoProcessor", {}, {}),
    ("muse_spark", "muse_spark", "MuseSparkProcessor", "muse_glimmer",
     "MuseGlimmerVideoProcessor", {}, {}),
    ("perception_lm", "perception_lm", "PerceptionLMProcessor", "perception_lm",
     "PerceptionLMVideoProcessor", {"size": {"height": 448, "width": 448}},
     {"patch_size": 14, "pooling_ratio": 2}),
    ("ernie4_5_vl_moe", "ernie4_5_vl_moe", "Ernie4_5_VLMoeProcessor", "ernie4_5_vl_moe",
     "Ernie4_5_VLMoeVideoProcessor", {"draw_on_frames": False}, {}),
    ("kimi_k25", "kimi_k25", "Kimi_K25Processor", "kimi_k25", "Kimi_K25VideoProcessor", {}, {}),
    ("internvl", "internvl", "InternVLProcessor", "internvl", "InternVLVideoProcessor", {},
     {"image_seq_length": 256}),
    ("gemma4", "gemma4", "Gemma4Processor", "gemma4", "Gemma4VideoProcessor", {}, {}),
    ("molmo2", "molmo2", "Molmo2Processor", "molmo2", "Molmo2VideoProcessor", {},
     {"use_frame_special_tokens": True, "video_use_col_tokens": False}),
    ("llava_onevision", "llava_onevision", "LlavaOnevisionProcessor", "llava_onevision",
     "LlavaOnevisionVideoProcessor", {}, {"num_image_tokens": 729}),
    ("llava_next_video", "llava_next_video", "LlavaNextVideoProcessor", "llava_next_video",
     "LlavaNextVideoVideoProcessor",
     {"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}},
     {"patch_size": 14}),
    ("video_llava", "video_llava", "VideoLlavaProcessor", "video_llava",
     "VideoLlavaVideoProcessor", {}, {"patch_size": 14, "num_additional_image_tokens": 1}),
]  # fmt: skip


def videos() -> list[dict[str, Any]]:
    out = []
    for kind, path, name, folder, video, own_kwargs, numbers in VIDEO_CASES:
        for size in VIDEOS:
            made = processor(path, name, **numbers)
            maker = load(f"{folder}.video_processing_{folder}", video)
            object.__setattr__(made, "video_processor", maker(**own_kwargs))
            total = attempt(f"{kind} {size}", video_count, made, size, {})
            if total is not None:
                frames, *sides = size
                out.append(record(kind, {}, total, video_frames=frames, frame_size=sides))
    return out
