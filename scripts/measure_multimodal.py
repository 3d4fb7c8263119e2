"""Measure what media occupy with the processors of the installed transformers.

Every case builds a real image, video or audio processor (no download), runs it on blank media
and counts the special tokens of the replacement that the model's Processor writes. Words, digits
and timestamps are left out: they depend on the tokenizer. Encoder lengths come from tiny models.

    python scripts/measure_multimodal.py tests/ground_truth/multimodal.json

needs torch, transformers and pillow. Without torchvision a stand-in with the few functions that
processors call is written to a temporary folder first.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

STAND_IN = """
import enum, torch
class InterpolationMode(enum.Enum):
    NEAREST = "nearest"; NEAREST_EXACT = "nearest-exact"; BILINEAR = "bilinear"
    BICUBIC = "bicubic"; BOX = "box"; HAMMING = "hamming"; LANCZOS = "lanczos"
def resize(image, size, interpolation=None, antialias=None, **kw):
    size = list(size) if isinstance(size, (list, tuple)) else [size, size]
    return torch.zeros(*image.shape[:-2], int(size[0]), int(size[1]), dtype=image.dtype)
def pad(image, padding, fill=0, padding_mode="constant", **kw):
    if isinstance(fill, (list, tuple)): fill = fill[0]
    p = list(padding) if isinstance(padding, (list, tuple)) else [padding] * 4
    p = p * 2 if len(p) == 2 else p
    return torch.nn.functional.pad(image, (p[0], p[2], p[1], p[3]), value=fill)
def crop(image, top, left, height, width): return image[..., top:top+height, left:left+width]
def center_crop(image, size):
    h, w = size; t, l = (image.shape[-2]-h)//2, (image.shape[-1]-w)//2
    return image[..., t:t+h, l:l+w]
def normalize(image, mean, std, inplace=False): return image
def to_dtype(image, dtype=torch.float32, scale=False): return image.to(dtype)
def grayscale_to_rgb(image): return image
def pil_to_tensor(image):
    import numpy as np
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)
to_tensor = to_pil_image = pil_to_tensor
"""


def install_stand_in() -> None:
    """A torchvision with what processors call: sizes are right, pixels are zero."""
    try:
        import torchvision  # noqa: F401
    except ImportError:
        folder = Path(tempfile.mkdtemp()) / "torchvision"
        for part in ("", "transforms", "transforms/v2", "io"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        (folder / "__init__.py").write_text("__version__ = '0.99.0'\n")
        (folder / "io" / "__init__.py").write_text("")
        (folder / "transforms" / "functional.py").write_text(STAND_IN)
        init = "from .functional import InterpolationMode\n"
        (folder / "transforms" / "__init__.py").write_text(init)
        (folder / "transforms" / "v2" / "__init__.py").write_text("from . import functional\n")
        (folder / "transforms" / "v2" / "functional.py").write_text(STAND_IN)
        sys.path.insert(0, str(folder.parent))


MARK = "\ue001"
SIZES = ((1024, 768), (336, 336), (64, 48), (1920, 1080), (480, 2000), (3000, 2900), (500, 333))
VIDEOS = ((16, 640, 480), (7, 1280, 720), (64, 224, 224))
SECONDS = (0.5, 7.31, 30.0, 45.25)


def count(text: str) -> int:
    """Special tokens and line breaks (a double one is one token) of a replacement."""
    text = re.sub(r"<\d+\.\d seconds>", "", text)  # a timestamp, in spite of its brackets
    text = re.sub(r"TILE_GLOBAL|TILE_\d+|TILE|<[^<>\n]*>|\]<\][^\[]*?\[>\[", MARK, text)
    return len(re.sub(r"[^\ue001\n]", "", text.replace("\n\n", "\n")))


def load(module: str, name: str) -> Any:
    return getattr(importlib.import_module(f"transformers.models.{module}"), name)


def processor(path: str, name: str, **numbers: Any) -> Any:
    """A Processor without tokenizer: every *_token is one mark, numbers are given."""
    base = load(f"{path}.processing_{path}", name)

    def missing(self: Any, attribute: str) -> Any:
        if attribute.endswith(("_token", "_tag", "_image")):
            return MARK
        raise AttributeError(attribute)

    made = object.__new__(type(name, (base,), {"__getattr__": missing}))
    for key, value in numbers.items():
        object.__setattr__(made, key, value)
    return made


def image_count(made: Any, kwargs: dict[str, Any], size: tuple[int, int], **extra: Any) -> int:
    import numpy as np

    width, height = size
    picture = np.zeros((height, width, 3), dtype=np.uint8)
    inputs = made.image_processor(images=[picture], return_tensors="pt", **kwargs)
    return count(made.replace_image_token(inputs, image_idx=0, **extra))


def video_count(made: Any, size: tuple[int, int, int], kwargs: dict[str, Any]) -> int:
    import numpy as np
    from transformers.video_utils import VideoMetadata

    frames, width, height = size
    clip = np.zeros((frames, height, width, 3), dtype=np.uint8)
    meta = VideoMetadata(
        total_num_frames=frames, fps=2.0, width=width, height=height, duration=frames / 2,
        frames_indices=list(range(frames)),
    )  # fmt: skip
    inputs = made.video_processor(
        videos=[clip], video_metadata=[meta], return_metadata=True, do_sample_frames=False,
        return_tensors="pt", **kwargs,
    )  # fmt: skip
    if "video_metadata" not in inputs:
        inputs["video_metadata"] = [meta]
    extra = {"load_audio_from_video": False}
    return count(made.replace_video_token(inputs, video_idx=0, **extra))


def audio_count(made: Any, seconds: float, rate: int, **kwargs: Any) -> int:
    import numpy as np

    clip = np.zeros(round(seconds * rate), dtype=np.float32)
    _, replacements = made._process_audio([clip], **kwargs)
    return count(replacements[0])


def grid_case(path: str, name: str, module: str, image: str, **numbers: Any) -> Any:
    """A Processor around one image processor; `numbers` starting with ip_ go to the latter."""
    own = {k[3:]: v for k, v in numbers.items() if k.startswith("ip_")}
    rest = {k: v for k, v in numbers.items() if not k.startswith("ip_")}
    made = processor(path, name, **rest)
    object.__setattr__(made, "image_processor", load(module, image)(**own))
    return made


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


def audios() -> list[dict[str, Any]]:
    from transformers import WhisperFeatureExtractor as Whisper

    whisper = {"sampling_rate": 16000, "return_attention_mask": True, "return_tensors": "pt"}
    cases: list[tuple[str, str, str, Any, int, dict[str, Any], dict[str, Any]]] = [
        ("qwen2_audio", "qwen2_audio", "Qwen2AudioProcessor", Whisper(feature_size=128), 16000,
         whisper, {}),
        ("qwen2_5_omni", "qwen2_5_omni", "Qwen2_5OmniProcessor",
         Whisper(feature_size=128, chunk_length=300), 16000, whisper, {}),
        ("qwen3_omni_moe", "qwen3_omni_moe", "Qwen3OmniMoeProcessor", Whisper(feature_size=128),
         16000, {**whisper, "padding": True, "truncation": False}, {}),
        ("qwen3_asr", "qwen3_asr", "Qwen3ASRProcessor", Whisper(feature_size=128), 16000,
         {**whisper, "padding": True, "truncation": False}, {}),
        ("audioflamingo3", "audioflamingo3", "AudioFlamingo3Processor", Whisper(feature_size=128),
         16000, whisper, {"max_audio_len": 600}),
        ("musicflamingo", "musicflamingo", "MusicFlamingoProcessor", Whisper(feature_size=128),
         16000, whisper, {"max_audio_len": 1200}),
        ("glmasr", "glmasr", "GlmAsrProcessor", Whisper(feature_size=128), 16000, whisper,
         {"max_audio_len": 655}),
        ("gemma4_unified", "gemma4_unified", "Gemma4UnifiedProcessor",
         load("gemma4_unified.feature_extraction_gemma4_unified",
              "Gemma4UnifiedAudioFeatureExtractor")(), 16000, {}, {}),
        ("gemma4", "gemma4", "Gemma4Processor",
         load("gemma4.feature_extraction_gemma4", "Gemma4AudioFeatureExtractor")(), 16000,
         {}, {}),
        ("dots3_note", "dots3_note", "Dots3NoteProcessor",
         load("dots3_note.feature_extraction_dots3_note", "Dots3NoteFeatureExtractor")(), 16000,
         {}, {}),
        ("muse_spark", "muse_spark", "MuseSparkProcessor",
         load("muse_spark.feature_extraction_muse_spark", "MuseSparkFeatureExtractor")(), 24000,
         {"return_tensors": "pt"}, {}),
        ("phi4_multimodal", "phi4_multimodal", "Phi4MultimodalProcessor",
         load("phi4_multimodal.feature_extraction_phi4_multimodal",
              "Phi4MultimodalFeatureExtractor")(), 16000, {"return_tensors": "pt"}, {}),
        ("omniasr", "omniasr", "OmniASRProcessor",
         load("omniasr.feature_extraction_omniasr", "OmniASRFeatureExtractor")(), 16000,
         {"return_tensors": "pt"},
         {"conv_kernel": [10, 3, 3, 3, 3, 2, 2], "conv_stride": [5, 2, 2, 2, 2, 2, 2]}),
        ("moss_transcribe_diarize", "moss_transcribe_diarize", "MossTranscribeDiarizeProcessor",
         load("moss_transcribe_diarize.feature_extraction_moss_transcribe_diarize",
              "MossTranscribeDiarizeFeatureExtractor")(), 16000, {"return_tensors": "pt"},
         {"audio_merge_size": 4, "audio_tokens_per_second": 12.5,
          "time_marker_every_seconds": 2}),
        ("vibevoice_asr", "vibevoice_asr", "VibeVoiceAsrProcessor",
         load("vibevoice_acoustic_tokenizer.feature_extraction_vibevoice_acoustic_tokenizer",
              "VibeVoiceAcousticTokenizerFeatureExtractor")(), 24000,
         {"sampling_rate": 24000, "pad_to_multiple_of": 3200, "return_tensors": "pt"}, {}),
    ]  # fmt: skip
    out = []
    for kind, path, name, extractor, rate, kwargs, numbers in cases:
        for seconds in SECONDS:
            made = processor(path, name, **numbers)
            object.__setattr__(made, "feature_extractor", extractor)
            object.__setattr__(made, "audio_processor", extractor)
            total = attempt(f"{kind} {seconds}", audio_count, made, seconds, rate, **kwargs)
            if total is not None:
                out.append(record(kind, {}, total, audio_seconds=seconds))
    return out + nemotron_and_granite()


def nemotron_and_granite() -> list[dict[str, Any]]:
    """Two processors whose count needs no features: their own estimate is called."""
    made = processor("nemotron_h_omni", "NemotronH_Omni_Reasoning_V3Processor",
                     audio_hop_length=160, audio_subsampling_factor=8)  # fmt: skip
    extractor = load("granite_speech.feature_extraction_granite_speech",
                     "GraniteSpeechFeatureExtractor")  # fmt: skip
    bare = object.__new__(extractor)
    bare.melspec_kwargs = {"hop_length": 160}
    bare.projector_window_size, bare.projector_downsample_rate = 15, 5
    out = []
    for seconds in SECONDS:
        samples = round(seconds * 16000)
        total = made._estimate_audio_num_embeddings(samples) + 2
        out.append(record("nemotron_h_omni", {}, total, audio_seconds=seconds))
        total = bare._get_num_audio_features([samples])[0]
        config = {"window_size": 15, "downsample_rate": 5}
        out.append(record("granite_speech", config, total, audio_seconds=seconds))
    return out


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


def slots(kind: str, config: dict[str, Any], length: int, seconds: float) -> dict[str, Any]:
    return {"model_type": kind, "config": config, "audio_seconds": seconds, "slots": int(length)}


def record(kind: str, config: dict[str, Any], total: int, **media: Any) -> dict[str, Any]:
    return {"model_type": kind, "config": config, **media, "total": int(total)}


def attempt(what: str, call: Any, *args: Any, **kwargs: Any) -> Any:
    """The count, or None with a line on standard error: some cases refuse some sizes."""
    try:
        return call(*args, **kwargs)
    except Exception as error:
        print(f"{what}: {type(error).__name__}: {error}"[:200], file=sys.stderr)
        return None


def main() -> None:
    install_stand_in()
    warnings.filterwarnings("ignore")
    import transformers

    transformers.utils.logging.set_verbosity_error()
    parts = {
        "images": images,
        "videos": videos,
        "audios": audios,
        "encoders": encoders,
        "features": features,
    }
    chosen = sys.argv[2:] or list(parts)
    records = [found for name in chosen for found in parts[name]()]
    lines = ",\n".join(json.dumps(entry, separators=(",", ":")) for entry in records)
    head = json.dumps(f"transformers {transformers.__version__}")
    text = f'{{"measured_with": {head},\n"records": [\n{lines}\n]}}\n'
    Path(sys.argv[1]).write_text(text, encoding="utf-8")
    print(f"{len(records)} records", file=sys.stderr)


if __name__ == "__main__":
    main()
